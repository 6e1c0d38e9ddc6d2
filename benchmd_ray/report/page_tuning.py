"""Findings of searches as sentences."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmd_ray.errors import count_of
from benchmd_ray.report.contamination import marked
from benchmd_ray.report.frames import dataset_text
from benchmd_ray.report.page_findings import (
    BETTER,
    deciding,
    interval_text,
    judged,
    verdict_on,
)
from benchmd_ray.report.protocols import ENSEMBLES, TUNED
from benchmd_ray.report.table import shown, text_of
from benchmd_ray.report.tuning_frames import SEEN
from benchmd_ray.scores.comparison import holm

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis

MOST_SEARCHES = 6
"""Searches that get a sentence each, at most."""


def gained(analysis: Analysis) -> list[str]:
    """A sentence on what tuning gained in results; empty without a search.

    Ensembles are compared with ensembles where there are any, on targets where there are any.
    """
    tuned = deciding(analysis.tuned.dropna(subset="difference"))
    averages = tuned["protocol"] == ENSEMBLES[TUNED]
    rows = tuned[averages] if averages.any() else tuned
    if rows.empty:
        return _nothing_gained(analysis.searches)
    rows = rows.assign(p_holm=holm(rows["p"].to_numpy(float)))
    median = rows["difference"].median()
    gain = "Tuning gained" if median > 0 else "Tuning gained nothing:"
    if len(rows) == 1:
        return [f"{gain} {_only(rows.iloc[0])}."]
    is_target = (rows["dataset"] != rows["source"]).all()
    subject = "the tuned ensemble was" if averages.any() else "tuned settings were"
    ends = " to ".join(shown(rows["difference"].agg(end), "signed") for end in ("min", "max"))
    counted = f"{len(rows)} results on {'targets' if is_target else 'the splits of the source'}"
    after = " after Holm's correction over these"
    verdict = judged(rows, "difference", *BETTER, subject=subject, p="p_holm", corrected=after)
    return [
        f"{gain} a median of {shown(median, 'signed')} AUROC ({ends}; {counted}) over the start of "
        f"the search: {verdict}"
    ]


def _only(row: pd.Series) -> str:
    """The only difference, with its interval and what it may be called."""
    ends = {"low": row["difference_low"], "high": row["difference_high"]}
    interval = row.to_dict() | ends
    (name,) = marked([row["technique"]], [row["contamination"]])
    at = dataset_text(*row[["source", "dataset", "role", "split"]])
    return (
        f"{interval_text(interval, 'difference', sign=True)} AUROC over the start of the search "
        f"({text_of(name)} on {text_of(at)}){verdict_on(interval)}"
    )


def _nothing_gained(searches: pd.DataFrame) -> list[str]:
    """What is known of a gain without a tuned result."""
    if searches.empty:
        return []
    if (searches["chosen"].fillna(-1) == 0).all():
        return ["Tuning gained nothing: no trial beat the start of its search, so it is kept."]
    return [
        "What tuning gained is unknown: no result of a search's choice and of its start is in this "
        "report, and a search's own scores are no result."
    ]


def tuning_sentences(analysis: Analysis) -> list[str]:
    """Sentences on the cost and the choices of searches; `gained` has what they are worth."""
    lines = _searched(analysis.searches)
    if len(ended := analysis.searches.dropna(subset="chosen")) <= MOST_SEARCHES:
        for row in ended.to_dict("records"):
            families = analysis.families[analysis.families["search"] == row["search"]]
            lines.append(_choice(row, families))
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
            f"No trial beat the start in {kept} of {_searches(len(ended))}, which "
            f"{'keeps' if kept == 1 else 'keep'} it."
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


def hours(value: float) -> str:
    """Hours with two significant digits; 0 only for exactly 0."""
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.1g}"
