"""From arrays as read to arrays as stored: resample, segment, quantise, fit. No torch."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmd_ray.data.records import RecordError
from benchmd_ray.modality.signals import LOWEST_RATE

VERSION = 1
"""Raised whenever what it makes of the same values changes."""

Extent = tuple[int, int]
"""Height and width in pixels."""

MAX_TERM = 20_000
"""Of the ratio of two sampling rates as a fraction; the filter has 20 taps for each."""
MAX_SAMPLES = 2**27
"""A resampled signal of more samples, over all channels, is refused."""


def resample(
    signal: npt.NDArray[np.float64], rate: float, new_rate: float
) -> npt.NDArray[np.float64]:
    """Resample (..., time) from a rate to another, in Hz, by a polyphase filter.

    The result is (..., ceil(time × new_rate / rate)); edges extend the line through both ends.

    Raises:
        RecordError: The ratio of the rates has a term above `MAX_TERM`, or the result more than
            `MAX_SAMPLES`.
    """
    if min(rate, new_rate) < LOWEST_RATE:
        raise RecordError(f"its sampling rate is {rate:g} Hz, expected {LOWEST_RATE:g} or more")
    ratio = Fraction(new_rate).limit_denominator(10_000) / Fraction(rate).limit_denominator(10_000)
    if ratio == 1:
        return signal
    if max(ratio.numerator, ratio.denominator) > MAX_TERM:
        raise RecordError(
            f"its sampling rate, {rate} Hz, is to {new_rate:g} Hz as {ratio.denominator:,} is to "
            f"{ratio.numerator:,}; expected a ratio of numbers up to {MAX_TERM:,}"
        )
    if signal.size * ratio > MAX_SAMPLES:
        raise RecordError(f"resampled it would have more than {MAX_SAMPLES:,} samples")
    from scipy.signal import resample_poly  # takes a second to import, and few signals need it

    resampled = resample_poly(signal, ratio.numerator, ratio.denominator, axis=-1, padtype="line")
    return np.asarray(resampled, np.float64)


def segments(signal: npt.NDArray[np.generic], length: int) -> list[npt.NDArray[np.generic]]:
    """Whole segments of ``length`` samples along the last axis; the remainder is dropped."""
    return [
        signal[..., start : start + length]
        for start in range(0, signal.shape[-1] - length + 1, length)
    ]


def quantise(signal: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int16], float]:
    """Signal as int16 steps and the size of a step: ``signal ≈ steps × scale``.

    The largest magnitude maps to 32767, so the error is at most half of a 32767th of it.
    """
    peak = float(np.abs(signal).max(initial=0.0))
    scale = peak / 32767 if peak > 0 else 1.0
    return np.rint(signal / scale).astype(np.int16), scale


def fitted(
    image: npt.NDArray[Any], size: int | Extent, fill: float = 0
) -> tuple[npt.NDArray[Any], Extent]:
    """An image in a square or another box, its aspect ratio kept (decision D3).

    It is resized to the largest that fits with antialiasing (a triangle filter as wide as the
    reduction), centred and padded.

    Takes (y, x) or (y, x, channel) uint8, or (y, x) float32; gives (channel, height, width) of that
    type, and the valid height and width, which start at half of the padding, rounded down.
    """
    high, wide = (size, size) if isinstance(size, int) else size
    height, width = image.shape[:2]
    if height * wide >= width * high:
        valid = high, max(1, round(width * high / height))
    else:
        valid = max(1, round(height * wide / width)), wide
    # Pillow would take 2 or 4 channels for colours with transparency.
    parts = [image] if image.shape[2:] in ((), (3,)) else list(np.moveaxis(image, -1, 0))
    resized = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(part)).resize(
                valid[::-1], Image.Resampling.BILINEAR
            )
        ).reshape(*valid, -1)
        for part in parts
    ]
    channels = np.concatenate(resized, axis=2).transpose(2, 0, 1)
    box = np.full((len(channels), high, wide), fill, image.dtype)
    top, left = (high - valid[0]) // 2, (wide - valid[1]) // 2
    box[:, top : top + valid[0], left : left + valid[1]] = channels
    return box, valid


def resized_slice(values: npt.NDArray[np.generic], size: int) -> npt.NDArray[np.int16]:
    """A slice (y, x), such as in HU, `stretched` to a square and rounded (D5)."""
    return np.asarray(np.rint(stretched(values, (size, size))).clip(-32768, 32767), np.int16)


def stretched(values: npt.NDArray[np.generic], size: Extent) -> npt.NDArray[np.float32]:
    """A slice (y, x) of finite numbers, resized to height and width whatever its aspect ratio.

    Smaller slices are interpolated linearly; larger ones are reduced with antialiasing, by a
    triangle filter as wide as the reduction.
    """
    image = Image.fromarray(np.ascontiguousarray(values, np.float32))
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR))


def window_starts(length: int, window: int) -> list[int]:
    """First slices of the windows that partition ``length`` slices (decision D5).

    The last window is shifted back so that no slice is lost; fewer slices than a window give one
    window, to be padded.
    """
    starts = list(range(0, length - window + 1, window))
    if length % window or not starts:
        starts.append(max(0, length - window))
    return starts


def padded_window(
    volume: npt.NDArray[np.int16], start: int, window: int, fill: int
) -> npt.NDArray[np.int16]:
    """The slices of a volume (z, y, x) from ``start`` on, padded with slices of ``fill``."""
    slices = volume[start : start + window]
    missing = np.full((window - len(slices), *volume.shape[1:]), fill, volume.dtype)
    return np.concatenate([slices, missing])
