"""Scores of scans with several windows, and tables that cannot be scores."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from benchmd_ray.benchmarks.ood import scores as scores_module
from benchmd_ray.benchmarks.ood.scores import scored
from benchmd_ray.benchmarks.ood.table import ABOUT, IN, KEYS, THRESHOLDS, fault
from benchmd_ray.modality.tasks import Task
from benchmd_ray.runs.predictions import Predictions

SCANS, WINDOWS = 40, 4
HELD = {
    "skipped": {},
    "sources": {},
    "use_cases": "",
    "trials": [],
    "costs": {"m": {"setup": 1.0}},
    "coarse": {},
    "shape": [1, 2, 2],
}


def block(name, values, abnormal=None, part="test", control=None):
    """A window in each row."""
    scans = np.arange(SCANS).repeat(WINDOWS)
    rows = len(scans)
    columns = {
        "record_id": [f"d/{scan}-{row}" for row, scan in enumerate(scans)],
        "unit_id": [f"d/{scan}" for scan in scans],
        "group_id": [f"d/{scan}" for scan in scans],
        "part": [part] * rows,
        "set": [name] * rows,
        "use_case": [None if name == IN else "faulty"] * rows,
        "severity": [None if name == IN else 1] * rows,
        "control": [control] * rows,
        "abnormal": abnormal,
        "regime": ["none"] * rows,
        "m": values,
    }
    return columns


def predictions(blocks, held=HELD, limits="{}"):
    fields = [
        pa.field(name, kind, metadata={ABOUT: json.dumps(held)} if name == "set" else None)
        for name, kind in KEYS.items()
    ]
    schema = pa.schema([*fields, pa.field("m", pa.float64(), metadata={THRESHOLDS: limits})])
    tables = []
    for each in blocks:
        rows = len(each["record_id"])
        arrays = [
            pa.nulls(rows, field.type)
            if each.get(field.name) is None
            else pa.array(each[field.name], field.type)
            for field in schema
        ]
        tables.append(pa.table(arrays, schema=schema))
    task = Task(kind="multi-label", classes=("small", "large"))
    about = {"task": json.dumps(asdict(task)), "evaluation": "ood", "of": "x", "dataset": "d"}
    return Predictions(pa.concat_tables(tables), about)


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=SCANS * WINDOWS)


def test_a_scan_is_one_unit_whatever_its_windows_show(values, monkeypatch):
    """A negative control has an AUROC of 0.500 exactly, and a scan its highest score."""
    monkeypatch.setattr(scores_module, "_KNOWN", {})
    abnormal = (np.arange(SCANS * WINDOWS) % 3 == 0).tolist()
    other = values[::-1].copy()
    made = predictions(
        [
            block(IN, values, part="calibration"),
            block(IN, values, abnormal),
            block("beyond-range", values, control=True),
            block("air", other, control=False),
        ]
    )
    assert fault(made) == ""
    found = {one.where.group: one for one in scored(made, 20) if one.where.group != "all"}
    control = found["beyond-range"]
    assert control.values["auroc"] == 0.5
    assert control.records == SCANS  # as they are and changed: the same scans
    highest = [each.reshape(SCANS, WINDOWS).max(axis=1) for each in (values, other)]
    expected = roc_auc_score(np.repeat([0, 1], SCANS), np.concatenate(highest))
    assert found["air"].values["auroc"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("held", "limits", "message"),
    [
        ({"costs": {"m": 3}}, "{}", "AttributeError"),
        ({"costs": {"m": {"setup": float("nan")}}}, "{}", "a cost is not a number"),
        ({"shape": [4096] * 6}, "{}", "shape is not one of a picture"),
        ({"shape": [3]}, "{}", "shape is not one of a picture"),
        ({"trials": {}}, "{}", "trials is of another type"),
        ({}, "[]", "AttributeError"),
        ({}, '{"a": NaN}', "a threshold of m is not a number"),
    ],
)
def test_what_a_table_says_is_checked(values, held, limits, message):
    made = predictions([block(IN, values)], HELD | held, limits)
    assert message in fault(made)


def test_logits_of_other_classes_are_refused(values):
    rows = SCANS * WINDOWS
    made = predictions([{**block(IN, values), "logits": [[0.0, 1.0]] * rows}])
    assert fault(made) == ""
    made = predictions([{**block(IN, values), "logits": [[0.0, 1.0, 2.0]] * rows}])
    assert "logits are not those of the classes" in fault(made)
    made = predictions([{**block(IN, values), "picture": [b"abc"] * rows}])
    assert "a picture is of another size" in fault(made)
