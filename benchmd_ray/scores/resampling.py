"""Metrics of resampled patients (a cluster bootstrap).

Records of one patient are not independent, so patients are drawn with replacement, and each record
counts as often as its patient was drawn. A class whose positives or negatives are all missing from
a resample is NaN there and excluded from that resample's mean.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.scores.metrics import Values, checked_groups, checked_metric, metric
from benchmd_ray.scores.ranking import Places, Ranked, Weights, rank
from benchmd_ray.scores.sums import (
    BLOCK_ROWS,
    Floats,
    Sums,
    Targets,
    mean_over_classes,
    ratio,
)

_RANKED_ELEMENTS = 1 << 20
"""Resamples × rows that a thread ranks at a time: about 15 MB, unless a single resample needs
more.
"""
_SUMMED_ELEMENTS = 1 << 26
"""Resamples × patients held at a time, one byte each, by all threads together."""
_KEPT_ELEMENTS = 1 << 22
"""Resamples × patients of the cached draws, one byte each."""
_BYTE = 255
"""Largest multiplicity that a byte holds."""
_MOST_THREADS = 8
"""More threads would use more memory and only wait for it."""

Fill = Callable[[range], Floats]
"""Values (draws, 1 + classes) of some resamples."""


def resampled(
    name: str,
    targets: npt.ArrayLike,
    scores: npt.ArrayLike,
    groups: npt.ArrayLike,
    task: TaskKind,
    *,
    resamples: int = 1000,
    seed: int = 0,
    threads: int | None = None,
    folds: npt.NDArray[np.intp] | None = None,
) -> Floats:
    """A metric in every resample of the patients, (resamples, 1 + classes).

    Column 0 is the mean over classes, the others are the classes. NaN where a resample cannot be
    scored, and everywhere with fewer than two patients. Targets and scores are as in
    `metrics.metric`; groups (rows,) are the patient of each row, of any sortable type.

    The draws depend only on the seed and the sorted set of patients. Two models' predictions for
    the same patients get the same resamples, so the difference of two results is a paired bootstrap
    of the difference.

    With ``folds``, (rows,), the folds of a cross-validation, ranks are compared within a fold only,
    see `metric_over_folds`, and patients are drawn within their fold. What is not ranked is
    pooled: its patients are drawn among all.

    1000 resamples of AUROC on a million rows of 7 classes take about half a minute on two CPUs
    (``speed/bootstrap.py``), and less than 1 GB. At most 8 threads are used, by default
    ``OMP_NUM_THREADS`` or the number of CPUs.
    """
    how, labels, finite = checked_metric(name, targets, scores, task)
    patient, patients = _patients(groups, len(labels), resamples)
    if patients < 2:
        return np.full((resamples, 1 + labels.shape[1]), np.nan)
    workers = max(1, min(threads or usual_threads(), _MOST_THREADS))
    if isinstance(how, Ranked):
        if folds is None:
            fill = _ranked(how, labels, finite, patient, seed)
        else:
            fill = _ranked_within(how, labels, finite, patient, folds, seed)
        most = _RANKED_ELEMENTS // len(labels)
    else:
        fill = _summed(how, labels, finite, patient, task, seed)
        most = _SUMMED_ELEMENTS // (patients * workers)
    return _in_portions(fill, resamples, most, workers)


def metric_over_folds(
    name: str,
    targets: npt.ArrayLike,
    scores: npt.ArrayLike,
    task: TaskKind,
    folds: npt.NDArray[np.intp],
) -> Values:
    """A metric of a cross-validation whose folds, (rows,), were scored by different models.

    What is ranked is a class's mean over the folds in which it has positives and negatives, since
    scores of different models are not comparable. Other metrics are those of all rows.
    """
    how, labels, finite = checked_metric(name, targets, scores, task)
    if not isinstance(how, Ranked):
        return metric(name, labels, finite, task)
    within = [
        how.per_class(labels[folds == fold], finite[folds == fold]) for fold in np.unique(folds)
    ]
    per_class = mean_over_classes(np.transpose(within))
    unscored = tuple(np.flatnonzero(np.isnan(per_class)).tolist())
    return Values(float(mean_over_classes(per_class[None])[0]), tuple(per_class.tolist()), unscored)


def group_multiplicities(groups: int, draws: range, *, seed: int = 0) -> npt.NDArray[np.int32]:
    """How often each group is drawn in each resample, (draws, groups).

    A row sums to `groups` and depends only on the seed, its own number and `groups`, so resamples
    can be computed in batches of any size.
    """
    counts = np.empty((len(draws), groups), np.int32)
    for row, draw in enumerate(draws):
        drawn = np.random.default_rng((seed, draw)).integers(0, groups, groups)
        counts[row] = np.bincount(drawn, minlength=groups)
    return counts


def resampled_means(
    values: npt.ArrayLike, groups: npt.ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> Floats:
    """Means of columns in every resample of the patients, (resamples, columns).

    The values are (rows, columns), NaN where missing. A mean is NaN if all its values are missing,
    and everywhere with fewer than two patients. The draws are those of `resampled`.
    """
    rows = np.asarray(values, np.float64)
    patient, patients = _patients(groups, len(rows), resamples)
    if patients < 2:
        return np.full((resamples, rows.shape[1]), np.nan)
    is_valid = ~np.isnan(rows)
    sums, counts = np.zeros((2, patients, rows.shape[1]))
    np.add.at(sums, patient, np.where(is_valid, rows, 0.0))
    np.add.at(counts, patient, is_valid)
    drawn = _weights(patients, range(resamples), seed).astype(np.float64)
    return ratio(drawn @ sums, drawn @ counts)


def _patients(groups: npt.ArrayLike, rows: int, resamples: int) -> tuple[Places, int]:
    patient = checked_groups(groups, rows)
    if resamples < 1:
        raise BenchmdError(f"resamples must be at least 1, but got {resamples}")
    return patient, int(patient.max(initial=-1)) + 1


def _ranked(how: Ranked, targets: Targets, scores: Floats, patient: Places, seed: int) -> Fill:
    """`Fill` for a rank-based metric: each class is ranked once."""
    rankings = [
        rank(target, score, patient) for target, score in zip(targets.T, scores.T, strict=True)
    ]
    patients = int(patient.max()) + 1

    def fill(draws: range) -> Floats:
        weights = _weights(patients, draws, seed)
        per_class = np.stack([how.weighted(ranking, weights) for ranking in rankings], axis=1)
        return np.concatenate((mean_over_classes(per_class)[:, None], per_class), axis=1)

    return fill


def _ranked_within(
    how: Ranked,
    targets: Targets,
    scores: Floats,
    patient: Places,
    folds: npt.NDArray[np.intp],
    seed: int,
) -> Fill:
    """`Fill` for a rank-based metric within folds, whose patients are drawn fold by fold."""
    rows = [np.flatnonzero(folds == fold) for fold in np.unique(folds)]
    rankings = [
        [rank(targets[of, at], scores[of, at], patient[of]) for of in rows]
        for at in range(targets.shape[1])
    ]
    members = [np.unique(patient[of]) for of in rows]
    patients = int(patient.max()) + 1

    def fill(draws: range) -> Floats:
        weights = np.zeros((len(draws), patients), np.int32)
        for place, draw in enumerate(draws):
            rng = np.random.default_rng((seed, draw))
            for of in members:
                np.add.at(weights[place], of[rng.integers(0, len(of), len(of))], 1)
        per_class = np.stack(
            [
                mean_over_classes(np.stack([how.weighted(r, weights) for r in of_class], axis=1))
                for of_class in rankings
            ],
            axis=1,
        )
        return np.concatenate((mean_over_classes(per_class)[:, None], per_class), axis=1)

    return fill


def _summed(
    how: Sums, targets: Targets, scores: Floats, patient: Places, task: TaskKind, seed: int
) -> Fill:
    """`Fill` for a metric of sums: weights times each patient's sums of terms, in blocks."""
    order = np.argsort(patient, kind="stable")
    targets, scores = targets[order], scores[order]
    starts = np.searchsorted(patient[order], np.arange(int(patient.max()) + 1))
    cuts = np.flatnonzero(np.diff(starts // BLOCK_ROWS)) + 1
    blocks = list(pairwise((0, *cuts.tolist(), len(starts))))
    ends = np.append(starts, len(patient))
    shape = how.terms(targets[:1], scores[:1], task).shape[1:]

    def fill(draws: range) -> Floats:
        weights = _weights(len(starts), draws, seed)
        totals = np.zeros((len(draws), math.prod(shape)))
        for first, last in blocks:
            rows = slice(ends[first], ends[last])
            terms = how.terms(targets[rows], scores[rows], task)
            if len(terms) > last - first:
                terms = np.add.reduceat(terms, starts[first:last] - starts[first], axis=0)
            block = weights[:, first:last].astype(np.float64)
            totals += block @ terms.reshape(len(terms), -1)
        return how.values(totals.reshape(len(draws), *shape), task)

    return fill


def _weights(patients: int, draws: range, seed: int) -> Weights:
    """`narrow_multiplicities`.

    With few patients they are cached, as every metric and every run on a dataset needs the same
    ones.
    """
    make = _few_weights if patients * len(draws) <= _KEPT_ELEMENTS else narrow_multiplicities
    return make(patients, draws, seed)


@lru_cache(maxsize=8)
def _few_weights(patients: int, draws: range, seed: int) -> Weights:
    weights = narrow_multiplicities(patients, draws, seed)
    weights.flags.writeable = False
    return weights


def narrow_multiplicities(patients: int, draws: range, seed: int) -> Weights:
    """`group_multiplicities`, in one byte each where they fit."""
    weights = np.empty((len(draws), patients), np.uint8)
    for row, draw in enumerate(draws):
        counts = group_multiplicities(patients, range(draw, draw + 1), seed=seed)[0]
        if counts.max() > _BYTE:
            return group_multiplicities(patients, draws, seed=seed)
        weights[row] = counts
    return weights


def _in_portions(fill: Fill, resamples: int, most: int, threads: int) -> Floats:
    """Compute all resamples in batches, in threads: NumPy releases the GIL."""
    size = max(1, min(most, -(-resamples // threads)))
    portions = [range(first, min(first + size, resamples)) for first in range(0, resamples, size)]
    if threads == 1 or len(portions) == 1:
        return np.concatenate([fill(draws) for draws in portions])
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(fill, portions)))


def usual_threads() -> int:
    """Number of threads for NumPy: Ray sets ``OMP_NUM_THREADS`` to the CPUs of a task."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    if variable.isdecimal() and int(variable):
        return int(variable)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
