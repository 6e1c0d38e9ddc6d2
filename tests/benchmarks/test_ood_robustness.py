"""Robustness: class scores under faults, and what is computed of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from brief import FAULTS
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score
from small_runs import SMALL

from benchmd_ray.benchmarks.ood import ROBUSTNESS, corrupted
from benchmd_ray.benchmarks.ood import robustness_report as reports
from benchmd_ray.benchmarks.ood.faults import faults_of
from benchmd_ray.benchmarks.ood.robustness import (
    CLEAN,
    COLUMNS,
    MEAN,
    change,
    fault,
    measured,
    score_rows,
)
from benchmd_ray.cli import main
from benchmd_ray.data import streaming
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.records import PERSON
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import SEGMENTATION, Asked
from benchmd_ray.evaluation.registry import evaluations_asked
from benchmd_ray.modality.tasks import Task
from benchmd_ray.report.analysis import analyse
from benchmd_ray.runs.predictions import Predictions, predictions_path, read_predictions
from benchmd_ray.runs.store import read_run
from benchmd_ray.scores.resampling import group_multiplicities
from benchmd_ray.service.execute import evaluate_run, transfer_run
from benchmd_ray.settings.definition import Settings, updated

CLASSES = ("a", "b", "c")


def predicted(conditions, targets, groups, task="multi-label"):
    """Predictions of scores (rows, classes) by fault and severity."""
    count, classes = targets.shape
    blocks = []
    for (name, severity), scores in conditions.items():
        ids = [f"r{row}" for row in range(count)]
        flat = pa.array(np.asarray(scores, np.float64).ravel())
        columns = {
            "record_id": pa.array(ids),
            "unit_id": pa.array(ids),
            "group_id": pa.array([f"p{group}" for group in groups]),
            "split": pa.array(["test"] * count),
            "target": pa.FixedSizeListArray.from_arrays(
                pa.array(targets.ravel(), pa.int8()), classes
            ),
            **{person: pa.nulls(count, kind) for person, kind in PERSON.items()},
            "fault": pa.array([name] * count).dictionary_encode(),
            "severity": pa.array([severity] * count, pa.int8()),
            "control": pa.array([name == "control"] * count),
            "altered": pa.array([name != CLEAN] * count),
            "scores": pa.FixedSizeListArray.from_arrays(flat, classes),
        }
        blocks.append(pa.table(columns))
    about = {"task": json.dumps(asdict(Task(task, CLASSES[:classes], "records"))), "catalog": "x"}
    return Predictions(pa.concat_tables(blocks), about)


def drawn(rng, patients=80, noise=(0.4, 0.6, 1.0, 1.6)):
    """Targets, clean scores and those of a graded fault and of one that is there or not."""
    groups = np.repeat(np.arange(patients), rng.integers(1, 4, patients))
    targets = (rng.random((len(groups), 3)) < 0.35).astype(np.int8)
    signal = targets + rng.normal(size=targets.shape) * noise[0]

    def scores(spread):
        return 1 / (1 + np.exp(-(signal + rng.normal(size=signal.shape) * spread - 0.5)))

    clean = scores(0.0)
    conditions = {(CLEAN, 0): clean, ("control", 1): clean}
    conditions |= {("graded", level): scores(noise[level]) for level in (1, 2, 3)}
    return predicted(conditions | {("once", 1): scores(0.2)}, targets, groups)


def auroc_by_hand(predictions, name, severity):
    rows = predictions.table.to_pandas()
    rows = rows[(rows["fault"] == name) & (rows["severity"] == severity)]
    targets, scores = np.stack(rows["target"]), np.stack(rows["scores"])
    return np.mean([roc_auc_score(targets[:, c], scores[:, c]) for c in range(3)])


def test_means_weigh_faults_equally_however_many_severities_they_have():
    predictions = drawn(np.random.default_rng(0))
    rows = score_rows(predictions, 20)
    auroc = rows[rows["metric"] == "auroc"].set_index(["group", "class"])["value"]
    graded = [auroc_by_hand(predictions, "graded", level) for level in (1, 2, 3)]
    once = auroc_by_hand(predictions, "once", 1)
    assert auroc["graded", "severity 2"] == pytest.approx(graded[1], abs=1e-12)
    assert auroc[MEAN, "mean"] == pytest.approx((np.mean(graded) + once) / 2, abs=1e-12)
    assert auroc[CLEAN, "mean"] == auroc["control", "severity 1"]
    assert set(rows["metric"]) == {"auroc", "calibration_error"}
    # What goes to the summary of W&B.
    whole = rows[(rows["group"] == MEAN) & (rows["class"] == "mean")]
    assert sorted(whole["metric"]) == ["auroc", "calibration_error"]
    assert set(whole["use_case"]) == {"fault"}


def test_the_change_uses_each_resample_of_patients_for_both():
    predictions = drawn(np.random.default_rng(0))
    (split,) = measured(predictions, 3)
    clean, once = split.clean, split.conditions["once", 1]
    rows = predictions.table.to_pandas()
    for number in range(3):
        drawn_counts = group_multiplicities(split.patients, range(number, number + 1))[0]
        for condition, name in ((clean, CLEAN), (once, "once")):
            part = rows[rows["fault"] == name]
            weights = drawn_counts[np.unique(part["group_id"], return_inverse=True)[1]]
            targets, scores = np.stack(part["target"]), np.stack(part["scores"])
            expected = [
                roc_auc_score(targets[:, c], scores[:, c], sample_weight=weights) for c in range(3)
            ]
            assert condition.draws[number] == pytest.approx(np.mean(expected), abs=1e-9)
    control = split.of_fault("control")
    assert control.unchanged
    assert change([control], [clean], split.basis).value == 0.0


@pytest.mark.slow
def test_the_interval_of_the_change_covers_the_truth_in_95_of_100_studies():
    rng, covered = np.random.default_rng(3), []
    (large,) = measured(drawn(np.random.default_rng(9), patients=60_000), 1)
    truth = large.faulty.auroc - large.clean.auroc
    for _ in range(400):
        (split,) = measured(drawn(rng), 200)
        drop = change([split.faulty], [split.clean], split.basis)
        covered.append(drop.low <= truth <= drop.high)
    assert 0.92 <= np.mean(covered) <= 0.98


def altered(table, name, values):
    return table.set_column(table.column_names.index(name), name, pa.array(values, COLUMNS[name]))


@pytest.mark.parametrize(
    ("change_table", "message"),
    [
        (lambda t: t.drop_columns("severity"), "it lacks the column severity"),
        (lambda t: t.slice(1), "is not of the same records"),
        (lambda t: t.filter(pc.not_equal(t["severity"], 0)), "no clean records"),
        (lambda t: pa.concat_tables([t, t]), "a fault appears twice"),
        (lambda t: altered(t, "severity", [1] * len(t)), "a severity is 0 of a fault, or not 0"),
        (lambda t: altered(t, "control", np.arange(len(t)) % 2 == 0), "a control of some records"),
        (lambda t: t.slice(0, 0), "no rows"),
    ],
)
def test_a_table_of_another_form_is_refused(change_table, message):
    predictions = drawn(np.random.default_rng(0), patients=12)
    assert not fault(predictions)
    assert message in fault(replace(predictions, table=change_table(predictions.table)))


def test_faults_of_another_domain_have_no_class_and_are_not_scored(ecg_catalogs):
    signal = ecg_catalogs["ptb-xl"].signal
    names = {
        fault.name for fault, _ in corrupted.conditions_of(signal, signal) if fault is not None
    }
    every = faults_of(signal)
    assert names == {name for name, fault in every.items() if fault.use_case == "faulty"}
    assert {"white-noise", "square"} <= every.keys() - names
    assert corrupted.conditions_of(signal, signal)[0] == (None, 0)


def test_it_is_planned_only_where_it_is_named():
    assert ROBUSTNESS not in evaluations_asked("ood")
    assert evaluations_asked("robustness")[-1] is ROBUSTNESS


def test_an_unknown_evaluation_is_refused_with_the_valid_names(tmp_path):
    arguments = ["evaluate", str(tmp_path), "--catalog", str(tmp_path), "--evaluation", "robustnes"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    assert "Did you mean 'robustness'?" in result.output


def test_an_evaluation_of_other_tasks_is_refused(ecg_catalogs, trained):
    path = ecg_catalogs["ptb-xl"].path
    with pytest.raises(BenchmdError, match="has a single-label task, and the evaluation segment"):
        evaluate_run(trained[2], path, Settings(), evaluation=SEGMENTATION, within=True)


@pytest.mark.parametrize(
    ("altered_records", "same", "word"),
    [(True, True, "exact"), (True, False, "DIFFERS"), (False, True, "alters no record")],
)
def test_the_control_of_a_report_says_what_was_seen(altered_records, same, word):
    predictions = drawn(np.random.default_rng(0), patients=12)
    table = predictions.table
    if not altered_records:
        table = altered(table, "altered", [False] * len(table))
    if not same:
        of_control = pc.equal(table["fault"].cast(pa.string()), "control").to_pylist()
        scores = table["scores"].to_pylist()
        scores[of_control.index(True)] = [0.5, 0.5, 0.5]
        place, kind = table.column_names.index("scores"), table["scores"].type
        table = table.set_column(place, "scores", pa.array(scores, kind))
    (split,) = measured(replace(predictions, table=table), 5)
    assert reports._control(reports.Robustness({}, {0: split})) == word


def test_outputs_that_are_nan_are_refused_with_record_fault_and_severity(ecg_catalogs):
    table = pa.table({"record_id": ["r0", "r1"]})
    logits = np.array([[0.0] * 7, [np.nan] * 7], np.float32)
    condition = faults_of(ecg_catalogs["ptb-xl"].signal)["clipped"], 3
    with pytest.raises(BenchmdError, match="record r1 with the fault clipped, severity 3, are NaN"):
        corrupted._block(table, condition, logits, np.ones(2, bool), ecg_catalogs["ptb-xl"])


@pytest.fixture
def few(monkeypatch):
    """A few faults of an ECG, those of another domain among them."""

    def chosen(signal):
        return {name: value for name, value in faults_of(signal).items() if name in FAULTS}

    monkeypatch.setattr(corrupted, "faults_of", chosen)


def scores_of(table, name):
    rows = table.filter(pc.equal(table["fault"].cast(pa.string()), name))
    return np.stack(rows["scores"].to_pylist()), rows["record_id"].to_pylist()


@pytest.mark.slow
def test_clean_scores_are_those_of_the_classification_and_the_control_changes_nothing(
    trained, ecg_catalogs, few, tmp_path
):
    run = read_run(shutil.copytree(trained[2].folder, tmp_path / trained[2].folder.name))
    for name in ("ptb-xl", "georgia"):
        catalog = ecg_catalogs[name]
        path = evaluate_run(
            run, catalog.path, updated(Settings(), SMALL), evaluation=ROBUSTNESS, within=True
        )
        table = read_predictions(path, ROBUSTNESS.form).table
        usual = read_predictions(predictions_path(run.folder, name)).table
        clean, ids = scores_of(table, CLEAN)
        assert ids == usual["record_id"].to_pylist()
        assert np.array_equal(clean, np.stack(usual["scores"].to_pylist()))
        assert np.array_equal(scores_of(table, "gain-10")[0], clean)
        assert not np.array_equal(scores_of(table, "inverted")[0], clean)


def read_here(shards, size, columns):
    """`streaming._stream` in this process."""
    every = {"id": np.arange(len(shards))}
    tables = streaming.row_groups(streaming.Shards.of(shards), every, columns)
    whole = pa.concat_tables(tables)
    for start in range(0, len(whole), size):
        yield whole.slice(start, size)


@pytest.mark.slow
def test_streaming_and_resident_give_the_same_table_and_so_does_a_second_time(
    trained, ecg_catalogs, few, monkeypatch
):
    monkeypatch.setattr(streaming, "_stream", read_here)
    small = updated(Settings(), SMALL)
    tables = [
        corrupted.corrupted(
            Asked(
                trained[2].folder,
                ecg_catalogs["georgia"],
                updated(small, {"execution": {"feed": feed, "device": "cpu"}}),
                Worker(),
            )
        )
        for feed in ("resident", "streaming", "resident")
    ]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


class OneRun:
    """An analysis of one run with these rows."""

    resamples = 5
    runs = (SimpleNamespace(folder=Path("run")),)

    def __init__(self, rows):
        self.rows = rows


def test_tables_mark_rows_whose_pretraining_saw_the_records(monkeypatch):
    predictions = drawn(np.random.default_rng(0), patients=30)
    (split,) = measured(predictions, 5)
    monkeypatch.setattr(reports, "read_predictions", lambda path, form: predictions)
    key = dict.fromkeys(reports.KEY, "ecg") | {"dataset": "ptb-xl", "split": split.split}
    key |= {"policy": "clean", "setting": "linear", "role": "target"}
    seen = "its pretraining saw this dataset's recordings"
    row = {**key, "technique": "HuBERT-ECG", "evaluation": ROBUSTNESS.name, "contamination": seen}
    analysis = OneRun(pd.DataFrame([{**row, "seed": 0, "run": "run"}]))
    assert set(reports.by_fault(analysis)["contamination"]) == {seen}
    assert list(reports.summary(analysis)["contamination"]) == [seen]
    table = reports.table(analysis)
    assert any("HuBERT-ECG†" in column.values for column in table.columns)
    assert "† Its pretraining saw this dataset's recordings: HuBERT-ECG on ptb-xl." in table.caption


@pytest.mark.slow
def test_a_report_has_a_row_for_each_technique_and_dataset(trained, ecg_catalogs, few, tmp_path):
    source = ecg_catalogs["ptb-xl"].path
    for changes in ({"transfer": {"mode": "knn"}}, {"seed": 1}, {}):
        run = transfer_run(source, tmp_path, updated(updated(Settings(), SMALL), changes))
        evaluate_run(run, source, run.settings, evaluation=ROBUSTNESS, within=True)
    analysis = analyse([read_run(path) for path in tmp_path.glob("transfer-*")], resamples=50)
    rows = reports.summary(analysis)
    splits = len(set(rows["split"]))
    assert rows.groupby("split")["seeds"].agg(sorted).tolist() == [[1, 2]] * splits
    assert set(rows["control"]) == {"exact"}
    assert np.allclose(rows["change"], rows["faulty"] - rows["clean"])
    faults = reports.by_fault(analysis)
    lowest = faults[~faults["control"]].groupby([*reports.KEY, "fault"])["auroc"].mean()
    for _, row in rows.iterrows():
        key = tuple(row[list(reports.KEY)])
        assert lowest[key].idxmin() == row["worst_fault"]
    assert (pd.isna(rows["relative"]) == ~(rows["clean_low"] > 0.5)).all()
    arguments = ["report", str(tmp_path), "--out", str(tmp_path / "report"), "--resamples", "50"]
    assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0
    names = {path.name for path in (tmp_path / "report").rglob("*")}
    assert {"robustness.csv", "robustness.md", "robustness_faults.csv", "robustness.png"} <= names
    assert "control exact" in (tmp_path / "report" / "robustness.md").read_text()


@pytest.mark.data
@pytest.mark.slow
def test_a_fault_that_the_normalisation_removes_changes_nothing_on_real_records(
    real_data, build_once, few, tmp_path
):
    catalog = build_once("ptb-xl", real_data / "ptb-xl-500", tmp_path / "ptb-xl")
    small = updated(Settings(), SMALL)
    run = transfer_run(catalog.path, tmp_path / "runs", updated(small, {"transfer": {"epochs": 1}}))
    path = evaluate_run(run, catalog.path, run.settings, evaluation=ROBUSTNESS, within=True)
    predictions = read_predictions(path, ROBUSTNESS.form)
    for split in measured(predictions, 10):
        (control,) = split.controls
        assert control.unchanged
        assert control.altered == split.records
        assert split.clean.altered == 0
        assert not split.of_fault("inverted").unchanged
        assert change([control], [split.clean], split.basis).value == 0.0
