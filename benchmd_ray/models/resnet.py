"""ResNet-18 and ResNet-50 for images and volumes: MedMNIST's baselines.

Sources: He et al. (https://arxiv.org/abs/1512.03385), with the stride of a bottleneck in its 3 × 3
convolution; Yang et al., MedMNIST v2 (https://arxiv.org/abs/2110.14795), section "Baseline
Methods", and the code released with it (https://github.com/MedMNIST/experiments); for volumes
Yang et al. (https://arxiv.org/abs/1911.10477). A ResNet has no tokens, so that the self-supervised
methods that are built in cannot train it.

Volumes take the same network with other convolutions, of which each name says one:

- ``2.5d``: a kernel of k × k becomes one of 1 × k × k along (z, y, x).
- ``3d``: it becomes one of k × k × k.
- ``acs``: its output channels are split in three parts, whose kernels lie in the axial (y, x), the
  coronal (z, x) and the sagittal (z, y) plane.

Strides hold along all three axes in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.drop_path import DropPath
from benchmd_ray.settings import EncoderSettings, updated
from benchmd_ray.signals import Signal

Convolution = Callable[[int, int, int, int], nn.Module]
"""Makes a convolution of input channels, output channels, extent of the kernel and stride: without
bias, padded so that a stride of 1 keeps the extent."""

COLOURS = 3
"""Channels of the first convolution: a grey value is copied into all of them."""
SMALL_EXTENT = 64
"""Largest extent in pixels for which the small stem is chosen by itself."""
DEPTHS: dict[int, tuple[int, ...]] = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
"""Residual blocks of each of the four stages, by the number of layers with weights."""
BOTTLENECK = 50
"""The network whose blocks are bottlenecks."""
EXPANSION = 4
"""Output channels of a bottleneck, over those of its 3 × 3 convolution."""


@dataclass(frozen=True)
class ResNetOptions:
    """What a ResNet reads of ``encoder.options``; of the encoder's other settings it reads none."""

    width: int = 64
    """Channels of the first stage; each further one has twice as many."""
    stem: Literal["auto", "small", "imagenet"] = "auto"
    """small: a 3 × 3 convolution; imagenet: 7 × 7 with stride 2, then a maximum with stride 2;
    auto: small up to `SMALL_EXTENT` pixels, else imagenet."""
    resize: int = 0
    """Extent in pixels that signals are resized to, each axis alike, by the nearest neighbour;
    0: as they are."""
    dropout: float = 0.0
    """Dropout of the features in training."""

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise BenchmdError(
                f"setting encoder.options.dropout is {self.dropout}, expected a number in [0, 1)."
            )
        for name, least, most in (("width", 1, 2**12), ("resize", 0, 2**12)):
            if not least <= (value := getattr(self, name)) <= most:
                raise BenchmdError(
                    f"setting encoder.options.{name} is {value}, expected {least} to {most:,}."
                )


class AcsConv(nn.Conv2d):
    """Convolution of volumes with 2-D kernels in three planes (Yang et al., section 3.2).

    Of the output channels each plane has a third; what is left over goes to the axial plane, then
    to the coronal one.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, z, y, x) to (batch, output channels, z, y, x)."""
        stride, padding = self.stride[0], int(self.padding[0])
        parts = self.weight.tensor_split(3)
        planes = []
        for across, kernels in enumerate(parts):  # the axis that a plane's kernels are thin along
            if len(kernels):
                around = [0 if axis == across else padding for axis in range(3)]
                thin = kernels.unsqueeze(2 + across)
                planes.append(functional.conv3d(x, thin, stride=stride, padding=around))
        return torch.cat(planes, dim=1)


