"""Scores of one run for its card: those of the report, with the report's intervals and limits."""

from __future__ import annotations

import pandas as pd

from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.columns import cautions, column_of, interval_of, metric_title, sizes
from benchmd_ray.report.formats import markdown
from benchmd_ray.report.frames import frame
from benchmd_ray.report.names import dataset_text, place
from benchmd_ray.report.notes import notes, synthetic
from benchmd_ray.report.protocols import base_protocol, pretraining_of
from benchmd_ray.report.rows import key_of, score_rows
from benchmd_ray.report.scored import measured, read_scored
from benchmd_ray.report.table import Column, Table, plain, text_of
from benchmd_ray.runs.store import Run
from benchmd_ray.scores.metrics import METRICS

RESAMPLES = 1000
"""Of the patients, as in reports."""


def provenances(run: Run) -> dict[str, str]:
    """What the records are that a run was scored on, by dataset."""
    return {one.dataset: one.about["provenance"] for one in read_scored(run).scored}


def scores_of(run: Run) -> pd.DataFrame:
    """Score rows (`frames.FRAMES`) of all that a run has predicted of classes.

    Raises:
        BenchmdError: Predictions cannot be read.
    """
    read = read_scored(run)
    if read.skipped:
        raise BenchmdError(read.skipped[0].removeprefix("Skipped: "))
    protocol = base_protocol(run, pretraining_of(run, {}))
    ordered = sorted(read.scored, key=lambda one: place(key_of(one, protocol)))
    scored = measured(ordered, tuple(METRICS), RESAMPLES)
    return frame("rows", (row for one in scored for row in score_rows(one, protocol)))


def score_sections(run: Run) -> str:
    """Tables and limits as Markdown; empty of a pretraining.

    Raises:
        BenchmdError: Predictions cannot be read.
    """
    if run.description["kind"] != "transfer":
        return ""
    rows = scores_of(run)
    if rows.empty:
        return "The run has been scored on nothing: nothing is known of how good it is."
    whole = rows[rows["class"] == "mean"].reset_index(drop=True)
    each = rows[(rows["class"] != "mean") & (rows["metric"] == "auroc")].reset_index(drop=True)
    metrics = column_of("metric", map(metric_title, whole["metric"]), "text")
    positives = column_of("positives", each["positives"], "integer")
    classes = column_of("class", each["class"], "text")
    overall = (_dataset(whole), metrics, interval_of("value [95 %]", whole, "value"))
    single = (_dataset(each), classes, positives, interval_of("AUROC [95 %]", each, "value"))
    limits = [note for note in notes(rows) if not note.startswith("paper:")]  # none is shown here
    return "\n\n".join(
        [
            synthetic(rows),
            "Over all classes:",
            _markdown((*overall, *sizes(whole), *cautions(whole))),
            "Each class against the rest:",
            _markdown((*single, *cautions(each))),
            "What limits these numbers:",
            "\n".join(f"- {text_of(limit).replace('<', '&lt;')}" for limit in limits),
        ]
    )


def _dataset(rows: pd.DataFrame) -> Column:
    keys = zip(*(rows[name] for name in ("source", "dataset", "role", "split")), strict=True)
    return column_of("dataset", [dataset_text(*key) for key in keys], "text")


def _markdown(columns: tuple[Column, ...]) -> str:
    return markdown(plain(Table("", columns))[0])
