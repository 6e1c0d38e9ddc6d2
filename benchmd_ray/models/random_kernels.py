"""Random convolutional kernels for signals in one, two and three dimensions; nothing is trained.

Sources: Dempster et al., ROCKET (https://arxiv.org/abs/1910.13051) and MiniRocket
(https://arxiv.org/abs/2012.08791) for signals over time; Coates, Lee and Ng (AISTATS 2011) for
random filters on images. A kernel's weights are normal with zero mean over its extent, and its
channels are drawn; extents, dilations and paddings take turns. Its features are the share of its
outputs above each of a few biases, which are quantiles of its outputs on training records, and its
largest output.

Differences from ROCKET: several biases for each kernel (eight over time, two in images and
volumes), which on few records is worth more than as many further kernels; and a stride along axes
of twice `POSITIONS` and more, since a share is as well estimated from a few thousand places as from
a million.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.networks import RANDOM_KERNELS, require_ranges
from benchmd_ray.schema.ranges import Within
from benchmd_ray.settings.definition import EncoderSettings, updated

EXTENTS = {1: (7, 9, 11), 2: (3, 5, 7), 3: (3, 5)}
"""Values of a kernel along each axis, by the number of axes."""
BIASES = {1: 8, 2: 2, 3: 2}
"""Biases of each kernel where the settings leave them open, by the number of axes."""
DILATIONS = 8
"""Different dilations of an extent, from 1 to the largest that fits, evenly on a logarithmic
scale."""
CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
POSITIONS = {1: 1024, 2: 32, 3: 9}
"""Outputs of a kernel along each axis, about, by the number of axes: a longer axis is read with a
stride."""
BLOCK = 32
"""Kernels of one convolution, at most: what is in memory does not grow with their number."""
FITTED_ON = 16
"""Training records whose outputs give the biases."""


@dataclass(frozen=True)
class RandomKernelsOptions:
    """What random kernels read of ``encoder.options``; of the encoder's other settings, none."""

    kernels: Annotated[int, Within(1, 2**20)] = 1000
    biases: Annotated[int, Within(0, 64)] = 0
    """Biases of each kernel; 0: as `BIASES` has it. A kernel has one feature more than biases."""

    def __post_init__(self) -> None:
        require_ranges(self)


class Group(NamedTuple):
    """Kernels that are applied in one convolution."""

    extent: int
    dilation: tuple[int, ...]
    """Along each axis: the largest that fits to the power of u, the same u along all."""
    is_padded: bool
    """Whether outputs are as many as inputs, else only those where the kernel fits."""


