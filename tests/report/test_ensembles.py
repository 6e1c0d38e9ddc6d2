"""Fold models of a search's choice and of its start, and their averages, as results of a report."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from kinds import MODALITIES
from sklearn.metrics import roc_auc_score
from stored import runs, searches
from stores import (
    SEARCH,
    make_ladder,
    make_pretraining,
    make_search,
    make_transfer,
    people,
    scores_of,
    search_name,
    targets_of,
    write_predictions,
)

from benchmd_ray.benchmarks.medmnist import report as medmnist
from benchmd_ray.data.cards import kind_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report import tables
from benchmd_ray.report.analysis import Analysis, analyse
from benchmd_ray.report.ensembles import averaged
from benchmd_ray.report.page import page
from benchmd_ray.report.page_findings import evidence, winners
from benchmd_ray.report.page_tuning import gained
from benchmd_ray.report.protocols import ENSEMBLES
from benchmd_ray.report.report_figures import draw
from benchmd_ray.report.scored import read_scored
from benchmd_ray.report.table import plain
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.scores.comparison import delong, exchange_p

ECG = MODALITIES["ecg"].task
ROWS = 200


def lr(value, **more):
    return {"transfer": {"optimiser": {"lr": value}}, **more}


def scored(store, technique="scratch", *, skill=0.5, catalog=None, data=("georgia",), **about):
    """A run with predictions of targets."""
    run = make_transfer(store, technique, **about)
    truth = targets_of(ECG.classes, ROWS, ECG.kind, 1)
    drawn = [about.get("fold", 0), about.get("seed", 0), int(10 * skill)]
    made = scores_of(truth, ECG.kind, skill, drawn)
    for name in data:
        write_predictions(run, name, {"test": (people(ROWS, 1), truth, made)}, catalog=catalog)
    return run


def tuned_run(store, *, search=SEARCH, value=3e-3, **more):
    return scored(store, changes=lr(value, tuned=search), fixed=False, skill=0.9, **more)


def made_store(store, *, tuned=(0, 1, 2), start=(0, 1, 2)):
    """Fold models of a search's start and of its choice."""
    make_search(store, technique="scratch")
    starts = [scored(store, fold=fold) for fold in start]
    return starts, [tuned_run(store, fold=fold) for fold in tuned]


def reported(store, resamples=60):
    return analyse(runs([store]), searches=searches([store]), resamples=resamples)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    store = tmp_path_factory.mktemp("ensembles") / "runs"
    start, tuned = made_store(store)
    return start, tuned, reported(store, resamples=400)


def predictions(run):
    table = pq.read_table(predictions_path(run.folder, "georgia"))
    order = np.argsort(table["unit_id"].to_pylist())
    truth, scores = (np.array(table[name].to_pylist())[order] for name in ("target", "scores"))
    return truth, scores, np.array(table["group_id"].to_pylist())[order]


def mean_of(found):
    """Truth, mean probabilities and patients."""
    truth, _, groups = predictions(found[0])
    return truth, np.mean([predictions(run)[1] for run in found], axis=0), groups


def row_of(frame, protocol, **key):
    rows = frame[frame["protocol"] == protocol]
    for name, value in key.items():
        rows = rows[rows[name] == value]
    (row,) = rows.to_dict("records")
    return row


# --- what it is


@pytest.mark.parametrize(("place", "protocol"), [(1, "tuned ensemble"), (0, "start ensemble")])
def test_an_ensemble_is_scored_by_the_mean_of_the_probabilities_of_its_folds(made, place, protocol):
    *both, analysis = made
    truth, mean, _ = mean_of(both[place])
    row = row_of(analysis.scores, protocol, metric="auroc", **{"class": "mean"})
    assert row["value"] == pytest.approx(roc_auc_score(truth, mean, average="macro"))
    accuracy = row_of(analysis.scores, protocol, metric="accuracy", **{"class": "mean"})
    assert accuracy["value"] == pytest.approx((mean.argmax(1) == truth.argmax(1)).mean())
    single = [roc_auc_score(truth, predictions(run)[1]) for run in both[place]]
    assert row["value"] > max(single)
    assert row["low"] < row["value"] < row["high"]
    assert (row["seeds"], np.isnan(row["sd"]), np.isnan(row["paper"])) == (3, True, True)
    assert row["runs"].split("; ") == [run.folder.name for run in both[place]]


