"""Searches in all folds of a cross-validation, as one result of choosing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kinds import MODALITIES
from sklearn.metrics import roc_auc_score
from stored import runs, searches
from stores import (
    SPACE,
    make_search,
    make_transfer,
    make_trials,
    people,
    scores_of,
    search_name,
    targets_of,
    write_predictions,
)

from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.frames import with_mode
from benchmd_ray.report.page import page
from benchmd_ray.report.page_tuning import gained, tuning_sentences
from benchmd_ray.runs.listing import listed
from benchmd_ray.runs.store import read_run
from benchmd_ray.settings.definition import Settings, as_dict

ECG = MODALITIES["ecg"].task
PATIENTS, EACH, FOLDS, MODELS = 45, 2, 3, 2
ROWS = PATIENTS * EACH
PEOPLE, TRUTH = people(ROWS, each=EACH), targets_of(ECG.classes, ROWS, "single-label")
FOLD = np.arange(ROWS) // EACH % FOLDS
LR = {0: 3e-3, 1: 1e-2}
"""The choice of each fold; the last one keeps its start."""
FAMILIES = [
    {"technique": "scratch", "setting": setting, "space": SPACE, "settings": [as_dict(Settings())]}
    for setting in ("linear", "finetune-full")
]


def name_of(fold):
    return search_name(f"tune-ecg-fold{fold}")


class Store:
    """Made-up fold models of a search in each fold, and their probabilities."""

    def __init__(self, folder, folds=range(FOLDS), *, chosen=LR, mode_of=None):
        self.folder = folder
        self.scores, self.refits = {}, {}
        for fold in folds:
            about = {"modality": "ecg", "source": "ptb-xl", "policy": "clean", "inner": "b"}
            counts = {"records": {"train": 48, "validation": 12}}
            counts |= {"patients": {"train": 24, "validation": 6}}
            source = about | counts | {"catalog": f"digest of fold {fold}"}
            kept = {} if fold in chosen else {"result": {"best": 0}}
            chosen_family = "scratch finetune" if fold in (mode_of or {}) else "scratch linear"
            rows = [
                *make_trials(1, SPACE, "scratch linear"),
                *make_trials(12, SPACE, chosen_family)[1:],
            ]
            make_search(
                folder, name_of(fold), sources=[source], families=FAMILIES, rows=rows, **kept
            )
            setting = (mode_of or {}).get(fold, "linear")
            for number in range(MODELS):
                self.model("start", fold, number, 0.5)
                if fold in chosen:
                    tuned = {
                        "transfer": {"optimiser": {"lr": chosen[fold]}},
                        "tuned": name_of(fold),
                    }
                    self.model("tuned", fold, number, 1.5, changes=tuned, setting=setting)

    def model(self, side, fold, number, skill, **about):
        held_out = {"number": fold, "folds": FOLDS, "leave_one_out": False, "catalog": "a" * 64}
        run = make_transfer(self.folder, fold=number, held_out=held_out, fixed=False, **about)
        seed = [fold, number, len(side)]
        rows = np.flatnonzero(FOLD == fold)
        held = {name: [values[row] for row in rows] for name, values in PEOPLE.items()}
        of_test = scores_of(TRUTH[rows], ECG.kind, skill, seed)
        where = {"role": "source", "catalog": f"digest of fold {fold}"}
        write_predictions(run, "ptb-xl", {"test": (held, TRUTH[rows], of_test)}, **where)
        on_target = scores_of(TRUTH, ECG.kind, skill, [*seed, 1])
        write_predictions(run, "georgia", {"test": (PEOPLE, TRUTH, on_target)})
        self.scores[side, fold, number] = of_test, on_target

    def refit(self, side, fold, skill, **about):
        """A model on all labels of a fold's training."""
        held_out = {"number": fold, "folds": FOLDS, "leave_one_out": False, "catalog": "a" * 64}
        run = make_transfer(self.folder, held_out=held_out, fixed=side == "start", **about)
        rows = np.flatnonzero(FOLD == fold)
        held = {name: [values[row] for row in rows] for name, values in PEOPLE.items()}
        scores = scores_of(TRUTH[rows], ECG.kind, skill, [fold, 7, len(side)])
        where = {"role": "source", "catalog": f"digest of fold {fold}"}
        write_predictions(run, "ptb-xl", {"test": (held, TRUTH[rows], scores)}, **where)
        self.refits[side, fold] = scores

    def of_fold(self, side, fold):
        """Probabilities of the models of a side in a fold, (models, rows, classes)."""
        side = side if (side, fold, 0) in self.scores else "start"
        return np.array([self.scores[side, fold, number][0] for number in range(MODELS)])

    def reported(self):
        return analyse(runs([self.folder]), searches=searches([self.folder]), resamples=60)


