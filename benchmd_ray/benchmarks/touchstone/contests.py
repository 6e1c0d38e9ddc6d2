"""Pairwise tests and ranks of algorithms.

For each class and ordered pair, a one-sided Wilcoxon signed-rank test on the common cases, averaged
by patient, with Holm's correction over the k (k - 1) tests of a class (Wiesenfarth et al. 2021,
Methods and open-source toolkit for analyzing and visualizing challenge results) or of all classes.
Identical scores have p = 1 before Holm. A win and a higher mean do not imply each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtr
from scipy.stats import kendalltau

from benchmd_ray.benchmarks.touchstone.imported import read_rows, require_cells
from benchmd_ray.benchmarks.touchstone.joining import Floats, Scores
from benchmd_ray.benchmarks.touchstone.summaries import DrawnMeans
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.scores.comparison import LEVEL, holm, holm_together, ordered_pairs
from benchmd_ray.scores.stability import DrawnRanks, drawn_ranks, ranks
from benchmd_ray.scores.support import TEST_PATIENTS

Family = Literal["class", "all"]
"""What Holm's correction counts together: the tests of a class, or those of all classes."""


def p_of_pairs(drawn: DrawnMeans) -> Floats:
    """One-sided p that algorithm a is above b, (classes, a, b)."""
    of_classes = np.moveaxis(drawn.values, 2, 0)
    return np.stack([ordered_pairs(_by_patient(cases, drawn.patients)) for cases in of_classes])


def _by_patient(values: Floats, patients: npt.NDArray[np.str_]) -> Floats:
    """(patients, algorithms), means over the cases that have a value of all algorithms."""
    kept = ~np.isnan(values).any(axis=1)
    names, place = np.unique(patients[kept], return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, place, values[kept])
    return np.asarray(sums / np.bincount(place, minlength=len(names))[:, None])


def pairs(
    scores: Scores, drawn: Mapping[str, DrawnMeans], family: Family = "class"
) -> pd.DataFrame:
    """Every ordered pair: p that a is above b, adjusted, and the difference of their means."""
    rows: list[tuple[Any, ...]] = []
    for metric, means in drawn.items():
        p = p_of_pairs(means)
        adjusted = holm_together(p) if family == "all" else np.stack(list(map(holm_together, p)))
        for c, name in enumerate(scores.classes):
            for (a, first), (b, second) in permutations(enumerate(scores.algorithms), 2):
                tests = (p[c, a, b], adjusted[c, a, b], bool(adjusted[c, a, b] < LEVEL))
                difference = means.difference(a, b, c)
                rows.append((metric, name, first, second, *tests, *difference, int(means.units[c])))
    return pd.DataFrame(rows, columns=PAIRS)


PAIRS = (*("metric", "class", "a", "b", "p", "p_holm", "wins"), *("difference", "low", "high", "n"))


