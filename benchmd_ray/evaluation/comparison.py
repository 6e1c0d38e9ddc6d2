"""Is one technique better than another on the same patients: differences, tests, corrections.

Two tests, because they rest on different things. The paired bootstrap takes any metric and the mean
over classes: both techniques are scored on the same resamples of the patients, so that what makes
a patient hard for both cancels out. DeLong's test is for the AUROC of one class and needs no draws.
Where many pairs are compared, Holm's correction holds the chance of any false claim at the level.

Both hold the trained models fixed: they say nothing about another training seed, which
`benchmd_ray.evaluation.seeds` adds. A value that does not exist is NaN, and each docstring says
when; with fewer than two patients no interval and no p-value exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.metrics import checked_predictions

Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-12
"""Differences and standard errors below this are rounding: metrics lie between 0 and 1."""


@dataclass(frozen=True)
class Difference:
    """A difference of two values of a metric, with its 95 % interval."""

    value: float
    """The difference itself; NaN where one of the two has no value."""
    low: float
    """Lower end of the percentile interval; NaN with fewer than two patients."""
    high: float
    """Upper end of the percentile interval."""
    p: float
    """Two-sided p of no difference, see `bootstrap_p`."""


def unpaired(resampled_a: npt.ArrayLike, resampled_b: npt.ArrayLike) -> Floats:
    """Resamples of a minus those of b, drawn independently of each other, (resamples,).

    Resamples of two sets of patients follow from the same seed and are not independent as they
    come: with equally many patients, patient i of both sets is drawn equally often. So those of b
    are put in another order, which is always the same one: the results for several training seeds
    remain paired among each other. NaN where either is NaN; as many as the shorter of the two has.

    Raises:
        BenchmdError: The resamples are not one-dimensional.
    """
    a, b = np.asarray(resampled_a, np.float64), np.asarray(resampled_b, np.float64)
    for values in (a, b):
        if values.ndim != 1:
            raise BenchmdError(
                f"resampled values have shape {values.shape}, expected (resamples,): take column 0 "
                "for the mean over classes"
            )
    count = min(len(a), len(b))
    return np.asarray(a[:count] - b[np.random.default_rng(0).permutation(len(b))[:count]])


def bootstrap_p(differences: npt.ArrayLike) -> float:
    """Two-sided p of no difference from bootstrapped differences.

    Twice the share of resamples on the rarer side of zero, zero counted on both sides, at most 1;
    1 is added to both counts, so that p is never 0 (Davison & Hinkley 1997, chapter 4). But
    for that 1 it agrees with the percentile interval: p is below 0.05 when the 95 % interval leaves
    out zero. NaN differences are left out; NaN when none is left.

    Args:
        differences: (resamples,).
    """
    values = np.asarray(differences, np.float64)
    values = values[~np.isnan(values)]
    if not values.size:
        return math.nan
    rarer = min(np.count_nonzero(values <= _ROUNDING), np.count_nonzero(values >= -_ROUNDING))
    return float(min(1.0, 2 * (rarer + 1) / (len(values) + 1)))


def holm(p_values: npt.ArrayLike) -> Floats:
    """P-values corrected for their number, (tests,), in the order given (Holm 1979).

    The smallest is multiplied by the number of tests, the next by one less, and so on; none becomes
    smaller than one before it, nor larger than 1. NaN stays NaN and does not count as a test.

    Args:
        p_values: (tests,).

    Raises:
        BenchmdError: They are not one-dimensional or not within 0 to 1.
    """
    p = np.asarray(p_values, np.float64)
    if p.ndim != 1:
        raise BenchmdError(f"p-values have shape {p.shape}, expected (tests,)")
    if ((p < 0) | (p > 1)).any():
        wrong = p[(p < 0) | (p > 1)][0]
        raise BenchmdError(f"p-values must lie within 0 to 1, but got {wrong:g}")
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    corrected = np.full(len(p), np.nan)
    steps = p[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
    return corrected


@dataclass(frozen=True)
class DeLong:
    """DeLong's test of the AUROC of one class: technique b minus technique a."""

    difference: float
    """AUROC of b minus that of a; NaN where the class has no positive or no negative."""
    se: float
    """Standard error; NaN where the positives or the negatives come from a single patient."""
    z: float
    """Difference over its standard error; 0 for techniques that order all pairs alike."""
    p: float
    """Two-sided p from the normal distribution; 1 for techniques that order all pairs alike. NaN
    with NaN `se`, and where the se is 0 though the difference is not: every patient shows exactly
    the same difference, so the patients do not say how it varies."""