def over_folds(probabilities):
    """The mean over classes of their mean AUROC over folds."""
    return np.mean(
        [
            np.mean(
                [
                    roc_auc_score(TRUTH[FOLD == fold, at], scores[:, at])
                    for fold, scores in enumerate(probabilities)
                    if 0 < TRUTH[FOLD == fold, at].sum() < (FOLD == fold).sum()
                ]
            )
            for at in range(len(ECG.classes))
        ]
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("nested") / "runs")
    return store, store.reported()


def row_of(analysis, protocol, dataset="ptb-xl"):
    (row,) = analysis.tuned.query("protocol == @protocol and dataset == @dataset").to_dict(
        "records"
    )
    return row


def test_the_ensembles_of_all_folds_are_scored_on_all_held_out_records(made):
    store, analysis = made
    row = row_of(analysis, "tuned ensemble")
    expected = {
        side: over_folds([store.of_fold(side, fold).mean(axis=0) for fold in range(FOLDS)])
        for side in ("tuned", "start")
    }
    assert row["value"] == pytest.approx(expected["tuned"])
    assert row["start"] == pytest.approx(expected["start"])
    assert row["difference"] == pytest.approx(expected["tuned"] - expected["start"])
    assert row["difference_low"] < row["difference"] < row["difference_high"]
    assert (row["split"], row["technique"], row["models"]) == (
        "cross-validation", "scratch, tuned ensemble of 2 in each fold", FOLDS * MODELS,
    )  # fmt: skip
    assert row["search"] == "tune-ecg-fold0, in each of 3 folds"
    assert row["trials"] == FOLDS * 12
    (scored,) = analysis.scores.query(
        "protocol == 'tuned ensemble' and dataset == 'ptb-xl' and metric == 'auroc'"
        " and `class` == 'mean'"
    ).to_dict("records")
    assert (scored["records"], scored["patients"]) == (ROWS, PATIENTS)


def test_single_models_are_the_mean_over_the_evaluations_of_a_fold(made):
    store, analysis = made
    row = row_of(analysis, "tuned")
    for side, name in (("tuned", "value"), ("start", "start")):
        each = [
            over_folds([store.of_fold(side, fold)[number] for fold in range(FOLDS)])
            for number in range(MODELS)
        ]
        assert row[name] == pytest.approx(np.mean(each))
    assert row["technique"] == "scratch, tuned in each fold"


def test_models_on_all_labels_are_compared_over_the_same_folds(tmp_path):
    store = Store(tmp_path / "runs")
    for fold in range(FOLDS):
        store.refit("start", fold, 0.5)
        if fold in LR:
            changes = {"transfer": {"optimiser": {"lr": LR[fold]}}, "tuned": name_of(fold)}
            store.refit("tuned", fold, 1.5, changes=changes)
    analysis = store.reported()
    names = analysis.tuned["technique"]
    (row,) = (
        analysis.tuned[names == "scratch, tuned in each fold, whole split"]
        .query("dataset == 'ptb-xl'")
        .to_dict("records")
    )
    sides = {
        side: over_folds(
            [
                store.refits[side if side == "start" or fold in LR else "start", fold]
                for fold in range(FOLDS)
            ]
        )
        for side in ("tuned", "start")
    }
    assert (row["value"], row["start"]) == pytest.approx((sides["tuned"], sides["start"]))
    plain = analysis.scores.query(
        "technique == 'scratch' and dataset == 'ptb-xl' and metric == 'auroc' and `class` == 'mean'"
    )
    assert plain["value"].tolist() == pytest.approx([sides["start"]])
    assert not any("no trial beat the start" in note for note in analysis.notes)


