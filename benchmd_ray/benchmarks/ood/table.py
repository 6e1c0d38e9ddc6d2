"""The form of a table of detectors' scores."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from benchmd_ray.training.predictions import Predictions

IN = "in"
"""Name of the in-distribution set."""
JOINED = " + "
"""Between the names of sets that calibrate together."""
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
ABOUT = "about"
"""Metadata of the column ``set``, as JSON: what `ABOUT_KEYS` names."""
ABOUT_KEYS: dict[str, type] = {
    "skipped": dict,
    "sources": dict,
    "trials": list,
    "costs": dict,
    "coarse": dict,
    "shape": list,
}
"""Of `ABOUT`: detectors that were skipped, and why; SHA-256 of the sources of those that are not
the package's; trials of a search; seconds that each took; sets that are coarser than the network's
signal, with their extent; shape of a picture."""
THRESHOLDS = "thresholds"
"""Metadata of a detector's column: thresholds by ``calibrated_on``."""


def about(predictions: Predictions) -> dict[str, Any]:
    """What a table says of all its rows, by `ABOUT_KEYS`."""
    found: dict[str, Any] = json.loads(_metadata(predictions.table.schema, "set")[ABOUT])
    return found


def thresholds(predictions: Predictions, name: str) -> dict[str, float]:
    """Thresholds of a detector, by ``calibrated_on``."""
    found: dict[str, float] = json.loads(_metadata(predictions.table.schema, name)[THRESHOLDS])
    return found


def sources(schema: pa.Schema) -> dict[str, str]:
    """SHA-256 of the sources of detectors that are not the package's, whether they fitted or not.

    Raises:
        ValueError: The table does not say; so does a KeyError.
    """
    found: dict[str, str] = json.loads(_metadata(schema, "set")[ABOUT])["sources"]
    return found


def _metadata(schema: pa.Schema, name: str) -> dict[str, str]:
    held = schema.field(name).metadata or {}
    return {key.decode(): value.decode() for key, value in held.items()}


def fault(predictions: Predictions) -> str:
    """What is wrong with a table of scores; empty where nothing is."""
    table = predictions.table
    for name, kind in KEYS.items():
        if name not in table.column_names:
            return f"it lacks the column {name}"
        if not table.schema.field(name).type.equals(kind):
            return f"its column {name} is of the type {table.schema.field(name).type}"
    for name in ("record_id", "unit_id", "group_id", "part", "set", "regime"):
        if table[name].null_count:
            return f"its column {name} has missing values"
    for field in table.schema:
        if field.name in KEYS:
            continue
        if not pa.types.is_float64(field.type):
            return f"its column {field.name} is of the type {field.type}"
        values = table[field.name].drop_null().to_numpy()
        if not np.isfinite(values).all():
            return f"its column {field.name} has NaN or infinite scores"
    return _fault_of_metadata(predictions)


def _fault_of_metadata(predictions: Predictions) -> str:
    try:
        held = about(predictions)
        for name, kind in ABOUT_KEYS.items():
            if not isinstance(held[name], kind):
                raise ValueError(f"{name} is of another type")
        shape = held["shape"]
        if not all(type(extent) is int and 0 < extent < 10_000 for extent in shape):
            raise ValueError("shape is not one of a picture")
        size = int(np.prod(shape))
        for value in predictions.table["picture"].drop_null().to_pylist():
            if len(value) != size:
                raise ValueError("a picture is of another size")
        regimes = set(predictions.table["calibrated_on"].drop_null().unique().to_pylist())
        for name in set(predictions.table.column_names) - KEYS.keys():
            limits = thresholds(predictions, name)
            if not all(type(limit) is float for limit in limits.values()):
                raise ValueError(f"a threshold of {name} is not a number")
            learned = predictions.table["calibrated_on"].filter(predictions.table[name].is_valid())
            on = set(learned.unique().to_pylist()) & regimes
            if on - limits.keys():
                raise ValueError(f"{name} has no threshold of {min(on - limits.keys())}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        return f"what it says of its rows cannot be used ({type(error).__name__}: {error})"
    return ""