def delong(
    targets: npt.ArrayLike,
    scores_a: npt.ArrayLike,
    scores_b: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
) -> tuple[DeLong, ...]:
    """Test the difference of two AUROCs on the same rows, for each class.

    DeLong, DeLong & Clarke-Pearson 1988, from mid-ranks as in Sun & Xu 2014 (O(n log n)). With
    several rows of a patient the covariance is the clustered one of Obuchowski 1997, which is
    DeLong's own where each patient has one row.

    Args:
        targets: (rows, classes), integers: 1, 0, or -1 for unknown, which is masked per class.
        scores_a: (rows, classes), higher means more likely positive.
        scores_b: (rows, classes).
        groups: (rows,), the patient of each row; None when each row is a patient.

    Raises:
        BenchmdError: The arrays do not fit together or a score is not finite.
    """
    known, a = checked_predictions(targets, scores_a)
    _, b = checked_predictions(targets, scores_b)
    patients = np.arange(len(known)) if groups is None else np.asarray(groups)
    if patients.shape != (len(known),):
        raise BenchmdError(
            f"groups have shape {patients.shape}, expected ({len(known)},): the patient of each row"
        )
    patient = np.unique(patients, return_inverse=True)[1]
    return tuple(
        _delong(known[:, index], a[:, index], b[:, index], patient)
        for index in range(known.shape[1])
    )


def _delong(
    target: npt.NDArray[np.int8], a: Floats, b: Floats, patient: npt.NDArray[np.intp]
) -> DeLong:
    positive, negative = target == 1, target == 0
    m, n = np.count_nonzero(positive), np.count_nonzero(negative)
    if not m or not n:
        return DeLong(math.nan, math.nan, math.nan, math.nan)
    (up_a, down_a), (up_b, down_b) = (_won(s[positive], s[negative]) for s in (a, b))
    # differences of counts are exact: techniques of the same order differ by exactly 0
    up, down = (up_b - up_a) / n, (down_b - down_a) / m
    difference = float(up.mean())
    if not up.any() and not down.any():
        return DeLong(0.0, 0.0, 0.0, 1.0)
    variance = _clustered(up - difference, down - difference, patient[positive], patient[negative])
    if math.isnan(variance):
        return DeLong(difference, math.nan, math.nan, math.nan)
    se = math.sqrt(max(variance, 0.0))
    if se <= _ROUNDING:
        equal = abs(difference) <= _ROUNDING
        return DeLong(difference, 0.0, *((0.0, 1.0) if equal else (math.nan, math.nan)))
    z = difference / se
    return DeLong(difference, se, z, math.erfc(abs(z) / math.sqrt(2)))


def _won(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Pairs that each positive and each negative row wins and loses: (positives,), (negatives,).

    The mid-rank of a positive among all, less that among the positives, is the number of negatives
    below it, a tie counting one half. Of a negative likewise the positives below, so the rest are
    above it.
    """
    ranks = rankdata(np.concatenate([positives, negatives]))
    above = ranks[: len(positives)] - rankdata(positives)
    below = ranks[len(positives) :] - rankdata(negatives)
    return above, len(positives) - below


def _clustered(
    up: Floats,
    down: Floats,
    patient_up: npt.NDArray[np.intp],
    patient_down: npt.NDArray[np.intp],
) -> float:
    """Variance of a mean over pairs from its centred components (Obuchowski 1997).

    Args:
        up: (positives,), each positive's mean over the negatives, less the overall mean.
        down: (negatives,), each negative's mean over the positives, less the overall mean.
        patient_up: (positives,), number of each positive's patient.
        patient_down: (negatives,).

    Returns:
        NaN where the positives or the negatives come from a single patient.
    """
    count = 1 + int(max(patient_up.max(), patient_down.max()))
    has_up = np.bincount(patient_up, minlength=count) > 0
    has_down = np.bincount(patient_down, minlength=count) > 0
    with_up, with_down = np.count_nonzero(has_up), np.count_nonzero(has_down)
    with_any = np.count_nonzero(has_up | has_down)
    if with_up < 2 or with_down < 2:
        return math.nan
    sums_up = np.bincount(patient_up, up, minlength=count) / len(up)
    sums_down = np.bincount(patient_down, down, minlength=count) / len(down)
    return float(
        with_up / (with_up - 1) * (sums_up @ sums_up)
        + with_down / (with_down - 1) * (sums_down @ sums_down)
        + 2 * with_any / (with_any - 1) * (sums_up @ sums_down)
    )
