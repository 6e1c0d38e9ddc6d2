"""Scores of made-up tables of detectors."""

from __future__ import annotations

import json
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from benchmd_ray.benchmarks.ood import report, scores
from benchmd_ray.benchmarks.ood.measures import threshold_of
from benchmd_ray.benchmarks.ood.scores import chance_p, score_rows
from benchmd_ray.benchmarks.ood.table import ABOUT, ABOUT_KEYS, HALF, IN, KEYS, THRESHOLDS
from benchmd_ray.runs.predictions import Predictions


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
    return made_up(rows, "made-up scans")


def made_up(rows, name):
    """Predictions of rows by one detector."""
    about = {name: kind() for name, kind in ABOUT_KEYS.items()}
    fields = [
        pa.field(name, kind, metadata={ABOUT: json.dumps(about)} if name == "set" else None)
        for name, kind in KEYS.items()
    ]
    fields.append(pa.field("detector", pa.float64(), metadata={THRESHOLDS: "{}"}))
    return Predictions(pa.Table.from_pylist(rows, pa.schema(fields)), {"of": name})


def test_a_scan_whose_windows_are_not_all_abnormal_counts_once(predictions):
    rows = score_rows(predictions, 20)
    own = rows[(rows["group"] == "beyond-range") & (rows["metric"] == "auroc")].iloc[0]
    assert (own["use_case"], own["value"]) == ("control", 0.5)
    assert (own["records"], own["positives"]) == (3, 3)  # the same scans, as they are and changed


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


def of_patients(sizes, scores_of):
    """In-distribution records of patients, with a score for each."""
    rows = []
    for patient, (size, own) in enumerate(zip(sizes, scores_of, strict=True)):
        for record in range(size):
            name = f"{patient}/{record}"
            keys = {"record_id": name, "unit_id": name, "group_id": f"{patient:03}"}
            values = {"part": "test", "set": IN, "regime": "none", "detector": float(own[record])}
            rows.append(dict.fromkeys(KEYS) | keys | values)
    return made_up(rows, "made-up patients")


def test_the_random_half_is_one_of_all_halves(monkeypatch):
    """With all halves counted once the p-value is a share of them."""
    rng = np.random.default_rng(0)
    sizes = [1, 2, 3, 1, 4, 2]
    values = [rng.normal(size=size) for size in sizes]
    halves = [np.array(each) for each in combinations(range(6), 3)]
    drawn = iter([halves[4], *halves])
    monkeypatch.setattr(scores, "HALVES", len(halves))
    monkeypatch.setattr(scores, "_half", lambda rng, patients: next(drawn))
    away = []
    for half in halves:
        out = np.repeat(np.isin(range(6), half), sizes)
        away.append(abs(roc_auc_score(out, np.concatenate(values)) - 0.5))
    expected = (1 + sum(each >= away[4] - 1e-9 for each in away)) / (len(halves) + 1)
    assert chance_p(of_patients(sizes, values), "detector") == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[1] * 20, [50] + [1] * 19, [1, 2, 4, 8, 16] * 4])
def test_the_control_of_chance_holds_its_level_whatever_patients_have(sizes, monkeypatch):
    """Records of a patient are nearly alike, and patients have unequal numbers of them."""
    monkeypatch.setattr(scores, "HALVES", 99)
    rejected = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        values = [rng.normal() + 0.01 * rng.normal(size=size) for size in sizes]
        rejected += chance_p(of_patients(sizes, values), "detector") <= 0.05
    assert rejected <= 20  # of 10 that are expected, by more than three standard deviations


