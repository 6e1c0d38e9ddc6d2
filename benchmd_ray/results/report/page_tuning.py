"""Section "Tuning" of the report's page: what searches found, as sentences and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from benchmd_ray.results.report.cells import dataset_text
from benchmd_ray.results.report.page_findings import (
    count_of,
    interval_text,
    judged,
    largest,
)
from benchmd_ray.results.report.page_sections import (
    cautions,
    column_of,
    interval_of,
    key_columns,
    table_of,
)
from benchmd_ray.results.report.page_tables import Column, Kind, Table, shown, text_of
from benchmd_ray.results.report.tables_tuning import hours, part

if TYPE_CHECKING:
    from benchmd_ray.results.report.analysis import Analysis

TITLES = {
    "start is": "Protocol of the settings that the search started from",
    "inner AUROC, start": "Of the first trial, on the search's validation records",
    "inner AUROC, best": "Of the best trial, on the search's validation records: the best of many "
    "and so too high",
    "hours": "Wall-clock time of the search",
    "device hours": "Hours that devices worked for trials, all together",
    "shared hours": "Of the pretrainings that all trials of the search share",
    "stopped": "Stopped early, for they scored too little",
}


def tuning_sentences(analysis: Analysis) -> list[str]:
    """What searches found and cost, and whether the tuned settings are better; none without any."""
    lines = _searched(analysis.searches)
    held = analysis.tuned.dropna(subset="difference")
    targets = held["role"] == "target"
    for where, rows in (
        ("the source's own splits", held[~targets]),
        ("targets", held[targets]),
    ):
        lines += _differences(where, rows)
    if not analysis.searches.empty:
        lines.append(
            "A search sees the source alone, and no split of it that is scored: its training split "
            "cut by patient into two, or its training split and its validation split where that is "
            "there to choose by. The best trial's AUROC on the search's validation records is the "
            "best of many and so too high: the source's scored splits and the targets decide."
        )
    return lines


def tuned(rows: pd.DataFrame) -> Table | None:
    """Tuned settings beside those that the search started from."""
    difference = part(rows, "difference").assign(p=rows["p"])
    columns = (
        *key_columns(rows),
        interval_of("tuned [95 %]", rows, "value"),
        interval_of("start [95 %]", part(rows, "start"), "start"),
        column_of("paper", rows["paper"], "number"),
        interval_of("tuned − start [95 %]", difference, "difference", "change", p="p"),
        column_of("p", rows["p"], "p"),
        column_of("p (DeLong)", rows["p_delong"], "p"),
        column_of("seeds", rows["seeds"], "integer"),
        _column("start is", list(rows["start_protocol"]), "text"),
        column_of("trials", rows["trials"].astype("float64"), "integer"),
        _column("device hours", rows["device_hours"], "number", digits=2),
        column_of("search", rows["search"], "text"),
        *cautions(rows),
    )
    caption = (
        "Settings that a search found against those that it started from, AUROC, mean over "
        "classes, on the same rows."
    )
    return table_of("tuned", caption, columns, rows)


def searches(rows: pd.DataFrame) -> Table | None:
    """Searches, what their trials scored and what they cost."""
    columns = (
        *key_columns(rows),
        *(column_of(name, rows[name], "text") for name in ("sampler", "stopping")),
        *(column_of(name, rows[name], "integer") for name in ("trials", "complete")),
        _column("stopped", rows["stopped"], "integer"),
        *(column_of(name, rows[name], "integer") for name in ("failed", "unfinished")),
        column_of("best trial", rows["best"].astype("float64"), "integer"),
        _column("inner AUROC, start", rows["first_value"], "number"),
        _column("inner AUROC, best", rows["best_value"], "number"),
        _column("hours", rows["seconds"] / 3600, "number", digits=2),
        _column("device hours", rows["device_hours"], "number", digits=2),
        _column("shared hours", rows["shared_seconds"] / 3600, "number", digits=2),
        column_of("device", rows["device"], "text"),
        column_of("search", rows["search"], "text"),
    )
    return table_of("searches", "Searches, their trials and their cost.", columns, rows)


def _column(title: str, values: object, kind: Kind, digits: int = 3) -> Column:
    return column_of(title, values, kind, about=TITLES[title], digits=digits)


def _searched(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return []
    trials = ", ".join(
        f"{rows[name].sum():,} {said}"
        for name, said in (
            ("complete", "complete"),
            ("stopped", "stopped early"),
            ("failed", "failed"),
            ("unfinished", "not finished"),
        )
        if rows[name].sum()
    )
    lines = [
        f"{_searches(len(rows))} of {count_of(int(rows['trials'].sum()), 'trial')} ({trials}) took "
        f"{hours(rows['device_hours'].sum())} device hours."
    ]
    ended = rows.dropna(subset=["best", "first_value", "best_value"])
    gained = (ended["best_value"] - ended["first_value"])[ended["best"] > 0]
    if len(gained):
        lines.append(
            f"In {len(gained)} of {_searches(len(ended))} the best trial is another than the "
            "settings that the search started from: its AUROC on the search's validation records "
            f"minus theirs is {_spread(gained)}."
        )
    elif len(ended):
        lines.append(
            f"In {_searches(len(ended))} the best trial has the settings that the search started "
            "from."
        )
    return lines


def _searches(number: int) -> str:
    return f"{number:,} search{'' if number == 1 else 'es'}"


def _spread(values: pd.Series) -> str:
    if len(values) == 1:
        return shown(values.iloc[0], "number")
    middle, low, high = (shown(v, "number") for v in (values.median(), values.min(), values.max()))
    return f"{middle} in the median (from {low} to {high})"


def _differences(where: str, rows: pd.DataFrame) -> list[str]:
    """How often tuning changes AUROC, and the largest difference."""
    if rows.empty:
        return []
    row = largest(rows.assign(size=rows["difference"].abs()), "size")
    span = part(row.to_frame().T, "difference").iloc[0]
    return [
        f"Tuned minus start in AUROC on {where}, on the same rows: "
        f"{judged(rows, 'difference', ('above zero', 'below zero'))} The largest: "
        f"{interval_text(span, 'difference', sign=True)}, of {text_of(row['technique'])} on "
        f"{dataset_text(*row[['source', 'dataset', 'role', 'split']])} with "
        f"{text_of(row['setting'])}."
    ]
