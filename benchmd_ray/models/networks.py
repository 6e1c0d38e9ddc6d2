"""Names of the networks, their tasks and their sources; needs no PyTorch."""

from __future__ import annotations

from typing import Any

from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.plugins import plugin_source
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.schema.ranges import ranges_of
from benchmd_ray.settings.definition import EncoderSettings

NETWORK = "transformer"
TRANSFORMERS = "transformers"
PUBLISHED = "published"
"""Network of a published encoder, which a card describes (`models.encoder_cards`)."""
RANDOM_KERNELS = "random-kernels"
"""The network, and the technique that draws and fits it."""
KIND = "encoder network"
"""Kind of networks in `extensions.plugins.GROUPS`."""
PART_OF: dict[str, str] = {
    NETWORK: "transformer",
    **{
        f"resnet{layers}{suffix}": "resnet"
        for layers in (18, 50)
        for suffix in ("", "-2.5d", "-3d", "-acs", "-1d")
    },
    "xresnet1d101": "xresnet",
    "monai-densenet121": "monai",
    "monai-efficientnet-b0": "monai",
    "monai-seresnet50": "monai",
    TRANSFORMERS: "transformers",
    PUBLISHED: "published",
    RANDOM_KERNELS: "random kernels",
    "monai-unet": "segmentation",
    "monai-segresnet": "segmentation",
    "monai-unetr": "segmentation",
    "monai-swinunetr": "segmentation",
}
"""The part (`parts.PARTS`) of each network that is built in (`encoder.NETWORKS`)."""
_DIMENSIONS = {"": "", "-1d": "", "-2.5d": " 2.5-D", "-3d": " 3-D", "-acs": " ACS"}
TITLES = {
    "xresnet1d101": "xResNet1d-101",
    "monai-densenet121": "DenseNet-121",
    "monai-efficientnet-b0": "EfficientNet-B0",
    "monai-seresnet50": "SE-ResNet-50",
    "monai-unet": "U-Net",
    "monai-segresnet": "SegResNet",
    "monai-unetr": "UNETR",
    "monai-swinunetr": "Swin UNETR",
    RANDOM_KERNELS: "random kernels",
    PUBLISHED: "of its card",
    **{
        f"resnet{layers}{suffix}": f"ResNet-{layers}{title}"
        for layers in (18, 50)
        for suffix, title in _DIMENSIONS.items()
    },
}
"""Networks in words; others are called by their name."""
SEGMENTING = tuple(name for name, part in PART_OF.items() if part == "segmentation")
"""Networks that return maps instead of features."""


def taken_signal(signal: Signal, size: EncoderSettings) -> Signal:
    """The signal as an encoder takes it: a published one in its unit, any other normalised."""
    return signal.in_unit if size.network == PUBLISHED else signal


def require_ranges(options: Any) -> None:
    """Refuse ``encoder.options`` outside the ranges that their fields state."""
    for name, within in ranges_of(options.__class__).items():
        if not within.holds(value := getattr(options, name)):
            raise BenchmdError(f"setting encoder.options.{name} is {value}, expected {within}.")


def network_part(name: str) -> str:
    """Code part of a network; a custom one may inherit from our transformer."""
    return PART_OF.get(name, NETWORK)


def require_task(task: Task, size: EncoderSettings) -> None:
    """Refuse a segmentation network for classification, and any other network for segmentation."""
    segments = size.network in SEGMENTING
    if task.segments and not segments:
        raise BenchmdError(
            f"encoder.network is {size.network}, which does not segment, and the task is a "
            f"segmentation: choose {', '.join(SEGMENTING)}, such as with "
            "--set encoder.network=monai-unet."
        )
    if segments and not task.segments:
        raise BenchmdError(
            f"encoder.network is {size.network}, which segments, and the task is {task.kind}: "
            "choose a network that gives features, such as encoder.network=resnet18-3d."
        )


def network_source(size: EncoderSettings) -> str | None:
    """SHA-256 of the source of a custom network; None for built-in ones."""
    return None if size.network in PART_OF else plugin_source(KIND, size.network, PART_OF)
