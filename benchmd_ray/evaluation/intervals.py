"""Intervals of AUROC from a bootstrap over patients.

Records of one patient are not independent, so patients are drawn, not records (a cluster
bootstrap): as many patients as there are, with replacement, and each record counts as often as its
patient was drawn. AUROC is as in `benchmd_ray.evaluation.metrics` (BenchMD v2, section 4; the paper
gives no intervals).

What the intervals do not cover: they hold the model fixed, so they say nothing about another
training seed. A class that a resample loses (all its positives, or all its negatives, belong to
patients not drawn) is left out of that resample's mean; `AurocInterval.scored` says how often. A
class that is separated perfectly is so in every resample, and its interval has no width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.metrics import checked_predictions

Floats = npt.NDArray[np.float64]

_CHUNK_ELEMENTS = 1 << 22
"""Resamples × rows worked on at a time: about 150 MB in all, unless one resample needs more."""


@dataclass(frozen=True)
class AurocInterval:
    """Percentile intervals of the mean AUROC and of each class, from one bootstrap."""

    low: float
    """Lower end for the mean over classes; NaN where no resample could be scored."""
    high: float
    """Upper end for the mean over classes."""
    per_class: tuple[tuple[float, float], ...]
    """Lower and upper end for each class; NaN where no resample could score it."""
    scored: tuple[float, ...]
    """Share of the resamples that could score each class. Well below 1 means a class that a few
    patients carry: its interval, and the mean's, are then rough."""