class RandomKernels(nn.Module):
    """Signals of one kind to features; `fit` sets the biases and the features' mean and scale."""

    biases: torch.Tensor
    shift: torch.Tensor
    scale: torch.Tensor

    def __init__(self, signal: Signal, size: EncoderSettings) -> None:
        super().__init__()
        options = updated(RandomKernelsOptions(), size.options, "encoder.options.")
        channels, *space = signal.input_shape
        axes = len(space)
        if axes not in EXTENTS:
            raise BenchmdError(
                f"encoder.network is {RANDOM_KERNELS}, and a signal of {signal.name} has the axes "
                f"{', '.join(signal.axes)}: expected one to three axes next to the channel."
            )
        self.signal, self.axes = signal, axes
        self.stride = tuple(max(1, n // POSITIONS[axes]) for n in space)
        self.positions = math.prod(-(-n // by) for n, by in zip(space, self.stride, strict=True))
        per_kernel = options.biases or BIASES[axes]
        self.groups = _groups(options.kernels, tuple(space))
        # Shapes, and so what a file of weights must hold, follow from signal and settings only.
        for number, (group, count) in enumerate(self.groups.items()):
            shape = (count, channels, *[group.extent] * axes)
            self.register_buffer(f"kernels_{number}", torch.empty(shape))
        self.width = options.kernels * (per_kernel + 1)
        self.register_buffer("biases", torch.zeros(options.kernels, per_kernel))
        self.register_buffer("shift", torch.zeros(self.width))
        self.register_buffer("scale", torch.ones(self.width))
        self._draw()

    def _draw(self) -> None:
        """Weights by torch's random state; a kernel's channels are 2^u of all, u uniform."""
        for number in range(len(self.groups)):
            kernels = getattr(self, f"kernels_{number}")
            count, channels = kernels.shape[:2]
            weights = torch.randn(kernels.shape)
            weights -= weights.flatten(2).mean(dim=2).reshape(count, channels, *[1] * self.axes)
            used = (2 ** (torch.rand(count) * math.log2(channels + 1))).long().clamp(max=channels)
            order = torch.rand(count, channels).argsort(dim=1).argsort(dim=1)
            weights *= (order < used[:, None]).reshape(count, channels, *[1] * self.axes)
            values = used * kernels[0, 0].numel()
            kernels.copy_(weights / values.sqrt().reshape(count, 1, *[1] * self.axes))

    @torch.no_grad()
    def fit(self, signals: torch.Tensor, generator: torch.Generator) -> None:
        """Set the biases by training signals (records, *input_shape); then see `standardise`.

        Each kernel takes random quantiles of its outputs on one record.
        """
        kernels, per_kernel = self.biases.shape
        record = torch.randint(len(signals), (kernels,), generator=generator)
        quantile = torch.rand(kernels, per_kernel, generator=generator)
        for index in range(len(signals)):
            for rows, outputs in self._outputs(signals[index : index + 1]):
                ascending = outputs[0].sort(dim=1).values
                place = (quantile[rows].to(outputs.device) * (ascending.shape[1] - 1)).long()
                chosen = (record[rows] == index).to(outputs.device)
                values = ascending.gather(1, place)
                self.biases[rows] = torch.where(chosen[:, None], values, self.biases[rows])

    @torch.no_grad()
    def standardise(self, features: torch.Tensor) -> None:
        """Give features (records, width), as they are now, zero mean and unit deviation."""
        mean, deviation = features.double().mean(dim=0), features.double().std(dim=0)
        self.shift.copy_(mean)
        self.scale.copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Features: (batch, width), in float32 whatever autocast says."""
        with torch.autocast(signals.device.type, enabled=False):
            signals = signals.float()
            shares, largest = [], []
            for rows, outputs in self._outputs(signals):
                biases = self.biases[rows]
                above = [(outputs > bias[None, :, None]).float().mean(dim=2) for bias in biases.T]
                shares.append(torch.stack(above, dim=2).flatten(1))
                largest.append(outputs.amax(dim=2))
            features = torch.cat([*shares, *largest], dim=1)
            return (features - self.shift) / self.scale

    def _outputs(self, signals: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Which kernels, and their outputs (batch, kernels, positions), block by block."""
        first = 0
        for number, (group, count) in enumerate(self.groups.items()):
            kernels = getattr(self, f"kernels_{number}")
            padding = [(group.extent - 1) * step // 2 * group.is_padded for step in group.dilation]
            for start in range(0, count, BLOCK):
                part = kernels[start : start + BLOCK]
                outputs = CONVOLUTIONS[self.axes](
                    signals, part, None, self.stride, padding, group.dilation
                )
                yield slice(first + start, first + start + len(part)), outputs.flatten(2)
            first += count

    @property
    def largest_map(self) -> int:
        """Values of the largest tensor that is made of one example."""
        return max(math.prod(self.signal.input_shape), BLOCK * self.positions, self.width)


def _groups(kernels: int, space: tuple[int, ...]) -> dict[Group, int]:
    """How many kernels each group has.

    They follow from number and shape only, so that files of weights have the same shapes whatever
    the seed: extents, padding and dilations take turns.
    """
    extents = [extent for extent in EXTENTS[len(space)] if extent <= min(space)]
    if not extents:
        raise BenchmdError(
            f"encoder.network is {RANDOM_KERNELS}, whose kernels have at least "
            f"{min(EXTENTS[len(space)])} values along each axis, and the signal is of "
            f"{' × '.join(map(str, space))}: expected a larger one."
        )
    counts: dict[Group, int] = {}
    for number in range(kernels):
        turn, extent = divmod(number, len(extents))
        u = turn // 2 * 5 % DILATIONS / (DILATIONS - 1)
        chosen = extents[extent]
        dilation = tuple(int(((n - 1) / (chosen - 1)) ** u) for n in space)
        group = Group(chosen, dilation, bool(turn % 2))
        counts[group] = counts.get(group, 0) + 1
    return dict(sorted(counts.items()))
