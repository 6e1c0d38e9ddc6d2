"""The form of a table of detectors' scores."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from benchmd_ray.benchmarks.ood.cards import USE_CASES
from benchmd_ray.errors import shown
from benchmd_ray.runs.predictions import Predictions, fault_of_columns

IN, ALL, HALF = "in", "all", "random half"
"""Names of the in-distribution set, of means over sets, and of the control of chance."""
RESERVED = (IN, ALL, HALF)
JOINED = " + "
KEYS: dict[str, pa.DataType] = {
    **dict.fromkeys(("record_id", "unit_id", "group_id", "part", "use_case", "set"), pa.string()),
    "severity": pa.int8(),
    "control": pa.bool_(),
    "abnormal": pa.bool_(),
    **dict.fromkeys(("regime", "calibrated_on", "alike"), pa.string()),
    "logits": pa.list_(pa.float32()),
    "picture": pa.binary(),
}
"""Columns of the table but those of the detectors.

``part`` is ``calibration`` or ``test``; ``set`` is `IN` or names a set; ``regime`` is ``none``,
``other-sources`` or ``same-source``, and ``calibrated`` of in-distribution records that a
calibrated detector scored; ``calibrated_on`` is what that learned from. ``alike`` is the extent to
which in-distribution records were made as coarse as others, which are compared with them, too.
``logits`` are the network's; ``picture`` is kept of a few records, to be looked at.
"""
ONCE = ("record_id", "part", "set", "use_case", "severity", "regime", "calibrated_on", "alike")
"""Columns that identify a row."""
ABOUT = "about"
ABOUT_KEYS: dict[str, type] = {
    "skipped": dict,
    "sources": dict,
    "use_cases": str,
    "trials": list,
    "costs": dict,
    "coarse": dict,
    "shape": list,
}
"""Of `ABOUT`: detectors and sets that were skipped, and why; SHA-256 of the sources of detectors
that are not the package's; digest of the cards of use-cases; trials of a search; seconds that each
detector took; sets that are coarser than the network's signal, with their extent; shape of a
picture."""
THRESHOLDS = "thresholds"
"""Metadata of a detector's column: thresholds by ``calibrated_on``."""


def about(predictions: Predictions) -> dict[str, Any]:
    """What a table says of all its rows, by `ABOUT_KEYS`."""
    return about_of(predictions.table.schema)


def thresholds(predictions: Predictions, name: str) -> dict[str, float]:
    """Thresholds of a detector, by ``calibrated_on``."""
    limits: dict[str, float] = json.loads(_metadata(predictions.table.schema, name)[THRESHOLDS])
    return limits


def about_of(schema: pa.Schema) -> dict[str, Any]:
    """What `about` gives, of columns; a ValueError or KeyError where the table does not say."""
    about: dict[str, Any] = json.loads(_metadata(schema, "set")[ABOUT])
    return about


def _metadata(schema: pa.Schema, name: str) -> dict[str, str]:
    metadata = schema.field(name).metadata or {}
    return {key.decode(): value.decode() for key, value in metadata.items()}


def fault(predictions: Predictions) -> str:
    """What is wrong with a table of scores; empty where nothing is."""
    table = predictions.table
    required = ("record_id", "unit_id", "group_id", "part", "set", "regime")
    if why := fault_of_columns(table, KEYS, KEYS.keys() - {*required}):
        return why
    for field in table.schema:
        if field.name in KEYS:
            continue
        if not pa.types.is_float64(field.type):
            return f"its column {field.name} is of the type {field.type}"
        values = table[field.name].drop_null().to_numpy()
        if not np.isfinite(values).all():
            return f"its column {field.name} has NaN or infinite scores"
    return _fault_of_rows(table) or _fault_of_metadata(predictions)


def _fault_of_rows(table: pa.Table) -> str:
    """What is wrong with rows; empty where nothing is."""
    inside = pa.compute.equal(table["set"], IN)
    inside_rows, others = table.filter(inside), table.filter(pa.compute.invert(inside))
    if inside_rows["use_case"].null_count < len(inside_rows):
        return "an in-distribution record has a use-case"
    for name in ("use_case", "severity", "control"):
        if others[name].null_count:
            return f"its column {name} has missing values of sets that are scored"
    if unknown := set(others["use_case"].unique().to_pylist()) - {*USE_CASES}:
        return f"it has the use-case {shown(min(unknown))}"
    named = [name for name in KEYS if name in ONCE]
    if len(table.group_by(named).aggregate([])) < len(table):
        return "a record appears twice"
    alone = pa.compute.equal(table["regime"], "none")
    for part in (table.filter(alone), table.filter(pa.compute.invert(alone))):
        for name in (name for name in table.column_names if name not in KEYS):
            if part[name].null_count not in (0, len(part)):
                return f"its column {name} lacks scores of some records"
    return ""


def _fault_of_metadata(predictions: Predictions) -> str:
    table = predictions.table
    try:
        stated = about(predictions)
        for name, kind in ABOUT_KEYS.items():
            if not isinstance(stated[name], kind):
                raise ValueError(f"{name} is of another type")
        for spent in stated["costs"].values():
            if not all(_is_number(seconds) for seconds in spent.values()):
                raise ValueError("a cost is not a number")
        _require_pictures(table["picture"], stated["shape"])
        _require_logits(table["logits"], len(predictions.task.classes))
        for name in set(table.column_names) - KEYS.keys():
            limits = thresholds(predictions, name)
            if not all(_is_number(limit) for limit in limits.values()):
                raise ValueError(f"a threshold of {name} is not a number")
            on = table["calibrated_on"].filter(table[name].is_valid()).drop_null()
            if lacking := set(on.unique().to_pylist()) - limits.keys():
                raise ValueError(f"{name} has no threshold of {min(lacking)}")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        return f"what it says of its rows cannot be used ({type(error).__name__}: {error})"
    return ""


def _is_number(value: object) -> bool:
    return type(value) is float and math.isfinite(value)


def _require_pictures(pictures: pa.ChunkedArray, shape: Sequence[object]) -> None:
    if len(shape) not in (2, 3) or not all(
        type(extent) is int and 0 < extent < 10_000 for extent in shape
    ):
        raise ValueError("shape is not one of a picture")
    size = math.prod(int(str(extent)) for extent in shape)
    if any(len(value) != size for value in pictures.drop_null().to_pylist()):
        raise ValueError("a picture is of another size")


def _require_logits(logits: pa.ChunkedArray, classes: int) -> None:
    lists = logits.drop_null().combine_chunks()
    values = lists.flatten().to_numpy(zero_copy_only=False)
    lengths = np.diff(lists.offsets.to_numpy()) if len(lists) else np.empty(0)
    if (lengths != classes).any() or not np.isfinite(values).all():
        raise ValueError("logits are not those of the classes")
