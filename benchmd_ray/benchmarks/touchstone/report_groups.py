"""Tables of groups of scans."""

from __future__ import annotations

import pandas as pd

from benchmd_ray.benchmarks.touchstone.comparing import Comparison
from benchmd_ray.benchmarks.touchstone.groups import ALL, CENTRED
from benchmd_ray.benchmarks.touchstone.report_parts import class_column, in_percent, table_with
from benchmd_ray.report.columns import column_of
from benchmd_ray.report.table import Table


def groups(comparison: Comparison) -> Table | None:
    """Groups of scans for the mean over algorithms."""
    rows = comparison.groups[comparison.groups["algorithm"] == ALL]
    rows = in_percent(rows, "mean", "q25", "median", "q75")
    columns = (
        column_of("variable", rows["variable"], "text"),
        class_column(comparison, rows, CENTRED),
        column_of("group", rows["group"], "text"),
        column_of("patients", rows["patients"], "integer"),
        *(column_of(name, rows[name], "number", digits=1) for name in ("mean", "median")),
        column_of("p (Kruskal)", rows["kruskal_p"], "p"),
        column_of("p (Holm)", rows["p_holm"], "p", about="Over the classes of one variable"),
    )
    caption = (
        "Groups of scans by the mean over all algorithms, in percent. Which organs a scan shows "
        "depends on its group: read organs one by one, or the mean of values centred per class. "
        "The mean as published compares other organs in other groups."
    )
    return table_with(caption, columns, rows)


def group_tests_frame(comparison: Comparison) -> pd.DataFrame:
    """The omnibus test of each variable, algorithm and class."""
    names = ["variable", "algorithm", "class", "kruskal_p", "p_holm"]
    return comparison.groups[names].drop_duplicates(ignore_index=True)


def group_tests(comparison: Comparison) -> Table | None:
    """The same, for the centred mean of each algorithm."""
    rows = group_tests_frame(comparison)
    rows = rows[rows["class"] == CENTRED]
    columns = (
        column_of("variable", rows["variable"], "text"),
        column_of("algorithm", rows["algorithm"], "text", filtered=True),
        column_of("p (Kruskal)", rows["kruskal_p"], "p"),
    )
    caption = (
        "Whether groups of scans differ, for each algorithm separately: Kruskal and Wallis's test "
        "of the mean over organs, centred per class."
    )
    return table_with(caption, columns, rows)


def group_pairs(comparison: Comparison) -> Table | None:
    """Pairs of groups, for the mean over algorithms."""
    rows = comparison.group_pairs[comparison.group_pairs["algorithm"] == ALL]
    columns = (
        column_of("variable", rows["variable"], "text"),
        class_column(comparison, rows, CENTRED),
        *(column_of(name, rows[name], "text", order=()) for name in ("a", "b")),
        column_of("p (Bonferroni)", rows["p_bonferroni"], "p"),
    )
    caption = "Groups against each other where the test over all groups is below 0.05."
    return table_with(caption, columns, rows)


def groups_excluded(comparison: Comparison) -> Table | None:
    """Groups of too few patients."""
    rows = comparison.groups_excluded
    columns = (
        *(column_of(name, rows[name], "text") for name in ("variable", "group")),
        column_of("patients", rows["patients"], "integer"),
    )
    return table_with("Groups with fewer than 5 patients, and those not known.", columns, rows)
