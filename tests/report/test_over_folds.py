"""Runs of a cross-validation as one row: pooled on their source, averaged elsewhere."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from kinds import MODALITIES
from sklearn.metrics import accuracy_score, roc_auc_score
from stores import make_pretraining, make_transfer, people, targets_of, write_predictions

from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.ensembles import shared_by_any
from benchmd_ray.runs.predictions import SHARED

CLASSES = MODALITIES["ecg"].task.classes
PATIENTS, EACH, FOLDS = 40, 2, 4
ROWS = PATIENTS * EACH


def scores_of_model(targets, skill, seed):
    """Probabilities with an offset for the first class that is the model's own."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=targets.shape) + skill * targets
    logits[:, 0] += rng.normal(0, 3)
    odds = np.exp(logits)
    return odds / odds.sum(axis=1, keepdims=True)


class Store:
    """Made-up runs of a cross-validation, and all their held-out records."""

    def __init__(self, folder):
        self.folder = folder
        self.people = people(ROWS, each=EACH)
        self.targets = targets_of(CLASSES, ROWS, "single-label")
        self.fold = np.arange(ROWS) // EACH % FOLDS
        self.scores = {}

    def run(self, number, technique="scratch", *, skill=1.0, leave_one_out=False, **about):
        held_out = {"number": number, "folds": FOLDS, "leave_one_out": leave_one_out}
        run = make_transfer(
            self.folder, technique, held_out=held_out | {"catalog": "a" * 64}, **about
        )
        rows = np.flatnonzero(self.fold == number)
        scores = scores_of_model(self.targets[rows], skill, [number, len(technique)])
        self.scores.setdefault(technique, np.zeros(self.targets.shape))[rows] = scores
        held = {name: [values[row] for row in rows] for name, values in self.people.items()}
        of_test = {"test": (held, self.targets[rows], scores)}
        write_predictions(run, "ptb-xl", of_test, role="source", catalog=f"digest of fold {number}")
        return run

    def on_target(self, run, number, rows):
        held, targets = people(30, 3), targets_of(CLASSES, 30, "single-label", 3)
        scores = scores_of_model(targets, 1.0, [number, 99])
        kept = {name: values[:rows] for name, values in held.items()}
        write_predictions(run, "georgia", {"test": (kept, targets[:rows], scores[:rows])})
        return targets, scores


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def value(analysis, metric, dataset="ptb-xl", name="mean"):
    rows = analysis.scores.query("metric == @metric and dataset == @dataset")
    (row,) = rows[rows["class"] == name].to_dict("records")
    return row


def test_held_out_records_are_pooled_and_ranked_within_their_fold(store):
    runs = [store.run(number) for number in range(FOLDS)]
    analysis = analyse(runs, resamples=50)
    scores = store.scores["scratch"]
    auroc = value(analysis, "auroc")
    expected = [
        np.mean(
            [
                roc_auc_score(store.targets[store.fold == f, c], scores[store.fold == f, c])
                for f in range(FOLDS)
                if 0 < store.targets[store.fold == f, c].sum() < (store.fold == f).sum()
            ]
        )
        for c in range(len(CLASSES))
    ]
    assert auroc["value"] == pytest.approx(np.mean(expected))
    assert auroc["value"] != pytest.approx(roc_auc_score(store.targets, scores))
    assert (auroc["split"], auroc["records"], auroc["patients"], auroc["seeds"]) == (
        "cross-validation", ROWS, PATIENTS, 1,
    )  # fmt: skip
    assert auroc["runs"].split("; ") == [run.folder.name for run in runs]
    accuracy = accuracy_score(store.targets.argmax(axis=1), scores.argmax(axis=1))
    assert value(analysis, "accuracy")["value"] == pytest.approx(accuracy)
    row = value(analysis, "accuracy")
    assert row["low"] < row["value"] < row["high"]
    assert any(note.startswith("cross-validation: all records, each") for note in analysis.notes)


def test_leave_one_out_ranks_all_records_together_with_a_caution(store):
    runs = [store.run(number, leave_one_out=True) for number in range(FOLDS)]
    analysis = analyse(runs, resamples=20)
    auroc = value(analysis, "auroc")
    assert auroc["value"] == pytest.approx(roc_auc_score(store.targets, store.scores["scratch"]))
    assert auroc["split"] == "leave-one-out"
    assert any("CAUTION: AUROC and AUPRC rank scores of" in note for note in analysis.notes)


