"""Intervals and p-values by Student's t, from standard errors of a bootstrap over patients.

Percentiles of a bootstrap are too narrow with few patients and, for values near 1, on the wrong
side. So the bootstrap gives the variance, and t with the degrees of freedom of
`benchmd_ray.scores.support` gives the width; a value between 0 and 1 has its interval on the
logit scale, which keeps it inside and reaches further down than up near 1 (for AUROC: Qin &
Hotilovac 2008, "logit"). A value at the end of the range has no variance to go by: its interval is
that of Clopper & Pearson (1934) for as many successes in a row as there are patients on the rarer
side of the rarest class.

The resamples of a value near 1 are skewed, and a standard error says too little of it: there the
interval takes the spread of their logits where that is larger.

A variance may have two parts, of patients and of training seeds, with degrees of freedom of their
own. The quantile is then the mean of theirs, weighted by the parts (Cochran & Cox 1957, section
4.14), which holds the level whichever part is larger.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit, logit, stdtr, stdtrit
from scipy.stats import norm

COVERAGE = 0.95
"""Nominal coverage of the intervals."""
_ROUNDING = 1e-12
"""Differences and standard errors below this are rounding: metrics lie between 0 and 1."""


@dataclass(frozen=True)
class StandardError:
    """Standard error of a value, and what its variance is made of."""

    se: float
    """NaN where it cannot be known."""
    parts: tuple[tuple[float, float], ...]
    """Variance and degrees of freedom of each part."""

    def quantile(self, p: float) -> float:
        """How many standard errors are exceeded on either side with probability p."""
        total = sum(variance for variance, _ in self.parts)
        tails = [(variance, -float(stdtrit(df, p / 2))) for variance, df in self.parts]
        return sum(variance * tail for variance, tail in tails if variance) / total

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval."""
        return self.se * self.quantile(1 - COVERAGE)

    def p(self, distance: float) -> float:
        """Two-sided p of a distance from the truth.

        NaN without a standard error, or where it is 0: nothing says how the distance varies.
        """
        if not self.se > _ROUNDING:
            return math.nan
        reached = abs(distance) / self.se
        # The quantile is a weighted mean of those of the parts, so its p is between theirs.
        tails = [2 * float(stdtr(df, -reached)) for variance, df in self.parts if variance]
        low, high = max(min(tails), sys.float_info.min), max(tails)
        if low >= high:
            return high
        ends = math.log(low) - 1e-9, math.log(high) + 1e-9
        return math.exp(brentq(lambda x: self.quantile(math.exp(x)) - reached, *ends, xtol=1e-10))


def value_interval(
    value: float, error: StandardError, draws: npt.NDArray[np.float64], fewest: float
) -> tuple[float, float]:
    """95 % interval of a value between 0 and 1; NaN where value or error say nothing.

    Args:
        value: A metric, its mean over seeds.
        error: Of the value.
        draws: (resamples,) of the value.
        fewest: Patients that it rests on at least, see `support.Basis.fewest`.
    """
    tail = ((1 - COVERAGE) / 2) ** (1 / fewest)
    if value > 1 - _ROUNDING:
        return tail, 1.0
    if value < _ROUNDING:
        return 0.0, 1 - tail
    if not error.se > _ROUNDING:
        return math.nan, math.nan
    half = error.half / (value * (1 - value)) * max(1.0, _skewness(value, draws))
    return float(expit(logit(value) - half)), float(expit(logit(value) + half))


def _skewness(value: float, draws: npt.NDArray[np.float64]) -> float:
    """Spread of the draws' logits over that of normal draws with the same standard deviation.

    The spread is that of the middle 68 %, the one standard deviation on either side of a normal
    distribution. Draws nearer to 0 or 1 than a quarter of the value's distance are taken there: the
    logits of 0 and 1 are infinite.
    """
    ends = np.quantile(draws, norm.cdf((-1, 1))).clip(value / 4, 1 - (1 - value) / 4)
    spread = float(np.ptp(logit(ends))) / 2
    return spread * value * (1 - value) / max(float(draws.std(ddof=1)), _ROUNDING)


def difference_interval(
    value: float, error: StandardError, bounds: Sequence[float] = (-1.0, 1.0)
) -> tuple[float, float]:
    """95 % interval of a difference, cut to its range; NaN where the error says nothing."""
    if not error.se > _ROUNDING:
        return math.nan, math.nan
    half = error.half
    return max(bounds[0], value - half), min(bounds[1], value + half)
