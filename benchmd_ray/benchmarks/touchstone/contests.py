"""Which algorithm is above which, and what the order is worth.

Tests: for each class and every ordered pair the one-sided Wilcoxon signed-rank test on the common
cases, patients counted once, with Holm's correction in one family of k (k - 1) tests per class
(Wiesenfarth et al. 2021, Methods and open-source toolkit for analyzing and visualizing challenge
results), or of all classes together. Identical scores have p = 1 before Holm. A win says that
differences tend to be above zero, which a higher mean does not imply, nor does it imply one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from benchmd_ray.benchmarks.touchstone.joining import Floats, Scores
from benchmd_ray.benchmarks.touchstone.summaries import DrawnMeans
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.scores.comparison import LEVEL, holm_together, ordered_pairs
from benchmd_ray.scores.stability import DrawnRanks, drawn_ranks, ranks

Family = Literal["class", "all"]
"""What Holm's correction counts together: the tests of a class, or those of all classes."""


def p_of_pairs(drawn: DrawnMeans) -> Floats:
    """One-sided p that algorithm a is above b, (classes, a, b)."""
    return np.stack(
        [
            ordered_pairs(by_patient(drawn.values[:, :, c], drawn.patients))
            for c in range(drawn.values.shape[2])
        ]
    )


def by_patient(values: Floats, patients: Any) -> Floats:
    """Mean over the cases of each patient, (patients, algorithms), of those with a value."""
    kept = ~np.isnan(values).any(axis=1)
    names, place = np.unique(patients[kept], return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, place, values[kept])
    return np.asarray(sums / np.bincount(place, minlength=len(names))[:, None])


def pairs(
    scores: Scores, drawn: Mapping[str, DrawnMeans], family: Family = "class"
) -> pd.DataFrame:
    """Every ordered pair: p that a is above b, adjusted, and the difference of their means."""
    return pd.DataFrame(_pairs(scores, drawn, family), columns=PAIRS)


PAIRS = (
    *("metric", "class", "a", "b", "p", "p_holm", "wins"),
    *("difference", "low", "high", "n"),
)
"""Columns of `pairs`."""


def _pairs(
    scores: Scores, drawn: Mapping[str, DrawnMeans], family: Family
) -> Iterator[dict[str, Any]]:
    for metric, metric_draws in drawn.items():
        p = p_of_pairs(metric_draws)
        adjusted = holm_together(p) if family == "all" else np.stack(list(map(holm_together, p)))
        for c, name in enumerate(scores.classes):
            for a, first in enumerate(scores.algorithms):
                for b, second in enumerate(scores.algorithms):
                    if a == b:
                        continue
                    value, low, high = metric_draws.difference(a, b, c)
                    yield {
                        "metric": metric,
                        "class": name,
                        "a": first,
                        "b": second,
                        "p": p[c, a, b],
                        "p_holm": adjusted[c, a, b],
                        "wins": bool(adjusted[c, a, b] < LEVEL),
                        "difference": value,
                        "low": low,
                        "high": high,
                        "n": int(metric_draws.units[c]),
                    }


def level_with_best(tests: pd.DataFrame, best: str) -> list[str]:
    """The algorithm of the highest mean, and those not significantly below it."""
    beaten = set(tests.loc[(tests["a"] == best) & tests["wins"], "b"])
    return [best, *(name for name in dict.fromkeys(tests["b"]) if name not in {best, *beaten})]


def ranked(
    scores: Scores, drawn: Mapping[str, DrawnMeans], tests: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Order of the algorithms by class and over all.

    Returns:
        Ranking: for each metric, class and algorithm its rank by mean with the interval over
        resamples, the share of first places, wins, whether it is level with the best, the rank by
        the mean of its ranks within cases, and Kendall's τ-b of the ranking. Shares: of each rank.
        Taus: of each resample.
    """
    rows: list[dict[str, Any]] = []
    shares: list[dict[str, Any]] = []
    taus: list[dict[str, Any]] = []
    grouped = dict(list(tests.groupby(["metric", "class"], sort=False)))
    for metric, metric_draws in drawn.items():
        within = within_cases(metric_draws)
        for c, name in enumerate((*scores.classes, MEAN)):
            drawn_rank = drawn_ranks(metric_draws.means[:, c], metric_draws.draws[:, :, c])
            tests_of_class = grouped.get((metric, name), tests[:0])
            key = {"metric": metric, "class": name}
            rows += _ranking(
                scores.algorithms,
                metric_draws.means[:, c],
                drawn_rank,
                within[:, c],
                tests_of_class,
                key,
            )
            for a, algorithm in enumerate(scores.algorithms):
                shares += [
                    {**key, "algorithm": algorithm, "rank": r, "share": float(share)}
                    for r, share in enumerate(drawn_rank.shares[a], 1)
                    if share > 0
                ]
            taus += [{**key, "tau": float(tau)} for tau in drawn_rank.taus if not np.isnan(tau)]
    return (
        pd.DataFrame(rows),
        pd.DataFrame(shares, columns=["metric", "class", "algorithm", "rank", "share"]),
        pd.DataFrame(taus, columns=["metric", "class", "tau"]),
    )


def _ranking(
    algorithms: tuple[str, ...],
    means: Floats,
    drawn: DrawnRanks,
    within: Floats,
    tests: pd.DataFrame,
    key: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    wins = tests.groupby("a")["wins"].sum().to_dict()
    level: list[str] = []
    if key["class"] != MEAN and not np.isnan(means).any():
        level = level_with_best(tests, algorithms[int(np.argmax(means))])
    second = ranks(-within[None])[0]
    tau = float(np.nanmean(drawn.taus)) if (~np.isnan(drawn.taus)).any() else float("nan")
    for a, name in enumerate(algorithms):
        yield {
            **key,
            "algorithm": name,
            "value": float(means[a]),
            "rank": float(drawn.rank[a]),
            "low": float(drawn.low[a]),
            "high": float(drawn.high[a]),
            "first": float(drawn.shares[a, 0]),
            "wins": float(wins.get(name, np.nan)),
            "level": name in level,
            "mean_rank": float(within[a]),
            "rank_by_cases": float(second[a]),
            "tau": tau,
        }


def within_cases(drawn: DrawnMeans) -> Floats:
    """Mean over cases of the rank within each, (algorithms, classes + 1); the last over classes.

    This is the ranking scheme “rank then average”; ranks by mean are “average then rank”.
    """
    mean_ranks = np.full(drawn.means.shape, np.nan)
    for c in range(drawn.values.shape[2]):
        by_case = by_patient(drawn.values[:, :, c], drawn.patients)
        if len(by_case):
            mean_ranks[:, c] = ranks(by_case).mean(axis=0)
    scored = drawn.counts[:-1] > 0
    if scored.any():
        mean_ranks[:, -1] = mean_ranks[:, :-1][:, scored].mean(axis=1)
    return mean_ranks