def test_rows_over_the_same_folds_are_compared(store):
    runs = [store.run(number, "scratch", skill=0.5) for number in range(FOLDS)]
    upstream = [
        make_pretraining(store.folder, "mae", catalog=f"digest of fold {number}")
        for number in range(FOLDS)
    ]
    runs += [
        store.run(number, "mae", skill=3.0, upstream=upstream[number]) for number in range(FOLDS)
    ]
    analysis = analyse([*runs, *upstream], resamples=50)
    (pair,) = analysis.pairs.to_dict("records")
    aurocs = analysis.scores.query("metric == 'auroc'")
    means = aurocs[aurocs["class"] == "mean"].set_index("technique")["value"]
    assert set(means.index) == {"scratch", "MAE"}
    assert pair["difference"] == pytest.approx(means[pair["b"]] - means[pair["a"]])
    assert pair["p"] < 0.05
    assert set(analysis.scores["contamination"]) == {""}


def test_a_row_without_all_folds_is_left_out_with_a_note(store):
    runs = [store.run(number) for number in range(FOLDS)]
    runs += [store.run(n, setting="finetune-full") for n in range(FOLDS - 1)]
    analysis = analyse(runs, resamples=20)
    assert set(analysis.scores["setting"]) == {"linear"}
    assert any(
        "finetune-full, seed 0: 3 of 4 folds are finished, so it is not shown" in note
        for note in analysis.notes
    )


def test_a_store_without_any_whole_row_says_so(store):
    analysis = analyse([store.run(0)], resamples=20)
    assert analysis.scores.empty
    assert any("1 of 4 folds are finished" in note for note in analysis.notes)


def test_on_a_target_the_models_of_the_folds_are_averaged_over_common_records(store):
    runs = [store.run(number) for number in range(FOLDS)]
    made = [store.on_target(run, number, 30 - number) for number, run in enumerate(runs)]
    analysis = analyse(runs, resamples=20)
    rows = 30 - (FOLDS - 1)
    targets, mean = made[0][0][:rows], np.mean([scores for _, scores in made], axis=0)[:rows]
    auroc = value(analysis, "auroc", "georgia")
    scored = [c for c in range(len(CLASSES)) if 0 < targets[:, c].sum() < rows]
    expected = np.mean([roc_auc_score(targets[:, c], mean[:, c]) for c in scored])
    assert auroc["value"] == pytest.approx(expected)
    assert (auroc["records"], auroc["split"]) == (rows, "test")
    assert len(auroc["runs"].split("; ")) == FOLDS


def test_seeds_over_folds_are_pooled(store):
    runs = [store.run(number, seed=seed) for number in range(FOLDS) for seed in (0, 1)]
    assert value(analyse(runs, resamples=20), "auroc")["seeds"] == 2


def test_runs_that_state_other_folds_are_no_part_of_a_cross_validation(store):
    runs = [store.run(number) for number in range(FOLDS - 1)]
    forged = store.run(FOLDS - 1, leave_one_out=True)
    analysis = analyse([*runs, forged], resamples=20)
    assert analysis.scores.empty or "ptb-xl" not in set(analysis.scores["dataset"])
    said = [note for note in analysis.notes if "folds are finished, so it is not shown" in note]
    assert [note.split(": ")[1].split(" of")[0] for note in said] == ["3", "1"]


@pytest.mark.parametrize("order", [(0, 3), (3, 0)])
def test_shared_records_are_counted_over_all_folds(order):
    """Not those of the first fold alone."""

    def result(records, excluded):
        stated = {"source": "ptb-xl", "records": records, "of": 8, "excluded": excluded}
        return SimpleNamespace(about={SHARED: json.dumps(stated)})

    def counts(about):
        stated = json.loads(about[SHARED])
        return stated["records"], stated["of"]

    kept = [result(records, False) for records in order]
    assert counts(shared_by_any(kept)) == (3, 16)  # each fold scored 8 of its own
    assert counts(shared_by_any(kept, 8)) == (3, 8)  # all scored the same 8
    excluded = [result(records, True) for records in order]
    assert counts(shared_by_any(excluded, 4)) == (4, 8)  # two folds may leave out others
    assert shared_by_any([SimpleNamespace(about={})]) == {}
