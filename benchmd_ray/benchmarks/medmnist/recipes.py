"""The recipe of MedMNIST's baselines."""

from __future__ import annotations

from functools import reduce
from typing import Any

from benchmd_ray.data.medmnist_cards import IMAGE_GROUPS
from benchmd_ray.errors import unknown_name
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.settings.definition import ENCODERS, Settings, updated

BASELINES = tuple(
    f"resnet{layers}{kind}" for kind in ("", "-2.5d", "-3d", "-acs") for layers in (18, 50)
)
"""Networks of MedMNIST's baselines, for images and for volumes."""
SIZES = (28, 64, 128, 224)
"""Extents in pixels that images of a baseline may be resized to."""
SHAPES = ("adrenalmnist3d", "vesselmnist3d")
"""Datasets of MedMNIST whose volumes are binary shapes."""


def baseline_settings(modality: Modality, name: str) -> Settings:
    """Settings of one of `BASELINES`, or of one with the pixels that images are resized to.

    ``resnet18-224``, for example; images of that extent stay as they are.
    """
    network, _, size = name.rpartition("-")
    if not size.isdecimal():
        network, size = name, "0"
    signal = modality.signal
    images, extent = len(signal.axes) == 3, signal.input_shape[-1]
    if network not in BASELINES or int(size) not in (0, extent, *(SIZES if images else ())):
        sized = (f"{network}-{size}" for network in BASELINES[:2] for size in SIZES if images)
        raise unknown_name("baseline of MedMNIST", name, (*BASELINES, *sized))
    return medmnist_settings(modality, network, 0 if int(size) == extent else int(size))


def medmnist_settings(modality: Modality, network: str, resize: int = 0) -> Settings:
    """The recipe of MedMNIST's baselines, for a run from random weights.

    Adam with a learning rate of 0.001 that drops to a tenth after 50 and again after 75 of 100
    epochs, in batches of 128 images or 32 volumes; the shape datasets with their augmentation.
    Images are resized to ``resize`` pixels, 224 in the paper; 0 keeps them. Source: Yang et al.,
    MedMNIST v2 (https://arxiv.org/abs/2110.14795), "Baseline Methods", and the code released with
    it. The best epoch by validation AUROC is kept, as in every transfer.
    """
    volumes = len(modality.signal.axes) == 4
    encoder = {"network": network, "options": {"resize": resize} if resize else {}}
    optimiser = {"lr": 1e-3, "weight_decay": 0.0, "schedule": "steps"}
    transfer = {
        "mode": "finetune",
        "labels": "full",
        "epochs": 100,
        "batch_size": 32 if volumes else 128,
        "optimiser": optimiser,
        "augmentation": {"shape": modality.signal.name.partition("-")[0] in SHAPES},
    }
    return updated(Settings(), {"encoder": encoder, "transfer": transfer})


def variants(modality: Modality) -> tuple[str, ...]:
    """Names of the baselines that `baseline_settings` takes for a modality."""
    images = len(modality.signal.axes) == 3
    networks = BASELINES[:2] if images else BASELINES
    return (*networks, *(f"{name}-{size}" for name in networks for size in SIZES if images))


def start_settings(modality: Modality, technique: str, variant: str) -> Settings:
    """The baseline of that name; the usual one is resnet18, of volumes resnet18-3d."""
    usual = "resnet18" if len(modality.signal.axes) == 3 else "resnet18-3d"
    return baseline_settings(modality, variant or usual)


def like(modality: Modality, technique: str, settings: Settings) -> Settings | None:
    """The recipe for the network and image size of a run on a dataset of MedMNIST."""
    encoder = settings.encoder
    if modality.name not in IMAGE_GROUPS or encoder.network not in BASELINES:
        return None
    if technique != "scratch":
        return None
    return medmnist_settings(modality, encoder.network, int(encoder.options.get("resize", 0)))


SMALL: dict[int, dict[str, Any]] = {
    3: {"encoder": {"options": {"width": 16}}, "transfer": {"epochs": 20}},
    4: {"encoder": {"options": {"width": 8, "resize": 14}}, "transfer": {"epochs": 10}},
}
"""What makes a baseline small enough for minutes on two cores, by the axes of its signals."""
SMALL_TRANSFORMER = {
    name: getattr(ENCODERS["small"], name) for name in ("width", "depth", "heads", "mlp")
}
"""The same for the transformer that is searched next to it."""


def reductions(modality: Modality) -> tuple[dict[str, Any], ...]:
    """The changes that make networks of a modality small."""
    return {"encoder": SMALL_TRANSFORMER}, SMALL[len(modality.signal.axes)]


def small_settings(modality: Modality, technique: str, variant: str) -> Settings:
    """The usual baseline made small."""
    return _reduced(modality, start_settings(modality, technique, ""))


def like_small(modality: Modality, technique: str, settings: Settings) -> Settings | None:
    """The small recipe for the network and image size of a run on a dataset of MedMNIST."""
    protocol = like(modality, technique, settings)
    return None if protocol is None else _reduced(modality, protocol)


def _reduced(modality: Modality, settings: Settings) -> Settings:
    return reduce(updated, reductions(modality), settings)
