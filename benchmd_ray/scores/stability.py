"""Stability of a ranking of techniques: on other patients of one dataset, and over datasets.

On one dataset the interval of a rank follows from pairwise tests, with Holm's correction over all
pairs (Mogstad, Romano, Shaikh & Wilhelm 2024): the best possible rank is 1 plus the number of
techniques that are significantly better, the worst follows from those that are significantly worse.
Kendall's τ-b between the rankings of the resamples and that of all patients describes how stable
the order is.

Over sources the techniques are compared by their average ranks (Demšar 2006), with Wilcoxon's
signed-rank test for each pair (Benavoli, Corani & Mangili 2016). Each source contributes one value,
the mean over its cells, since its settings and targets share patients and pretrained models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import friedmanchisquare, norm, rankdata, t

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.comparison import LEVEL, holm, signed_rank

Floats = npt.NDArray[np.float64]


class RankInterval(NamedTuple):
    """A rank and its 95 % interval; NaN where there is none."""

    rank: float
    low: float
    high: float


BLOCK = 64
"""Pairs whose differences are compared at a time, so that they stay in a processor's cache."""
ROUNDING = 1e-12


@dataclass(frozen=True)
class Stability:
    """A ranking of techniques and how stable it is."""

    order: tuple[str, ...]
    """Techniques, best first, on all patients; those that tie in the order given."""
    rank: dict[str, RankInterval]
    """Rank of each on all patients (1 is best, ties averaged) and its interval, in that order."""
    tau: float
    """Mean over the resamples of Kendall's τ-b of their ranking with that of all patients. 1 is the
    same order, 0 no relation. NaN with one technique or when all tie."""