def _planar(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


def _acs(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
    return AcsConv(inputs, outputs, kernel, stride, kernel // 2, bias=False)


def _slices(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
    around = (0, kernel // 2, kernel // 2)
    return nn.Conv3d(inputs, outputs, (1, kernel, kernel), stride, around, bias=False)


def _cubes(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
    return nn.Conv3d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


CONVOLUTIONS: dict[str, Convolution] = {"": _planar, "2.5d": _slices, "3d": _cubes, "acs": _acs}
"""By name; that of images has none."""


class BatchNorm(_BatchNorm):
    """Batch normalisation of images and volumes.

    Where a channel has only one value (a batch of one example whose maps have shrunk to a point),
    there is no variance: the running statistics stand in and stay as they are.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(batch, channels, …) to the same."""
        if not self.training or input.numel() > input.shape[1]:
            return super().forward(input)
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Any number of axes."""


class Residual(nn.Module):
    """ReLU of a body and a shortcut, added."""

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
    """Images (channel, y, x) or volumes (channel, z, y, x) to one feature vector each."""

    def __init__(self, signal: Signal, size: EncoderSettings, layers: int, kind: str) -> None:
        """Make it with random weights.

        Args:
            signal: What it encodes, with 1 or 3 channels.
            size: Of which ``options`` are read, see `ResNetOptions`.
            layers: 18 or 50.
            kind: One of `CONVOLUTIONS`.

        Raises:
            BenchmdError: The signal has other axes or channels, or an option does not exist.
        """
        super().__init__()
        _require_fitting(signal, size.network, kind)
        options = updated(ResNetOptions(), size.options, "encoder.options.")
        convolution, expansion = CONVOLUTIONS[kind], EXPANSION if layers == BOTTLENECK else 1
        self.signal, self._resized = signal, bool(options.resize)
        self._extents = [options.resize or extent for extent in signal.input_shape[1:]]
        small = options.stem == "small"
        if options.stem == "auto":
            small = max(self._extents) <= SMALL_EXTENT
        self.stem = _stem(convolution, options.width, small=small, volumes=bool(kind))
        self.blocks = _blocks(convolution, options.width, layers)
        self.dropout = nn.Dropout(options.dropout)
        self.width = options.width * 2 ** (len(DEPTHS[layers]) - 1) * expansion
        first, stage = (self._places(1 if small else stride) for stride in (2, 4))
        self.largest_map = options.width * max(first, expansion * stage)
        """Values of the largest map of one example."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                _draw(module.weight, small=small)

    def _places(self, stride: int) -> int:
        """Places of a map after strides, which round up."""
        return math.prod(-(-extent // stride) for extent in self._extents)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Features: (batch, width), the mean over all places of the last stage.

        Args:
            signals: (batch, *signal.input_shape), normalised.
        """
        x = signals.expand(-1, COLOURS, *signals.shape[2:])
        if self._resized:  # nearest-exact takes the pixel that Pillow takes
            x = functional.interpolate(x, self._extents, mode="nearest-exact")
        pooled: torch.Tensor = self.dropout(self.blocks(self.stem(x)).flatten(2).mean(dim=2))
        return pooled


def _blocks(convolution: Convolution, width: int, layers: int) -> nn.Sequential:
    """The residual blocks of all stages; every stage but the first begins with a stride of 2."""
    blocks, inputs, bottleneck = [], width, layers == BOTTLENECK
    for stage, depth in enumerate(DEPTHS[layers]):
        own = width * 2**stage
        for number in range(depth):
            stride = 2 if stage and not number else 1
            blocks.append(Residual(convolution, inputs, own, stride, bottleneck=bottleneck))
            inputs = own * EXPANSION if bottleneck else own
    return nn.Sequential(*blocks)


def _stem(convolution: Convolution, width: int, *, small: bool, volumes: bool) -> nn.Module:
    if small:
        first = convolution(COLOURS, width, 3, 1)
        return nn.Sequential(first, BatchNorm(width), nn.ReLU(inplace=True))
    first = convolution(COLOURS, width, 7, 2)
    pool = nn.MaxPool3d(3, 2, 1) if volumes else nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(first, BatchNorm(width), nn.ReLU(inplace=True), pool)


@torch.no_grad()
def _draw(weight: torch.Tensor, *, small: bool) -> None:
    """Draw a convolution's kernels as MedMNIST's code does.

    All are drawn as 2-D ones: with the small stem uniform with PyTorch's default bound, else
    normal as in torchvision's ResNets. Along z each is repeated, and divided by how often: but for
    its border, a volume that is alike along z gives what its slice gives.
    """
    depth = weight.shape[2] if weight.dim() == 5 else 1
    flat = torch.empty(*weight.shape[:2], *weight.shape[-2:], device=weight.device)
    if small:
        nn.init.kaiming_uniform_(flat, a=math.sqrt(5))
    else:
        nn.init.kaiming_normal_(flat, mode="fan_out", nonlinearity="relu")
    weight.copy_(flat if weight.dim() == 4 else flat.unsqueeze(2).expand_as(weight) / depth)


def _require_fitting(signal: Signal, network: str, kind: str) -> None:
    """Refuse signals with other axes or channels than a network takes."""
    wanted = ("channel", "z", "y", "x") if kind else ("channel", "y", "x")
    if signal.axes != wanted:
        fitting = {3: "resnet18 or resnet50", 4: "resnet18 or resnet50 with -2.5d, -3d or -acs"}
        images = signal.axes[-2:] == ("y", "x")
        instead = fitting[len(signal.axes)] if images else "encoder.network=transformer"
        raise BenchmdError(
            f"encoder.network is {network}, for signals with the axes {', '.join(wanted)}, and "
            f"{signal.name} has {', '.join(signal.axes)}: choose {instead}."
        )
    if signal.input_shape[0] not in (1, COLOURS):
        raise BenchmdError(
            f"{network} takes signals of 1 or {COLOURS} channels, and {signal.name} has "
            f"{signal.input_shape[0]}: choose encoder.network=transformer."
        )


def require_signals(signal: Signal, network: str) -> None:
    """Refuse signals that a ResNet does not take, without making it.

    Args:
        signal: What it encodes.
        network: As ``encoder.network`` names it; of others than ResNets nothing is known.

    Raises:
        BenchmdError: The signal has other axes or channels.
    """
    if network in RESNETS:
        _require_fitting(signal, network, network.partition("-")[2])


def require_option(network: str, name: str, value: object) -> None:
    """Refuse an option that a ResNet does not read; of other networks nothing is known.

    Args:
        network: As ``encoder.network`` names it.
        name: Of the option.
        value: Its value.

    Raises:
        BenchmdError: There is no such option, or it refuses the value.
    """
    if network in RESNETS:
        updated(ResNetOptions(), {name: value}, "encoder.options.")


RESNETS: dict[str, Callable[[Signal, EncoderSettings], ResNet]] = {
    f"resnet{layers}{kind and '-'}{kind}": partial(ResNet, layers=layers, kind=kind)
    for layers in DEPTHS
    for kind in CONVOLUTIONS
}
"""By the name that ``encoder.network`` takes: resnet18 and resnet50 for images, the same with
-2.5d, -3d or -acs for volumes."""
