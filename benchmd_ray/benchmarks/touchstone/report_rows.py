"""Algorithms' scores in reports of runs: a section made of score rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from benchmd_ray.benchmarks.touchstone import report_trained
from benchmd_ray.benchmarks.touchstone.report_parts import (
    PERCENT,
    in_percent,
    rank_column,
    table_with,
)
from benchmd_ray.benchmarks.touchstone.scored import COMMON, EVALUATION, LEVEL, OWN, RANK
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.columns import column_of, interval_of
from benchmd_ray.report.figures_panels import FAINT, SMALL, grid
from benchmd_ray.report.figures_parts import Drawn, FigureContext, Titled
from benchmd_ray.report.table import Column, Table
from benchmd_ray.report.tables import Declared, aggregates

HEADING = "Segmentation"
KEY = ["dataset", "regime", "technique", "class"]


def frame(analysis: Analysis) -> pd.DataFrame:
    """A row for each test set, metric, algorithm and class."""
    rows = analysis.rows[analysis.rows["evaluation"] == EVALUATION]
    measured = rows[~rows["metric"].isin([RANK, LEVEL])]
    common = measured[measured["protocol"] == COMMON].set_index(KEY)
    own_cases = measured[measured["protocol"] == OWN].set_index(KEY)
    ranks = rows[rows["metric"] == RANK].set_index(KEY)
    level = rows[rows["metric"] == LEVEL].set_index(KEY)
    return pd.DataFrame(
        {
            **common[["value", "low", "high", "records", "patients"]],
            "rank": ranks["value"],
            "rank_low": ranks["low"],
            "rank_high": ranks["high"],
            "level": level["value"],
            "own": own_cases["value"],
            "own_records": own_cases["records"],
        },
        index=common.index,
    ).reset_index()


def algorithms(analysis: Analysis) -> Table | None:
    rows = frame(analysis)
    keys = KEY[:3]
    level = rows[rows["class"] != MEAN].groupby(keys)["level"].sum().rename("best")
    rows = rows[rows["class"] == MEAN].join(level, on=keys)
    rows = rows.sort_values(["dataset", "regime", "rank"], kind="stable")
    rows = in_percent(rows, "value", "low", "high", "own")
    return table_with(
        "Algorithms by the mean of their class means, in percent, on the cases that all have, with "
        "intervals over cases; ranks over resamples. Level with best: classes in which an "
        "algorithm has the highest mean or is not significantly below it. Own average: on its own "
        "cases, as published. `benchmd segment compare` shows tests, groups and worst cases.",
        rows,
        column_of("dataset", rows["dataset"], "text"),
        Column("metric", list(rows["regime"]), filtered=True),
        column_of("algorithm", rows["technique"], "text"),
        interval_of("average [95 %]", rows, "value", digits=2),
        rank_column(rows),
        column_of("level with best", rows["best"], "integer"),
        column_of("cases", rows["records"], "integer"),
        column_of("own average", rows["own"], "number", digits=1),
        column_of("own cases", rows["own_records"], "integer"),
    )


def draw(report: FigureContext) -> Iterator[Drawn]:
    """Averages with intervals, a figure for each test set and metric."""
    rows = frame(report.analysis)
    means = rows[rows["class"] == MEAN]
    for (dataset, metric), group in means.groupby(["dataset", "regime"], sort=False):
        group = group.sort_values("rank", kind="stable")
        title = f"{dataset}: highest average {metric} {group['technique'].iloc[0]}"
        figure, (axes,) = grid(title, 1, columns=1, row=0.21 * len(group) + 0.5, extra=0.5)
        places = np.arange(len(group))
        value, low, high = (PERCENT * group[name] for name in ("value", "low", "high"))
        axes.hlines(places, low, high, color="#0072B2", linewidth=1.3)
        axes.scatter(value, places, color="#0072B2", s=20, zorder=3)
        axes.set_yticks(places, list(group["technique"]), fontsize=SMALL)
        axes.set_ylim(len(group) - 0.4, -0.6)
        axes.grid(axis="y", color=FAINT, linewidth=0.4)
        axes.set_xlabel(f"average {metric} (%)")
        caption = "Mean of the class means on common cases, with 95 % intervals over cases."
        yield Titled(
            slug("segmentation", dataset, metric), HEADING, title, caption, figure, aggregate=True
        )


TABLES = (
    *report_trained.TABLES,
    *aggregates(Declared.both("segmentation", HEADING, frame, algorithms)),
)
TOPICS = (*report_trained.TOPICS, draw)