def ranks(values: npt.ArrayLike) -> Floats:
    """Ranks within each row, (resamples, techniques): 1 is the highest value, ties averaged.

    A row with a NaN is NaN throughout.
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 2:
        raise BenchmdError(f"values have shape {array.shape}, expected (resamples, techniques)")
    if not array.size:
        return np.empty(array.shape)
    placed = np.asarray(rankdata(-array, axis=1), np.float64)
    placed[np.isnan(array).any(axis=1)] = np.nan
    return placed


def ranking_stability(
    values: Mapping[str, float],
    resampled: Mapping[str, npt.ArrayLike],
    p: Mapping[tuple[str, str], float],
) -> Stability:
    """Rank techniques on all patients and in each resample of them, higher being better.

    Resamples in which a technique has no value are skipped. If a technique has no value on all
    patients, all ranks are NaN and the order is unchanged. ``p`` has the Holm-corrected p of every
    pair; a technique that was not tested (NaN) has no interval.
    """
    names = _same_names(values, resampled)
    full = ranks([[values[name] for name in names]])[0]
    drawn = ranks(_columns(names, resampled))
    drawn = drawn[~np.isnan(drawn).any(axis=1)]
    order = np.argsort(full, kind="stable") if not np.isnan(full).any() else np.arange(len(names))
    agreement = _tau(drawn, full)
    scored = agreement[~np.isnan(agreement)]
    return Stability(
        order=tuple(names[i] for i in order),
        rank={names[i]: RankInterval(float(full[i]), *_places(names[i], values, p)) for i in order},
        tau=float(scored.mean()) if scored.size else math.nan,
    )


def _places(
    name: str, values: Mapping[str, float], p: Mapping[tuple[str, str], float]
) -> tuple[float, float]:
    """First and last rank that no test rules out."""
    first, last = 1, len(values)
    for pair, corrected in p.items():
        if name in pair:
            if math.isnan(corrected):
                return math.nan, math.nan
            (other,) = set(pair) - {name}
            first += corrected < LEVEL and values[other] > values[name]
            last -= corrected < LEVEL and values[other] < values[name]
    return float(first), float(last)


@dataclass(frozen=True)
class DrawnRanks:
    """How techniques are ranked in resamples of the patients."""

    rank: Floats
    """(techniques,) on all patients: 1 is best, ties averaged."""
    low: Floats
    """(techniques,) the 2.5 % quantile of the ranks in the resamples."""
    high: Floats
    """(techniques,) the 97.5 % quantile of the ranks in the resamples."""
    shares: Floats
    """(techniques, ranks) share of the resamples in which a technique has each rank, from 1. Tied
    techniques share their ranks equally, so rows and columns add up to 1.
    """
    taus: Floats
    """(resamples,) Kendall's τ-b with the ranking of all patients; NaN where either has only
    ties."""


def drawn_ranks(values: npt.ArrayLike, resampled: npt.ArrayLike) -> DrawnRanks:
    """Ranks of techniques on all patients, and in the resamples in which all have a value.

    Values are (techniques,), higher is better, and resamples (resamples, techniques).
    """
    point, drawn = np.asarray(values, np.float64), np.asarray(resampled, np.float64)
    if point.ndim != 1 or drawn.ndim != 2 or drawn.shape[1] != len(point):
        raise BenchmdError(
            f"values have shape {point.shape} and resamples {drawn.shape}, expected (techniques,) "
            "and (resamples, techniques)"
        )
    full = ranks(point[None])[0]
    drawn = drawn[~np.isnan(drawn).any(axis=1)]
    if not len(drawn) or np.isnan(full).any():
        nothing = np.full(len(point), np.nan)
        return DrawnRanks(full, nothing, nothing, np.full((len(point),) * 2, np.nan), np.empty(0))
    first, last = (rankdata(-drawn, method=way, axis=1) for way in ("min", "max"))
    shares = [
        (((first <= rank) & (rank <= last)) / (last - first + 1)).mean(axis=0)
        for rank in range(1, len(point) + 1)
    ]
    placed = ranks(drawn)
    low, high = np.quantile(placed, (0.025, 0.975), axis=0, method="inverted_cdf")
    return DrawnRanks(full, low, high, np.stack(shares, axis=1), _tau(placed, full))


@dataclass(frozen=True)
class PairedRanks:
    """Techniques told apart by the differences of all pairs on the same resamples."""

    rank: Floats
    """(techniques,) on all patients: 1 is best, ties averaged."""
    low: Floats
    """(techniques,) 1 plus the number significantly better; NaN where nothing is tested."""
    high: Floats
    """(techniques,) all minus the number that are significantly worse."""
    group: npt.NDArray[np.intp]
    """(techniques,) 1: the best and those not significantly below it; 2: the best of the others and
    those not significantly below that; …"""
    margin: Floats
    """(techniques, techniques) half the width of the simultaneous 95 % interval of a difference; 0
    where it is the same in all resamples, NaN where nothing is tested."""


def paired_ranks(
    values: npt.ArrayLike, resampled: npt.ArrayLike, degrees: float = math.inf
) -> PairedRanks:
    """Compare all pairs at once by the maximum of their studentised differences (max-T).

    The critical value is the 95 % quantile over the resamples of the largest |difference - its
    mean| / standard deviation of any pair (Romano & Wolf 2005), times that of Student's t over that
    of the normal distribution. Pairs whose difference is the same in all resamples are not counted:
    copies cost nothing, and a perfect technique is above one that guesses.

    Args:
        values: (techniques,), higher is better.
        resampled: (resamples, techniques); empty where nothing is tested.
        degrees: Of freedom, of the patients.
    """
    point, drawn = np.asarray(values, np.float64), np.asarray(resampled, np.float64)
    drawn = drawn[~np.isnan(drawn).any(axis=1)]
    margin = np.full((len(point),) * 2, np.nan)
    if len(drawn) > 1 and not math.isnan(degrees):
        centred = np.ascontiguousarray((drawn - drawn.mean(axis=0)).T)
        largest, margin = np.zeros(len(drawn)), np.zeros_like(margin)
        blocks = (
            (a, start) for a in range(len(point)) for start in range(a + 1, len(point), BLOCK)
        )
        for a, start in blocks:
            rows = slice(start, start + BLOCK)
            differences = centred[rows] - centred[a]
            spread = np.sqrt(np.einsum("ij,ij->i", differences, differences) / (len(drawn) - 1))
            spread[spread < ROUNDING] = 0
            margin[a, rows] = margin[rows, a] = spread
            np.abs(differences, out=differences)
            differences /= np.where(spread > 0, spread, np.inf)[:, None]
            np.maximum(largest, differences.max(axis=0), out=largest)
        half = 1 - LEVEL / 2
        margin *= np.quantile(largest, 1 - LEVEL) * t.ppf(half, degrees) / norm.ppf(half)
    above = point[:, None] - point > np.maximum(margin, ROUNDING)
    tested = np.where(np.isnan(margin).all(axis=1), np.nan, 0.0)
    return PairedRanks(
        rank=ranks(point[None])[0],
        low=tested + 1 + above.sum(axis=0),
        high=tested + len(point) - above.sum(axis=1),
        group=_paired_groups(point, above),
        margin=margin,
    )


def _paired_groups(point: Floats, above: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    group, number = np.zeros(len(point), np.intp), 0
    order = np.argsort(-point, kind="stable")
    while len(left := order[group[order] == 0]):
        number += 1
        group[left[~above[left[0], left]]] = number
    return group


@dataclass(frozen=True)
class CriticalDifference:
    """Techniques compared over sources, for a critical-difference diagram."""

    names: tuple[str, ...]
    """Techniques in order of mean rank, best first; those that tie in the order given."""
    mean_ranks: tuple[float, ...]
    """Mean over the sources of the mean rank over a source's cells (1 is best, ties averaged); NaN
    without a cell."""
    cells: int
    """Cells in which every technique was scored: those used."""
    sources: int
    skipped: int
    friedman: float
    p: float
    """Its p, from the chi-squared distribution; NaN with two techniques, where the pairwise test
    answers.
    """
    pairs: tuple[tuple[str, str, float], ...]
    """Every pair in order of `names`, with the p of Wilcoxon's signed-rank test after Holm."""
    cliques: tuple[tuple[str, ...], ...]
    """Longest runs of two or more neighbours in `names` without a significantly different pair."""
    note: str
    """Why nothing can be concluded; empty when something can. If not empty, all p are NaN and
    there are no cliques: no significant difference was found because none could be."""


