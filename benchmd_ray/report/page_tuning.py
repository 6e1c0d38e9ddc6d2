"""Section "Tuning" of the report's page: what searches found, as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.report.columns import part
from benchmd_ray.report.names import dataset_text
from benchmd_ray.report.page_findings import (
    interval_text,
    judged,
    largest,
)
from benchmd_ray.report.protocols import is_ensemble
from benchmd_ray.report.table import shown, text_of
from benchmd_ray.report.tuning_frames import FRESH, HIGHEST
from benchmd_ray.tuning.records import RULE, limits_of

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis


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
        choosing = set(analysis.searches["choosing"])
        decide = [FRESH] if "confirmed" in choosing else []
        decide += [f"Of the highest value of a search: {HIGHEST}"] if "highest" in choosing else []
        lines.append(
            "A search sees only the source, and no split of it that is scored: its training split "
            "cut by patient into folds, or its training split and its validation split where that "
            f"is there to choose by. {' '.join(decide)}"
        )
        lines += limits_of(*(set(analysis.searches[name]) for name in ("policy", "setting")))
    return lines


def _searched(rows: pd.DataFrame) -> list[str]:
    """What searches cost and what they chose, by which rule."""
    if rows.empty:
        return []
    lost = ", ".join(
        f"{rows[name].sum():,} {said}"
        for name, said in (("failed", "failed"), ("unfinished", "not finished"))
        if rows[name].sum()
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
            "a trial takes the start's place: what to expect of it on the search's validation "
            "records minus the start's score there",
        )
    if len(highest):
        lines += _chosen(
            highest,
            "the trial with the highest value is another than the start: its value minus the "
            "start's",
        )
    kept = int((ended["chosen"] == 0).sum())
    if kept:
        keeps = "keeps its start" if kept == 1 else "keep their starts"
        lines.append(
            f"{_searches(kept)} of {len(ended)} {keeps}, so that no tuned results are there: "
            "tuning found nothing that is shown to be better."
        )
    return lines


def _chosen(rows: pd.DataFrame, what: str) -> list[str]:
    """In how many searches something was chosen, and by how much it is better there."""
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
