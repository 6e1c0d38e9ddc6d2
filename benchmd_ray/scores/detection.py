"""AUROC of detectors that tell records out of distribution from those in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.scores.ranking import Weights, cumulative
from benchmd_ray.scores.resampling import narrow_multiplicities
from benchmd_ray.scores.sums import Floats, ratio

_ELEMENTS = 1 << 23
"""Resamples × records that are ranked at a time: some 150 MB, unless one resample needs more."""
Side = tuple[Floats, npt.NDArray[Any]]
"""Scores of records, larger is more out, and the patient of each, of any sortable type."""


def resampled_detection(inside: Side, sets: Sequence[Side], resamples: int) -> Floats:
    """AUROC over resamples of patients of each set that is out of distribution, (sets, resamples).

    Patients of in and of out are drawn apart; where any has records of both kinds, all patients of
    the two are drawn together, once for both.
    """
    most = max(len(scores) for scores, _ in (inside, *sets))
    step = max(1, _ELEMENTS // most)
    portions = [range(n, min(n + step, resamples)) for n in range(0, resamples, step)]
    return np.concatenate([_of_draws(inside, sets, draws) for draws in portions], axis=1)


def _of_draws(inside: Side, sets: Sequence[Side], draws: range) -> Floats:
    """`resampled_detection` of some resamples."""
    order = np.argsort(inside[0], kind="stable")
    ascending, patients = inside[0][order], inside[1][order]
    own = np.unique(patients)
    below_alone = cumulative(_drawn(len(own), draws, 0), np.searchsorted(own, patients))
    values = []
    for scores, away in sets:
        names, below = np.unique(away), below_alone
        if np.isin(names, own).any():
            names = np.union1d(own, names)
            weights = _drawn(len(names), draws, 0)
            if len(names) > len(own):
                below = cumulative(weights, np.searchsorted(names, patients))
        else:
            weights = _drawn(len(names), draws, 1)
        # Out wins against what is below it in in, and half of what has the same score.
        won = below.take(np.searchsorted(ascending, scores, "left"), axis=1, mode="clip")
        won += below.take(np.searchsorted(ascending, scores, "right"), axis=1, mode="clip")
        count = weights.take(np.searchsorted(names, away), axis=1, mode="clip")
        pairs = 2 * below[:, -1] * count.sum(axis=1, dtype=np.int64)
        values.append(ratio(np.einsum("ij,ij->i", won, count, dtype=np.int64), pairs))
    return np.stack(values)


@lru_cache(maxsize=32)
def _drawn(patients: int, draws: range, seed: int) -> Weights:
    return narrow_multiplicities(patients, draws, seed)
