"""Padding around DICOM images, whose value may be far from all others (PS3.3, C.7.5.1.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

VERSION = 1
WARNING = "padding (PixelPaddingValue) takes most of the range that its values are scaled by"
MOST = 0.5


def is_mostly_padding(
    stored: npt.NDArray[np.generic], values: npt.NDArray[np.generic], bounds: Sequence[float]
) -> bool:
    """Whether the range of an image's values is mostly that between its padding and the rest.

    ``bounds`` are PixelPaddingValue and, where there is one, PixelPaddingRangeLimit, both included.
    """
    if not bounds:
        return False
    limits = [_as_stored(value, stored.dtype) for value in bounds]
    inside = (stored < min(limits)) | (stored > max(limits))
    if inside.all() or not inside.any():
        return False
    of_all, of_rest = (float(np.ptp(x.astype(np.float64))) for x in (values, values[inside]))
    return of_rest < (1 - MOST) * of_all


def _as_stored(value: float, dtype: np.dtype[Any]) -> Any:
    """A number of the header in the image's type; headers mix up signed and unsigned ones."""
    if dtype.kind == "f":
        return value
    bits = 8 * dtype.itemsize
    stored = int(value) % 2**bits
    return stored - 2**bits if dtype.kind == "i" and stored >= 2 ** (bits - 1) else stored
