"""Scores of made-up tables of detectors."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from benchmd_ray.benchmarks.ood.scores import score_rows
from benchmd_ray.benchmarks.ood.table import ABOUT, ABOUT_KEYS, IN, KEYS, THRESHOLDS
from benchmd_ray.training.predictions import Predictions


@pytest.fixture
def predictions():
    """Of three scans with two windows each, one abnormal, and the same again as a control."""
    windows = [(f"scan-{number}", window) for number in range(3) for window in range(2)]
    rows = []
    for part, name in (("calibration", IN), ("test", IN), ("test", "beyond-range")):
        for (scan, window), score in zip(windows, (0.1, 0.9, 0.3, 0.2, 0.6, 0.5), strict=True):
            own = f"{part}/{scan}" if name == IN else f"test/{scan}"
            inside = part == "test" and name == IN
            rows.append(
                dict.fromkeys(KEYS)
                | {"record_id": f"{own}/{window}", "unit_id": own, "group_id": own, "part": part}
                | {"set": name, "regime": "none", "detector": score}
                | {"abnormal": (scan, window) == ("scan-0", 0) if inside else None}
            )
            if name != IN:
                rows[-1] |= {"use_case": "unseen", "severity": 1, "control": True}
    about = {name: kind() for name, kind in ABOUT_KEYS.items()}
    fields = [
        pa.field(name, kind, metadata={ABOUT: json.dumps(about)} if name == "set" else None)
        for name, kind in KEYS.items()
    ]
    fields.append(pa.field("detector", pa.float64(), metadata={THRESHOLDS: "{}"}))
    return Predictions(pa.Table.from_pylist(rows, pa.schema(fields)), {"of": "made-up scans"})


def test_a_scan_whose_windows_are_not_all_abnormal_counts_once(predictions):
    rows = score_rows(predictions, 20)
    own = rows[(rows["group"] == "beyond-range") & (rows["metric"] == "auroc")].iloc[0]
    assert (own["use_case"], own["value"]) == ("control", 0.5)
    assert (own["records"], own["positives"]) == (6, 3)


def test_a_scan_with_an_abnormal_window_is_abnormal(predictions):
    column = predictions.table.column_names.index("control")
    control = pa.nulls(predictions.table.num_rows, pa.bool_()).fill_null(False)
    unseen = Predictions(
        predictions.table.set_column(column, "control", control), {"of": "made-up unseen scans"}
    )
    rows = score_rows(unseen, 20)
    own = rows[rows["group"] == "beyond-range"].set_index("metric")["value"]
    assert own["auroc"] == 0.5
    # Only the first scan is left of those in distribution, with the score of its other window.
    assert own["auroc, abnormal"] == pytest.approx((0.5 + 0 + 0) / 3)
