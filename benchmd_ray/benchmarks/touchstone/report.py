"""Tables of a comparison of algorithms; scores are shown in percent, as the paper shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pandas as pd

from benchmd_ray.benchmarks.touchstone.comparing import Comparison
from benchmd_ray.benchmarks.touchstone.groups import ALL, CENTRED
from benchmd_ray.benchmarks.touchstone.report_parts import (
    BEST,
    COMMON,
    DISTANCE,
    GROUPS,
    HD95,
    MISSED,
    PAIRS,
    PERCENT,
    PUBLISHED,
    RESULTS,
    SPEED,
    WORST,
    by_order,
    class_column,
    class_title,
    in_percent,
    metric_column,
    rank_column,
    rank_digits,
    table_with,
    where_any,
)
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.errors import count_of
from benchmd_ray.report.columns import column_of, columns_of, interval_of
from benchmd_ray.report.table import Column, Table, shown
from benchmd_ray.report.tables import Declared


def headline_frame(comparison: Comparison) -> pd.DataFrame:
    """Average of each algorithm, its rank and what that is worth."""
    ranking, rows = comparison.ranking, comparison.cells[comparison.cells["class"] == MEAN]
    average = ranking[ranking["class"] == MEAN]
    classes = ranking[ranking["class"] != MEAN]
    keys = ["metric", "algorithm"]
    summed = classes.groupby(keys, sort=False)[["level", "wins"]].sum(min_count=1).reset_index()
    columns = [*keys, "rank", "low", "high", "first", "rank_by_cases", "tau"]
    ranks = average[columns].rename(columns={"low": "rank_low", "high": "rank_high"})
    table = rows.drop(columns="class").merge(ranks, on=keys).merge(summed, on=keys)
    seconds = comparison.speed.set_index("algorithm")["seconds"]
    cards = comparison.scores.by_name
    return by_order(comparison, table).assign(
        pretrained_on=lambda f: [", ".join(cards[name].pretrained_on) for name in f["algorithm"]],
        seconds=lambda f: f["algorithm"].map(seconds),
    )


def headline(comparison: Comparison) -> Table | None:
    rows = in_percent(headline_frame(comparison), "value", "low", "high", "own_mean", "first")
    by_cases = rows["rank_by_cases"]
    taus = ", ".join(
        f"{comparison.scores.title(name)} {shown(tau, 'number', 2)}"
        for name, tau in dict(zip(rows["metric"], rows["tau"], strict=True)).items()
    )
    count = len(comparison.scores.classes)
    return table_with(
        "Mean of the class means on "
        f"{count_of(int(comparison.scores.common.sum()), 'common case')} "
        f"({int(rows['n'].iloc[0]):,} with any class), in percent, with its interval over cases; "
        f"the rank's is over {comparison.resamples:,} resamples of the cases. "
        f"First: share of the resamples. Level with best: classes of {count} in which an algorithm "
        "has the highest mean or is not significantly below it. Wins: other algorithms that it is "
        "significantly above, over all classes. By case: rank of the mean rank within cases. Own "
        "average: on the algorithm's own cases, as published. Kendall's τ of the resampled order "
        f"with this one: {taus}.",
        rows,
        metric_column(comparison, rows),
        column_of("algorithm", rows["algorithm"], "text"),
        interval_of("average [95 %]", rows, "value", digits=2),
        rank_column(rows),
        column_of("first (%)", rows["first"], "number", digits=0),
        column_of("level with best", rows["level"], "integer"),
        column_of("wins", rows["wins"], "integer"),
        column_of("rank, by case", by_cases, "number", digits=rank_digits(by_cases)),
        column_of("own average", rows["own_mean"], "number", digits=1),
        column_of("own cases", rows["own_n"], "integer"),
        *where_any(rows, "seconds", "s per volume", "number"),
        *where_any(rows, "pretrained_on", "pretrained on", "text"),
    )


def published(comparison: Comparison) -> Table | None:
    """The table as the paper prints it, with the cases that it does not."""

    def cell(row: Any) -> str:
        mean, sd = (shown(PERCENT * v, "number", 1) for v in (row.own_mean, row.own_sd))
        return f"{mean} ± {sd} ({row.own_n:,})"

    return _wide(
        comparison,
        lambda cells: Column("", [cell(row) for row in cells.itertuples()]),
        "Mean ± sd over each algorithm's own cases, in percent, and their number. Average: mean of "
        "the class means ± mean of the class sds, which is not the sd of anything per case; its "
        "number is of cases with any class.",
        class_title,
    )


def common(comparison: Comparison) -> Table | None:
    """The same on the cases that all have, with intervals."""
    cells = comparison.cells
    counts = cells[cells["metric"] == comparison.metrics[0]].groupby("class")["n"].first()
    return _wide(
        comparison,
        lambda cells: interval_of("", in_percent(cells, "value", "low", "high"), "value", digits=1),
        "Mean over the cases that all algorithms have, in percent, with 95 % intervals over cases; "
        "n is the number of cases whose reference has the class.",
        lambda name: f"{class_title(name)} (n = {counts[name]:,})",
    )


def _wide(
    comparison: Comparison,
    make: Callable[[pd.DataFrame], Column],
    caption: str,
    title: Callable[[str], str],
) -> Table | None:
    """A column for each class, a row for each algorithm and metric."""
    cells = by_order(comparison, comparison.cells)
    groups = {str(name): group for name, group in cells.groupby("class", sort=False)}
    first, names = groups[MEAN], comparison.scores.classes
    return table_with(
        caption,
        first,
        metric_column(comparison, first),
        column_of("algorithm", first["algorithm"], "text"),
        *(replace(make(groups[name]), title=title(name)) for name in (*names, MEAN)),
    )


def classes_frame(comparison: Comparison) -> pd.DataFrame:
    """Everything of each algorithm and class in one row."""
    ranks = comparison.ranking.rename(columns={"low": "rank_low", "high": "rank_high"})
    return comparison.cells.merge(ranks.drop(columns="value"), on=["metric", "algorithm", "class"])


def classes(comparison: Comparison) -> Table | None:
    rows = in_percent(
        classes_frame(comparison), "value", "low", "high", "own_mean", "own_sd", "first"
    )
    rows = rows.sort_values(["metric", "class", "rank"], kind="stable")
    return table_with(
        "Each class: common cases, ranks, and own cases. Choose it above.",
        rows,
        metric_column(comparison, rows),
        class_column(comparison, rows, comparison.scores.classes[0]),
        column_of("algorithm", rows["algorithm"], "text"),
        interval_of("mean [95 %]", rows, "value", digits=1),
        column_of("n", rows["n"], "integer"),
        rank_column(rows),
        column_of("first (%)", rows["first"], "number", digits=0),
        column_of("wins", rows["wins"], "integer"),
        column_of("level with best", ["yes" if v else "" for v in rows["level"]], "text"),
        column_of("mean rank within cases", rows["mean_rank"], "number", digits=2),
        column_of("own mean", rows["own_mean"], "number", digits=1),
        column_of("own sd", rows["own_sd"], "number", digits=1),
        column_of("own n", rows["own_n"], "integer"),
    )


def best_frame(comparison: Comparison) -> pd.DataFrame:
    """Of each class the best algorithm, those level with it, and what the order is worth."""
    table: list[dict[str, Any]] = []
    keys, count = ["metric", "class"], len(comparison.scores.algorithms)
    wins = comparison.pairs.groupby(keys)["wins"].sum().to_dict()
    sizes = comparison.cells.groupby(keys)["n"].first().to_dict()
    for (metric, name), ranks in comparison.ranking.groupby(keys, sort=False):
        if name == MEAN:
            continue
        ranks = ranks.sort_values(["rank", "algorithm"])
        level = list(ranks.loc[ranks["level"], "algorithm"])
        table.append(
            {
                "metric": metric,
                "class": name,
                "best": ranks["algorithm"].iloc[0],
                "level": len(level),
                "names": ", ".join(level),
                "significant": int(wins.get((metric, name), 0)),
                "pairs": count * (count - 1),
                "tau": ranks["tau"].iloc[0],
                "n": int(sizes[metric, name]),
            }
        )
    return pd.DataFrame(table)


def best(comparison: Comparison) -> Table | None:
    rows = best_frame(comparison)
    count = len(comparison.scores.algorithms)
    family = "of all classes together" if comparison.family == "all" else "of each class"
    return table_with(
        "The algorithm of the highest mean and those not significantly below it: one-sided "
        f"Wilcoxon signed-rank tests of the {count * (count - 1):,} ordered pairs, p adjusted by "
        f"Holm in one family {family}, below 0.05. A signed-rank win is not a higher mean. τ: "
        "Kendall's τ-b of the order in resamples of the cases with the order by mean.",
        rows,
        metric_column(comparison, rows),
        class_column(comparison, rows),
        column_of("level", rows["level"], "integer"),
        column_of("level with the best, by mean", rows["names"], "text"),
        column_of("significant", rows["significant"], "integer"),
        column_of("Kendall's τ", rows["tau"], "number", digits=2),
        column_of("n", rows["n"], "integer"),
    )


def pairs(comparison: Comparison) -> Table | None:
    rows = in_percent(comparison.pairs, "difference", "low", "high")
    return table_with(
        "Every ordered pair: whether a is above b by a signed-rank test, and the difference of "
        "their means in percentage points, which may have the other sign.",
        rows,
        metric_column(comparison, rows),
        class_column(comparison, rows, comparison.scores.classes[0]),
        *(column_of(name, rows[name], "text", filtered=True, order=()) for name in ("a", "b")),
        column_of("p (Holm), a above b", rows["p_holm"], "p"),
        column_of("a wins", ["yes" if won else "" for won in rows["wins"]], "text"),
        interval_of("mean a − mean b [95 %]", rows, "difference", digits=1),
        column_of("n", rows["n"], "integer"),
    )


def missed(comparison: Comparison) -> Table | None:
    rows = by_order(comparison, comparison.missed)
    return table_with(
        "Organs without overlap on the algorithm's own cases: DSC is 0 where an organ is missed "
        "or predicted elsewhere. Missed and spurious (predicted where the reference has none) are "
        "known where scores say it. Spurious organs cost nothing in the means.",
        rows,
        column_of("algorithm", rows["algorithm"], "text", filtered=True),
        class_column(comparison, rows),
        column_of("scans with it", rows["with"], "integer"),
        column_of("DSC 0", rows["zero"], "integer"),
        *where_any(rows, "missed", "missed", "integer"),
        column_of("scans without it", rows["without"], "integer"),
        *where_any(rows, "spurious", "spurious", "integer"),
        *where_any(rows, "spurious_ml", "median volume (mL)", "number"),
    )


def hd95(comparison: Comparison) -> Table | None:
    rows = comparison.distances
    quantiles = ("q25", "median", "q75", "q95")
    return table_with(
        "Quantiles of HD95 on the algorithm's own cases; infinite where an organ was missed, so "
        "that there is no mean. A dash is an infinite quantile.",
        rows,
        column_of("algorithm", rows["algorithm"], "text", filtered=True),
        class_column(comparison, rows),
        *(column_of(f"{name} (mm)", rows[name], "number", digits=2) for name in quantiles),
        *columns_of(rows, "integer", "infinite", "n"),
    )


def speed(comparison: Comparison) -> Table | None:
    rows = comparison.speed[comparison.speed["volumes"] > 0]
    return table_with(
        "Seconds that predicting a volume took.",
        rows,
        column_of("algorithm", rows["algorithm"], "text"),
        column_of("s per volume", rows["seconds"], "number", digits=2),
        column_of("median", rows["median"], "number", digits=2),
        column_of("95 % quantile", rows["q95"], "number", digits=2),
        column_of("volumes", rows["volumes"], "integer"),
        column_of("excluded", ["yes" if out else "no" for out in rows["excluded"]], "text"),
    )


def worst(comparison: Comparison) -> Table | None:
    rows = in_percent(comparison.worst, "value", "best_value", "worst_value")
    metric = comparison.scores.title(comparison.metrics[0])
    return table_with(
        "Common cases with the lowest mean over algorithms, in percent.",
        rows,
        class_column(comparison, rows, comparison.scores.classes[0]),
        column_of("case", rows["case"], "text"),
        column_of("mean", rows["value"], "number", digits=1),
        column_of("best", rows["best"], "text"),
        column_of(f"best {metric}", rows["best_value"], "number", digits=1),
        column_of("worst", rows["worst"], "text"),
        column_of(f"worst {metric}", rows["worst_value"], "number", digits=1),
        *where_any(rows, "volume_ref_ml", "volume (mL)", "number"),
    )


def distance(comparison: Comparison) -> Table | None:
    rows, there = comparison.distance, comparison.distance["other_n"]
    return table_with(
        f"Whether {comparison.other or 'the other test set'} orders the algorithms alike: "
        "Kendall's τ-b of the means. The interval holds what pairs of algorithms leave open "
        "whose order is not known on both sets, by tests of differences of means adjusted by "
        "Holm; of published means the order is taken as known.",
        rows,
        metric_column(comparison, rows) if len(rows) else Column("metric", []),
        class_column(comparison, rows),
        interval_of("Kendall's τ [95 %]", rows, "tau", digits=2),
        column_of("algorithms", rows["algorithms"], "integer"),
        column_of("pairs known", rows["known"], "integer"),
        column_of("n", rows["n"], "integer", about="Of the average: of the class with the fewest"),
        column_of("n there", there.where(there > 0).astype("float64"), "integer"),
    )


def groups(comparison: Comparison) -> Table | None:
    rows = comparison.groups[comparison.groups["algorithm"] == ALL]
    rows = in_percent(rows, "mean", "q25", "median", "q75")
    return table_with(
        "Groups of scans by the mean over all algorithms, in percent. Which organs a scan shows "
        "depends on its group: read organs one by one, or the mean of values centred per class. "
        "The mean as published compares other organs in other groups.",
        rows,
        column_of("variable", rows["variable"], "text"),
        class_column(comparison, rows, CENTRED),
        column_of("group", rows["group"], "text"),
        column_of("patients", rows["patients"], "integer"),
        *(column_of(name, rows[name], "number", digits=1) for name in ("mean", "median")),
        column_of("p (Kruskal)", rows["kruskal_p"], "p"),
        column_of("p (Holm)", rows["p_holm"], "p", about="Over the classes of one variable"),
    )


def group_tests_frame(comparison: Comparison) -> pd.DataFrame:
    """The omnibus test of each variable, algorithm and class."""
    names = ["variable", "algorithm", "class", "kruskal_p", "p_holm"]
    return comparison.groups[names].drop_duplicates(ignore_index=True)


def group_tests(comparison: Comparison) -> Table | None:
    rows = group_tests_frame(comparison)
    rows = rows[rows["class"] == CENTRED]
    return table_with(
        "Whether groups of scans differ, for each algorithm separately: Kruskal and Wallis's test "
        "of the mean over organs, centred per class.",
        rows,
        column_of("variable", rows["variable"], "text"),
        column_of("algorithm", rows["algorithm"], "text", filtered=True),
        column_of("p (Kruskal)", rows["kruskal_p"], "p"),
    )


def group_pairs(comparison: Comparison) -> Table | None:
    rows = comparison.group_pairs[comparison.group_pairs["algorithm"] == ALL]
    return table_with(
        "Groups against each other where the test over all groups is below 0.05.",
        rows,
        column_of("variable", rows["variable"], "text"),
        class_column(comparison, rows, CENTRED),
        *(column_of(name, rows[name], "text", order=()) for name in ("a", "b")),
        column_of("p (Bonferroni)", rows["p_bonferroni"], "p"),
    )


def groups_excluded(comparison: Comparison) -> Table | None:
    rows = comparison.groups_excluded
    return table_with(
        "Groups with fewer than 5 patients, and those not known.",
        rows,
        *columns_of(rows, "text", "variable", "group"),
        column_of("patients", rows["patients"], "integer"),
    )


_PUBLISHED = ["metric", "algorithm", "class", "own_mean", "own_sd", "own_n"]
TABLES: tuple[Declared, ...] = (
    Declared.both("results", RESULTS, headline_frame, headline),
    Declared.both("published", PUBLISHED, lambda c: c.cells[_PUBLISHED], published),
    Declared.both("common", COMMON, attrgetter("cells"), common),
    Declared("classes", COMMON, classes_frame, classes),
    Declared.both("level", BEST, best_frame, best),
    Declared("pairs", PAIRS, attrgetter("pairs"), pairs),
    Declared("rank_shares", PAIRS, attrgetter("shares")),
    Declared("missed", MISSED, attrgetter("missed"), missed),
    Declared.both("hd95", HD95, attrgetter("distances"), hd95),
    Declared.both("speed", SPEED, attrgetter("speed"), speed),
    Declared("groups", GROUPS, attrgetter("groups"), groups),
    Declared("group_tests", GROUPS, group_tests_frame, group_tests),
    Declared("group_pairs", GROUPS, attrgetter("group_pairs"), group_pairs),
    Declared("groups_excluded", GROUPS, attrgetter("groups_excluded"), groups_excluded),
    Declared("worst", WORST, attrgetter("worst"), worst),
    Declared.both("distance", DISTANCE, attrgetter("distance"), distance),
)
"""Of a `Comparison`, in the order of its page."""
MAIN = TABLES[0].name
