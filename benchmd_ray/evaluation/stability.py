"""Would the techniques keep their order: on other patients of one dataset, and over datasets.

On one dataset each resample of the patients ranks the techniques anew; how far a technique's rank
moves, and how well each resample's ranking agrees with that of all patients (Kendall's τ-b), says
what the order is worth. Over datasets the techniques are compared by their average ranks (Demšar
2006), with Wilcoxon's signed-rank test for each pair instead of Nemenyi's (Benavoli, Corani &
Mangili 2016), since Nemenyi's verdict on two techniques depends on which others are compared.

Datasets count as independent there. Targets of one source share its model, so many targets of few
sources make the p-values look better than they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import friedmanchisquare, rankdata

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.comparison import holm
from benchmd_ray.evaluation.intervals import interval

Floats = npt.NDArray[np.float64]


class Spread(NamedTuple):
    """A value and its 95 % percentile interval over resamples; NaN where there is none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Stability:
    """How far the order of techniques depends on the patients drawn."""

    order: tuple[str, ...]
    """Techniques, best first, on all patients; those that tie in the order given."""
    rank: dict[str, Spread]
    """Rank of each on all patients (1 is best, ties averaged) and its interval, in that order."""
    tau: Spread
    """Kendall's τ-b of each resample's ranking with that of all patients: mean and interval. 1 is
    the same order, 0 no relation. NaN with one technique or when all tie."""


def ranks(values: npt.ArrayLike) -> Floats:
    """Ranks within each row, (resamples, techniques): 1 for the highest value, ties averaged.

    A row with a NaN is NaN throughout: without one of the values there is no ranking of all.

    Args:
        values: (resamples, techniques), higher is better. Negate a metric of which lower is.

    Raises:
        BenchmdError: The values are not two-dimensional.
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 2:
        raise BenchmdError(f"values have shape {array.shape}, expected (resamples, techniques)")
    if not array.size:
        return np.empty(array.shape)
    found = np.asarray(rankdata(-array, axis=1), np.float64)
    found[np.isnan(array).any(axis=1)] = np.nan
    return found


def ranking_stability(
    values: Mapping[str, float], resampled: Mapping[str, npt.ArrayLike]
) -> Stability:
    """Rank techniques on all patients and in each resample of them.

    Resamples in which a technique has no value are left out. With fewer than two patients no
    resample has one, and all intervals are NaN. If a technique has no value on all patients, all
    ranks are NaN and the order is the one given.

    Args:
        values: The metric of each technique on all patients, higher is better.
        resampled: (resamples,) the metric of each technique in the same resamples.

    Raises:
        BenchmdError: The two name other techniques, none at all, or resamples differ in number.
    """
    names = _same_names(values, resampled)
    full = ranks([[values[name] for name in names]])[0]
    drawn = ranks(_columns(names, resampled))
    drawn = drawn[~np.isnan(drawn).any(axis=1)]
    order = np.argsort(full, kind="stable") if not np.isnan(full).any() else np.arange(len(names))
    agreement = _tau(drawn, full)
    scored = agreement[~np.isnan(agreement)]
    mean = float(scored.mean()) if scored.size else math.nan
    return Stability(
        order=tuple(names[i] for i in order),
        rank={names[i]: Spread(float(full[i]), *interval(drawn[:, i])) for i in order},
        tau=Spread(mean, *interval(agreement)),
    )


@dataclass(frozen=True)
class CriticalDifference:
    """Techniques compared over datasets, for a critical-difference diagram."""

    names: tuple[str, ...]
    """Techniques in order of mean rank, best first; those that tie in the order given."""
    mean_ranks: tuple[float, ...]
    """Mean rank of each over the datasets (1 is best, ties averaged); NaN without a dataset."""
    datasets: int
    """Datasets on which every technique was scored: those used."""
    left_out: int
    """Datasets on which a technique is missing: those not used."""
    friedman: float
    """Friedman's chi-squared of no difference between the techniques."""
    p: float
    """Its p, from the chi-squared distribution; NaN with two techniques, where the pair says it."""
    pairs: tuple[tuple[str, str, float], ...]
    """Every pair in order of `names`, with the p of Wilcoxon's signed-rank test after Holm."""
    cliques: tuple[tuple[str, ...], ...]
    """Longest runs of two or more neighbours in `names` of which no pair differs significantly."""
    note: str
    """Why nothing can be concluded; empty when something can. If not empty, all p are NaN and
    there are no cliques: no significant difference was found because none could be."""


