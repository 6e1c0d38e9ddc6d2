"""What a file of predictions must be, and the scores of other evaluations than a classification."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.board.bundle import RECORD, SCORES, Part, Refused
from benchmd_ray.board.official import OfficialDataset
from benchmd_ray.data.records import PERSON
from benchmd_ray.errors import count_of
from benchmd_ray.evaluation.evaluation import Evaluation
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.runs.predictions import CLASSIFIED, Predictions

Floats = npt.NDArray[np.float64]
MOST_ROWS = 2**24
"""Rows of all conditions of another evaluation."""


def require_records(table: pa.Table, dataset: OfficialDataset, part: Part, place: str) -> None:
    """Refuse other records than the official ones, which are sorted by their hash."""
    records, whole = table[RECORD].combine_chunks(), dataset.records
    conditions = (
        1 if part.evaluation == CLASSIFIED.evaluation else len(records) // max(1, len(whole))
    )
    if len(records) == conditions * len(whole) and all(
        records.slice(n * len(whole), len(whole)).equals(whole) for n in range(conditions)
    ):
        return
    stated, expected = records.to_pylist(), set(whole.to_pylist())
    distinct = set(stated)
    faults = {
        "missing": len(expected - distinct),
        "that the official catalog lacks": len(distinct - expected),
        "more than once": len(stated) - len(distinct) if conditions == 1 else 0,
    }
    named = [f"{count_of(n, 'record')} {how}" for how, n in faults.items() if n]
    what = ", ".join(named) or "its records in another order"
    raise Refused(f"{place}: {what}, of {count_of(len(whole), 'record')} that are scored")


def scores_in(table: pa.Table, dataset: OfficialDataset, place: str) -> Floats:
    classes, column = dataset.about.task.classes, table[SCORES].combine_chunks()
    if column.type.list_size != len(classes):
        raise Refused(
            f"{place}: scores of {column.type.list_size} classes, expected {len(classes)}"
        )
    values = column.flatten()
    scores = values.to_numpy(zero_copy_only=False)
    if values.null_count or len(values) != len(column) * len(classes):
        raise Refused(f"{place}: scores are missing")
    if not ((scores >= 0) & (scores <= 1)).all():
        raise Refused(f"{place}: a score is NaN or outside 0 to 1")
    return cast(Floats, scores.reshape(len(column), -1))


def others(
    table: pa.Table, dataset: OfficialDataset, part: Part, resamples: int, place: str
) -> Iterator[dict[str, Any]]:
    """Score rows of another evaluation, by its own code, of a table with the official labels."""
    evaluation: Evaluation = evaluations()[part.evaluation]
    if len(table) > MOST_ROWS or evaluation.scores is None:
        raise Refused(f"{place}: more than {MOST_ROWS:,} rows")
    scores_in(table, dataset, place)
    whole = Predictions(_labelled(table, dataset, part.split), _description(dataset, part))
    try:
        if fault := evaluation.form.fault(whole):
            raise Refused(f"{place}: {fault}")
        rows = evaluation.scores(whole, resamples)
    except (ArithmeticError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise Refused(f"{place}: it cannot be scored ({type(error).__name__})") from error
    names = ("use_case", "group", "class", "metric", "caution")
    for row in rows.to_dict("records"):
        ends = [float(row.get(name, np.nan)) for name in ("value", "low", "high")]
        texts = {name: row.get(name) for name in names}
        about = {name: text if isinstance(text, str) else "" for name, text in texts.items()}
        yield {"name": part.evaluation, "values": ends, "text": json.dumps(about)}


def _labelled(table: pa.Table, dataset: OfficialDataset, split: str) -> pa.Table:
    """A table of predictions with the official units, patients and labels."""
    times, rows = len(table) // len(dataset.records), len(table)
    classes = len(dataset.about.task.classes)
    targets = pa.array(np.tile(dataset.targets.ravel(), times))
    hexadecimal = [h.hex() for h in dataset.records.to_pylist()]
    columns = {
        "record_id": pa.array(hexadecimal * times),
        "unit_id": pa.array([*dataset.unit_names] * times),
        "group_id": pa.array([*dataset.patient_names] * times),
        "split": pa.array([split] * rows),
        SCORES: table[SCORES],
        "target": pa.FixedSizeListArray.from_arrays(targets, classes),
        **{name: pa.nulls(rows, kind) for name, kind in PERSON.items()},
    }
    columns |= {n: table[n] for n in table.column_names if n not in (RECORD, *columns)}
    return pa.table(columns)


def _description(dataset: OfficialDataset, part: Part) -> dict[str, str]:
    about = dataset.about
    return {
        **{name: getattr(about, name) for name in ("modality", "role", "policy", "catalog")},
        **{"evaluation": part.evaluation, "version": str(part.version), "dataset": about.name},
        **{"of": part.sha256, "also": "{}", "task": json.dumps(asdict(about.task))},
    }
