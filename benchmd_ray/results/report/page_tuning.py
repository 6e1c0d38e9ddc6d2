"""Section "Tuning" of the report's page: what searches found, as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.results.report.columns import part
from benchmd_ray.results.report.names import dataset_text
from benchmd_ray.results.report.page_findings import (
    interval_text,
    judged,
    largest,
)
from benchmd_ray.results.report.protocols import is_ensemble
from benchmd_ray.results.report.table import shown, text_of

if TYPE_CHECKING:
    from benchmd_ray.results.report.analysis import Analysis


def tuning_sentences(analysis: Analysis) -> list[str]:
    """What searches found and cost, and whether the tuned settings are better; none without any."""
    lines = _searched(analysis.searches)
    held = analysis.tuned.dropna(subset="difference")
    averages = held["protocol"].map(is_ensemble).astype(bool)
    targets = held["role"] == "target"
    for what, chosen in (
        ("Tuned minus start", ~averages),
        ("Tuned ensemble minus start ensemble", averages),
    ):
        lines += _differences(
            f"{what} in AUROC on the source's own splits", held[chosen & ~targets]
        )
        lines += _differences(f"{what} in AUROC on targets", held[chosen & targets])
    if not analysis.searches.empty:
        lines.append(
            "A search sees only the source, and no split of it that is scored: its training split "
            "cut by patient into two, or its training split and its validation split where that is "
            "there to choose by. The best trial's score on the search's validation records is the "
            "best of many and so too high: the source's scored splits and the targets decide."
        )
    return lines


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


def _differences(what: str, rows: pd.DataFrame) -> list[str]:
    """How often tuning changes AUROC, and the largest difference."""
    if rows.empty:
        return []
    row = largest(rows.assign(size=rows["difference"].abs()), "size")
    span = part(row.to_frame().T, "difference").iloc[0]
    return [
        f"{what}, on the same rows: "
        f"{judged(rows, 'difference', ('above zero', 'below zero'))} The largest: "
        f"{interval_text(span, 'difference', sign=True)}, of {text_of(row['technique'])} on "
        f"{dataset_text(*row[['source', 'dataset', 'role', 'split']])} with "
        f"{text_of(row['setting'])}."
    ]


def hours(value: float) -> str:
    """Hours: two digits that matter, and never 0 for what took time."""
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.1g}"
