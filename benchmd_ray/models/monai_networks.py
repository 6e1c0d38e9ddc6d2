"""Networks of MONAI for signals over time, images and volumes, with random weights.

* ``monai-densenet121``: Huang et al. (https://arxiv.org/abs/1608.06993).
* ``monai-efficientnet-b0``: Tan and Le (https://arxiv.org/abs/1905.11946), with MONAI's dropout of
  features and stochastic depth, 0.2 each.
* ``monai-seresnet50``: Hu et al. (https://arxiv.org/abs/1709.01507).

All halve a signal five times. DenseNet and EfficientNet cannot do so with 28 pixels, as their last
maps would be empty. SE-ResNet rounds up and needs only 3 pixels. ``encoder.options.resize`` first
enlarges images and volumes, to 224 in MedMNIST's baselines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.extras import importing
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.networks import require_ranges
from benchmd_ray.models.resnet import places_after, refuse_resizing, replace_norms
from benchmd_ray.schema.ranges import ShareBelow1, Within
from benchmd_ray.settings.definition import EncoderSettings, updated


@dataclass(frozen=True)
class MonaiOptions:
    """Options read from ``encoder.options``; these networks use no other encoder settings."""

    resize: Annotated[int, Within(0, 2**12)] = 0
    """Extent in pixels to which all axes of images and volumes are resized, by nearest neighbour;
    0: no resizing, as always for signals over time.
    """
    dropout: ShareBelow1 = 0.0
    """Dropout of the features in training, in addition to the network's own."""

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True)
class MonaiArchitecture:
    """One of MONAI's networks."""

    kind: str
    """Name of its class in ``monai.networks.nets``."""
    arguments: dict[str, Any]
    """Arguments of that class besides spatial axes and channels."""
    classifier: str
    """Name of its last linear layer, which is removed."""
    least: int
    """Smallest input extent, in pixels or samples."""
    channels: tuple[int, ...]
    """Channels of its widest map after one to five halvings."""


ARCHITECTURES: dict[str, MonaiArchitecture] = {
    "monai-densenet121": MonaiArchitecture(
        "DenseNet121", {"out_channels": 1}, "class_layers.out", 32, (64, 256, 512, 1024, 1024)
    ),
    "monai-efficientnet-b0": MonaiArchitecture(
        "EfficientNetBN",
        {"model_name": "efficientnet-b0", "pretrained": False, "num_classes": 1},
        "_fc",
        32,
        (96, 144, 240, 672, 1280),
    ),
    "monai-seresnet50": MonaiArchitecture(
        "SEResNet50", {"num_classes": 1}, "last_linear", 3, (64, 256, 512, 1024, 2048)
    ),
}
"""Architectures by their name in ``encoder.network``."""


class MonaiNetwork(nn.Module):
    """Encoder of signals (channel, time), (channel, y, x) or (channel, z, y, x)."""

    def __init__(self, signal: Signal, size: EncoderSettings, kind: MonaiArchitecture) -> None:
        """Make it with random weights, initialised by MONAI."""
        super().__init__()
        options = updated(MonaiOptions(), size.options, "encoder.options.")
        if signal.axes[-1] == "time":
            refuse_resizing(size.network, options.resize)
        extents = [options.resize or extent for extent in signal.input_shape[1:]]
        _require_extents(signal, size.network, extents, kind.least)
        self.signal, self._extents, self._resized = signal, extents, bool(options.resize)
        channels = signal.input_shape[0]
        make = getattr(monai_nets(size.network), kind.kind)
        self.network = make(spatial_dims=len(extents), in_channels=channels, **kind.arguments)
        self.width = self.network.get_submodule(kind.classifier).in_features
        self.network.set_submodule(kind.classifier, nn.Identity())
        replace_norms(self.network)
        self.dropout = nn.Dropout(options.dropout)
        self.largest_map = max(
            channels * places_after(2**halvings, extents)
            for halvings, channels in enumerate(kind.channels, start=1)
        )
        """Values of the largest map of one example, without what convolutions pad; as if every
        halving rounded up."""

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Features (batch, width) of normalised signals (batch, *input_shape)."""
        if self._resized:  # nearest-exact selects the same pixels as Pillow
            signals = functional.interpolate(signals, self._extents, mode="nearest-exact")
        features: torch.Tensor = self.dropout(self.network(signals))
        return features


def monai_nets(network: str) -> Any:
    """MONAI's module ``networks.nets``; MONAI is an extra of the package."""
    with importing("monai", f"encoder.network {network}", "Or choose another network."):
        from monai.networks import nets
    return nets


def _require_extents(signal: Signal, network: str, extents: list[int], least: int) -> None:
    if min(extents) >= least:
        return
    larger, unit = "make them larger, such as by encoder.options.resize=64, or ", "pixels"
    instead = "monai-seresnet50 or a ResNet"
    if signal.axes[-1] == "time":
        larger, unit, instead = "", "samples", "a ResNet, such as resnet18-1d"
    raise BenchmdError(
        f"{network} halves signals five times and needs {least} {unit} or more along each axis, "
        f"but these have {min(extents)}: {larger}choose {instead}."
    )


MONAI_NETWORKS: dict[str, Callable[[Signal, EncoderSettings], MonaiNetwork]] = {
    name: partial(MonaiNetwork, kind=kind) for name, kind in ARCHITECTURES.items()
}
"""Networks by their name in ``encoder.network``."""
