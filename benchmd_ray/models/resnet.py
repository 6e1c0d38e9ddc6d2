"""ResNet-18 and ResNet-50 for images, volumes and signals over time.

Sources: He et al. (https://arxiv.org/abs/1512.03385), with the stride of a bottleneck in its 3 × 3
convolution; Yang et al., MedMNIST v2 (https://arxiv.org/abs/2110.14795), section "Baseline
Methods", and the code released with it (https://github.com/MedMNIST/experiments); for volumes
Yang et al. (https://arxiv.org/abs/1911.10477). For volumes the network is the same with other
convolutions, with strides along all three axes:

* ``2.5d``: a kernel of k × k becomes one of 1 × k × k along (z, y, x).
* ``3d``: it becomes one of k × k × k.
* ``acs``: its output channels are split into three parts, with kernels in the axial (y, x), the
  coronal (z, x) and the sagittal (z, y) plane.

``1d`` is for signals over time, (channel, time): kernels of k samples, any number of channels, and
no resizing. It follows no paper, unlike `benchmd_ray.models.xresnet`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.drop_path import DropPath
from benchmd_ray.models.networks import require_ranges
from benchmd_ray.schema.ranges import ShareBelow1, Within
from benchmd_ray.settings.definition import EncoderSettings, updated

Convolution = Callable[[int, int, int, int], nn.Module]
"""Factory of a convolution with input channels, output channels, kernel extent and stride, without
bias and with padding such that stride 1 keeps the extent.
"""

TIME = "1d"
FITTING: dict[tuple[str, ...], str] = {
    ("channel", "time"): "resnet18-1d, resnet50-1d, xresnet1d101 or transformer",
    ("channel", "y", "x"): "resnet18 or resnet50",
    ("channel", "z", "y", "x"): "resnet18 or resnet50 with -2.5d, -3d or -acs",
}
"""Suitable networks, by the axes of a signal."""
COLOURS = 3
"""Channels of the first convolution for images and volumes; grey values are copied into all."""
SMALL_EXTENT = 64
"""Largest extent in pixels for which ``auto`` chooses the small stem."""
SHORT_TIME = 256
"""Largest length in samples for which ``auto`` chooses the small stem; for longer signals the other
stem leaves more than 8 samples in the last stage.
"""
DEPTHS: dict[int, tuple[int, ...]] = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
"""Residual blocks of each of the four stages, by the number of layers with weights."""
BOTTLENECK = 50
"""The network whose blocks are bottlenecks."""
EXPANSION = 4
"""Ratio of a bottleneck's output channels to those of its 3 × 3 convolution."""


@dataclass(frozen=True)
class ResNetOptions:
    """Options read from ``encoder.options``; a ResNet uses no other encoder settings."""

    width: Annotated[int, Within(1, 2**12)] = 64
    """Channels of the first stage; they double with each stage."""
    stem: Literal["auto", "small", "imagenet"] = "auto"
    """small: a convolution with kernel 3; imagenet: kernel 7 and stride 2, then max pooling with
    kernel 3 and stride 2; auto: small up to `SMALL_EXTENT` pixels or `SHORT_TIME` samples,
    otherwise imagenet.
    """
    resize: Annotated[int, Within(0, 2**12)] = 0
    """Extent in pixels to which all axes of images and volumes are resized, by nearest neighbour;
    0: no resizing, as always for signals over time.
    """
    dropout: ShareBelow1 = 0.0
    """Dropout of the features in training."""

    def __post_init__(self) -> None:
        require_ranges(self)


class AcsConv(nn.Conv2d):
    """Convolution of volumes with 2-D kernels in three planes (Yang et al., section 3.2).

    Each plane has a third of the output channels; a remainder goes first to the axial, then to the
    coronal plane.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, z, y, x) to (batch, output channels, z, y, x)."""
        stride, padding = self.stride[0], int(self.padding[0])
        parts = self.weight.tensor_split(3)
        planes = []
        for across, kernels in enumerate(
            parts
        ):  # the axis along which a plane's kernels have extent 1
            if len(kernels):
                around = [0 if axis == across else padding for axis in range(3)]
                thin = kernels.unsqueeze(2 + across)
                planes.append(functional.conv3d(x, thin, stride=stride, padding=around))
        return torch.cat(planes, dim=1)


