"""What is pooled and compared, and what is left out and named: hand-made faults."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from kinds import MODALITIES
from sklearn.metrics import roc_auc_score
from stores import (
    make_pretraining,
    make_transfer,
    people,
    predict_all,
    scores_of,
    targets_of,
    write_predictions,
)

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import cards
from benchmd_ray.data.records import Record
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, Asked
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.heads import Classifier
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.protocols import ENSEMBLES
from benchmd_ray.report.scored import measured, read_scored
from benchmd_ray.runs.store import read_run
from benchmd_ray.scores.metrics import METRICS
from benchmd_ray.scores.resampling import resampled
from benchmd_ray.settings.definition import load_settings
from benchmd_ray.training.weights import export_model

ECG = MODALITIES["ecg"]


@pytest.mark.parametrize("rows", [79, 80])
def test_predictions_of_another_catalog_are_excluded_from_the_seeds_and_named(tmp_path, rows):
    made = [make_transfer(tmp_path, seed=seed) for seed in (0, 1, 2)]
    for run in made:
        predict_all(run, {"ptb-xl": {"validation": 80}})
    targets = targets_of(ECG.task.classes, rows, "single-label")
    held = {"validation": (people(rows), targets, scores_of(targets, "single-label", 1, [1]))}
    write_predictions(made[1], "ptb-xl", held, role="source", catalog="read by another version")
    analysis = analyse(made, resamples=20)
    assert set(analysis.scores["seeds"]) == {2}
    assert set(analysis.rows["seed"]) == {0, 2}
    (note,) = [note for note in analysis.notes if "excluded: they use another" in note]
    assert note.startswith(f"{made[1].folder.name}: its predictions for ptb-xl (validation)")


@pytest.mark.parametrize("fault", ["rows", "patients", "targets"])
def test_techniques_on_other_records_are_not_compared_and_named(tmp_path, fault):
    base = make_transfer(tmp_path)
    upstream = make_pretraining(tmp_path, "shed")
    other = make_transfer(tmp_path, "shed", upstream=upstream)
    for run in (base, other):
        rows = 78 if (fault, run) == ("rows", other) else 80
        held, targets = people(rows), targets_of(ECG.task.classes, 80, "single-label")[:rows]
        if run is other and fault == "patients":
            held["group_id"] = [f"x{name}" for name in held["group_id"]]
        if run is other and fault == "targets":
            targets = np.roll(targets, 1, axis=1)
        scores = scores_of(targets, "single-label", 1, [1])
        write_predictions(run, "georgia", {"test": (held, targets, scores)})
    analysis = analyse([base, other, upstream], resamples=20)
    assert analysis.rows["run"].nunique() == 2
    assert not len(analysis.changes)
    assert not len(analysis.pairs)
    (note,) = [note for note in analysis.notes if "not compared" in note]
    assert note.startswith("ptb-xl, georgia (test), labels full: scratch and ShED were scored")


def test_the_order_of_rows_in_a_file_does_not_matter(tmp_path):
    base = make_transfer(tmp_path)
    upstream = make_pretraining(tmp_path, "shed")
    other = make_transfer(tmp_path, "shed", upstream=upstream)
    changes = []
    for order in (np.arange(80), np.random.default_rng(3).permutation(80)):
        for run in (base, other):
            targets = targets_of(ECG.task.classes, 80, "single-label")
            scores = scores_of(targets, "single-label", 1, [len(run.folder.name)])
            held, chosen = people(80), order if run is other else np.arange(80)
            held = {name: [values[i] for i in chosen] for name, values in held.items()}
            write_predictions(run, "georgia", {"test": (held, targets[chosen], scores[chosen])})
        changes.append(analyse([base, other, upstream], resamples=20).changes)
    assert len(changes[0]) == len(METRICS)
    pd.testing.assert_frame_equal(*changes)


def test_the_same_run_in_two_stores_counts_once(tmp_path):
    made = [make_transfer(tmp_path / store) for store in ("a", "b")]
    for run in made:
        predict_all(run, {"ptb-xl": {"validation": 80}})
    analysis = analyse(made, resamples=20)
    assert set(analysis.scores["seeds"]) == {1}
    assert any("are in several stores and counted once" in note for note in analysis.notes)


def test_pretrainings_of_several_seeds_below_one_transfer_seed_are_pooled(tmp_path):
    made = []
    for seed in (0, 1):
        upstream = make_pretraining(tmp_path, "mae", seed=seed)
        made += [upstream, make_transfer(tmp_path, "mae", upstream=upstream, seed=0)]
        predict_all(made[-1], {"ptb-xl": {"validation": 80}})
    analysis = analyse(made, resamples=20)
    assert set(analysis.scores["seeds"]) == {2}
    assert sorted(set(analysis.roc["seed"])) == [0, 1]
    assert any("have several pretrainings each" in note for note in analysis.notes)


def test_rows_are_compared_whatever_made_their_features(tmp_path):
    """Another pretraining, network, protocol and mode, but not fewer labels or shuffled ones."""

    def run(technique="scratch", changes=None, steps=None, **about):
        upstream = None
        if steps is not None:
            pretrain = {"pretrain": {"steps": steps}}
            upstream = make_pretraining(tmp_path, technique, changes=pretrain, fixed=False)
        return make_transfer(
            tmp_path, technique, upstream=upstream, changes=changes, fixed=False, **about
        )

    made = [
        make_transfer(tmp_path),
        run("mae", steps=9),
        run("mae", steps=10),
        run("shed", {"transfer": {"optimiser": {"lr": 1e-3}}}, 9),
        run(changes={"encoder": {"network": "resnet18-1d"}}),
        run(changes={"tuned": "tune-ecg", "transfer": {"epochs": 7}}),
        run("mae", steps=9, setting="finetune-full"),
        run("mae", steps=9, setting="finetune-small"),
        run(changes={"transfer": {"shuffle_labels": True}}),
    ]
    for each in made:
        predict_all(each, {"ptb-xl": {"validation": 80}})
    analysis = analyse(made, resamples=20)
    linear = ("scratch", "ResNet-18, scratch", "scratch, tuned", "MAE (steps 9)", "MAE (steps 10)")
    names = {f"{name}, linear" for name in (*linear, "ShED")} | {"MAE (steps 9), fine-tuning"}
    assert {*analysis.pairs["a"], *analysis.pairs["b"]} == names
    assert len(analysis.pairs) == len(names) * (len(names) - 1) / 2
    assert set(analysis.pairs["labels"]) == {"full"}
    assert len(analysis.ranking) == len(names)
    base = analysis.changes.set_index(["technique", "setting"])["baseline"].to_dict()
    assert base == {
        ("MAE (steps 9)", "linear"): "scratch, linear",
        ("MAE (steps 10)", "linear"): "scratch, linear",
        ("ShED", "linear"): "scratch, linear",
        ("scratch, tuned", "linear"): "scratch, linear",
        ("MAE (steps 9)", "finetune-full"): "scratch, linear",
    }


def changes_of(*made, **chosen):
    for run in made:
        predict_all(run, {"ptb-xl": {"validation": 80}}, skill=1.0)
    changes = analyse(made, resamples=5, curves=False, **chosen).changes
    keys = zip(changes["technique"], changes["setting"], strict=True)
    return dict(zip(keys, changes["baseline"], strict=True))


def test_the_baseline_is_scratch_of_the_same_mode_network_and_settings(tmp_path):
    faster = {"transfer": {"optimiser": {"lr": 1e-3}}}
    resnet = {"encoder": {"network": "resnet18-1d"}}
    made = [make_transfer(tmp_path, changes=c, fixed=False) for c in (None, faster, resnet)]
    made.append(make_transfer(tmp_path, setting="finetune-full", fixed=False))
    made += [make_transfer(tmp_path, "mae", changes=c, fixed=False) for c in (faster, resnet)]
    made.append(make_transfer(tmp_path, "mae", setting="finetune-full", fixed=False))
    assert changes_of(*made) == {
        ("MAE", "linear"): "scratch (lr 0.001), linear",
        ("ResNet-18, MAE", "linear"): "ResNet-18, scratch, linear",
        ("MAE", "finetune-full"): "scratch, fine-tuning",
    }


def test_without_scratch_the_baseline_is_random_kernels(tmp_path):
    names = ("random-kernels", "mae")
    made = [make_transfer(tmp_path, name, fixed=False) for name in names]
    made.append(make_transfer(tmp_path, "mae", setting="finetune-full", fixed=False))
    assert changes_of(*made) == {
        ("MAE", "linear"): "random kernels, linear",
        ("MAE", "finetune-full"): "random kernels, linear",
    }
    assert changes_of(*made[1:]) == {}


def test_runs_on_folds_are_pooled_with_each_other_and_not_with_those_on_all_labels(tmp_path):
    tuned = {"tuned": "tune-ecg", "transfer": {"epochs": 7}}
    made = [
        make_transfer(tmp_path, seed=seed, changes=changes, fold=fold)
        for changes in ({}, tuned)
        for seed, fold in ((0, None), (1, None), (0, 0), (0, 1), (0, 2))
    ]
    for run in made:
        predict_all(run, {"ptb-xl": {"validation": 80}}, skill=1.0)
        assert read_run(run.folder).digest == run.digest
    analysis = analyse(made, resamples=5, curves=False)
    scores = analysis.scores[~analysis.scores["protocol"].isin(ENSEMBLES.values())]
    columns = ["technique", "protocol"]
    assert scores.groupby(columns)["seeds"].agg(set).to_dict() == {
        ("scratch", "fixed"): {2},
        ("scratch, start", "start"): {3},
        ("scratch, tuned", "tuned"): {3},
        ("scratch, tuned, whole split", "tuned"): {2},
    }
    changes = analysis.changes.set_index("technique")["baseline"].to_dict()
    assert changes == {"scratch, tuned, whole split": "scratch, linear"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MAE", {"linear": "MAE, linear", "finetune-full": "MAE, fine-tuning"}),
        ("mae", {"linear": "MAE, linear", "finetune-full": "MAE, fine-tuning"}),
        ("MAE, linear", {"linear": "MAE, linear", "finetune-full": "MAE, linear"}),
    ],
)
def test_a_baseline_is_named_by_row_by_row_and_mode_or_by_technique(tmp_path, name, expected):
    made = [
        make_transfer(tmp_path, technique, setting=setting, fixed=False)
        for technique in ("scratch", "mae")
        for setting in ("linear", "finetune-full")
    ]
    baselines = changes_of(*made, baseline=name)
    assert {s: base for (row, s), base in baselines.items() if row == "scratch"} == expected
    assert (("MAE", "finetune-full") in baselines) == (name == "MAE, linear")


def test_one_patient_gives_values_without_intervals(tmp_path):
    run = make_transfer(tmp_path)
    targets = targets_of(ECG.task.classes, 40, "single-label")
    scores = scores_of(targets, "single-label", 1, [1])
    alone = people(40) | {"group_id": ["p"] * 40}
    write_predictions(run, "georgia", {"test": (alone, targets, scores)})
    analysis = analyse([run], resamples=20)
    row = analysis.scores.iloc[0]
    assert (row["metric"], row["class"]) == ("auroc", "mean")
    assert row["value"] == pytest.approx(roc_auc_score(targets, scores, average="macro"))
    assert np.isnan(row["low"])
    assert np.isnan(row["high"])


def test_the_calibration_error_has_no_interval_as_resampling_would_raise_it(tmp_path):
    run = make_transfer(tmp_path)
    predict_all(run, {"ptb-xl": {"validation": 80}})
    scores = analyse([run], resamples=200).scores
    errors = scores[scores["metric"] == "calibration_error"]
    assert len(errors) == 1 + len(ECG.task.classes)
    assert errors["value"].notna().all()
    assert errors[["low", "high"]].isna().all(axis=None)
    assert set(errors["caution"]) == {"no interval: few records raise the metric"}
    (whole,) = measured(read_scored(run).scored, ["calibration_error"], 200)
    assert whole.resampled["calibration_error"].shape == (0, 1 + len(ECG.task.classes))
    drawn = resampled(
        "calibration_error", whole.targets, whole.scores, whole.groups, ECG.task.kind, resamples=200
    )
    assert drawn[:, 0].mean() > errors["value"].iloc[0]


def test_few_patients_and_rare_classes_have_no_interval_and_no_p(tmp_path):
    made = [make_transfer(tmp_path), make_transfer(tmp_path, "mae")]
    for run in made:
        predict_all(run, {"ptb-xl": {"validation": 400}, "georgia": {"test": 30}})
    analysis = analyse(made, resamples=50)
    for name in ("scores", "changes", "pairs", "ranking"):
        frame = getattr(analysis, name)
        few = frame[frame["dataset"] == "georgia"]  # 15 patients
        many = frame[frame["dataset"] == "ptb-xl"]
        assert len(few) == len(many) > 0
        for column in {"p", "p_holm", "p_delong"} & set(frame):
            assert few[column].isna().all(), (name, column)
            assert many[column].notna().any(), (name, column)
    georgia = analysis.scores[analysis.scores["dataset"] == "georgia"]
    row = georgia[(georgia["metric"] == "auroc") & (georgia["class"] == "mean")].iloc[0]
    assert np.isnan(row["low"])
    assert "classes have fewer than 5 patients on the rarer side" in row["caution"]
    accuracy = georgia[(georgia["metric"] == "accuracy") & (georgia["class"] == "mean")].iloc[0]
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    change = analysis.changes[analysis.changes["metric"] == "accuracy"].set_index("dataset")
    assert change.loc["georgia", "caution"] == "no p: 15 patients"
    assert analysis.gaps["p"].isna().all()
    assert "georgia (test): 15 patients; with fewer than 20 nothing is tested." in analysis.notes


def test_gaps_are_over_the_classes_that_both_datasets_can_score(tmp_path):
    made = [make_transfer(tmp_path, seed=seed) for seed in (0, 1)]
    kept: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"ptb-xl": [], "georgia": []}
    for number, run in enumerate(made):
        for name, absent in (("ptb-xl", 0), ("georgia", 1)):
            split, role = ("validation", "source") if name == "ptb-xl" else ("test", "target")
            targets = targets_of(ECG.task.classes, 200, "single-label")
            targets[targets[:, absent] == 1] = np.eye(len(ECG.task.classes), dtype=np.int8)[3]
            scores = scores_of(targets, "single-label", 1, [number, len(name)])
            held = {split: (people(200), targets, scores)}
            write_predictions(run, name, held, role=role)
            kept[name].append((targets, scores))
    analysis = analyse(made, resamples=50)
    common = range(2, len(ECG.task.classes))
    expected = {
        name: np.mean([[roc_auc_score(t[:, c], s[:, c]) for c in common] for t, s in each])
        for name, each in kept.items()
    }
    gaps = analysis.gaps.set_index("metric")
    row = gaps.loc["auroc"]
    assert row["in_distribution"] == pytest.approx(expected["ptb-xl"], abs=1e-6)
    assert row["target"] == pytest.approx(expected["georgia"], abs=1e-6)
    assert row["gap"] == pytest.approx(expected["ptb-xl"] - expected["georgia"], abs=1e-6)
    assert row["low"] < row["gap"] < row["high"]
    whole = analysis.scores.query("metric == 'auroc' and `class` == 'mean'")["value"]
    assert abs(whole.iloc[0] - whole.iloc[1] - row["gap"]) > 1e-3  # of other classes each
    said = f"over {len(common)} classes that both can score"
    assert gaps.loc["auroc", "caution"].startswith(said)
    assert np.isnan(gaps.loc["balanced_accuracy", "gap"])
    assert "a mean of recalls" in gaps.loc["balanced_accuracy", "caution"]
    assert said not in gaps.loc["accuracy", "caution"]  # it counts records
    assert not np.isnan(gaps.loc["accuracy", "gap"])


def test_one_seed_is_tested_with_rare_classes_where_several_are_not(tmp_path):
    """The exchange test needs no interval; Student's t, over seeds, does."""
    for seeds in (1, 2):
        made = []
        for seed in range(seeds):
            for technique in ("scratch", "mae"):
                run = make_transfer(tmp_path / str(seeds), technique, seed=seed)
                predict_all(run, {"ptb-xl": {"validation": 60}})  # 30 patients, seven classes
                made.append(run)
        (row,) = analyse(made, resamples=50).pairs.to_dict("records")
        assert np.isnan(row["low"])
        assert np.isnan(row["p"]) == (seeds == 2)
        missing = "no interval, no p" if seeds == 2 else "no interval"
        assert row["caution"].startswith(f"{missing}: ")


