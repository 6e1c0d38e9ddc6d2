"""Wilcoxon's signed-rank test, for one pair and for every ordered pair of several techniques.

Cases without a difference are dropped (Wilcoxon 1945). Up to `EXACT` differences the p is exact,
with ties too, which SciPy's is not; above, that of the normal approximation as SciPy gives it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.comparison import holm

Floats = npt.NDArray[np.float64]
EXACT = 50
"""Differences of an exact p at most."""
_DIGITS = 12
"""Differences that agree so far are ties: 0.9 - 0.8 and 0.8 - 0.7 are."""


class SignedRank(NamedTuple):
    """P-values of differences; 1 where there is none, NaN where nothing was compared."""

    greater: float
    """One-sided: differences tend to be above zero."""
    less: float
    """One-sided: differences tend to be below zero."""

    @property
    def two_sided(self) -> float:
        """Twice the smaller, at most 1."""
        return min(1.0, 2 * min(self.greater, self.less))


def signed_rank(differences: npt.ArrayLike, *, exact: int = EXACT) -> SignedRank:
    """Test whether differences (cases,) tend to one side; NaN where a case has none.

    The p is exact for up to ``exact`` differences.
    """
    values = np.asarray(differences, np.float64)
    if values.ndim != 1:
        raise BenchmdError(f"differences have shape {values.shape}, expected (cases,)")
    values = np.round(values[~np.isnan(values)], _DIGITS)
    if not values.size:
        return SignedRank(math.nan, math.nan)
    nonzero = values[values != 0]
    if not nonzero.size:
        return SignedRank(1.0, 1.0)
    rank = rankdata(np.abs(nonzero))
    if len(nonzero) <= exact:
        return _exact(rank, nonzero > 0)
    count = len(nonzero)
    _, tied = np.unique(rank, return_counts=True)
    variance = count * (count + 1) * (2 * count + 1) / 24 - float((tied**3 - tied).sum()) / 48
    above = (float(rank[nonzero > 0].sum()) - count * (count + 1) / 4) / math.sqrt(variance)
    return SignedRank(float(norm.sf(above)), float(norm.sf(-above)))


def _exact(absolute_ranks: Floats, positive: npt.NDArray[np.bool_]) -> SignedRank:
    doubled = np.rint(2 * absolute_ranks).astype(np.int64)  # mid-ranks as integers
    total, above = int(doubled.sum()), int(doubled[positive].sum())
    share = np.zeros(total + 1)
    share[0] = 1.0
    for rank in doubled:
        share[rank:] += share[: total + 1 - rank].copy()
        share /= 2
    tails = (share[: total - above + 1].sum(), share[: above + 1].sum())  # it is symmetric
    return SignedRank(*(float(min(1.0, tail)) for tail in tails))


def ordered_pairs(values: npt.ArrayLike) -> Floats:
    """One-sided p that technique a (row) is above technique b (column), (techniques, techniques).

    The diagonal is NaN. Values are (cases, techniques), higher is better; pairs are compared on the
    cases that both have.
    """
    table = np.asarray(values, np.float64)
    if table.ndim != 2:
        raise BenchmdError(f"values have shape {table.shape}, expected (cases, techniques)")
    count = table.shape[1]
    p_values = np.full((count, count), np.nan)
    for a in range(count):
        for b in range(a + 1, count):
            p_values[a, b], p_values[b, a] = signed_rank(table[:, a] - table[:, b])
    return p_values


def holm_together(families: npt.ArrayLike) -> Floats:
    """P-values of any shape corrected as one family (`comparison.holm`); NaN is no test."""
    p_values = np.asarray(families, np.float64)
    return holm(p_values.ravel()).reshape(p_values.shape)
