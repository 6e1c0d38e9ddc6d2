"""Segmentation networks of MONAI for images and volumes, with random weights.

A network returns ``encoder.options.width`` maps of the signal's size, which a head turns into
logits (`models.segmenter`). The head replaces MONAI's last 1×1 convolution, so that both together
equal MONAI's network. All normalise each example separately.

* ``monai-unet``: Ronneberger et al. (https://arxiv.org/abs/1505.04597), with residual units as in
  Kerfoot et al. 2019 (doi:10.1007/978-3-030-12029-0_40). MONAI's version ends with a transposed
  convolution to logits; here it produces maps, which are normalised and activated as inside the
  network.
* ``monai-segresnet``: Myronenko (https://arxiv.org/abs/1810.11654), without its autoencoder.
* ``monai-unetr``: Hatamizadeh et al. (https://arxiv.org/abs/2103.10504).
* ``monai-swinunetr``: Hatamizadeh et al. (https://arxiv.org/abs/2201.01266).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.monai_networks import monai_nets
from benchmd_ray.models.networks import require_ranges
from benchmd_ray.schema.ranges import ShareBelow1, Within
from benchmd_ray.settings.definition import EncoderSettings, updated

AXES = (("channel", "y", "x"), ("channel", "z", "y", "x"))
"""Axes of supported signals, with any number of channels."""
HEADS = 12
"""Attention heads of UNETR's transformer, as in its paper."""


@dataclass(frozen=True)
class SegmentationOptions:
    """What these networks read of ``encoder.options``; of the other settings they read none."""

    width: Annotated[int, Within(0, 2**10)] = 0
    """Number of maps at full resolution, doubled at each level; 0: the network's default."""
    depth: Annotated[int, Within(0, 8)] = 0
    """Levels of resolution of a UNet or SegResNet; 0: the network's default."""
    patch: Annotated[int, Within(0, 2**12)] = 0
    """Extent in voxels of its window along each axis, in training and inference; limited to the
    signal's extent (also if 0), and rounded down to a multiple that the network can halve.
    """
    hidden: Annotated[int, Within(0, 2**14)] = 0
    """Width of UNETR's transformer; 0: 768, as in its paper."""
    dropout: ShareBelow1 = 0.0
    """Dropout within the network."""

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True)
class _Size:
    axes: int
    channels: int
    window: tuple[int, ...]
    width: int
    depth: int
    hidden: int
    dropout: float


@dataclass(frozen=True)
class SegmentationArchitecture:
    """One of MONAI's networks."""

    make: Callable[[Any, _Size], nn.Module]
    """Function of the module ``monai.networks.nets`` and a size that makes the network."""
    width: int
    """Default number of maps."""
    of: int
    """Divisor of the width."""
    halvings: int
    """How often it halves a window; for networks with the option `depth`, one less than that."""
    depth: int = 0
    """Default number of levels; 0 without this option."""
    hidden: int = 0
    """Default width of its transformer; 0 without this option."""


def _unet(nets: Any, size: _Size) -> nn.Module:
    from monai.networks.blocks import ADN

    network = nets.UNet(
        spatial_dims=size.axes,
        in_channels=size.channels,
        out_channels=size.width,
        channels=[size.width * 2**level for level in range(size.depth)],
        strides=[2] * (size.depth - 1),
        num_res_units=2,
        dropout=size.dropout,
    )
    end = ADN("NA", size.width, act="PRELU", norm="INSTANCE", norm_dim=size.axes)
    return nn.Sequential(network, end)


def _segresnet(nets: Any, size: _Size) -> nn.Module:
    network = nets.SegResNet(
        spatial_dims=size.axes,
        init_filters=size.width,
        in_channels=size.channels,
        out_channels=1,
        dropout_prob=size.dropout or None,
        blocks_down=(1, *(2,) * (size.depth - 2), 4),
        blocks_up=(1,) * (size.depth - 1),
    )
    network.conv_final[-1] = nn.Identity()
    return network  # type: ignore[no-any-return]


def _unetr(nets: Any, size: _Size) -> nn.Module:
    network = nets.UNETR(
        in_channels=size.channels,
        out_channels=1,
        img_size=size.window,
        feature_size=size.width,
        hidden_size=size.hidden,
        mlp_dim=4 * size.hidden,
        num_heads=HEADS,
        norm_name="instance",
        dropout_rate=size.dropout,
        spatial_dims=size.axes,
    )
    network.out = nn.Identity()
    return network  # type: ignore[no-any-return]


