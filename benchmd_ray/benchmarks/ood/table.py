"""The form of a table of detectors' scores."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmd_ray.training.predictions import Predictions

IN = "in"
"""Name of the in-distribution set."""
KEYS: dict[str, pa.DataType] = {
    **dict.fromkeys(("record_id", "unit_id", "group_id", "part", "use_case", "set"), pa.string()),
    "severity": pa.int8(),
    "control": pa.bool_(),
    "abnormal": pa.bool_(),
    **dict.fromkeys(("regime", "against", "calibrated_on"), pa.string()),
}
"""Columns of the table but those of the detectors.

``part`` is ``calibration`` or ``test``; ``set`` is `IN` or names a set; ``regime`` is
``none``, ``other-sources`` or ``same-source``; ``against`` is the set that rows of a calibrated
detector are of, and ``calibrated_on`` what it learned of.
"""
SKIPPED = "skipped"
"""Metadata of the column ``set``: detectors that were left out, and why, as JSON."""
THRESHOLDS = "thresholds"
"""Metadata of a detector's column: thresholds by ``against``, ``regime`` and ``calibrated_on``."""


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
    return ""
