"""Intervals and p-values by Student's t, from standard errors of a bootstrap over patients.

Percentile bootstrap intervals are too narrow with few patients. So the bootstrap gives only the
variance, and the width follows from t with the degrees of freedom of `benchmd_ray.scores.support`.
For a value between 0 and 1 the interval is computed on the logit scale (for AUROC: Qin & Hotilovac
2008) and widened where the logits of the resamples are skewed. A value of exactly 0 or 1 has the
Clopper-Pearson interval (1934), with the patients on the rarer side of the rarest class as the
number of trials. Where the variance has a part from patients and a part from training seeds, the
quantile is the mean of the two quantiles, weighted by the parts (Cochran & Cox 1957, section 4.14).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit, fdtrc, logit, stdtr, stdtrit
from scipy.stats import norm

COVERAGE = 0.95
"""Nominal coverage of the intervals."""
SMALLEST = 1e-200
"""Smallest p that is reported."""
_ROUNDING = 1e-12
"""Differences and standard errors below this are rounding: metrics lie between 0 and 1."""


@dataclass(frozen=True)
class StandardError:
    """Standard error of a value, and the parts of its variance."""

    se: float
    """NaN where it cannot be known."""
    parts: tuple[tuple[float, float], ...]
    """Variance and degrees of freedom of each part."""

    def quantile(self, p: float) -> float:
        """The two-sided quantile for p, in standard errors."""
        total = sum(variance for variance, _ in self.parts)
        tails = [(variance, -float(stdtrit(df, p / 2))) for variance, df in self.parts]
        return sum(variance * tail for variance, tail in tails if variance) / total

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the whole variance (Satterthwaite 1946)."""
        total = sum(variance for variance, _ in self.parts)
        return total**2 / sum(variance**2 / df for variance, df in self.parts if variance)

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval."""
        return self.se * self.quantile(1 - COVERAGE)

    def p(self, distance: float) -> float:
        """Two-sided p of a distance from the truth; NaN where the error is 0 or unknown."""
        if not self.se > _ROUNDING:
            return math.nan
        reached = abs(distance) / self.se
        # The quantile is a weighted mean of those of the parts, so its p is between theirs.
        tails = [2 * float(stdtr(df, -reached)) for variance, df in self.parts if variance]
        return _level_of(lambda p: self.quantile(p) - reached, min(tails), max(tails))


def _level_of(excess: Callable[[float], float], low: float, high: float) -> float:
    """The root of a decreasing function of p within two bounds; at least `SMALLEST`."""
    low, high = max(low, SMALLEST), max(high, SMALLEST)
    if low >= high or excess(low) <= 0:
        return low
    if excess(high) >= 0:
        return high
    ends = math.log(low), math.log(high) + 1e-9
    return min(1.0, math.exp(brentq(lambda x: excess(math.exp(x)), *ends, xtol=1e-10)))


def value_interval(
    value: float,
    error: StandardError,
    draws: npt.NDArray[np.float64],
    fewest: float,
    level: float = 1 - COVERAGE,
) -> tuple[float, float]:
    """Interval of a value between 0 and 1; NaN where the value or its error is unknown.

    ``draws`` are the resampled values; for ``fewest`` see `support.Basis.fewest`; ``level`` is 1
    minus the nominal coverage.
    """
    tail = (level / 2) ** (1 / fewest)
    if value > 1 - _ROUNDING:
        return tail, 1.0
    if value < _ROUNDING:
        return 0.0, 1 - tail
    if not error.se > _ROUNDING:
        return math.nan, math.nan
    half = error.se * error.quantile(level) / (value * (1 - value))
    half *= max(1.0, _skewness(value, draws))
    return float(expit(logit(value) - half)), float(expit(logit(value) + half))


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value between 0 and 1 and what its interval rests on, see `value_interval`."""

    value: float
    error: StandardError
    draws: npt.NDArray[np.float64]
    fewest: float

    def ends(self, level: float = 1 - COVERAGE) -> tuple[float, float]:
        return value_interval(self.value, self.error, self.draws, self.fewest, level)


def equality_p(estimates: Sequence[Estimate]) -> float:
    """P-value of the hypothesis that the values of several sets of patients are equal.

    Welch's test (1951) of the logits. NaN with fewer than two values, or if any value is 0 or 1 or
    has an unknown error.
    """
    count = len(estimates)
    usable = all(
        _ROUNDING < estimate.value < 1 - _ROUNDING and estimate.error.se > _ROUNDING
        for estimate in estimates
    )
    if count < 2 or not usable:
        return math.nan
    values = np.array([estimate.value for estimate in estimates])
    spread = np.array([e.error.se * max(1.0, _skewness(e.value, e.draws)) for e in estimates])
    weights = (values * (1 - values) / spread) ** 2
    shares = weights / weights.sum()
    mean = float(shares @ logit(values))
    between = float(weights @ (logit(values) - mean) ** 2) / (count - 1)
    unsure = float(((1 - shares) ** 2 / [estimate.error.degrees for estimate in estimates]).sum())
    widened = 1 + 2 * (count - 2) / (count**2 - 1) * unsure
    return float(fdtrc(count - 1, (count**2 - 1) / (3 * unsure), between / widened))


def independent_difference(
    a: Estimate, b: Estimate, shared: StandardError | None = None
) -> tuple[float, float, float]:
    """95 % interval of a minus b for two independent sets of patients, and the p of no difference.

    The distances from each value to the ends of its interval are added in quadrature (MOVER: Zou &
    Donner 2008), together with ``shared``, the error due to training seeds that both have in
    common. p is the level at which the interval reaches 0.
    """
    difference = a.value - b.value

    def ends(level: float) -> tuple[float, float]:
        (low_a, high_a), (low_b, high_b) = a.ends(level), b.ends(level)
        common = shared.se * shared.quantile(level) if shared and shared.se > _ROUNDING else 0.0
        down, up = (
            math.hypot(a.value - low_a, high_b - b.value, common),
            math.hypot(high_a - a.value, b.value - low_b, common),
        )
        return difference - down, difference + up

    low, high = ends(1 - COVERAGE)
    if math.isnan(low) or math.isnan(high):
        return math.nan, math.nan, math.nan
    if difference == 0:
        return low, high, 1.0
    side, sign = (0, 1) if difference > 0 else (1, -1)
    # At a level of 1 an interval has no length, and rounding decides on which side of 0 it lies.
    p = _level_of(lambda level: -sign * ends(level)[side], SMALLEST, 1 - 1e-6)
    return max(-1.0, low), min(1.0, high), p


def _skewness(value: float, draws: npt.NDArray[np.float64]) -> float:
    """Spread of the draws' logits, relative to normal draws with the same standard deviation.

    The spread is half the width of the middle 68 %. The logits of 0 and 1 are infinite, so draws
    are kept at least a quarter of the value's own distance away from 0 and 1.
    """
    ends = np.quantile(draws, norm.cdf((-1, 1))).clip(value / 4, 1 - (1 - value) / 4)
    spread = float(np.ptp(logit(ends))) / 2
    return spread * value * (1 - value) / max(float(draws.std(ddof=1)), _ROUNDING)


def difference_interval(
    value: float, error: StandardError, bounds: Sequence[float] = (-1.0, 1.0)
) -> tuple[float, float]:
    """95 % interval of a difference, clipped to its range; NaN where the error is unknown."""
    if not error.se > _ROUNDING:
        return math.nan, math.nan
    half = error.half
    return max(bounds[0], value - half), min(bounds[1], value + half)