def test_on_a_target_all_models_of_all_folds_are_averaged(made):
    store, analysis = made
    sides = {"value": "tuned", "start": "start"}
    row = row_of(analysis, "tuned ensemble", "georgia")
    for name, side in sides.items():
        every = [
            store.scores[side if fold in LR else "start", fold, number][1]
            for fold in range(FOLDS)
            for number in range(MODELS)
        ]
        aurocs = [
            roc_auc_score(TRUTH[:, at], np.mean(every, axis=0)[:, at])
            for at in range(len(ECG.classes))
        ]
        assert row[name] == pytest.approx(np.mean(aurocs))


def test_the_page_says_what_the_folds_chose_and_what_that_gained(made):
    _, analysis = made
    expected = (
        "ptb-xl: the searches in its folds chose scratch, linear (2 folds), the start (1 fold)."
    )
    assert expected in analysis.notes
    kept = "No trial beat the start in 1 of 3 searches, which keeps it."
    assert kept in tuning_sentences(analysis)
    (sentence,) = gained(analysis)
    assert sentence.startswith("Tuning gained +")
    assert "scratch, tuned ensemble of 2 in each fold" in page(analysis, [])


def test_without_a_fold_nothing_is_shown_and_the_note_says_so(tmp_path):
    store = Store(tmp_path / "runs", folds=range(FOLDS - 1))
    with_other = make_transfer(store.folder, setting="finetune-full")
    write_predictions(with_other, "georgia", {"test": (PEOPLE, TRUTH, TRUTH.astype(float))})
    analysis = store.reported()
    assert set(analysis.scores["protocol"]) == {"fixed"}
    assert any(
        "2 of 3 have chosen, so what they are worth is not shown" in n for n in analysis.notes
    )


def test_folds_that_chose_otherwise_are_one_row_that_says_so(tmp_path):
    store = Store(tmp_path / "runs", mode_of={1: "finetune-full"})
    analysis = store.reported()
    assert any(note.startswith("mixed: the folds of a") for note in analysis.notes)
    row = row_of(analysis, "tuned ensemble")
    expected = over_folds([store.of_fold("tuned", fold).mean(axis=0) for fold in range(FOLDS)])
    assert row["value"] == pytest.approx(expected)
    assert row["setting"] == "mixed"
    assert with_mode(row["technique"], row["setting"]) == (
        "scratch, tuned ensemble of 2 in each fold, mode by fold"
    )


def test_results_without_their_searches_are_told_of(tmp_path):
    store = Store(tmp_path / "runs")
    store.refit("start", 0, 0.5)
    analysis = analyse(runs([store.folder]), searches=searches([store.folder])[:2], resamples=20)
    assert set(analysis.scores["protocol"]) <= {"fixed"}
    assert any("2 of 3 have chosen" in note for note in analysis.notes)
    alone = analyse(runs([store.folder]), searches=[], resamples=20)
    assert any("10 runs of searches in its folds are not shown" in note for note in alone.notes)


def test_a_users_run_of_a_tuned_setting_in_another_mode_is_no_choice(tmp_path):
    store = Store(tmp_path / "runs")
    changes = {"transfer": {"optimiser": {"lr": LR[0]}}, "tuned": name_of(0)}
    for fold in range(FOLDS):
        store.refit("by hand", fold, 2.5, changes=changes, setting="finetune-small")
    analysis = store.reported()
    assert set(analysis.tuned["setting"]) == {"linear"} | {"finetune-small"}
    row = row_of(analysis, "tuned ensemble")
    expected = over_folds([store.of_fold("tuned", fold).mean(axis=0) for fold in range(FOLDS)])
    assert row["value"] == pytest.approx(expected)
    (hand,) = analysis.scores.query(
        "setting == 'finetune-small' and metric == 'auroc' and `class` == 'mean'"
    ).to_dict("records")
    assert hand["value"] == pytest.approx(
        over_folds([store.refits["by hand", fold] for fold in range(FOLDS)])
    )