def test_the_control_of_chance_is_that_of_the_table():
    rng = np.random.default_rng(1)
    own = of_patients([2] * 12, rng.normal(size=(12, 2)))
    rows = [*own.table.to_pylist()]
    rows += [row | {"part": "calibration", "group_id": "c"} for row in rows]
    both = made_up(rows, "made-up halves")
    found = score_rows(both, 20)
    value = found[(found["group"] == HALF) & (found["metric"] == "auroc")]["value"].item()
    half = scores._half(np.random.default_rng(0), np.unique(own.table["group_id"].to_numpy()))
    frame = own.table.to_pandas()
    assert value == roc_auc_score(frame["group_id"].isin(half), frame["detector"])
    assert 0 < chance_p(both, "detector") <= 1


def test_predictions_of_other_scores_are_scored_anew():
    """Even where all that they say of themselves is the same."""
    values = np.random.default_rng(2).normal(size=(8, 1))
    found = []
    for sign in (1, -1):
        rows = of_patients([1] * 8, sign * values).table.to_pylist()
        rows += [row | {"part": "calibration", "group_id": "c"} for row in rows]
        scored = score_rows(made_up(rows, "made-up signs"), 20)
        found.append(scored[scored["metric"] == "auroc"]["value"].item())
    assert found[0] == 1 - found[1] != 0.5


def test_the_threshold_accepts_new_records_on_average():
    rng = np.random.default_rng(0)
    for count in (19, 40, 200):
        accepted = [
            rng.normal(size=2000) <= threshold_of(rng.normal(size=count)) for _ in range(400)
        ]
        assert 0.945 <= np.mean(accepted) <= 0.965 + 1 / count
    assert threshold_of(np.arange(5.0)) == 4
    assert (threshold_of(np.arange(19.0)), threshold_of(np.arange(39.0))) == (18, 37)


def test_counts_of_means_over_sets_are_of_distinct_records_and_patients():
    """Those in distribution are compared with each of two sets, whose patients overlap."""
    rows = []
    sets = {IN: range(24), "here": range(24, 48), "there": range(36, 60)}
    for name, patients in sets.items():
        for part in ("calibration", "test") if name == IN else ("test",):
            for patient in patients:
                own = f"{name if part == 'test' else part}/{patient}"
                rows.append(
                    dict.fromkeys(KEYS)
                    | {"record_id": own, "unit_id": own, "group_id": str(patient), "part": part}
                    | {"set": name, "regime": "none", "detector": float(patient)}
                )
                if name != IN:
                    rows[-1] |= {"use_case": "unrelated", "severity": 0, "control": False}
    found = score_rows(made_up(rows, "made-up overlapping sets"), 20)
    found = found[found["metric"] == "auroc"].set_index("group")
    counts = found[["records", "positives", "patients"]]
    assert counts.loc["here"].tolist() == counts.loc["there"].tolist() == [48, 24, 48]
    assert counts.loc["all"].tolist() == [24 + 48, 48, 24 + 36]


def test_detectors_by_use_case_keep_networks_apart(monkeypatch):
    """Two networks of the same names, asked with other catalogs: no row mixes them."""

    def network(values):
        names = dict.fromkeys(report.STUDY, "x")
        rows = [
            {
                **names,
                **{"method": method, "regime": "none", "use_case": case, "group": "all"},
                **{"auroc": value, "low": value - 0.1, "high": value + 0.1, "seeds": 1},
            }
            for (method, case), value in values.items()
        ]
        return SimpleNamespace(pooled=lambda: rows)

    first = {("msp", "unrelated"): 0.6, ("msp", "faulty"): 0.8, ("knn", "unrelated"): 0.9}
    second = {("msp", "unrelated"): 0.7, ("knn", "unrelated"): 0.5}
    monkeypatch.setattr(report, "networks", lambda _: [network(first), network(second)])
    found = report.by_use_case(None)
    assert found["method"].tolist() == ["msp", "knn", "msp", "knn"]
    assert found["unrelated auroc"].tolist() == [0.6, 0.9, 0.7, 0.5]
    assert found["mean"].tolist()[:1] == pytest.approx([0.7])
    assert np.isnan(found["mean"][1])  # it was not asked about faulty ones
    assert found["faulty auroc"].isna().tolist() == [False, True, True, True]
