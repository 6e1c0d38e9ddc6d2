"""From signals in their own unit to what a published encoder takes (`models.published_form`).

Images have the pixels of Pillow, in which image encoders are trained and used.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import AXES, Signal
from benchmd_ray.models.filters import BandPass, Decimation, Resampling
from benchmd_ray.models.pillow_resize import PillowResize, grey
from benchmd_ray.models.published_form import ImageInput, Input, TimeInput, VolumeInput

EPSILON = 1e-8
"""Added to what is divided by."""
WORDS = dict(zip(AXES, ("signals over time", "images", "volumes"), strict=True))


class Adapter(nn.Module):
    """Signals (batch, *input_shape) in their unit to ``shape``, without the batch."""

    shape: tuple[int, ...]


class ImageAdapter(Adapter):
    """Grey levels to images (batch, channels, y, x)."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, signal: Signal, image: ImageInput) -> None:
        super().__init__()
        if signal.dtype != "uint8" or signal.input_shape[0] not in (1, 3):
            raise BenchmdError(
                f"it takes images of 1 or 3 channels in 256 grey levels, and {signal.name} has "
                f"{signal.input_shape[0]} channels of {signal.dtype} in {signal.unit}."
            )
        self.shape = (len(image.mean), *image.size)
        extents, target = signal.input_shape[1:], image.size
        if side := image.shorter_side:
            target = (side * extents[0] // min(extents), side * extents[1] // min(extents))
        self.resize = PillowResize(
            (extents[0], extents[1]), target, image.interpolation, image.rounded
        )
        self._centre = tuple(
            slice((whole - cut) // 2, (whole - cut) // 2 + cut)
            for whole, cut in zip(target, image.size, strict=True)
        )
        shape = (1, -1, 1, 1)
        self.register_buffer("mean", torch.tensor(image.mean).reshape(shape), persistent=False)
        self.register_buffer("std", torch.tensor(image.std).reshape(shape), persistent=False)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = signals.float()
        if images.shape[1] > self.shape[0]:
            images = grey(images)
        images = self.resize(images)[(..., *self._centre)]
        images = images.expand(-1, self.shape[0], -1, -1) / 255
        return (images - self.mean) / self.std


class TimeAdapter(Adapter):
    """Signals over time to (batch, leads, samples) or (batch, leads × samples)."""

    def __init__(self, signal: Signal, time: TimeInput) -> None:
        super().__init__()
        if missing := [name for name in time.channels if name not in signal.channels]:
            raise BenchmdError(
                f"it takes the leads {', '.join(time.channels)}, and {signal.name} lacks "
                f"{', '.join(missing)}."
            )
        assert signal.rate is not None  # of every signal over time
        self.time = time
        self._order = [signal.channels.index(name) for name in time.channels]
        self.resample = Resampling(signal.rate, time.rate)
        self.filter = BandPass(time.band, time.taps, time.rate) if time.band else nn.Identity()
        self.decimate = Decimation(time.decimate) if time.decimate > 1 else nn.Identity()
        leads = len(time.channels)
        laid_out = (leads * time.samples,) if time.layout == "flat" else (leads, time.samples)
        self._laid_out = laid_out
        self.shape = (*laid_out[:-1], laid_out[-1] // time.decimate)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        x = self.filter(self.resample(signals[:, self._order].float()))
        x, samples = _scaled(x, self.time.scale), self.time.samples
        x = functional.pad(x[..., :samples], (0, max(0, samples - x.shape[-1])))
        decimated: torch.Tensor = self.decimate(x.reshape(len(x), *self._laid_out))
        return decimated


def _scaled(x: torch.Tensor, scale: str) -> torch.Tensor:
    """Signals (batch, leads, time); of a constant lead all values are alike."""
    if scale == "lead-range":
        low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
        return 2 * (x - low) / (high - low + EPSILON) - 1
    return _by_deviation(x) if scale == "record-deviation" else x


def _by_deviation(x: torch.Tensor) -> torch.Tensor:
    """Mean 0 and standard deviation 1 of each record."""
    axes = tuple(range(1, x.ndim))
    std = x.std(dim=axes, keepdim=True, correction=0)
    return (x - x.mean(dim=axes, keepdim=True)) / (std + EPSILON)


class VolumeAdapter(Adapter):
    """Volumes (batch, 1, z, y, x)."""

    def __init__(self, signal: Signal, volume: VolumeInput) -> None:
        super().__init__()
        if signal.input_shape[0] != 1:
            raise BenchmdError(
                f"it takes volumes of one channel, and {signal.name} has {signal.input_shape[0]}."
            )
        if volume.unit and signal.unit != volume.unit:
            raise BenchmdError(f"it takes {volume.unit}, and {signal.name} is in {signal.unit}.")
        self.volume = volume
        enlarged = tuple(max(extent, volume.least) for extent in signal.input_shape[1:])
        self._extents = volume.size or enlarged
        self._is_resized = self._extents != signal.input_shape[1:]
        self.shape = (1, *self._extents)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        x = signals.float()
        if self._is_resized:
            x = functional.interpolate(x, self._extents, mode="trilinear", align_corners=False)
        if self.volume.window:
            low, high = self.volume.window
            x = ((x - low) / (high - low)).clamp(0, 1)
        if self.volume.scale == "deviation":
            return _by_deviation(x)
        return _by_foreground(x) if self.volume.scale == "foreground-deviation" else x


def _by_foreground(x: torch.Tensor) -> torch.Tensor:
    """Mean 0 and standard deviation 1 of the voxels above 0 of each volume; others are 0."""
    axes, inside = (1, 2, 3, 4), x > 0
    count = inside.sum(dim=axes, keepdim=True).clamp_min(1)
    mean = (x * inside).sum(dim=axes, keepdim=True) / count
    std = (((x - mean) * inside) ** 2).sum(dim=axes, keepdim=True).div(count).sqrt()
    return torch.where(inside, (x - mean) / (std + EPSILON), 0.0)


def adapter(taken: Input, signal: Signal) -> Adapter:
    """The module from signals (batch, *input_shape) in their unit to a network's input.

    Raises:
        BenchmdError: The signal does not fit.
    """
    if signal.axes != taken.axes:
        raise BenchmdError(
            f"it takes {WORDS[taken.axes]}, and {signal.name} has the axes "
            f"{', '.join(signal.axes)}."
        )
    if taken.image is not None:
        return ImageAdapter(signal, taken.image)
    if taken.time is not None:
        return TimeAdapter(signal, taken.time)
    assert taken.volume is not None
    return VolumeAdapter(signal, taken.volume)