def test_the_difference_of_ensembles_is_paired_by_record(made):
    start, tuned, analysis = made
    truth, ours, groups = mean_of(tuned)
    _, first, _ = mean_of(start)
    row = row_of(analysis.tuned, "tuned ensemble")
    values = [roc_auc_score(truth, one) for one in (ours, first)]
    assert (row["value"], row["start"]) == pytest.approx(tuple(values))
    assert row["difference"] == pytest.approx(values[0] - values[1])
    assert row["start_name"] == "scratch, start ensemble of 3, linear"
    assert (row["technique"], row["models"]) == ("scratch, tuned ensemble of 3", 3)
    assert row["p"] == exchange_p(truth, first, ours, groups)
    assert row["p_delong"] == pytest.approx(delong(truth, first, ours, groups).p)


def test_the_interval_of_the_difference_is_that_of_a_slow_bootstrap(made):
    start, tuned, analysis = made
    truth, ours, groups = mean_of(tuned)
    _, first, _ = mean_of(start)
    rng, drawn = np.random.default_rng(3), []
    rows_by_patient = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    for _ in range(200):
        chosen = rng.integers(len(rows_by_patient), size=len(rows_by_patient))
        rows = np.concatenate([rows_by_patient[place] for place in chosen])
        drawn.append(
            roc_auc_score(truth[rows], ours[rows]) - roc_auc_score(truth[rows], first[rows])
        )
    low, high = np.percentile(drawn, [2.5, 97.5])
    row = row_of(analysis.tuned, "tuned ensemble")
    assert row["difference_high"] - row["difference_low"] == pytest.approx(high - low, rel=0.3)


def test_windows_are_averaged_before_they_are_pooled_to_a_scan(tmp_path):
    kind = MODALITIES["ldct"]
    truth = targets_of(kind.task.classes, 8, kind.task.kind)
    truth[truth < 0] = 0
    held = people(8)
    held["unit_id"] = [f"scan{row // 2}" for row in range(8)]
    found, scores = [], []
    for seed in (0, 1):
        run = make_transfer(tmp_path, modality="ldct", source="lidc-idri", seed=seed)
        scores.append(scores_of(truth, kind.task.kind, 0.5, [seed]))
        order = np.arange(8) if seed == 0 else np.arange(8)[::-1]  # of the rows of the file
        own = {name: [column[i] for i in order] for name, column in held.items()}
        write_predictions(run, "lndb", {"test": (own, truth[order], scores[-1][order])})
        found += read_scored(run).scored
    mean = np.mean(scores, axis=0).reshape(4, 2, -1).max(axis=1)
    made = averaged(found)
    assert made.scores == pytest.approx(mean)
    assert not np.allclose(mean, np.mean([one.scores for one in found], axis=0))
    assert made.facts.rows == found[0].facts.rows


def test_predictions_of_other_records_are_not_averaged(tmp_path):
    _, found = made_store(tmp_path, tuned=(0, 1), start=())
    truth, scores, _ = predictions(found[1])
    held = people(ROWS, 1)
    held["record_id"] = [f"other{row:04d}" for row in range(ROWS)]
    write_predictions(found[1], "georgia", {"test": (held, truth.astype(np.int8), scores)})
    with pytest.raises(BenchmdError, match="predictions of different records of georgia"):
        averaged([one for run in found for one in read_scored(run).scored])
    analysis = reported(tmp_path, resamples=5)
    assert not analysis.scores["protocol"].isin(ENSEMBLES.values()).any()
    assert any("are not averaged. Evaluate the runs again" in note for note in analysis.notes)


# --- four rows


