"""One or several training seeds pooled to one result: mean, spread and interval.

The bootstrap over patients holds the trained models fixed; the spread between seeds holds the
patients fixed; each is too narrow. The model is that of reader studies with seeds in place of
readers (Obuchowski & Rockette 1995). For S seeds:

    variance of the mean  =  C + s² / S

C is the mean covariance between two seeds over the resamples, at least 0: the patient-sampling
variance that all seeds share. s² is the variance between seeds (ddof 1); it includes the
patient-sampling variance of each single seed. The result is never below the variance of the mean
over the resamples.

The two parts have separate degrees of freedom, those of the patients and S - 1
(`benchmd_ray.scores.intervals`). Intervals by Satterthwaite's approximation (Hillis 2007) would
cover the truth in only 87 of 100 studies with two seeds. With one seed the interval covers patients
only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.intervals import (
    Estimate,
    StandardError,
    difference_interval,
    independent_difference,
)
from benchmd_ray.scores.support import ALIKE, Basis, caution, weaker

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pooled:
    """One metric over the seeds of a run."""

    mean: float
    """Mean over seeds; NaN where a seed has no value."""
    sd: float
    """Standard deviation between seeds (ddof 1); NaN with one seed."""
    low: float
    """Lower end of the 95 % interval for the expected value over patients and seeds; NaN where
    there is none."""
    high: float
    seeds: int
    caution: str
    """Why there is no interval, or why it is rough; empty where there is nothing to say."""


@dataclass(frozen=True)
class Difference:
    """A difference of two values of a metric."""

    value: float
    low: float
    """Lower end of the 95 % interval; NaN where there is none."""
    high: float
    p: float
    """Two-sided p of no difference; NaN where nothing is tested."""
    caution: str
    """Why there is no interval or no p, or why the interval is rough; empty where there is nothing
    to say."""


@dataclass(frozen=True, eq=False)
class OverSeeds:
    """A metric of each seed of a technique on one set of patients."""

    values: Floats
    """(seeds,), on all patients, between 0 and 1."""
    resampled: Floats
    """(seeds, resamples), over the resamples that all seeds could score."""
    basis: Basis

    @classmethod
    def of(
        cls, values: Sequence[float], resampled: Sequence[npt.ArrayLike], basis: Basis
    ) -> OverSeeds:
        """Make it from values and resamples as in `pooled_seeds`."""
        return cls(*_checked(values, resampled), basis)

    @property
    def estimate(self) -> Estimate:
        """Their mean, and what its interval rests on."""
        error = error_over_seeds(self.values, self.resampled, self.basis.degrees)
        mean, draws = float(self.values.mean()), self.resampled.mean(axis=0)
        return Estimate(mean, error, draws, self.basis.fewest)

    @property
    def of_patients(self) -> Estimate:
        """Their mean, with an interval over patients only."""
        means = self.values.mean(keepdims=True), self.resampled.mean(axis=0, keepdims=True)
        return OverSeeds(*means, self.basis).estimate


def pooled_seeds(
    values: Sequence[float], resampled: Sequence[npt.ArrayLike], basis: Basis
) -> Pooled:
    """Pool the seeds of one technique on one dataset.

    Values are (seeds,), on all patients and between 0 and 1; resampled has an array (resamples,)
    per seed, of the same resamples, empty for a metric without an interval. Resamples that any seed
    could not score are skipped.

    Raises:
        BenchmdError: There is no seed, or values and resamples do not fit together.
    """
    seeds = OverSeeds.of(values, resampled, basis)
    point, mean = seeds.values, float(seeds.values.mean())
    low = high = math.nan
    reason = basis.no_interval
    if not reason and not math.isnan(mean):
        low, high = seeds.estimate.ends()
        reason = "" if low <= high else ALIKE
    return Pooled(
        mean=mean,
        sd=float(point.std(ddof=1)) if len(point) > 1 else math.nan,
        low=low,
        high=high,
        seeds=len(point),
        caution="" if math.isnan(mean) else caution(basis.rough, interval=reason),
    )


def difference_over_seeds(
    values: Sequence[float],
    resampled: Sequence[npt.ArrayLike],
    basis: Basis,
    *,
    exact: float | None = None,
) -> Difference:
    """A difference over seeds, tested against zero with the variation of patients and of seeds.

    Values and resamples are as in `pooled_seeds`, but differences of two techniques with the same
    seeds and patients; for two sets of patients see `unpaired_difference`. ``exact`` is the p of a
    test that needs no interval; it replaces the p of the t test, which is NaN without an interval
    or with a rough one.
    """
    point, draws = _checked(values, resampled)
    mean = float(point.mean())
    if math.isnan(mean):
        return Difference(mean, math.nan, math.nan, math.nan, "")
    low = high = by_t = math.nan
    reason = basis.no_interval
    if not reason:
        error = error_over_seeds(point, draws, basis.degrees)
        low, high = difference_interval(mean, error)
        reason = "" if low <= high else ALIKE
        by_t = error.p(mean)
    untested = basis.no_test or (reason or basis.rough if exact is None else "")
    p = math.nan if untested else by_t if exact is None else exact
    notes = caution(basis.rough, interval=reason, p=untested)
    return Difference(mean, low, high, p, notes)


def unpaired_difference(a: OverSeeds, b: OverSeeds, *, same_models: bool) -> Difference:
    """Means over seeds of two sets of patients, a minus b, see `intervals.independent_difference`.

    With ``same_models`` both sides were scored by the same trained model for each seed: variation
    common to both sides cancels out, and the variance between seeds is that of the difference.
    There is no p without an interval or with a rough one.
    """
    basis, common = weaker(a.basis, b.basis), None
    first, second = a.estimate, b.estimate
    if same_models and (count := len(a.values)) > 1:
        first, second = a.of_patients, b.of_patients
        between = float((a.values - b.values).var(ddof=1)) / count
        common = StandardError(math.sqrt(between), ((between, count - 1),))
    difference, low, high, p = first.value - second.value, math.nan, math.nan, math.nan
    if math.isnan(difference):
        return Difference(difference, low, high, p, "")
    if not (reason := basis.no_interval):
        low, high, p = independent_difference(first, second, common)
        reason = "" if low <= high else ALIKE
    untested = basis.no_test or reason or basis.rough
    notes = caution(basis.rough, interval=reason, p=untested)
    return Difference(difference, low, high, math.nan if untested else p, notes)


def error_over_seeds(point: Floats, draws: Floats, degrees: float) -> StandardError:
    """Standard error of the mean of (seeds,) from draws (seeds, resamples); see the module."""
    seeds, resamples = draws.shape
    if resamples < 2:
        return StandardError(math.nan, ())
    covariances = np.atleast_2d(np.cov(draws))
    least = float(covariances.mean())
    if seeds == 1:
        return StandardError(math.sqrt(least), ((least, degrees),))
    shared = max(0.0, float(covariances[~np.eye(seeds, dtype=bool)].mean()))
    between = float(point.var(ddof=1)) / seeds
    patients = max(shared, least - between)
    return StandardError(math.sqrt(patients + between), ((patients, degrees), (between, seeds - 1)))


def _checked(values: Sequence[float], resampled: Sequence[npt.ArrayLike]) -> tuple[Floats, Floats]:
    """Values (seeds,) and the resamples that all seeds could score, (seeds, resamples)."""
    point = np.asarray(values, np.float64)
    if point.ndim != 1 or not len(point):
        raise BenchmdError(f"values have shape {point.shape}, expected (seeds,), at least one seed")
    draws = [np.asarray(draw, np.float64) for draw in resampled]
    shapes = [draw.shape for draw in draws]
    if len(draws) != len(point) or len(set(shapes)) != 1 or draws[0].ndim != 1:
        raise BenchmdError(
            f"resampled values have shapes {shapes} for {len(point)} seeds, expected (resamples,) "
            "for each, from the same resamples"
        )
    stacked = np.stack(draws)
    return point, stacked[:, ~np.isnan(stacked).any(axis=0)]
