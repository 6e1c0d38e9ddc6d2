"""What the tables and figures of a comparison have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchmd_ray.benchmarks.touchstone.comparing import Comparison
from benchmd_ray.benchmarks.touchstone.groups import CENTRED
from benchmd_ray.benchmarks.touchstone.tasks import MEAN
from benchmd_ray.report.columns import column_of, interval_of, part
from benchmd_ray.report.figures_panels import FAINT, SMALL
from benchmd_ray.report.table import Column, Table, constant

RESULTS, PUBLISHED, COMMON = "Results", "As published: own cases", "On common cases"
BEST, PAIRS, GROUPS = "Level with the best", "Algorithms in pairs", "Groups of scans"
MISSED, WORST, SPEED = "Missed and spurious organs", "Worst cases", "Speed"
DISTANCE, HD95 = "Another test set", "HD95"
AVERAGE = "average"
"""Of class means, in tables."""
PERCENT = 100.0
BLUE, ORANGE = "#0072B2", "#D55E00"


def table_with(caption: str, rows: pd.DataFrame, *columns: Column) -> Table | None:
    """A table; constant text columns go into its caption. None without rows."""
    kept, note = constant(columns)
    return None if rows.empty else Table(f"{caption}{note}", kept)


def rank_column(rows: pd.DataFrame) -> Column:
    """Ranks with their intervals; algorithms of one mean share a rank."""
    about = "1 is the highest mean; the interval holds 95 % of the ranks in resamples of the cases"
    digits = rank_digits(rows["rank"])
    return interval_of("rank [95 %]", part(rows, "rank"), "rank", digits=digits, about=about)


def rank_digits(ranks: pd.Series) -> int:
    """Digits after the point: one where ranks are shared."""
    return 0 if (ranks.dropna() % 1 == 0).all() else 1


def class_title(name: str) -> str:
    """Of a class, or of the mean over classes."""
    return AVERAGE if name == MEAN else name.replace("_", " ")


def metric_column(comparison: Comparison, rows: pd.DataFrame) -> Column:
    """A filter by metric, which starts with the first."""
    titles = [comparison.scores.title(name) for name in rows["metric"]]
    order = tuple(comparison.scores.title(name) for name in comparison.metrics)
    return Column("metric", titles, order=order, filtered=True, required=True, chosen=order[0])


def class_column(comparison: Comparison, rows: pd.DataFrame, chosen: str = "") -> Column:
    """A filter by class, which starts with all of them if none is named."""
    order = (*map(class_title, comparison.scores.classes), AVERAGE, CENTRED)
    names = [class_title(name) for name in rows["class"]]
    return Column("class", names, order=order, filtered=True, chosen=class_title(chosen))


def in_percent(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Rows with some columns of fractions in percent."""
    return rows.assign(**{name: PERCENT * rows[name] for name in names})


def by_order(comparison: Comparison, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the best average first."""
    places = {name: place for place, name in enumerate(comparison.order)}
    return rows.sort_values("algorithm", key=lambda names: names.map(places), kind="stable")


def where_any(rows: pd.DataFrame, name: str, title: str, kind: Any) -> tuple[Column, ...]:
    """A column, where anything is in it."""
    values = rows[name]
    there = values.ne("").any() if kind == "text" else values.notna().any()
    return (column_of(title, values, kind),) if there else ()


def forest(axes: Axes, rows: pd.DataFrame, names: Iterable[str]) -> None:
    """Values with their intervals, a named line each, the first on top."""
    places = np.arange(len(rows))
    axes.hlines(places, rows["low"], rows["high"], color=BLUE, linewidth=1.3)
    axes.scatter(rows["value"], places, color=BLUE, s=20, zorder=3)
    axes.set_yticks(places, list(names), fontsize=SMALL)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