def test_a_search_has_four_rows_and_two_differences(made):
    start, tuned, analysis = made
    whole = analysis.scores[analysis.scores["class"] == "mean"].query("metric == 'auroc'")
    assert whole.set_index("protocol")["technique"].to_dict() == {
        "start": "scratch, start",
        "tuned": "scratch, tuned",
        "start ensemble": "scratch, start ensemble of 3",
        "tuned ensemble": "scratch, tuned ensemble of 3",
    }
    single = row_of(analysis.tuned, "tuned")
    assert single["start_name"] == "scratch, start, linear"
    for name, members in (("value", tuned), ("start", start)):
        values = [roc_auc_score(*predictions(run)[:2]) for run in members]
        assert single[name] == pytest.approx(np.mean(values))
    assert single["difference"] == pytest.approx(single["value"] - single["start"])
    assert analysis.tuned["protocol"].tolist() == ["tuned", "tuned ensemble"]


def test_both_are_of_the_folds_that_both_have_and_a_note_says_so(tmp_path):
    start, tuned = made_store(tmp_path, tuned=(0, 1, 2), start=(1, 2, 3))
    analysis = reported(tmp_path, resamples=5)
    row = row_of(analysis.tuned, "tuned ensemble")
    truth, ours, _ = mean_of(tuned[1:])
    _, first, _ = mean_of(start[:2])
    assert (row["technique"], row["models"]) == ("scratch, tuned ensemble of 2", 2)
    assert row["value"] == pytest.approx(roc_auc_score(truth, ours))
    assert row["start"] == pytest.approx(roc_auc_score(truth, first))
    single = row_of(analysis.tuned, "tuned")
    values = [roc_auc_score(truth, predictions(run)[1]) for run in tuned[1:]]
    assert single["value"] == pytest.approx(np.mean(values))
    (note,) = [note for note in analysis.notes if "on which the start was trained too" in note]
    assert "scratch, tuned, linear: compared with the start on the 2 folds of its 3" in note


@pytest.mark.parametrize("start", [(), (3, 4)])
def test_without_a_common_fold_nothing_is_compared(tmp_path, start):
    _, tuned = made_store(tmp_path, start=start)
    analysis = reported(tmp_path, resamples=5)
    row = row_of(analysis.tuned, "tuned ensemble")
    truth, ours, _ = mean_of(tuned)
    assert (row["models"], np.isnan(row["difference"])) == (3, True)
    assert row["value"] == pytest.approx(roc_auc_score(truth, ours))
    assert any("so nothing is compared there. Run them too." in note for note in analysis.notes)


def test_one_fold_makes_no_ensemble(tmp_path):
    made_store(tmp_path, tuned=(0,), start=(0,))
    analysis = reported(tmp_path, resamples=5)
    assert set(analysis.scores["protocol"]) == {"start", "tuned"}
    assert not [note for note in analysis.notes if "ensemble" in note]


def test_a_search_that_keeps_its_start_has_the_two_rows_of_its_start(tmp_path):
    start, _ = made_store(tmp_path, tuned=())
    analysis = reported(tmp_path, resamples=5)
    assert analysis.tuned.empty
    truth, mean, _ = mean_of(start)
    row = row_of(analysis.scores, "start ensemble", metric="auroc", **{"class": "mean"})
    assert row["value"] == pytest.approx(roc_auc_score(truth, mean))
    assert set(analysis.scores["protocol"]) == {"start", "start ensemble"}


def test_the_start_is_of_the_first_family_and_the_choice_of_another(tmp_path):
    search = {**make_ladder(12), "name": SEARCH}
    make_search(tmp_path, **search)
    for fold in range(5):
        scored(tmp_path, setting="finetune-full", fold=fold)
        upstream = make_pretraining(tmp_path, "random-kernels", fold=fold)
        tuned = {"upstream": upstream, "changes": {"tuned": SEARCH}, "fixed": False}
        scored(tmp_path, "random-kernels", skill=0.9, fold=fold, **tuned)
    # Neither another technique nor labels of another number are the start.
    scored(tmp_path, setting="finetune-small", fold=0)
    analysis = reported(tmp_path, resamples=20)
    for protocol, mark in (("tuned", ""), ("tuned ensemble", " ensemble of 5")):
        row = row_of(analysis.tuned, protocol)
        assert (row["technique"], row["setting"]) == (f"random kernels, tuned{mark}", "linear")
        assert row["start_name"] == f"scratch, start{mark}, fine-tuning"
        assert np.isfinite(row["difference"])
    scores = analysis.scores[analysis.scores["class"] == "mean"].query("metric == 'auroc'")
    at = scores.set_index(["technique", "setting"])["value"]
    row = row_of(analysis.tuned, "tuned ensemble")
    assert row["start"] == at["scratch, start ensemble of 5", "finetune-full"]