def _padded(
    layer: type[nn.Module], inputs: int, outputs: int, kernel: int, stride: int
) -> nn.Module:
    return layer(inputs, outputs, kernel, stride, kernel // 2, bias=False)


def _slices(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
    around = (0, kernel // 2, kernel // 2)
    return nn.Conv3d(inputs, outputs, (1, kernel, kernel), stride, around, bias=False)


CONVOLUTIONS: dict[str, Convolution] = {
    "": partial(_padded, nn.Conv2d),
    "2.5d": _slices,
    "3d": partial(_padded, nn.Conv3d),
    "acs": partial(_padded, AcsConv),
    TIME: partial(_padded, nn.Conv1d),
}
"""Convolutions by suffix of the network's name; images have none."""
POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}


class BatchNorm(_BatchNorm):
    """Batch normalisation of signals over time, images and volumes.

    If a channel has only one value there is no variance, so the running statistics are used and not
    updated.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(batch, channels, …) to the same."""
        if not self.training or input.numel() > input.shape[1]:
            return super().forward(input)
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Allow any number of axes."""


def replace_norms(module: nn.Module) -> None:
    """Replace each batch normalisation of another library's network by a `BatchNorm`.

    The last batch of an epoch may be a single example whose maps shrink to a point.
    """
    for name, part in module.named_children():
        if isinstance(part, _BatchNorm):
            norm = BatchNorm(
                part.num_features, part.eps, part.momentum, part.affine, part.track_running_stats
            )
            norm.load_state_dict(part.state_dict())
            setattr(module, name, norm)
        else:
            replace_norms(part)


class Residual(nn.Module):
    """ReLU of the sum of a body and a shortcut."""

    def __init__(
        self, convolution: Convolution, inputs: int, width: int, stride: int, *, bottleneck: bool
    ) -> None:
        super().__init__()
        outputs = width * EXPANSION if bottleneck else width
        shapes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        if bottleneck:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        layers: list[nn.Module] = []
        for shape in shapes:
            layers += [convolution(*shape), BatchNorm(shape[1]), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(convolution(inputs, outputs, 1, stride), BatchNorm(outputs))
        )
        self.drop_path = DropPath()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, inputs, …) to (batch, outputs, …)."""
        return functional.relu(self.drop_path(self.body(x)) + self.shortcut(x))


class ResNet(nn.Module):
    """Encoder of signals (channel, time), (channel, y, x) or (channel, z, y, x)."""

    def __init__(self, signal: Signal, size: EncoderSettings, layers: int, kind: str) -> None:
        super().__init__()
        require_resnet_signals(signal, size.network, kind)
        options = resnet_options(size.network, size.options)
        convolution, expansion = CONVOLUTIONS[kind], EXPANSION if layers == BOTTLENECK else 1
        self.signal, self._resized = signal, bool(options.resize)
        self._inputs = signal.input_shape[0] if kind == TIME else COLOURS
        self._extents = [options.resize or extent for extent in signal.input_shape[1:]]
        small = options.stem == "small"
        if options.stem == "auto":
            small = max(self._extents) <= (SHORT_TIME if kind == TIME else SMALL_EXTENT)
        pool = None if small else POOLS[len(self._extents)](3, 2, 1)
        self.stem = _stem(convolution, self._inputs, options.width, pool)
        self.blocks = _blocks(convolution, options.width, layers)
        self.dropout = nn.Dropout(options.dropout)
        self.width = options.width * 2 ** (len(DEPTHS[layers]) - 1) * expansion
        first, stage = (1, 1) if small else (2, 4)
        self.largest_map = options.width * max(
            places_after(first, self._extents),
            *(
                expansion * 2**i * places_after(stage * 2**i, self._extents)
                for i in range(len(DEPTHS[layers]))
            ),
        )
        """Values of the largest map of one example: over time any stage can have it, since channels
        double where places are halved and rounded up."""
        for module in self.modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
                _draw(module.weight, small=small)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Features (batch, width) of signals (batch, *input_shape): mean over the last stage."""
        x = signals.expand(-1, self._inputs, *signals.shape[2:])
        if self._resized:  # nearest-exact selects the same pixels as Pillow
            x = functional.interpolate(x, self._extents, mode="nearest-exact")
        pooled: torch.Tensor = self.dropout(self.blocks(self.stem(x)).flatten(2).mean(dim=2))
        return pooled


def _blocks(convolution: Convolution, width: int, layers: int) -> nn.Sequential:
    """The residual blocks of all stages; every stage but the first starts with stride 2."""
    blocks, inputs, bottleneck = [], width, layers == BOTTLENECK
    for stage, depth in enumerate(DEPTHS[layers]):
        channels = width * 2**stage
        for number in range(depth):
            stride = 2 if stage and not number else 1
            blocks.append(Residual(convolution, inputs, channels, stride, bottleneck=bottleneck))
            inputs = channels * EXPANSION if bottleneck else channels
    return nn.Sequential(*blocks)


def _stem(
    convolution: Convolution, inputs: int, width: int, pool: nn.Module | None
) -> nn.Sequential:
    first = convolution(inputs, width, 3, 1) if pool is None else convolution(inputs, width, 7, 2)
    layers = [first, BatchNorm(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *([] if pool is None else [pool]))


def places_after(stride: int, extents: Iterable[int]) -> int:
    """Number of positions of a map of these extents after strides, rounded up."""
    return math.prod(-(-extent // stride) for extent in extents)


@torch.no_grad()
def _draw(weight: torch.Tensor, *, small: bool) -> None:
    """Initialise a convolution's kernels as in MedMNIST's code.

    With the small stem they are uniform with PyTorch's default bound, otherwise normal as in
    torchvision's ResNets. Kernels for volumes are drawn in 2-D, repeated along z and divided by the
    depth, so that a volume constant along z gives the same output as its slice, except at the
    border.
    """
    volumes = weight.dim() == 5
    depth = weight.shape[2] if volumes else 1
    kernel = weight.shape[3:] if volumes else weight.shape[2:]
    flat = torch.empty(*weight.shape[:2], *kernel, device=weight.device)
    if small:
        nn.init.kaiming_uniform_(flat, a=math.sqrt(5))
    else:
        nn.init.kaiming_normal_(flat, mode="fan_out", nonlinearity="relu")
    weight.copy_(flat.unsqueeze(2).expand_as(weight) / depth if volumes else flat)


def require_resnet_signals(signal: Signal, network: str, kind: str) -> None:
    """Refuse signals whose axes or channels do not fit a ResNet, without making it."""
    wanted = {"": ("channel", "y", "x"), TIME: ("channel", "time")}
    require_axes(signal, network, wanted.get(kind, ("channel", "z", "y", "x")))
    if kind != TIME and signal.input_shape[0] not in (1, COLOURS):
        raise BenchmdError(
            f"{network} takes signals of 1 or {COLOURS} channels, and {signal.name} has "
            f"{signal.input_shape[0]}: choose encoder.network=transformer."
        )


def require_axes(signal: Signal, network: str, axes: tuple[str, ...]) -> None:
    """Refuse signals whose axes do not fit a network."""
    if signal.axes != axes:
        raise BenchmdError(
            f"encoder.network is {network}, for signals with the axes {', '.join(axes)}, and "
            f"{signal.name} has {', '.join(signal.axes)}: choose {FITTING[signal.axes]}."
        )


def resnet_options(network: str, options: Mapping[str, Any]) -> ResNetOptions:
    chosen = updated(ResNetOptions(), options, "encoder.options.")
    if network.endswith(f"-{TIME}"):
        refuse_resizing(network, chosen.resize)
    return chosen


def refuse_resizing(network: str, resize: int) -> None:
    """Refuse to resize signals over time, as nearest-neighbour sampling would alias.

    Signals in catalogs are resampled with a filter to the rate of their card.
    """
    if resize:
        raise BenchmdError(
            f"setting encoder.options.resize is {resize}, and {network} does not resize signals "
            "over time, since nearest-neighbour sampling would alias: leave it at 0, and set "
            "another length or rate in the signal's card."
        )


RESNETS: dict[str, Callable[[Signal, EncoderSettings], ResNet]] = {
    f"resnet{layers}{kind and '-'}{kind}": partial(ResNet, layers=layers, kind=kind)
    for layers in DEPTHS
    for kind in CONVOLUTIONS
}
"""ResNets by their name in ``encoder.network``: resnet18 and resnet50 for images, with -2.5d, -3d
or -acs for volumes and with -1d for signals over time.
"""
