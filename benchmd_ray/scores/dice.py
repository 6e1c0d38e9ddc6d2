"""Overlap of a predicted mask and its reference, from counts of voxels.

Dice, Measures of the amount of ecologic association between species (Ecology, 1945), unsmoothed.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Presence = Literal["both", "absent", "missed", "spurious"]
"""Where a class is present: in both, in neither, only in the reference, or only in the
prediction.
"""
CODES: tuple[Presence, ...] = get_args(Presence)
BOTH, PREDICTED, REFERENCE = 0, 1, 2
"""Positions of the counts along the last axis."""


def dice(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Dice similarity coefficient (…), unsmoothed; NaN where the reference is empty.

    The counts (…, 3) are voxels in both, in the prediction, and in the reference.
    """
    both, predicted, reference = np.moveaxis(counts.astype(np.float64), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = 2 * both / (predicted + reference)
    return np.where(reference > 0, value, np.nan)


def presence(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.str_]:
    """Where a class is, see `Presence`: (…)."""
    predicted, reference = counts[..., PREDICTED] > 0, counts[..., REFERENCE] > 0
    names = np.array([["absent", "spurious"], ["missed", "both"]])
    return np.asarray(names[reference.astype(int), predicted.astype(int)])