def test_a_rank_without_an_interval_says_why(tmp_path):
    """Two seeds and classes of 5 to 9 patients: an interval that is rough, and no p."""
    made = []
    for seed in (0, 1):
        for technique in ("scratch", "mae"):
            run = make_transfer(tmp_path, technique, seed=seed)
            predict_all(run, {"ptb-xl": {"validation": 110}})
            made.append(run)
    analysis = analyse(made, resamples=50)
    (pair,) = analysis.pairs.to_dict("records")
    assert "rough interval" in pair["caution"]
    assert pair["low"] < pair["high"]
    assert np.isnan(pair["p"])
    assert analysis.ranking["low"].isna().all()
    (said,) = set(analysis.ranking["caution"])
    assert re.fullmatch(
        r"no interval: \d of 7 classes ha(s|ve) fewer than 10 patients on the rarer side", said
    )
    assert analysis.ranking["tau"].notna().all()


def test_patients_of_the_source_in_a_target_and_warnings_of_its_build_are_named(tmp_path):
    run = make_transfer(tmp_path)
    targets = targets_of(ECG.task.classes, 80, "single-label")
    scores = scores_of(targets, "single-label", 1, [1])
    own, other = people(80), people(80)
    other["group_id"] = [*own["group_id"][:3], *(f"other-{n}" for n in range(77))]
    both = len(set(own["group_id"][:3]))
    write_predictions(run, "ptb-xl", {"validation": (own, targets, scores)}, role="source")
    write_predictions(
        run, "georgia", {"test": (other, targets, scores)}, warnings={"seen before": 3}
    )
    notes = analyse([run], resamples=20).notes
    patients = len(set(other["group_id"]))
    named = f"georgia: {both} of its {patients} patients are also in ptb-xl (validation)"
    assert any(note.startswith(named) for note in notes)
    assert "georgia: 3 records: seen before." in notes


def test_warnings_of_a_catalog_reach_the_notes_by_way_of_its_predictions(tmp_path, write_catalog):
    card = cards()["georgia"]
    rng, whole = np.random.default_rng(3), ECG.signal.stored_shape
    records = []
    for row in range(14):
        signal = rng.integers(-500, 500, whole).astype(np.int16)
        target = [int(place == row % 7) for place in range(7)]
        records.append(Record(f"r{row}", f"p{row}", f"r{row}", signal, 1.0, whole[-1:], target))
    catalog = write_catalog(card, {"test": [records]})
    warned = {**catalog.manifest, "warnings": {"it is shorter than 10 s and padded": 2}}
    run = make_transfer(tmp_path / "runs")
    size = load_settings(assignments=["encoder=tiny"]).encoder
    model = Classifier(Encoder(ECG.signal, size), len(ECG.task.classes))
    export_model(run.folder, model.state_dict(), size, ECG.signal, None, ECG.task)
    CLASSIFICATION.predict(
        Asked(run.folder, replace(catalog, manifest=warned), load_settings(), Worker())
    )
    assert "georgia: 2 records: it is shorter than 10 s and padded." in analyse([run]).notes