def critical_difference(
    table: npt.ArrayLike, names: Sequence[str], sources: Sequence[str], level: float = LEVEL
) -> CriticalDifference:
    """Compare techniques over sources: mean ranks, Friedman's test, and every pair with Holm.

    The table is (cells, techniques), higher is better, NaN where a technique was not run; sources
    are (cells,). The smallest p of Wilcoxon's signed-rank test on n sources is 2 / 2ⁿ. If that is
    above the level after Holm's correction, `note` says so and states how many sources are needed.
    """
    values = _checked_table(table, names, sources, level)
    usable = ~np.isnan(values).any(axis=1)
    source = np.unique(np.asarray(sources, np.str_)[usable], return_inverse=True)[1]
    placed, means = (_means(cells, source) for cells in (ranks(values[usable]), values[usable]))
    mean = placed.mean(axis=0) if len(placed) else np.full(len(names), np.nan)
    order = np.argsort(mean, kind="stable")
    ordered, means = tuple(names[i] for i in order), means[:, order]
    indices = list(combinations(range(len(ordered)), 2))
    skipped = int(np.count_nonzero(~usable))
    note = _too_few(len(means), skipped, len(indices), level)
    statistic, p = (math.nan, math.nan) if note else _friedman(means)
    raw = [math.nan if note else _signed_rank(means[:, a] - means[:, b]) for a, b in indices]
    corrected = dict(zip(indices, holm(raw).tolist(), strict=True))
    return CriticalDifference(
        names=ordered,
        mean_ranks=tuple(mean[order].tolist()),
        cells=len(source),
        sources=len(means),
        skipped=skipped,
        friedman=statistic,
        p=p,
        pairs=tuple((ordered[a], ordered[b], q) for (a, b), q in corrected.items()),
        cliques=() if note else _cliques(ordered, corrected, level),
        note=note,
    )


def _means(values: Floats, source: npt.NDArray[np.intp]) -> Floats:
    sums = np.zeros((int(source.max(initial=-1)) + 1, values.shape[1]))
    np.add.at(sums, source, values)
    return np.asarray(sums / np.bincount(source, minlength=len(sums))[:, None])


