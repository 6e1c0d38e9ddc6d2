"""AUROC and average precision of weighted rows, from one ranking of each class.

Cumulative weights along the sorted rows give the weight below and at each score. A weight is the
number of times a patient was drawn, a whole number, so counts and ties are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.scores.sums import Floats, Targets, ratio

Weights = npt.NDArray[Any]
"""How often each patient was drawn, (draws, patients), of any integer type."""
Places = npt.NDArray[np.intp]
_NARROW = 2**30
"""Sums below this are stored in 32 bits: twice a sum must fit."""


@dataclass(frozen=True)
class Ranked:
    """A rank-based metric, for unweighted and for weighted rows."""

    per_class: Callable[[npt.ArrayLike, npt.ArrayLike], Floats]
    """Values (classes,) from targets and scores (rows, classes)."""
    weighted: Callable[[Ranking, Weights], Floats]


@dataclass(frozen=True)
class Ranking:
    """The rows of one class with known targets, by ascending score.

    A level is a score that at least one positive has.
    """

    rows: Places
    """(known,) patient of each row."""
    positives: Places
    """(positives,) patient of each positive row."""
    positives_up_to: Places
    """(levels,) how many positives score the level or less."""
    below: Places
    """(levels,) how many rows score less."""
    up_to: Places
    """(levels,) how many rows score the level or less."""


def rank(target: Targets, score: Floats, patients: Places) -> Ranking:
    """Rank the rows of one class, with targets 1, 0 or -1 for unknown; all arrays are (rows,).

    ``patients`` are columns of the weights.
    """
    labelled = np.flatnonzero(target >= 0)
    order = labelled[np.argsort(score[labelled], kind="stable")]
    ascending, positives = score[order], order[target[order] == 1]
    levels, counts = np.unique(score[positives], return_counts=True)
    return Ranking(
        rows=patients[order],
        positives=patients[positives],
        positives_up_to=np.cumsum(counts),
        below=np.searchsorted(ascending, levels, side="left"),
        up_to=np.searchsorted(ascending, levels, side="right"),
    )


def auroc(target: Targets, score: Floats) -> float:
    """AUROC of one class with positives and negatives, by exact counts after one sort."""
    ascending = np.sort(score)
    positives = np.sort(score[target == 1])
    below = np.searchsorted(ascending, positives, side="left")
    up_to = np.searchsorted(ascending, positives, side="right")
    several = len(positives)
    # As in `weighted_auroc`, with weights of 1.
    won = int(below.sum()) + int(up_to.sum()) - several**2
    return won / (2 * several * (len(score) - several))


def weighted_auroc(ranking: Ranking, weights: Weights) -> Floats:
    """AUROC of each draw, (draws,); NaN where it has no positive or no negative.

    A positive wins against the negatives below it and half of those with the same score. Counting
    wins against all rows instead takes only one cumulative sum; the positives win half of their
    squared weight among themselves, which is subtracted.
    """
    rows = cumulative(weights, ranking.rows)
    at_level = _positives_at_levels(ranking, weights)
    twice_below = rows.take(ranking.below, axis=1, mode="clip")
    twice_below += rows.take(ranking.up_to, axis=1, mode="clip")
    positives = at_level.sum(axis=1, dtype=np.int64)
    won = np.einsum("ij,ij->i", twice_below, at_level, dtype=np.int64) - positives**2
    return ratio(won, 2 * positives * (rows[:, -1] - positives))


def weighted_average_precision(ranking: Ranking, weights: Weights) -> Floats:
    """Average precision of each draw, (draws,), as in scikit-learn; NaN as in `weighted_auroc`."""
    rows = cumulative(weights, ranking.rows)
    at_level = _positives_at_levels(ranking, weights)
    total = rows[:, -1:]
    positives_above = np.cumsum(at_level[:, ::-1], axis=1, dtype=rows.dtype)[:, ::-1]
    called = total - rows.take(ranking.below, axis=1, mode="clip")
    precision = positives_above / np.maximum(called, 1)  # 0 where no row is called positive
    positives = at_level.sum(axis=1, dtype=np.int64)
    added = np.einsum("ij,ij->i", precision, at_level)
    return np.where(positives < total[:, 0], ratio(added, positives), np.nan)


def cumulative(weights: Weights, patients: Places) -> npt.NDArray[Any]:
    """Weight of the first 0, 1, … rows: (draws, rows + 1)."""
    most = int(weights.max(initial=0)) * len(patients)
    wide = np.int32 if most < _NARROW else np.int64
    sums = np.zeros((len(weights), len(patients) + 1), wide)
    np.cumsum(weights.take(patients, axis=1, mode="clip"), axis=1, dtype=wide, out=sums[:, 1:])
    return sums


def _positives_at_levels(ranking: Ranking, weights: Weights) -> npt.NDArray[Any]:
    """Weight of the positives of each level: (draws, levels)."""
    if len(ranking.positives_up_to) == len(ranking.positives):  # no two score the same
        return weights.take(ranking.positives, axis=1, mode="clip")
    sums = cumulative(weights, ranking.positives)
    up_to = sums.take(ranking.positives_up_to, axis=1, mode="clip")
    return np.diff(up_to, axis=1, prepend=0)
