"""Several training seeds as one result: mean, spread, and an interval that covers both sources.

Two things would come out differently a second time: which patients the dataset holds, and how the
training went. The bootstrap over patients holds the trained models fixed; the spread between seeds
holds the patients fixed. Each alone is too narrow. This is the design of reader studies, where
several readers see the same patients, with seeds for readers, and the interval is the one of that
field (Obuchowski & Rockette 1995; degrees of freedom of Hillis 2007), for S seeds:

    variance of the mean  =  C + s² / S
    degrees of freedom    =  variance² / ((s² / S)² / (S - 1))

C is the covariance of two seeds' values over the resamples of the patients, averaged over the pairs
of seeds and not below 0: the part of patient sampling that all seeds share. s² is the variance
between seeds (ddof 1); seen on one set of patients, it holds each seed's own part of patient
sampling too, so nothing counts twice. Chance can make s² smaller than that part. The variance is
therefore never taken below that of the mean over the resamples: what it were if seeds did
not vary. That part is known from the patients, so it adds degrees of freedom.

The interval keeps the form of the bootstrap: it is the percentile interval of the mean over seeds,
each end moved outwards by as much as ``t × standard error`` exceeds the half-width of a normal
interval from the bootstrap alone. With one seed it is the percentile interval, and says nothing
about seeds.

In simulations (60 patients, any mix of the two sources) a 95 % interval holds the truth in 92 to 98
of 100 studies of three to five seeds. Two seeds say little about how seeds vary: theirs holds it in
93 to 98 while seeds vary no more than patient sampling does, and in 87 where they vary far more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, t

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.comparison import Difference, bootstrap_p
from benchmd_ray.evaluation.intervals import interval

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pooled:
    """One metric over the seeds of a run."""

    mean: float
    """Mean over seeds; NaN where a seed has no value."""
    sd: float
    """Standard deviation between seeds (ddof 1); NaN with one seed."""
    low: float
    """Lower end of the interval for the expected value over patients and seeds; NaN where no
    resample could be scored, as with a single patient."""
    high: float
    """Upper end."""
    seeds: int
    """Number of seeds."""


def pooled_seeds(
    values: Sequence[float],
    resampled: Sequence[npt.ArrayLike],
    *,
    level: float = 0.95,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Pooled:
    """Pool the seeds of one technique on one dataset.

    Resamples that a seed could not score are left out.

    Args:
        values: (seeds,), the metric of each seed on all patients.
        resampled: (seeds,) arrays of (resamples,): the metric of each seed in the same resamples.
        level: Nominal coverage, between 0 and 1.
        bounds: The metric's range, to which the interval is cut: t of few seeds can leave it.

    Raises:
        BenchmdError: There is no seed, values and resamples do not fit together, or `level` is out
            of range.
    """
    point, draws = _checked(values, resampled)
    averaged = draws.mean(axis=0)
    low, high = interval(averaged, level)
    if len(point) > 1:
        se, df = _standard_error(point, draws)
        share = (1 + level) / 2
        wider = float(t.ppf(share, df) * se - norm.ppf(share) * _sd(averaged))
        low, high = low - wider, high + wider
    if np.isnan(point).any():
        low, high = math.nan, math.nan
    return Pooled(
        mean=float(point.mean()),
        sd=_sd(point),
        low=float(np.clip(low, *bounds)),
        high=float(np.clip(high, *bounds)),
        seeds=len(point),
    )


def difference_over_seeds(
    values: Sequence[float],
    resampled: Sequence[npt.ArrayLike],
    *,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Difference:
    """A difference over seeds, tested against zero with both sources of variation.

    The same method on differences: of two techniques trained with the same seeds and scored on the
    same patients (technique minus scratch), or of one technique on two sets of patients
    (`benchmd_ray.evaluation.comparison.unpaired`).

    Args:
        values: (seeds,), the difference of each seed on all patients.
        resampled: (seeds,) arrays of (resamples,): the difference of each seed in the same
            resamples.
        bounds: Range of a difference, to which the interval is cut, as in `pooled_seeds`.

    Returns:
        The mean, its 95 % interval, and a two-sided p: from t with the degrees of freedom above,
        not below what the number of resamples can tell, 2 / (resamples + 1). With one seed it is
        `bootstrap_p`. NaN where there is no interval.

    Raises:
        BenchmdError: There is no seed, or values and resamples do not fit together.
    """
    pooled = pooled_seeds(values, resampled, bounds=bounds)
    point, draws = _checked(values, resampled)
    if math.isnan(pooled.low):
        return Difference(pooled.mean, pooled.low, pooled.high, math.nan)
    if pooled.seeds == 1:
        return Difference(pooled.mean, pooled.low, pooled.high, bootstrap_p(draws[0]))
    se, df = _standard_error(point, draws)
    smallest = min(1.0, 2 / (draws.shape[1] + 1))
    if se < 1e-12:
        p = smallest if abs(pooled.mean) > 1e-12 else 1.0
    else:
        p = max(smallest, float(2 * t.sf(abs(pooled.mean) / se, df)))
    return Difference(pooled.mean, pooled.low, pooled.high, p)


def _sd(values: Floats) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _standard_error(point: Floats, draws: Floats) -> tuple[float, float]:
    """Standard error of the mean over seeds and its degrees of freedom, as the module says."""
    seeds, resamples = draws.shape
    if seeds < 2 or resamples < 2:
        return math.nan, math.nan
    covariances = np.cov(draws)
    shared = max(0.0, float(covariances[~np.eye(seeds, dtype=bool)].mean()))
    between = float(point.var(ddof=1)) / seeds
    variance = max(shared + between, float(covariances.mean()))
    df = variance**2 / (between**2 / (seeds - 1)) if between else math.inf
    return math.sqrt(variance), df


def _checked(values: Sequence[float], resampled: Sequence[npt.ArrayLike]) -> tuple[Floats, Floats]:
    """Values (seeds,) and the resamples that all seeds could score, (seeds, resamples)."""
    point = np.asarray(values, np.float64)
    if point.ndim != 1 or not len(point):
        raise BenchmdError(f"values have shape {point.shape}, expected (seeds,), at least one seed")
    draws = [np.asarray(own, np.float64) for own in resampled]
    shapes = {own.shape for own in draws}
    if len(draws) != len(point) or len(shapes) != 1 or draws[0].ndim != 1:
        raise BenchmdError(
            f"resampled values have shapes {[own.shape for own in draws]} for {len(point)} seeds, "
            "expected (resamples,) for each, from the same resamples"
        )
    stacked = np.stack(draws)
    return point, stacked[:, ~np.isnan(stacked).any(axis=0)]
