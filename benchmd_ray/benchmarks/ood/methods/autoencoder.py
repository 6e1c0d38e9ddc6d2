"""Autoencoders of small pictures of signals: how badly they reconstruct, and how far codes are.

A plain one is trained and scored by the reconstruction's error, a variational one by that and the
divergence of its code from a normal one. The error is squared, or of images the cross-entropy.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.benchmarks.ood.methods.formulas import drawn
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State
from benchmd_ray.benchmarks.ood.methods.neighbours import MOST_PICTURES, nearest

CHANNELS, CODE = (16, 32, 64), 64
"""Channels after each halving, and numbers of a code."""
STEPS, BATCH, RATE = 400, 64, 1e-3
"""Of the training, by Adam."""
BLOCK = 256
Pictures = npt.NDArray[np.float32]
PREFIX = "weights/"


@dataclass(frozen=True)
class AutoencoderKind:
    name: str
    title: str
    source: str
    variational: bool = False
    crossed: bool = False
    """Whether its error is the cross-entropy."""


def halving(channels: int, axes: int) -> nn.ModuleList:
    """Convolutions that halve a picture of so many axes, one for each of `CHANNELS`."""
    kind: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
    pairs = pairwise((channels, *CHANNELS))
    return nn.ModuleList(kind(a, b, 3, stride=2, padding=1) for a, b in pairs)


def halved(extents: Sequence[int]) -> list[tuple[int, ...]]:
    """Extents of a picture and after each halving."""
    sizes = [tuple(extents)]
    for _ in CHANNELS:
        sizes.append(tuple(-(-extent // 2) for extent in sizes[-1]))
    return sizes


def narrowed(layers: nn.ModuleList, pictures: torch.Tensor) -> torch.Tensor:
    """Pictures after `halving`: (records, values)."""
    x = pictures
    for layer in layers:
        x = functional.elu(layer(x))
    return x.flatten(1)


class Autoencoder(nn.Module):
    """Convolutions that halve a picture three times, a code, and the way back."""

    def __init__(self, shape: tuple[int, ...], *, variational: bool, crossed: bool = False) -> None:
        super().__init__()
        channels, *extents = shape
        kind: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(extents)]
        self.extents = halved(extents)
        self.down = halving(channels, len(extents))
        pairs = list(pairwise((channels, *CHANNELS)))
        self.up = nn.ModuleList(kind(b, a, 3, padding=1) for a, b in reversed(pairs))
        self.least = (CHANNELS[-1], *self.extents[-1])
        self.variational, self.crossed = variational, crossed
        self.encode = nn.Linear(prod(self.least), CODE * (2 if variational else 1))
        self.decode = nn.Linear(CODE, prod(self.least))

    def codes(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Means of codes and, of a variational one, log-variances: (records, `CODE`) each."""
        encoded = self.encode(narrowed(self.down, pictures))
        return encoded[:, :CODE], encoded[:, CODE:]

    def losses(self, pictures: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """(records,): what it is trained by, with noise, and scored by, without."""
        mean, log_variance = self.codes(pictures)
        code = mean
        if self.variational and noise is not None:
            code = mean + noise * (log_variance / 2).exp()
        x = self.decode(code).reshape(len(code), *self.least)
        for number, layer in enumerate(self.up):
            extents = self.extents[len(CHANNELS) - 1 - number]
            x = layer(functional.interpolate(x, size=extents, mode="nearest"))
            x = functional.elu(x) if number < len(CHANNELS) - 1 else x
        error: torch.Tensor = (
            functional.binary_cross_entropy_with_logits(x, pictures, reduction="none")
            if self.crossed
            else (x - pictures) ** 2
        )
        error = error.flatten(1).mean(dim=1)
        if not self.variational:
            return error
        divergence = (mean**2 + log_variance.exp() - log_variance - 1).sum(dim=1) / 2
        return error + divergence / prod(pictures.shape[1:])


def fit(bank: Bank, *, kind: AutoencoderKind, codes: bool = False, steps: int = STEPS) -> State:
    """Weights, what standardises pictures, and for distances the codes of some records."""
    pictures = bank.seen.more["pixels"]
    state = _trained(pictures, kind, steps)
    if codes:
        rows = drawn(len(pictures), MOST_PICTURES)
        state = state | {"codes": codes_of(state, pictures[rows], kind)}
    return state


_TRAINED: dict[tuple[str, str, int], State] = {}
"""Of the last pictures: three detectors share one network."""


def _trained(pictures: Pictures, kind: AutoencoderKind, steps: int) -> State:
    digest = hashlib.sha256(np.ascontiguousarray(pictures).tobytes()).hexdigest()
    key = (digest, kind.name, steps)
    if key not in _TRAINED:
        if len(_TRAINED) >= len(KINDS):
            _TRAINED.clear()
        start = time.perf_counter()
        _TRAINED[key] = _train(pictures, kind, steps)
        _SECONDS[kind.name] = time.perf_counter() - start
    return dict(_TRAINED[key])


_SECONDS: dict[str, float] = {}


def _shared(_: Bank, *, kind: AutoencoderKind) -> float:
    return _SECONDS.get(kind.name, 0.0)


def _train(pictures: Pictures, kind: AutoencoderKind, steps: int) -> State:
    if kind.crossed:
        centre, spread = float(pictures.min()), float(np.ptp(pictures)) or 1.0
    else:
        centre, spread = float(pictures.mean()), float(pictures.std()) or 1.0
    state: State = {"centre": np.array(centre), "spread": np.array(spread)}
    inputs, order = _given(state, pictures, kind), np.random.default_rng(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = _network_of(pictures, kind)
        optimiser = torch.optim.Adam(network.parameters(), RATE)
        for _ in range(steps):
            batch = inputs[order.integers(0, len(inputs), min(BATCH, len(inputs)))]
            loss = network.losses(batch, torch.randn(len(batch), CODE)).mean()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    return state | weights_of(network)


def weights_of(network: nn.Module, prefix: str = PREFIX) -> State:
    """A copy of the weights of a network, as a state has them."""
    return {prefix + name: value.numpy().copy() for name, value in network.state_dict().items()}


def with_weights(network: nn.Module, state: State, prefix: str = PREFIX) -> None:
    """Give a network the weights of a state."""
    network.load_state_dict(
        {
            name.removeprefix(prefix): torch.from_numpy(np.array(value))
            for name, value in state.items()
            if name.startswith(prefix)
        }
    )


def in_blocks(work: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> Pictures:
    """Outputs without gradients, `BLOCK` records at a time."""
    with torch.no_grad():
        parts = [work(part) for part in torch.split(inputs, BLOCK)]
    return np.asarray(torch.cat(parts).numpy())


def _network_of(pictures: Pictures, kind: AutoencoderKind) -> Autoencoder:
    shape = tuple(pictures.shape[1:])
    return Autoencoder(shape, variational=kind.variational, crossed=kind.crossed)


def _given(state: State, pictures: Pictures, kind: AutoencoderKind) -> torch.Tensor:
    standardised = (pictures - float(state["centre"])) / float(state["spread"])
    return torch.from_numpy(standardised.clip(0, 1) if kind.crossed else standardised).float()


def _network(
    state: State, pictures: Pictures, kind: AutoencoderKind
) -> tuple[Autoencoder, torch.Tensor]:
    network = _network_of(pictures, kind)
    with_weights(network, state)
    return network, _given(state, pictures, kind)


def codes_of(state: State, pictures: Pictures, kind: AutoencoderKind) -> npt.NDArray[np.float32]:
    """(records, `CODE`)."""
    network, inputs = _network(state, pictures, kind)
    return np.asarray(in_blocks(lambda part: network.codes(part)[0], inputs), np.float32)


def score(state: State, seen: Seen, head: Head, *, kind: AutoencoderKind) -> Floats:
    """(records,)."""
    network, inputs = _network(state, seen.more["pixels"], kind)
    return np.asarray(in_blocks(network.losses, inputs), np.float64)


def _distance(state: State, seen: Seen, head: Head, *, kind: AutoencoderKind, k: int) -> Floats:
    return nearest(state["codes"], codes_of(state, seen.more["pixels"], kind), k)[:, -1]


KINDS = (
    AutoencoderKind("autoencoder", "autoencoder", "Shafaei et al., BMVC 2019"),
    AutoencoderKind("vae", "VAE", "Kingma and Welling, ICLR 2014", variational=True),
    AutoencoderKind(
        "autoencoder-bce", "autoencoder, BCE", "Shafaei et al., BMVC 2019", crossed=True
    ),
    AutoencoderKind(
        "vae-bce", "VAE, BCE", "Kingma and Welling, ICLR 2014", variational=True, crossed=True
    ),
)
METHODS = (
    *(
        Detector(
            kind.name,
            kind.title,
            partial(fit, kind=kind),
            partial(score, kind=kind),
            kind.source,
            images_only=kind.crossed,
            shared=partial(_shared, kind=kind),
            needs=("pixels",),
        )
        for kind in KINDS
    ),
    *(
        Detector(
            f"{kind.name}-knn-{k}",
            f"{kind.title} KNN-{k}",
            partial(fit, kind=kind, codes=True),
            partial(_distance, kind=kind, k=k),
            "Cao et al., arXiv 2007.04250",
            images_only=kind.crossed,
            shared=partial(_shared, kind=kind),
            needs=("pixels",),
        )
        for kind in KINDS
        for k in (1, 8)
    ),
)
