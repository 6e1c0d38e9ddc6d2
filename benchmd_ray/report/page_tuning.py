"""Findings of searches as sentences."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.report.columns import part
from benchmd_ray.report.page_findings import BETTER, difference_text, judged, largest
from benchmd_ray.report.protocols import ENSEMBLES
from benchmd_ray.report.table import shown, text_of
from benchmd_ray.report.tuning_frames import SEEN

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis

MOST_SEARCHES = 6
"""Searches that get a sentence each, at most."""


def tuning_sentences(analysis: Analysis) -> list[str]:
    """Sentences on the results and cost of searches, and on whether tuned settings are better."""
    lines = _searched(analysis.searches)
    if len(ended := analysis.searches.dropna(subset="chosen")) <= MOST_SEARCHES:
        for row in ended.to_dict("records"):
            families = analysis.families[analysis.families["search"] == row["search"]]
            lines.append(_choice(row, families))
    tuned = analysis.tuned.dropna(subset="difference")
    averages = tuned["protocol"].isin(ENSEMBLES.values())
    targets = tuned["role"] == "target"
    for subject, rows in (("tuned settings were", ~averages), ("the tuned ensemble was", averages)):
        for where, split in (("the source's own splits", ~targets), ("targets", targets)):
            lines += _differences(subject, where, tuned[rows & split])
    if not analysis.searches.empty:
        lines.append(
            "A search sees only the source, and none of its scored splits: it uses patient-wise "
            "folds of the training split, together with the validation split where that is not "
            f"scored. {SEEN}"
        )
    return lines


def _searched(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return []
    lost = ", ".join(
        f"{rows[state].sum():,} {state}" for state in ("failed", "unfinished") if rows[state].sum()
    )
    trials = count_of(int(rows["trials"].sum()), "trial") + (f" ({lost})" if lost else "")
    lines = [
        f"{_searches(len(rows))} of {trials} and "
        f"{count_of(int(rows['evaluations'].sum()), 'evaluation')} took "
        f"{hours(rows['device_hours'].sum())} device hours."
    ]
    ended = rows.dropna(subset="chosen")
    if kept := int((ended["chosen"] == 0).sum()):
        lines.append(
            f"No trial beat the start in {kept} of {_searches(len(ended))}; it is kept and there "
            "are no tuned results."
        )
    return lines


def _choice(search: dict[Hashable, Any], families: pd.DataFrame) -> str:
    """Which family won on a search's validation records, and by how much."""
    name, metric = text_of(search["search"]), text_of(search["metric"]).upper()
    family, start = text_of(search["family"]), shown(search["start_value"], "number")
    if search["chosen"] == 0:
        return f"{name} keeps its start, {family} (inner {metric} {start})."
    row = families[families["is_chosen"]].iloc[0]
    error = "" if np.isnan(row["error"]) else f" ± {shown(row['error'], 'number')} (standard error)"
    gains = [f"{shown(row['difference'], 'signed')}{error} over the start"]
    for other in families[~families["is_chosen"]].dropna(subset="value").itertuples():
        gain = shown(row["value"] - other.value, "signed")
        gains.append(f"{gain} over the best trial of {text_of(other.family)}")
    by = "" if np.isnan(search["optimism"]) else f", by about {shown(search['optimism'], 'number')}"
    return (
        f"{name} chose {family} (trial {search['chosen']}): on the search's validation records "
        f"{'; '.join(gains)}. Its inner {metric} of {shown(search['chosen_value'], 'number')} is "
        f"too high for having been the highest{by}."
    )


def _searches(number: int) -> str:
    return f"{number:,} search{'' if number == 1 else 'es'}"


def _differences(subject: str, where: str, rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return []
    row = largest(rows.assign(size=rows["difference"].abs()), "size")
    interval = part(row.to_frame().T, "difference").iloc[0]
    return [
        f"AUROC against the start of the search on {where}: "
        f"{judged(rows, 'difference', *BETTER, subject=subject)} Largest difference: "
        f"{difference_text(row, interval, 'difference')}."
    ]


def hours(value: float) -> str:
    """Hours with two significant digits; 0 only for exactly 0."""
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.1g}"