def test_a_target_that_was_rebuilt_between_them_is_not_compared(tmp_path):
    store = Store(tmp_path / "runs")
    run = next(run for run in runs([store.folder]) if run.settings.tuned == name_of(1))
    fewer = {name: values[:60] for name, values in PEOPLE.items()}
    made = scores_of(TRUTH[:60], ECG.kind, 1.0, [9])
    write_predictions(run, "georgia", {"test": (fewer, TRUTH[:60], made)})
    analysis = store.reported()
    assert row_of(analysis, "tuned ensemble")["models"] == FOLDS * MODELS
    assert analysis.tuned.query("protocol == 'tuned ensemble' and dataset == 'georgia'").empty
    note = "ptb-xl on georgia (test): the choice and the start of a search were not scored on the"
    assert any(line.startswith(note) for line in analysis.notes)


def test_a_start_of_another_seed_is_not_taken_for_that_of_the_search(tmp_path):
    store = Store(tmp_path / "runs")
    before = row_of(store.reported(), "tuned ensemble")
    for fold in range(FOLDS):
        store.model("start", fold, 0, 3.0, seed=5)
        store.model("start", fold, 1, 3.0, seed=5)
    after = row_of(store.reported(), "tuned ensemble")
    assert after["start"] == before["start"]
    assert after["difference"] == before["difference"]


def test_searches_of_two_kinds_are_two_rows(tmp_path):
    store = Store(tmp_path / "runs")
    for fold in range(FOLDS):
        folder = store.folder / "searches" / name_of(fold)
        about = json.loads((folder / "search.json").read_text())["sources"]
        name = search_name(f"tune-ecg-other{fold}")
        rows = make_trials(12, SPACE, "scratch linear")
        make_search(store.folder, name, sources=about, families=FAMILIES, rows=rows, cautious=True)
        changes = {"transfer": {"optimiser": {"lr": 2e-2}}, "tuned": name}
        for number in range(MODELS):
            store.model("other", fold, number, 0.1, changes=changes)
    analysis = store.reported()
    rows = analysis.tuned.query("protocol == 'tuned ensemble' and dataset == 'ptb-xl'")
    assert sorted(rows["technique"]) == [
        "scratch, tuned ensemble of 2 in each fold",
        "scratch, tuned ensemble of 2 in each fold (2)",
    ]
    assert rows["start"].nunique() == 1
    starts = analysis.scores.query(
        "protocol == 'start ensemble' and dataset == 'ptb-xl' and metric == 'auroc'"
        " and `class` == 'mean'"
    )
    assert len(starts) == 1


def test_a_run_of_a_fold_beyond_all_folds_is_damaged(tmp_path):
    held_out = {"number": 3, "folds": 3, "leave_one_out": False, "catalog": "a" * 64}
    run = make_transfer(tmp_path, held_out=held_out)
    with pytest.raises(BenchmdError, match="holds out the fold 3 of 3, counted from 0"):
        read_run(run.folder)


def test_a_listed_run_says_which_fold_is_held_out(tmp_path):
    held_out = {"number": 1, "folds": 3, "leave_one_out": False, "catalog": "a" * 64}
    run = make_transfer(tmp_path, held_out=held_out, seed=4)
    assert listed(run).line.endswith("  seed 4, fold 1 of the dataset held out")


def test_where_every_fold_keeps_its_start_nothing_is_gained(tmp_path):
    analysis = Store(tmp_path / "runs", chosen={}).reported()
    assert "ptb-xl: the searches in its folds chose the start (3 folds)." in analysis.notes
    row = row_of(analysis, "tuned ensemble")
    assert row["difference"] == 0


def test_one_searched_fold_is_a_catalog_like_any_other(tmp_path):
    analysis = Store(tmp_path / "runs", folds=[1]).reported()
    row = row_of(analysis, "tuned ensemble")
    assert (row["split"], row["models"], row["search"]) == ("test", MODELS, name_of(1))
