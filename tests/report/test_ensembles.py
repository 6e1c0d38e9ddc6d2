"""Ensembles: averages over seeds of tuned settings and of their start, as results of a report."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from kinds import MODALITIES
from sklearn.metrics import roc_auc_score
from stored import runs, searches
from stores import (
    SEARCH,
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
from benchmd_ray.report.page import page
from benchmd_ray.report.page_findings import findings
from benchmd_ray.report.page_tuning import tuning_sentences
from benchmd_ray.report.protocols import ENSEMBLES
from benchmd_ray.report.report_figures import draw
from benchmd_ray.report.scored import read_scored
from benchmd_ray.report.table import plain
from benchmd_ray.report.tuning_frames import averaged
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.scores.comparison import delong, exchange_p

ECG = MODALITIES["ecg"].task
ROWS = 200


def lr(value, **more):
    return {"transfer": {"optimiser": {"lr": value}}, **more}


def scored(store, seed, *, skill=0.5, catalog=None, **about):
    """A run from scratch with predictions of a target."""
    run = make_transfer(store, "scratch", seed=seed, **about)
    truth = targets_of(ECG.classes, ROWS, ECG.kind, 1)
    made = scores_of(truth, ECG.kind, skill, [seed, sum(run.folder.name.encode())])
    write_predictions(run, "georgia", {"test": (people(ROWS, 1), truth, made)}, catalog=catalog)
    return run


def tuned_run(store, seed, *, search=SEARCH, value=3e-3, **more):
    return scored(store, seed, changes=lr(value, tuned=search), fixed=False, skill=0.9, **more)


def made_store(store, *, tuned=(0, 1, 2), start=(0, 1, 2)):
    """Runs of a search and of its start with these seeds."""
    make_search(store, technique="scratch")
    return [scored(store, seed) for seed in start], [tuned_run(store, seed) for seed in tuned]


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
def test_an_ensemble_is_scored_by_the_mean_of_the_probabilities_of_its_seeds(made, place, protocol):
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
    assert (row["start_protocol"], row["seeds"], row["search"]) == ("start ensemble", 3, SEARCH)
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
    assert made.rows_digest == found[0].rows_digest


def test_predictions_of_other_records_are_not_averaged(tmp_path):
    make_search(tmp_path, technique="scratch")
    found = [tuned_run(tmp_path, seed) for seed in (0, 1)]
    truth, scores, _ = predictions(found[1])
    held = people(ROWS, 1)
    held["record_id"] = [f"other{row:04d}" for row in range(ROWS)]
    write_predictions(found[1], "georgia", {"test": (held, truth.astype(np.int8), scores)})
    with pytest.raises(BenchmdError, match="predictions of different records of georgia"):
        averaged([one for run in found for one in read_scored(run).scored])
    analysis = reported(tmp_path, resamples=5)
    assert not analysis.scores["protocol"].isin(ENSEMBLES).any()
    assert any("are not averaged. Evaluate the runs again" in note for note in analysis.notes)


# --- when there is one


def test_both_are_of_the_seeds_that_both_have(tmp_path):
    start, tuned = made_store(tmp_path, tuned=(0, 1, 2), start=(1, 2, 3))
    analysis = reported(tmp_path, resamples=5)
    row = row_of(analysis.tuned, "tuned ensemble")
    truth, ours, _ = mean_of(tuned[1:])
    _, first, _ = mean_of(start[:2])
    assert row["seeds"] == 2
    assert row["value"] == pytest.approx(roc_auc_score(truth, ours))
    assert row["start"] == pytest.approx(roc_auc_score(truth, first))


@pytest.mark.parametrize("start", [(), (0,), (2, 3, 4)])
def test_without_two_seeds_in_common_the_tuned_ensemble_is_not_compared(tmp_path, start):
    _, tuned = made_store(tmp_path, start=start)
    analysis = reported(tmp_path, resamples=5)
    row = row_of(analysis.tuned, "tuned ensemble")
    truth, ours, _ = mean_of(tuned)
    assert (row["seeds"], np.isnan(row["difference"])) == (3, True)
    assert row["value"] == pytest.approx(roc_auc_score(truth, ours))
    assert "start ensemble" not in set(analysis.scores["protocol"])
    said = [note for note in analysis.notes if "so there is no start ensemble" in note]
    assert len(said) == bool(start)


def test_one_seed_makes_no_ensemble(tmp_path):
    made_store(tmp_path, tuned=(0,))
    analysis = reported(tmp_path, resamples=5)
    assert set(analysis.scores["protocol"]) == {"fixed", "tuned"}
    assert not [note for note in analysis.notes if "ensemble" in note]


def test_a_search_that_keeps_its_start_has_no_ensembles(tmp_path):
    made_store(tmp_path, tuned=())
    analysis = reported(tmp_path, resamples=5)
    assert analysis.tuned.empty
    assert set(analysis.scores["protocol"]) == {"fixed"}


def test_ensembles_of_two_searches_have_the_names_of_their_tuned_runs(tmp_path):
    made_store(tmp_path)
    other = search_name("tune-again")
    make_search(tmp_path, other, technique="scratch")
    for seed in (0, 1, 2):
        tuned_run(tmp_path, seed, search=other, value=5e-3)
    analysis = reported(tmp_path, resamples=5)
    found = analysis.tuned.set_index("technique")
    ends = {SEARCH: " (lr 0.003)", other: " (lr 0.005)"}
    assert found["search"].to_dict() == {
        f"scratch, {mark}{end}": search
        for search, end in ends.items()
        for mark in ("tuned", "tuned ensemble")
    }
    assert set(found["start_protocol"]) == {"fixed", "start ensemble"}
    names = set(analysis.scores["technique"])
    assert {f"scratch, start ensemble{end}" for end in ends.values()} < names


# --- where it is, and where it is not


def test_ensembles_are_next_to_the_others_in_the_tables(made):
    *_, analysis = made
    shown, _ = plain(tables.results(analysis))
    protocols = ["fixed", "start ensemble", "tuned", "tuned ensemble"]
    assert shown["protocol"].tolist() == protocols
    shown, _ = plain(tables.tuned(analysis))
    assert shown["protocol"].tolist() == ["tuned", "tuned ensemble"]
    assert shown["start is"].tolist() == ["fixed", "start ensemble"]
    assert any(
        note.startswith("tuned ensemble: one model that averages") for note in analysis.notes
    )
    assert "start ensemble" in page(analysis, [])
    said = tuning_sentences(analysis)
    for subject in ("tuned settings were", "the ensemble was"):
        (line,) = (line for line in said if f"{subject} significantly" in line)
        assert "in 1 of 1 comparison" in line


def test_seeds_below_several_pretrainings_make_no_ensemble(tmp_path):
    """They are numbered anew, so that equal numbers may be other seeds."""
    make_search(tmp_path)
    for upstream in (make_pretraining(tmp_path, "mae", seed=seed) for seed in (0, 1)):
        for changes in ({}, lr(3e-3, tuned=SEARCH)):
            run = make_transfer(
                tmp_path, "mae", upstream=upstream, seed=0, changes=changes, fixed=not changes
            )
            truth = targets_of(ECG.classes, 100, ECG.kind, 0)
            made = scores_of(truth, ECG.kind, 0.5, [sum(run.folder.name.encode())])
            held = {"validation": (people(100, 0), truth, made)}
            write_predictions(run, "ptb-xl", held, role="source")
    analysis = reported(tmp_path, resamples=20)
    assert not analysis.scores["protocol"].isin(ENSEMBLES).any()
    assert any("as a seed has several pretrainings" in note for note in analysis.notes)


def test_ensembles_enter_no_comparison_of_techniques_and_no_row_of_a_run(tmp_path):
    upstream = {seed: make_pretraining(tmp_path, "mae", seed=seed) for seed in (0, 1)}
    make_search(tmp_path)
    for seed, pretraining in upstream.items():
        for changes in ({}, lr(3e-3, tuned=SEARCH)):
            run = make_transfer(
                tmp_path, "mae", upstream=pretraining, seed=seed, changes=changes, fixed=not changes
            )
            scratch = make_transfer(tmp_path, seed=seed, changes=changes, fixed=not changes)
            for own in (run, scratch):
                for number, (data, split) in enumerate(
                    (("ptb-xl", "validation"), ("georgia", "test"))
                ):
                    truth = targets_of(ECG.classes, 100, ECG.kind, number)
                    made = scores_of(truth, ECG.kind, 0.5, [seed, sum(own.folder.name.encode())])
                    held = {split: (people(100, number), truth, made)}
                    write_predictions(own, data, held, role="target" if number else "source")
    analysis = reported(tmp_path, resamples=20)
    whole = analysis.scores[analysis.scores["class"] == "mean"]
    averages = whole["protocol"].isin(ENSEMBLES)
    assert set(whole[averages]["technique"]) == {
        f"{name}, {protocol}" for name in ("MAE", "scratch") for protocol in ENSEMBLES
    }
    for name in ("rows", "gaps", "changes", "ranking", "subgroups", "roc", "calibration"):
        techniques = getattr(analysis, name)["technique"]
        assert "MAE, tuned" in set(techniques)
        assert not techniques.str.contains("ensemble").any(), name
    pairs = {*analysis.pairs["a"], *analysis.pairs["b"]}
    assert pairs == {"scratch", "scratch, tuned", "MAE", "MAE, tuned"}
    drawn, skipped = draw(Analysis(scores=analysis.scores, modalities=analysis.modalities))
    assert "critical-difference-targets" in {one.name for one in drawn}
    assert not [one.name for one in (*drawn, *skipped) if "ensemble" in one.name]
    assert "ensemble" not in str(findings(analysis))


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
        for seed in (0, 1):
            run = make_transfer(
                tmp_path,
                modality="breastmnist",
                source="breastmnist",
                setting="finetune-full",
                seed=seed,
                changes=changes,
                fixed=not changes,
            )
            scores.append(scores_of(truth, kind.task.kind, 1.0, [seed, len(changes)]))
            splits = {"test": (held, truth, scores[-1])}
            classes = kind.task.classes
            write_predictions(run, "breastmnist", splits, classes=classes, role="source")
        means[f"{protocol} ensemble"] = np.mean(scores, axis=0)
    analysis = reported(tmp_path, resamples=20)
    found = medmnist.compared(analysis)
    ours = found[found["protocol"] != medmnist.PUBLISHED].set_index("protocol")
    assert set(ours.index) == {"fixed", "tuned", "start ensemble", "tuned ensemble"}
    for protocol, mean in means.items():
        row = ours.loc[protocol]
        assert row["auc"] == pytest.approx(roc_auc_score(truth[:, 1], mean[:, 1]))
        assert row["acc"] == pytest.approx((mean.argmax(1) == truth.argmax(1)).mean())
        assert row["auc_low"] < row["auc"] < row["auc_high"]
        assert (row["seeds"], np.isnan(row["auc_sd"])) == (2, True)
    methods = medmnist.averages(found).set_index("protocol")["method"]
    assert methods["tuned ensemble"] == methods["tuned"] == medmnist.FOUND
    assert methods["start ensemble"] == methods["fixed"]
    shown, _ = plain(next(t for t in medmnist.TABLES if t.name == "medmnist").printed(analysis))
    assert {"start ensemble", "tuned ensemble"} <= set(shown["protocol"])
