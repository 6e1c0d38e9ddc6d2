"""xresnet1d101 for signals over time: the network of PTB-XL's benchmark.

Sources: Strodthoff et al., "Deep Learning for ECG Analysis: Benchmarks and Insights from PTB-XL"
(https://arxiv.org/abs/2004.13701), and the code released with it
(https://github.com/helme/ecg_ptbxl_benchmarking), which uses fastai's one-dimensional xresnet with
the shortcuts of He et al., "Bag of Tricks" (https://arxiv.org/abs/1812.01187), section 4.2. In the
released code all stages have the same width, unlike in a ResNet for images (``growth`` 2).

Differences from the released code:

* Features are the mean over time. The released code uses mean and maximum, and two layers before
  the classes.
* The weight of the last norm of each bottleneck is initialised to 0, as in fastai, so that a
  bottleneck is its shortcut at first. The released training re-initialises all weights, which sets
  it to 1.
* A whole signal is the input, at its own rate. In the released code a record's probability is the
  maximum over crops of 2.5 s at 100 Hz.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.drop_path import DropPath
from benchmd_ray.models.networks import require_ranges
from benchmd_ray.models.resnet import EXPANSION, BatchNorm, places_after, require_axes
from benchmd_ray.schema.ranges import ShareBelow1, Within
from benchmd_ray.settings.definition import EncoderSettings, updated

AXES = ("channel", "time")
"""Axes of supported signals, with any number of channels."""
KERNEL = 5
"""Kernel size in samples, in stem and bottlenecks."""
DEPTHS = (3, 4, 23, 3)
"""Bottlenecks of each stage."""


@dataclass(frozen=True)
class XResNetOptions:
    """Options read from ``encoder.options``; the network uses no other encoder settings."""

    width: Annotated[int, Within(2, 2**12)] = 64
    """Channels inside the bottlenecks of the first stage, an even number. Their outputs have
    `EXPANSION` times as many; the stem's three convolutions have half, half and all of them.
    """
    growth: Annotated[int, Within(1, 2)] = 1
    """Ratio of a stage's channels to those of the previous one: 1 in the released code, 2 in
    ResNets.
    """
    dropout: ShareBelow1 = 0.0
    """Dropout of the features in training."""

    def __post_init__(self) -> None:
        require_ranges(self)
        if self.width % 2:
            raise BenchmdError(
                f"setting encoder.options.width is {self.width}, expected an even number."
            )


class Bottleneck(nn.Module):
    """ReLU of a body and a shortcut, added."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        last, norm, _ = _convolved(width, outputs, 1)  # the ReLU is after the sum
        nn.init.zeros_(norm.weight)
        self.body = nn.Sequential(
            *_convolved(inputs, width, 1), *_convolved(width, width, KERNEL, stride), last, norm
        )
        shortcut: list[nn.Module] = []
        if stride > 1:
            shortcut.append(nn.AvgPool1d(stride, ceil_mode=True))
        if inputs != outputs:
            shortcut += _convolved(inputs, outputs, 1)[:-1]
        self.shortcut = nn.Sequential(*shortcut)
        self.drop_path = DropPath()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, inputs, time) to (batch, outputs, time); halving of time rounds up."""
        return functional.relu(self.drop_path(self.body(x)) + self.shortcut(x))


def _convolved(
    inputs: int, outputs: int, kernel: int, stride: int = 1
) -> tuple[nn.Conv1d, BatchNorm, nn.ReLU]:
    """A convolution that keeps the length except for its stride, with norm and ReLU.

    Weights are normal, scaled to the inputs (He et al., https://arxiv.org/abs/1502.01852).
    """
    convolution = nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight)
    return convolution, BatchNorm(outputs), nn.ReLU(inplace=True)


class XResNet(nn.Module):
    """Encoder of signals over time, (channel, time), to feature vectors."""

    def __init__(self, signal: Signal, size: EncoderSettings) -> None:
        super().__init__()
        require_axes(signal, size.network, AXES)
        options = updated(XResNetOptions(), size.options, "encoder.options.")
        self.signal, width = signal, options.width
        self.stem = nn.Sequential(
            *_convolved(signal.input_shape[0], width // 2, KERNEL, 2),
            *_convolved(width // 2, width // 2, KERNEL),
            *_convolved(width // 2, width, KERNEL),
            nn.MaxPool1d(3, 2, 1),
        )
        widths = [width * options.growth**stage for stage in range(len(DEPTHS))]
        blocks, inputs = [], width
        for stage, (depth, channels) in enumerate(zip(DEPTHS, widths, strict=True)):
            for number in range(depth):
                blocks.append(Bottleneck(inputs, channels, 2 if stage and not number else 1))
                inputs = channels * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(options.dropout)
        self.width = inputs
        extents = signal.input_shape[1:]
        self.largest_map = max(
            EXPANSION * channels * places_after(4 * 2**stage, extents)
            for stage, channels in enumerate(widths)
        )
        """Values of the largest map of one example."""

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Features (batch, width) of normalised signals (batch, *input_shape): mean over time."""
        pooled: torch.Tensor = self.dropout(self.blocks(self.stem(signals)).mean(dim=2))
        return pooled


XRESNETS: dict[str, Callable[[Signal, EncoderSettings], XResNet]] = {"xresnet1d101": XResNet}