def ranked(
    scores: Scores, drawn: Mapping[str, DrawnMeans], tests: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Ranking, shares of ranks and taus of resamples, by metric and class.

    The ranking has the rank by mean with its interval over resamples, share of first places, wins,
    whether level with the best, rank by mean rank within cases, and mean Kendall's τ-b.
    """
    frames: list[pd.DataFrame] = []
    shares: list[tuple[Any, ...]] = []
    taus: list[tuple[Any, ...]] = []
    grouped = dict(list(tests.groupby(["metric", "class"], sort=False)))
    for metric, means in drawn.items():
        within = _within_cases(means)
        for c, name in enumerate((*scores.classes, MEAN)):
            order = drawn_ranks(means.means[:, c], means.draws[:, :, c])
            key = {"metric": metric, "class": name}
            of_class = grouped.get((metric, name), tests[:0])
            frames.append(_ranking(key, scores, means.means[:, c], order, within[:, c], of_class))
            shares += [
                (metric, name, scores.algorithms[a], r + 1, float(order.shares[a, r]))
                for a, r in np.argwhere(order.shares > 0).tolist()
            ]
            taus += [(metric, name, float(tau)) for tau in order.taus[~np.isnan(order.taus)]]
    return (
        pd.concat(frames, ignore_index=True),
        pd.DataFrame(shares, columns=["metric", "class", "algorithm", "rank", "share"]),
        pd.DataFrame(taus, columns=["metric", "class", "tau"]),
    )


def _ranking(
    key: Mapping[str, str],
    scores: Scores,
    means: Floats,
    drawn: DrawnRanks,
    within: Floats,
    tests: pd.DataFrame,
) -> pd.DataFrame:
    names = pd.Series(scores.algorithms)
    level = pd.Series(False, names.index)
    if key["class"] != MEAN and not np.isnan(means).any():
        best = names[int(np.argmax(means))]
        level = ~names.isin(tests.loc[(tests["a"] == best) & tests["wins"], "b"])
    taus = drawn.taus[~np.isnan(drawn.taus)]
    return pd.DataFrame(
        {
            **key,
            "algorithm": names,
            "value": means,
            "rank": drawn.rank,
            "low": drawn.low,
            "high": drawn.high,
            "first": drawn.shares[:, 0],
            "wins": names.map(tests.groupby("a")["wins"].sum()).astype("float64"),
            "level": level,
            "mean_rank": within,
            "rank_by_cases": ranks(-within[None])[0],
            "tau": taus.mean() if len(taus) else np.nan,
        }
    )


def _within_cases(drawn: DrawnMeans) -> Floats:
    """(algorithms, classes + 1) mean rank within cases; the last column is the mean over classes.

    This is “rank then average”; ranks by mean are “average then rank”.
    """
    mean_ranks = np.full(drawn.means.shape, np.nan)
    for c in range(drawn.values.shape[2]):
        by_case = _by_patient(drawn.values[:, :, c], drawn.patients)
        if len(by_case):
            mean_ranks[:, c] = ranks(by_case).mean(axis=0)
    scored = drawn.counts[:-1] > 0
    if scored.any():
        mean_ranks[:, -1] = mean_ranks[:, :-1][:, scored].mean(axis=1)
    return mean_ranks


FEWEST = 3
"""Algorithms that an order takes."""
COLUMNS = ("algorithm", "class", "mean")
DISTANCE = ("metric", "class", "tau", "low", "high", "algorithms", "n", "other_n", "known")


@dataclass(frozen=True, eq=False)
class Means:
    """Means of algorithms on one test set, of one class."""

    names: tuple[str, ...]
    values: Floats
    """(algorithms,)."""
    draws: Floats | None
    """(resamples, algorithms); None where only the means are known."""
    units: int
    """Patients; 0 where it is not known."""


Places = npt.NDArray[np.signedinteger[Any]]


class Tau(NamedTuple):
    """Kendall's τ-b of two test sets with its interval."""

    tau: float
    low: float
    high: float
    algorithms: int
    known: int
    """Pairs of algorithms whose order is known on both sets."""


def agreement(first_set: Means, second_set: Means) -> Tau:
    """Whether two test sets rank the algorithms of both alike; NaN with fewer than three.

    Resampling both sets would add noise to the order twice and bias τ down. The interval follows
    from tests of pairs instead: with Holm's correction over all pairs of both sets, the sign of a
    difference of means is known or not. Pairs known in both sets agree or disagree, any other may
    do either, which bounds τ with 95 % confidence. The order of published means is taken as known.
    """
    names = [name for name in first_set.names if name in second_set.names]
    if len(names) < FEWEST:
        return Tau(math.nan, math.nan, math.nan, len(names), 0)
    first, second = np.triu_indices(len(names), 1)
    means, p = [], []
    for test_set in (first_set, second_set):
        places = [test_set.names.index(name) for name in names]
        means.append(test_set.values[places])
        p.append(_p(test_set, places, first, second))
    certain = (holm(np.concatenate(p)).reshape(2, -1) < LEVEL).all(axis=0)
    signs = [np.sign(values[first] - values[second]) for values in means]
    sure, open_ = float((signs[0] * signs[1])[certain].sum()), int((~certain).sum())
    low, high = ((sure + way * open_) / len(first) for way in (-1, 1))
    tau = float(kendalltau(*means).statistic)
    return Tau(tau, low, high, len(names), int(certain.sum()))


def _p(test_set: Means, places: Sequence[int], first: Places, second: Places) -> Floats:
    """Two-sided p of each pair's difference; 1 where it cannot be tested."""
    values = test_set.values[list(places)]
    differences = values[first] - values[second]
    if test_set.draws is None:
        return np.where(differences == 0, 1.0, 0.0)
    if test_set.units < TEST_PATIENTS:
        return np.ones(len(differences))
    draws = test_set.draws[:, list(places)]
    spread = np.nanstd(draws[:, first] - draws[:, second], axis=0, ddof=1)
    error = spread * math.sqrt(test_set.units / (test_set.units - 1))
    reached = np.divide(np.abs(differences), error, out=np.zeros(len(error)), where=error > 0)
    return np.asarray(2 * stdtr(test_set.units - 1, -reached), np.float64)


def distance(
    ours: Mapping[tuple[str, str], Means], other: Mapping[tuple[str, str], Means]
) -> pd.DataFrame:
    """τ of each metric and class that both sets have, with the columns `DISTANCE`."""
    rows = [
        {"metric": key[0], "class": key[1], "n": means.units, "other_n": other[key].units}
        | agreement(means, other[key])._asdict()
        for key, means in ours.items()
        if key in other
    ]
    return pd.DataFrame(rows, columns=list(DISTANCE))


def read_means(path: Path, metric: str = "dsc") -> dict[tuple[str, str], Means]:
    """Published means: a CSV with the columns `COLUMNS`; the class ``mean`` is the average."""
    head, rows = read_rows(path)
    if missing := [name for name in COLUMNS if name not in head]:
        raise BenchmdError(
            f"{path}: it lacks the column {missing[0]}; expected {', '.join(COLUMNS)}."
        )
    require_cells(path, head, rows)
    classes: dict[str, dict[str, float]] = {}
    for number, line in rows.items():
        algorithm, name, mean = (line[head.index(column)] for column in COLUMNS)
        means = classes.setdefault(name, {})
        if algorithm in means:
            raise BenchmdError(f"{path}, line {number}: {algorithm} appears twice in {name}.")
        try:
            means[algorithm] = float(mean)
            if not math.isfinite(means[algorithm]):
                raise ValueError
        except ValueError as error:
            raise BenchmdError(f"{path}, line {number}: {shown(mean)} is not a number.") from error
    if not classes:
        raise BenchmdError(f"{path}: it has no rows below its header.")
    if MEAN not in classes:
        everywhere = set.intersection(*map(set, classes.values()))
        classes[MEAN] = {
            name: float(np.mean([means[name] for means in classes.values()]))
            for name in sorted(everywhere)
        }
    return {
        (metric, name): Means(tuple(means), np.array([*means.values()]), None, 0)
        for name, means in classes.items()
    }
