"""Calibration without the upward bias that few records give the expected calibration error.

The squared calibration error of a class is the mean over bins, weighted by their rows, of the
squared difference between the share of positives and the mean probability. Its plug-in estimate is
too high by the variance of each difference. Here the square is a mean over pairs of rows of
different patients, which has no such bias: with one row a patient, the debiased estimator of Kumar,
Liang & Ma 2019 (https://arxiv.org/abs/1909.10155), of the probabilities in bins as they are. Bins
are those of the expected calibration error (`sums.BINS`, equal width); one with rows of a single
patient has no weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.scores.metrics import checked_groups, checked_metric
from benchmd_ray.scores.resampling import resampled_means
from benchmd_ray.scores.sums import BINS, mean_over_classes, ratio

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SquaredError:
    """Debiased squared calibration error, mean over classes with known rows."""

    value: float
    """Below 0 by chance where the model is calibrated; NaN with fewer than two patients."""
    draws: Floats
    """(resamples,): means of the jackknife's pseudo-values over the resamples of
    `resampling.resampled`. Their spread is the jackknife's standard error."""


def squared_error(
    targets: npt.ArrayLike,
    scores: npt.ArrayLike,
    groups: npt.ArrayLike,
    task: TaskKind,
    *,
    resamples: int = 1000,
) -> SquaredError:
    """Measure it for targets and scores as in `metrics.metric` and the patients (rows,)."""
    _, labels, probabilities = checked_metric("calibration_error", targets, scores, task)
    patient = checked_groups(groups, len(labels))
    patients = int(patient.max(initial=-1)) + 1
    if patients < 2:
        return SquaredError(np.nan, np.full(resamples, np.nan))
    gaps, rows = _sums(labels, probabilities, patient, patients)
    whole = gaps.sum(axis=0), (gaps**2).sum(axis=0), rows.sum(axis=0), (rows**2).sum(axis=0)
    value = float(_mean_error(*whole))
    less = gaps, gaps**2, rows, rows**2
    without = _mean_error(*(total - part for total, part in zip(whole, less, strict=True)))
    pseudo = patients * value - (patients - 1) * without
    draws = resampled_means(pseudo[:, None], np.arange(patients), resamples=resamples)
    return SquaredError(value, draws[:, 0])


def _sums(
    labels: npt.NDArray[np.int8],
    scores: Floats,
    patient: npt.NDArray[np.intp],
    patients: int,
) -> tuple[Floats, Floats]:
    """Target minus score, and number of known rows, summed: (patients, classes, bins)."""
    classes = labels.shape[1]
    gaps, rows = np.zeros((2, patients, classes, BINS))
    place = np.minimum((scores * BINS).astype(np.intp), BINS - 1)
    for c in range(classes):
        known = labels[:, c] >= 0
        where = patient[known], place[known, c]
        np.add.at(gaps[:, c], where, labels[known, c] - scores[known, c])
        np.add.at(rows[:, c], where, 1.0)
    return gaps, rows


def _mean_error(gap: Floats, gap_squares: Floats, rows: Floats, row_squares: Floats) -> Floats:
    """Error (…) from totals (…, classes, bins) of patients' sums and of their squares."""
    pairs = np.maximum(rows**2 - row_squares, 0)
    is_paired = pairs > 0.5  # no error can be told from the rows of one patient
    squares = np.nan_to_num(ratio(gap**2 - gap_squares, np.where(is_paired, pairs, 0)))
    weights = np.where(is_paired, rows, 0)
    return mean_over_classes(ratio((weights * squares).sum(axis=-1), weights.sum(axis=-1)))