def critical_difference(
    table: npt.ArrayLike, names: Sequence[str], level: float = 0.05
) -> CriticalDifference:
    """Compare techniques over datasets: mean ranks, Friedman's test, and every pair with Holm.

    The smallest p of Wilcoxon's signed-rank test on n datasets is 2 / 2ⁿ. Where even that, after
    Holm, is above the level, no outcome could be significant; then `note` says so, and how many
    datasets it takes.

    Args:
        table: (datasets, techniques), one value of the metric each, higher is better; NaN where a
            technique was not run.
        names: (techniques,).
        level: Level of significance, between 0 and 1.

    Raises:
        BenchmdError: The shape does not fit the names, there are fewer than two techniques, or the
            level is out of range.
    """
    values = _checked_table(table, names, level)
    complete = values[~np.isnan(values).any(axis=1)]
    count, left_out = len(complete), len(values) - len(complete)
    mean = ranks(complete).mean(axis=0) if count else np.full(len(names), np.nan)
    order = np.argsort(mean, kind="stable")
    ordered = tuple(names[i] for i in order)
    complete = complete[:, order]
    indices = list(combinations(range(len(ordered)), 2))
    needed = _datasets_needed(len(indices), level)
    note = _too_few(count, left_out, needed, len(indices), level)
    statistic, p = (math.nan, math.nan) if note else _friedman(complete)
    raw = [math.nan if note else _wilcoxon(complete[:, a] - complete[:, b]) for a, b in indices]
    corrected = holm(raw).tolist()
    return CriticalDifference(
        names=ordered,
        mean_ranks=tuple(mean[order].tolist()),
        datasets=count,
        left_out=left_out,
        friedman=statistic,
        p=p,
        pairs=tuple(
            (ordered[a], ordered[b], q) for (a, b), q in zip(indices, corrected, strict=True)
        ),
        cliques=()
        if note
        else _cliques(ordered, dict(zip(indices, corrected, strict=True)), level),
        note=note,
    )


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
    """Kendall's τ-b of each row with one ranking, (rows,); NaN where either has only ties.

    The sum over pairs of techniques of whether both order them alike (1), oppositely (-1) or either
    ties (0), over the geometric mean of the numbers of pairs that each does not tie.
    """
    first, second = np.triu_indices(len(full), 1)
    own = np.sign(drawn[:, first] - drawn[:, second])
    other = np.sign(full[first] - full[second])
    untied = np.sqrt((own != 0).sum(axis=1) * np.count_nonzero(other))
    found = np.full(len(drawn), np.nan)
    np.divide(own @ other, untied, out=found, where=untied > 0)
    return found


def _checked_table(table: npt.ArrayLike, names: Sequence[str], level: float) -> Floats:
    values = np.asarray(table, np.float64)
    if values.ndim != 2 or values.shape[1] != len(names):
        raise BenchmdError(
            f"the table has shape {values.shape}, expected (datasets, {len(names)}) for the "
            f"techniques {', '.join(names)}"
        )
    if len(names) < 2:
        raise BenchmdError(f"comparing takes two techniques or more, but got {len(names)}")
    if not 0 < level < 1:
        raise BenchmdError(f"level must lie between 0 and 1, but got {level}")
    return values


def _datasets_needed(pairs: int, level: float) -> int:
    """Fewest datasets on which one pair of several could differ at a level: pairs × 2 / 2ⁿ."""
    return next(n for n in range(1, 1100) if pairs * 2.0 ** (1 - n) <= level)


def _too_few(count: int, left_out: int, needed: int, pairs: int, level: float) -> str:
    if count >= needed:
        return ""
    missing = f" ({left_out} left out, where a technique is missing)" if left_out else ""
    return (
        f"Nothing can be concluded from {count} dataset{'s' * (count != 1)}{missing}: even a "
        f"technique that wins on all of them could not differ from another at the level {level:g} "
        f"with {pairs} pair{'s' * (pairs != 1)} compared; that takes {needed} datasets."
    )


def _friedman(values: Floats) -> tuple[float, float]:
    if values.shape[1] < 3:
        return math.nan, math.nan
    if (values == values[:, :1]).all():
        return 0.0, 1.0  # all tie on every dataset, where the statistic is 0 / 0
    statistic, p = friedmanchisquare(*values.T)
    return float(statistic), float(p)


def _wilcoxon(differences: Floats) -> float:
    """Two-sided p of Wilcoxon's signed-rank test, exact with ties too.

    Datasets without a difference are dropped (Wilcoxon 1945). The p is the share of all ways to
    set the signs whose positive ranks sum up as far from the middle as seen, counted rank by rank.
    """
    rounded = np.round(differences, 12)  # 0.9 - 0.8 and 0.8 - 0.7 are to tie
    nonzero = rounded[rounded != 0]
    doubled = np.rint(2 * rankdata(np.abs(nonzero))).astype(np.int64)  # mid-ranks as integers
    total = int(doubled.sum())
    share = np.zeros(total + 1)
    share[0] = 1.0
    for rank in doubled:
        share[rank:] += share[: total + 1 - rank].copy()
        share /= 2
    smaller = min(int(doubled[nonzero > 0].sum()), int(doubled[nonzero < 0].sum()))
    return float(min(1.0, 2 * share[: smaller + 1].sum()))


def _cliques(
    names: Sequence[str], p: Mapping[tuple[int, int], float], level: float
) -> tuple[tuple[str, ...], ...]:
    """Longest runs of neighbours without a significant pair, two or more long."""
    found: list[tuple[int, int]] = []
    for start in range(len(names)):
        end = start + 1
        while end < len(names) and all(p[i, end] > level for i in range(start, end)):
            end += 1
        if end - start > 1 and (not found or end > found[-1][1]):
            found.append((start, end))
    return tuple(tuple(names[start:end]) for start, end in found)