def test_fold_models_are_not_pooled_with_runs_on_all_labels(tmp_path):
    made_store(tmp_path)
    for seed in (0, 1):
        scored(tmp_path, seed=seed)
        tuned_run(tmp_path, seed=seed)
    analysis = reported(tmp_path, resamples=5)
    scores = analysis.scores[analysis.scores["class"] == "mean"].query("metric == 'auroc'")
    assert scores.set_index("technique")["seeds"].to_dict() == {
        "scratch": 2,
        "scratch, start": 3,
        "scratch, start ensemble of 3": 3,
        "scratch, tuned": 3,
        "scratch, tuned ensemble of 3": 3,
        "scratch, tuned, whole split": 2,
    }
    starts = analysis.tuned.set_index("technique")["start_name"]
    assert starts["scratch, tuned, whole split"] == "scratch, linear"
    assert starts["scratch, tuned"] == "scratch, start, linear"
    assert {*analysis.pairs["a"], *analysis.pairs["b"]} == {
        "scratch",
        "scratch, tuned, whole split",
    }


def test_ensembles_of_two_searches_have_the_names_of_their_tuned_runs(tmp_path):
    made_store(tmp_path)
    other = search_name("tune-again")
    make_search(tmp_path, other, technique="scratch")
    for fold in (0, 1):
        tuned_run(tmp_path, fold=fold, search=other, value=5e-3)
    analysis = reported(tmp_path, resamples=5)
    found = analysis.tuned.set_index("technique")["search"].to_dict()
    assert found == {
        "scratch, tuned (lr 0.003)": SEARCH,
        "scratch, tuned (lr 0.005)": other,
        "scratch, tuned ensemble of 3 (lr 0.003)": SEARCH,
        "scratch, tuned ensemble of 2 (lr 0.005)": other,
    }
    starts = {"scratch, start ensemble of 2", "scratch, start ensemble of 3"}
    assert starts < set(analysis.scores["technique"])


def test_start_ensembles_of_two_searches_on_other_folds_have_two_names(tmp_path):
    """Folds have the seeds of a search."""
    made_store(tmp_path)
    other = search_name("tune-again")
    make_search(tmp_path, other, technique="scratch")
    for fold in (0, 1, 2):
        scored(tmp_path, fold=fold, seed=1)
        tuned_run(tmp_path, fold=fold, seed=1, search=other, value=5e-3)
    analysis = reported(tmp_path, resamples=5)
    names = analysis.tuned.query("protocol == 'tuned ensemble'").set_index("search")["start_name"]
    assert names.to_dict() == {
        SEARCH: "scratch, start ensemble of 3, linear",
        other: "scratch, start ensemble of 3 (2), linear",
    }
    whole = analysis.scores.query("metric == 'auroc' and `class` == 'mean'")
    assert len(whole) == len(set(whole["technique"])) == 7


# --- where it is, and where it is not


def test_ensembles_are_next_to_the_others_in_the_tables(made):
    *_, analysis = made
    shown, _ = plain(tables.results(analysis))
    protocols = ["start", "start ensemble", "tuned", "tuned ensemble"]
    assert shown["protocol"].tolist() == protocols
    shown, _ = plain(tables.tuned(analysis))
    assert shown["protocol"].tolist() == ["tuned", "tuned ensemble"]
    assert shown["models"].tolist() == ["3", "3"]
    assert any(
        note.startswith("tuned ensemble, start ensemble: the average") for note in analysis.notes
    )
    assert "start ensemble" in page(analysis, [])
    (line,) = gained(analysis)
    (row,) = analysis.tuned[analysis.tuned["protocol"] == "tuned ensemble"].to_dict("records")
    assert line.startswith(f"Tuning gained {row['difference']:+.3f} [")
    assert f"({row['technique']} on " in line