def auroc_interval(
    targets: npt.ArrayLike,
    scores: npt.ArrayLike,
    groups: npt.ArrayLike,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> AurocInterval:
    """Intervals of the mean AUROC and of every class, from one bootstrap over patients.

    Args:
        targets: (rows, classes), integers: 1, 0, or -1 for unknown, which is masked per class.
        scores: (rows, classes), higher means more likely positive.
        groups: (rows,), the patient of each row, any sortable type.
        resamples: Number of resamples.
        seed: Seed of the draws.
        level: Nominal coverage, between 0 and 1.

    Raises:
        BenchmdError: The arrays do not fit together, a score is not finite, or `resamples` or
            `level` is out of range.
    """
    _check_level(level)
    values = bootstrap_auroc(targets, scores, groups, resamples=resamples, seed=seed)
    low, high = interval(mean_over_classes(values), level)
    return AurocInterval(
        low=low,
        high=high,
        per_class=tuple(interval(column, level) for column in values.T),
        scored=tuple((~np.isnan(values)).mean(axis=0).tolist()),
    )


def bootstrap_auroc(
    targets: npt.ArrayLike,
    scores: npt.ArrayLike,
    groups: npt.ArrayLike,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Floats:
    """AUROC of every class in every resample of the patients, (resamples, classes).

    Ties count one half, exactly: all counts are integers. NaN where a resample holds no positive
    or no negative of the class, and everywhere when there are fewer than two patients, since one
    patient says nothing about how patients vary.

    The draws depend only on the seed and the sorted set of patients. Two models' predictions for
    the same patients therefore get the same resamples, and the difference of two results of this
    function is a paired bootstrap of the difference. Row order does not matter.

    Args:
        targets: (rows, classes), integers: 1, 0, or -1 for unknown, which is masked per class.
        scores: (rows, classes), higher means more likely positive.
        groups: (rows,), the patient of each row, any sortable type.
        resamples: Number of resamples.
        seed: Seed of the draws.

    Raises:
        BenchmdError: The arrays do not fit together, a score is not finite, or `resamples` is
            less than 1.
    """
    known_targets, finite_scores = checked_predictions(targets, scores)
    rows, classes = known_targets.shape
    patients = np.asarray(groups)
    if patients.shape != (rows,):
        raise BenchmdError(
            f"groups have shape {patients.shape}, expected ({rows},): the patient of each row"
        )
    if resamples < 1:
        raise BenchmdError(f"resamples must be at least 1, but got {resamples}")
    values = np.full((resamples, classes), np.nan)
    names, group_of_row = np.unique(patients, return_inverse=True)
    if len(names) < 2:
        return values
    rankings = [
        _rank(known_targets[:, index], finite_scores[:, index], group_of_row)
        for index in range(classes)
    ]
    chunk = max(1, _CHUNK_ELEMENTS // rows)
    for start in range(0, resamples, chunk):
        draws = range(start, min(start + chunk, resamples))
        weights = group_multiplicities(len(names), draws, seed=seed)
        for index, ranking in enumerate(rankings):
            values[draws.start : draws.stop, index] = _weighted_auroc(ranking, weights)
    return values


def group_multiplicities(groups: int, draws: range, *, seed: int = 0) -> npt.NDArray[np.int32]:
    """How often each group is drawn in each of some resamples, (draws, groups).

    Each row sums to `groups`. A row depends only on the seed, its number in `draws` and `groups`,
    so resamples can be computed in any portions.

    Args:
        groups: Number of groups; column i is the i-th in sorted order.
        draws: Numbers of the resamples.
        seed: Seed of the draws, at least 0.
    """
    counts = np.empty((len(draws), groups), np.int32)
    for row, draw in enumerate(draws):
        drawn = np.random.default_rng((seed, draw)).integers(0, groups, groups)
        counts[row] = np.bincount(drawn, minlength=groups)
    return counts


def mean_over_classes(values: Floats) -> Floats:
    """Unweighted mean of each resample over the classes it could score, (resamples,).

    Args:
        values: (resamples, classes), as `bootstrap_auroc` returns it. A class that is NaN in a
            resample is left out of that resample's mean; the mean is NaN when all are.
    """
    scored = ~np.isnan(values)
    count = scored.sum(axis=1)
    total = np.where(scored, values, 0.0).sum(axis=1)
    mean = np.full(len(values), np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


def interval(values: npt.ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of resampled values, NaN left out; (NaN, NaN) when nothing is left.

    Args:
        values: (resamples,).
        level: Nominal coverage, between 0 and 1.

    Raises:
        BenchmdError: `level` is out of range.
    """
    _check_level(level)
    array = np.asarray(values, dtype=np.float64)
    scored = array[~np.isnan(array)]
    if not scored.size:
        return float("nan"), float("nan")
    low, high = np.quantile(scored, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


@dataclass(frozen=True)
class _Ranking:
    """One class, ranked once: where each row of the rarer side falls among the other side's."""

    common: npt.NDArray[np.intp]
    """Groups of the side with more rows, by ascending score."""
    rare: npt.NDArray[np.intp]
    """Groups of the side with fewer rows, by ascending score."""
    below: npt.NDArray[np.intp]
    """For each rare row, how many common rows score less."""
    up_to: npt.NDArray[np.intp]
    """For each rare row, how many common rows score less or the same."""
    rare_is_positive: bool


def _rank(target: npt.NDArray[np.int8], score: Floats, groups: npt.NDArray[np.intp]) -> _Ranking:
    order = np.argsort(score, kind="stable")
    positive, negative = order[target[order] == 1], order[target[order] == 0]
    rare_is_positive = len(positive) <= len(negative)
    rare, common = (positive, negative) if rare_is_positive else (negative, positive)
    return _Ranking(
        common=groups[common],
        rare=groups[rare],
        below=np.searchsorted(score[common], score[rare], side="left"),
        up_to=np.searchsorted(score[common], score[rare], side="right"),
        rare_is_positive=rare_is_positive,
    )


def _weighted_auroc(ranking: _Ranking, weights: npt.NDArray[np.int32]) -> Floats:
    """AUROC of each resample, (resamples,), from group weights (resamples, groups).

    A rare row beats the common weight below it and ties with the common weight of its own score:
    twice its share of won pairs is the cumulative weight below plus that up to and including it.
    """
    cumulative = np.zeros((len(weights), len(ranking.common) + 1), np.int64)
    np.cumsum(weights[:, ranking.common], axis=1, dtype=np.int64, out=cumulative[:, 1:])
    rare = weights[:, ranking.rare]
    twice_won = cumulative.take(ranking.below, axis=1)
    twice_won += cumulative.take(ranking.up_to, axis=1)
    won = np.einsum("ij,ij->i", twice_won, rare, dtype=np.int64)
    pairs = 2 * cumulative[:, -1] * rare.sum(axis=1, dtype=np.int64)
    if not ranking.rare_is_positive:
        won = pairs - won
    values = np.full(len(weights), np.nan)
    np.divide(won, pairs, out=values, where=pairs > 0)
    return values


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise BenchmdError(f"level must lie between 0 and 1, but got {level}")