class _RatesHere(TorchFunctionMode):
    """Context for SwinUNETR, which reads tensor values while it is made, impossible on meta."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.linspace:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def _swin_unetr(nets: Any, size: _Size) -> nn.Module:
    with _RatesHere():
        network = nets.SwinUNETR(
            in_channels=size.channels,
            out_channels=1,
            feature_size=size.width,
            drop_rate=size.dropout,
            spatial_dims=size.axes,
        )
    network.out = nn.Identity()
    return network  # type: ignore[no-any-return]


ARCHITECTURES: dict[str, SegmentationArchitecture] = {
    "monai-unet": SegmentationArchitecture(_unet, width=16, of=1, halvings=0, depth=4),
    "monai-segresnet": SegmentationArchitecture(_segresnet, width=16, of=8, halvings=0, depth=4),
    "monai-unetr": SegmentationArchitecture(_unetr, width=16, of=1, halvings=4, hidden=768),
    "monai-swinunetr": SegmentationArchitecture(_swin_unetr, width=24, of=12, halvings=5),
}
"""Architectures by their name in ``encoder.network``."""


class SegmentationNetwork(nn.Module):
    """Maps for windows of images (channel, y, x) or volumes (channel, z, y, x)."""

    def __init__(
        self, signal: Signal, size: EncoderSettings, kind: SegmentationArchitecture
    ) -> None:
        """Make it with random weights, as MONAI draws them."""
        super().__init__()
        shape = _sized(signal, size, kind)
        self.signal, self.window, self.width = signal, shape.window, shape.width
        """What it is of; extents of what it sees at once; its maps."""
        self.network = kind.make(monai_nets(size.network), shape)
        self.largest_map = 2 * shape.width * math.prod(signal.input_shape[1:])
        """Values of the largest map of one example, its skip connection among them."""

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Maps (batch, width, *window) of normalised signals (batch, channel, *window)."""
        maps: torch.Tensor = self.network(signals)
        return maps


def _sized(signal: Signal, size: EncoderSettings, kind: SegmentationArchitecture) -> _Size:
    options, name = updated(SegmentationOptions(), size.options, "encoder.options."), size.network
    if signal.axes not in AXES:
        raise BenchmdError(
            f"encoder.network is {name}, for images and volumes, and {signal.name} has the axes "
            f"{', '.join(signal.axes)}."
        )
    for option in ("depth", "hidden"):
        if getattr(options, option) and not getattr(kind, option):
            raise BenchmdError(f"{name} reads no encoder.options.{option}: omit it.")
    width, depth = options.width or kind.width, options.depth or kind.depth
    hidden = options.hidden or kind.hidden
    if width % kind.of or hidden % HEADS or (kind.depth and depth < 2):
        raise BenchmdError(
            f"{name} cannot have encoder.options.width {width}, depth {depth} and hidden {hidden}: "
            f"expected a width that is a multiple of {kind.of}, a hidden width that is one of "
            f"{HEADS}, and two levels or more."
        )
    by = 2 ** (depth - 1 if kind.depth else kind.halvings)
    window = tuple(min(options.patch or e, e) // by * by for e in signal.input_shape[1:])
    if min(window) == 0 or math.prod(window) == by ** len(window):
        raise BenchmdError(
            f"{name} sees windows whose extents are multiples of {by}, one of them twice that or "
            f"more, and encoder.options.patch is {options.patch} for {signal.name} of "
            f"{' × '.join(map(str, signal.input_shape[1:]))} voxels: choose a larger patch, 0 for "
            f"the whole signal{', or a smaller encoder.options.depth' if kind.depth else ''}."
        )
    axes = len(signal.axes) - 1
    return _Size(axes, signal.input_shape[0], window, width, depth, hidden, options.dropout)


def require_segmentation_option(network: str, name: str, value: object) -> None:
    """Refuse an option that a segmentation network does not read."""
    updated(SegmentationOptions(), {name: value}, "encoder.options.")
    if name in ("depth", "hidden") and not getattr(ARCHITECTURES[network], name):
        raise unknown_name(f"option of {network}", name, ("width", "patch", "dropout"))


SEGMENTATION_NETWORKS: dict[str, Callable[[Signal, EncoderSettings], SegmentationNetwork]] = {
    name: partial(SegmentationNetwork, kind=kind) for name, kind in ARCHITECTURES.items()
}
"""Networks by their name in ``encoder.network``."""