def test_fold_models_enter_no_comparison_of_techniques_and_ensembles_no_row_of_a_run(tmp_path):
    made_store(tmp_path)
    for technique in ("e-mix", "shed"):
        scored(tmp_path, technique, upstream=make_pretraining(tmp_path, technique))
    analysis = reported(tmp_path, resamples=20)
    for name in ("rows", "subgroups", "roc", "calibration"):
        techniques = getattr(analysis, name)["technique"]
        assert "scratch, tuned" in set(techniques)
        assert not techniques.str.contains("ensemble").any(), name
    pairs = {*analysis.pairs["a"], *analysis.pairs["b"]}
    assert pairs == {"e-Mix", "ShED"}
    assert set(analysis.ranking["technique"]) == pairs
    drawn, skipped = draw(Analysis(scores=analysis.scores, modalities=analysis.modalities))
    assert not [one.name for one in (*drawn, *skipped) if "ensemble" in one.name]
    assert "ensemble" not in str([*winners(analysis), *evidence(analysis)])


def test_the_table_of_medmnist_has_start_tuned_and_both_ensembles(tmp_path):
    kind, name = kind_of("breastmnist"), search_name("tune-breastmnist")
    source = {"modality": kind.name, "source": "breastmnist", "policy": "clean"}
    counts = {what: {"train": 300, "validation": 100} for what in ("records", "patients")}
    first = make_transfer(tmp_path, modality="breastmnist", source="breastmnist").settings
    make_search(
        tmp_path,
        name,
        start=first,
        technique="scratch",
        setting="finetune-full",
        sources=[{**source, **counts, "catalog": "a", "inner": "b"}],
    )
    truth = targets_of(kind.task.classes, 80, kind.task.kind)
    held = people(80)
    held["record_id"] = held["unit_id"] = [f"test-{row:06d}" for row in range(80)]
    means = {}
    for protocol, changes in (("start", {}), ("tuned", lr(3e-3, tuned=name))):
        scores = []
        for fold in (0, 1):
            run = make_transfer(
                tmp_path,
                modality="breastmnist",
                source="breastmnist",
                setting="finetune-full",
                fold=fold,
                changes=changes,
            )
            scores.append(scores_of(truth, kind.task.kind, 1.0, [fold, len(changes)]))
            splits = {"test": (held, truth, scores[-1])}
            classes = kind.task.classes
            write_predictions(run, "breastmnist", splits, classes=classes, role="source")
        means[f"{protocol} ensemble"] = np.mean(scores, axis=0)
    analysis = reported(tmp_path, resamples=20)
    found = medmnist.compared(analysis)
    ours = found[found["protocol"] != medmnist.PUBLISHED].set_index("protocol")
    assert set(ours.index) == {"start", "tuned", "start ensemble", "tuned ensemble"}
    for protocol, mean in means.items():
        row = ours.loc[protocol]
        assert row["auc"] == pytest.approx(roc_auc_score(truth[:, 1], mean[:, 1]))
        assert row["acc"] == pytest.approx((mean.argmax(1) == truth.argmax(1)).mean())
        assert row["auc_low"] < row["auc"] < row["auc_high"]
        assert (row["seeds"], np.isnan(row["auc_sd"])) == (2, True)
    methods = medmnist.averages(found).set_index("protocol")["method"]
    assert methods["tuned ensemble"] == methods["tuned"] == medmnist.FOUND
    assert methods["start ensemble"] == methods["start"]
    shown, _ = plain(next(t for t in medmnist.TABLES if t.name == "medmnist").printed(analysis))
    assert {"start ensemble", "tuned ensemble"} <= set(shown["protocol"])
