"""Do two test sets rank algorithms alike: Kendall's τ-b of their means, with an interval.

Resampling both sets would add noise to the order twice and bias τ down. The interval follows from
tests of pairs instead: with Holm's correction over all pairs of both sets, the sign of a difference
of means is known or not. Pairs known in both sets agree or disagree, any other may do either, which
bounds τ with 95 % confidence. The order of published means is taken as known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtr
from scipy.stats import kendalltau

from benchmd_ray.benchmarks.touchstone.imported import read_lines
from benchmd_ray.benchmarks.touchstone.joining import Floats
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.scores.comparison import LEVEL, holm
from benchmd_ray.scores.support import TEST_PATIENTS

FEWEST = 3
"""Algorithms that an order takes."""
COLUMNS = ("algorithm", "class", "mean")
DISTANCE = ("metric", "class", "tau", "low", "high", "algorithms", "n", "other_n", "known")
"""Columns of `distance`."""


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
    """Kendall's τ-b, its interval, and how much is known."""

    tau: float
    low: float
    high: float
    algorithms: int
    known: int
    """Pairs of algorithms whose order is known on both sets."""


def agreement(first_set: Means, second_set: Means) -> Tau:
    """Whether two sets order the algorithms that both have alike; NaN with fewer than three."""
    names = [name for name in first_set.names if name in second_set.names]
    count = len(names)
    if count < FEWEST:
        return Tau(math.nan, math.nan, math.nan, count, 0)
    first, second = np.triu_indices(count, 1)
    means, p = [], []
    for test_set in (first_set, second_set):
        places = [test_set.names.index(name) for name in names]
        values = test_set.values[places]
        means.append(values)
        p.append(_p(test_set, places, first, second))
    adjusted = holm(np.concatenate(p)).reshape(2, -1)
    signs = [np.sign(values[first] - values[second]) for values in means]
    certain = (adjusted < LEVEL).all(axis=0)
    sure, open_ = float((signs[0] * signs[1])[certain].sum()), int((~certain).sum())
    tau = float(kendalltau(means[0], means[1]).statistic)
    low, high = ((sure + way * open_) / len(first) for way in (-1, 1))
    return Tau(tau, low, high, count, int(certain.sum()))


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
    rows = []
    for (metric, name), means in ours.items():
        against = other.get((metric, name))
        if against is None:
            continue
        tau, low, high, count, certain = agreement(means, against)
        sizes = {"n": means.units, "other_n": against.units, "known": certain, "algorithms": count}
        row = {"metric": metric, "class": name, "tau": tau, "low": low, "high": high}
        rows.append({**row, **sizes})
    return pd.DataFrame(rows, columns=list(DISTANCE))


def read_means(path: Path, metric: str = "dsc") -> dict[tuple[str, str], Means]:
    """Published means: a CSV with the columns `COLUMNS`; the class ``mean`` is the average."""
    lines = [line for line in read_lines(path) if line]
    head = [name.strip() for name in lines[0]] if lines else []
    if missing := [name for name in COLUMNS if name not in head]:
        raise BenchmdError(
            f"{path}: it lacks the column {missing[0]}; expected {', '.join(COLUMNS)}."
        )
    classes: dict[str, dict[str, float]] = {}
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(head):
            raise BenchmdError(f"{path}, line {number}: expected {len(head)} cells as in line 1.")
        algorithm, name, mean = (line[head.index(column)].strip() for column in COLUMNS)
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
        everywhere = (
            set.intersection(*(set(means) for means in classes.values())) if classes else set()
        )
        classes[MEAN] = {
            name: float(np.mean([means[name] for means in classes.values()]))
            for name in sorted(everywhere)
        }
    return {
        (metric, name): Means(tuple(means), np.array([*means.values()]), None, 0)
        for name, means in classes.items()
    }