def _same_names(
    values: Mapping[str, float], resampled: Mapping[str, npt.ArrayLike]
) -> tuple[str, ...]:
    if set(values) != set(resampled):
        raise BenchmdError(
            f"values are of {', '.join(values) or 'no technique'}, resamples of "
            f"{', '.join(resampled) or 'no technique'}: expected the same techniques"
        )
    if not values:
        raise BenchmdError("there is no technique to rank: expected at least one")
    return tuple(values)


def _columns(names: Sequence[str], resampled: Mapping[str, npt.ArrayLike]) -> Floats:
    columns = [np.asarray(resampled[name], np.float64) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.ndim != 1 or len(column) != len(columns[0]):
            raise BenchmdError(
                f"resampled values of {name} have shape {column.shape}, those of {names[0]} "
                f"{columns[0].shape}: expected (resamples,) from the same resamples"
            )
    return np.stack(columns, axis=1)


def _tau(drawn: Floats, full: Floats) -> Floats:
    """Kendall's τ-b of each row with one ranking, (rows,); NaN where either has only ties."""
    first, second = np.triu_indices(len(full), 1)
    signs = np.sign(drawn[:, first] - drawn[:, second])
    full_signs = np.sign(full[first] - full[second])
    untied = np.sqrt((signs != 0).sum(axis=1) * np.count_nonzero(full_signs))
    taus = np.full(len(drawn), np.nan)
    np.divide(signs @ full_signs, untied, out=taus, where=untied > 0)
    return taus


def _checked_table(
    table: npt.ArrayLike, names: Sequence[str], sources: Sequence[str], level: float
) -> Floats:
    values = np.asarray(table, np.float64)
    if values.ndim != 2 or values.shape != (len(sources), len(names)):
        raise BenchmdError(
            f"the table has shape {values.shape}, expected ({len(sources)}, {len(names)}): a row "
            f"for the source of each cell, a column for each of {', '.join(names)}"
        )
    if len(names) < 2:
        raise BenchmdError(f"a comparison needs two techniques or more, but got {len(names)}")
    if not 0 < level < 1:
        raise BenchmdError(f"level must lie between 0 and 1, but got {level}")
    return values


def _too_few(sources: int, skipped: int, pairs: int, level: float) -> str:
    # the smallest p of n sources is 2 / 2ⁿ, and Holm multiplies it by the pairs
    needed = next(n for n in range(1, 1100) if pairs * 2.0 ** (1 - n) <= level)
    if sources >= needed:
        return ""
    cells = f"{skipped} cell{'s' * (skipped != 1)}"
    missing = f" ({cells} skipped, where a technique is missing)" if skipped else ""
    return (
        f"Nothing can be concluded from {sources} source{'s' * (sources != 1)}{missing}: even a "
        f"technique that wins on all of them could not differ significantly at the level {level:g} "
        f"with {pairs} pair{'s' * (pairs != 1)} compared; {needed} sources are needed."
    )


def _friedman(values: Floats) -> tuple[float, float]:
    if values.shape[1] < 3:
        return math.nan, math.nan
    if (values == values[:, :1]).all():
        return 0.0, 1.0  # all tie on every dataset, where the statistic is 0 / 0
    statistic, p = friedmanchisquare(*values.T)
    return float(statistic), float(p)


def _signed_rank(differences: Floats) -> float:
    """Two-sided p, exact for any number of sources."""
    return signed_rank(differences, exact=len(differences)).two_sided


def _cliques(
    names: Sequence[str], p: Mapping[tuple[int, int], float], level: float
) -> tuple[tuple[str, ...], ...]:
    """Longest runs of neighbours without a significant pair, two or more long."""
    runs: list[tuple[int, int]] = []
    for start in range(len(names)):
        end = start + 1
        while end < len(names) and all(p[i, end] > level for i in range(start, end)):
            end += 1
        if end - start > 1 and (not runs or end > runs[-1][1]):
            runs.append((start, end))
    return tuple(tuple(names[start:end]) for start, end in runs)
