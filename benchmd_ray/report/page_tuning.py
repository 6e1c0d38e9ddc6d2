"""Findings of searches as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.report.columns import part
from benchmd_ray.report.page_findings import BETTER, difference_text, judged, largest
from benchmd_ray.report.protocols import ENSEMBLES
from benchmd_ray.report.table import shown
from benchmd_ray.report.tuning_frames import FRESH, HIGHEST
from benchmd_ray.tuning.records import RULE

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis


def tuning_sentences(analysis: Analysis) -> list[str]:
    """Sentences on the results and cost of searches, and on whether tuned settings are better."""
    lines = _searched(analysis.searches)
    tuned = analysis.tuned.dropna(subset="difference")
    averages = tuned["protocol"].isin(ENSEMBLES)
    targets = tuned["role"] == "target"
    for subject, protocol in (("tuned settings were", ~averages), ("the ensemble was", averages)):
        for where, split in (("the source's own splits", ~targets), ("targets", targets)):
            lines += _differences(subject, where, tuned[protocol & split])
    if not analysis.searches.empty:
        choosing = set(analysis.searches["choosing"])
        rules = [FRESH] if "confirmed" in choosing else []
        rules += [f"The highest value of a search: {HIGHEST}"] if "highest" in choosing else []
        lines.append(
            "A search sees only the source, and none of its scored splits: it uses patient-wise "
            "folds of the training split, together with the validation split where that is not "
            f"scored. {' '.join(rules)}"
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
        f"{count_of(int(rows['evaluated'].sum()), 'evaluation')} took "
        f"{hours(rows['device_hours'].sum())} device hours."
    ]
    ended = rows.dropna(subset="chosen")
    confirmed, highest = (ended[ended["choosing"] == rule] for rule in ("confirmed", "highest"))
    if len(confirmed):
        lines.append(f"How a search chooses: {RULE}.")
        lines += _chosen(
            confirmed,
            "a trial replaced the start; its expected gain on the search's validation records",
        )
    if len(highest):
        lines += _chosen(
            highest, "the trial with the highest value is not the start; its gain over the start"
        )
    kept = int((ended["chosen"] == 0).sum())
    if kept:
        lines.append(
            f"No trial beat the start in {kept} of {_searches(len(ended))}; its settings are kept "
            "and there are no tuned results."
        )
    return lines


def _chosen(rows: pd.DataFrame, what: str) -> list[str]:
    """Sentence on how many searches chose a trial, and its gain."""
    better = rows[rows["chosen"] > 0]
    gained = (better["chosen_value"] - better["start_value"]).dropna()
    if gained.empty:
        return []
    return [f"In {len(better)} of {_searches(len(rows))} {what} is {_spread(gained)}."]


def _searches(number: int) -> str:
    return f"{number:,} search{'' if number == 1 else 'es'}"


def _spread(values: pd.Series) -> str:
    if len(values) == 1:
        return shown(values.iloc[0], "number")
    median, low, high = (shown(v, "number") for v in (values.median(), values.min(), values.max()))
    return f"{median} (median; {low} to {high})"


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
