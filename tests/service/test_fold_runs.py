"""Runs on a catalog that is cut into folds, from a first card to the report."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from made_wrist import write_card, write_wrist
from sklearn.metrics import roc_auc_score

from benchmd_ray.cli import main
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.folds import fold_catalogs
from benchmd_ray.data.resident import patients_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.card_folders import CARDS
from benchmd_ray.report.analysis import analyse_stores
from benchmd_ray.runs.predictions import read_predictions
from benchmd_ray.runs.pretraining_data import read_learned
from benchmd_ray.runs.store import read_stores
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.live import label
from benchmd_ray.service.plan import make_plan
from benchmd_ray.tuning.records import read_searches


@pytest.fixture(scope="module")
def volunteers(tmp_path_factory):
    """A folder with the recordings of 15 volunteers."""
    folder = tmp_path_factory.mktemp("volunteers")
    write_wrist(folder / "raw")
    return folder


@pytest.fixture
def catalog(volunteers, tmp_path, monkeypatch, build_here):
    """Their catalog in three folds."""
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
    write_card(tmp_path / "cards", {"cross_validation": 3})
    return build_here("wrist", volunteers / "raw", tmp_path / "wrist")


def test_a_plan_trains_each_fold_on_its_own_catalog(catalog):
    choice = Choice((catalog.path,), techniques=("scratch", "mae"), settings=("linear",))
    plan = make_plan(choice, tflops=1)
    assert [item.name for item in plan.items if item.kind == "transfer"] == [
        f"wrist/clean/{technique}/fold-{fold}/seed-0/linear"
        for fold in range(3)
        for technique in ("scratch", "mae")
    ]
    for item in plan.items:
        fold = int(re.search(r"fold-(\d)", item.name)[1])
        assert item.catalog == catalog.path / "folds" / str(fold)
        assert item.fold is None
    assert [label(item) for item in plan.items[:2]] == [
        "wrist scratch linear fold 0",
        "wrist mae pretrain fold 0",
    ]
    pretrained = [item.after for item in plan.items if item.technique == "mae" and item.after]
    assert pretrained == [f"wrist/clean/mae/fold-{fold}/seed-0/pretrain" for fold in range(3)]
    assert any("so each run is trained 3 times, once for each" in note for note in plan.notes)


def test_other_evaluations_than_classification_skip_folds(catalog):
    choice = Choice((catalog.path,), techniques=("scratch",), settings=("linear",))
    plan = make_plan(replace(choice, evaluated="ood"), tflops=1)
    assert {item.kind for item in plan.items} == {"transfer"}
    assert any("ood skipped, as folds are only scored by class" in note for note in plan.notes)


def test_folds_are_not_read_by_evaluations_of_other_sources(catalog):
    with pytest.raises(BenchmdError, match="--also names wrist, whose catalog is cut into folds"):
        make_plan(
            Choice((catalog.path / "folds" / "0",), also=(catalog.path,), evaluated="ood"), tflops=1
        )


def test_each_fold_has_a_search_of_its_own(catalog):
    done = CliRunner().invoke(
        main, ["tune", "--catalog", str(catalog.path), "--dry-run", "--tflops", "1"]
    )
    assert done.exit_code == 0, done.output
    names = re.findall(r"^(tune-\S+): on wrist \(wrist, fold (\d) held out\)", done.output, re.M)
    assert [fold for _, fold in names] == ["0", "1", "2"]
    assert len({name for name, _ in names}) == 3
    assert "In total: 3 searches one after the other" in done.output


def test_a_search_over_modalities_takes_no_folds(catalog):
    arguments = ["tune", "--catalog", str(catalog.path), "--universal", "--technique", "scratch"]
    done = CliRunner().invoke(main, arguments)
    assert "needs one source from each of two or more modalities" in done.output


@pytest.mark.slow
@pytest.mark.ray
def test_fifteen_volunteers_from_a_first_card_to_a_report(
    ray_cluster, volunteers, tmp_path, monkeypatch
):
    """Leave-one-out as `catalog new` proposes it; the report's AUROC is computed again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cards").mkdir()
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))

    def benchmd(*arguments):
        done = CliRunner().invoke(main, [*map(str, arguments)])
        assert done.exit_code == 0, done.output
        return done.output

    raw = volunteers / "raw"
    benchmd("catalog", "new", "wrist", "--from", raw)
    card = (tmp_path / "cards" / "wrist.yaml").read_text()
    assert "splits: {leave_one_out: patient} # 15 patients are too few for fixed splits" in card
    write_card(tmp_path / "corrected", {"leave_one_out": "patient"})  # in rate and signal
    monkeypatch.setenv(CARDS, str(tmp_path / "corrected"))
    text = benchmd("catalog", "build", "wrist", "--raw", raw, "--out", "catalogs/wrist")
    assert "leave-one-out by patient: 30 records of 15 patients, 15 folds" in text
    chosen = ("--technique", "random-kernels", "--setting", "linear", "--small")
    benchmd("run", "--catalog", "catalogs/wrist", *chosen, "--store", "runs")
    text = benchmd("report", "runs", "--out", "report", "--figures", "none", "--resamples", 20)
    assert "wrist (leave-one-out)" in text
    assert "random kernels" in (tmp_path / "report" / "report.html").read_text()

    runs = [
        run
        for run in read_stores([tmp_path / "runs"]).found
        if run.description["kind"] == "transfer"
    ]
    folds = fold_catalogs(open_catalog(tmp_path / "catalogs" / "wrist", folds=True))
    held_out, targets, scores = [], [], []
    for run in runs:
        fold = folds[run.description["held_out_fold"]["number"]]
        tables = read_predictions(run.folder / "predictions" / "classification" / "wrist.parquet")
        patients = set(tables.table["group_id"].to_pylist())
        assert patients == patients_of(fold, ["test"])
        learned = read_learned(run.folder)
        assert patients.isdisjoint(learned.records.patients)
        assert len(learned.records.patients) == 14
        held_out += patients
        target, score, _ = tables.of_split("test")
        targets.append(target)
        scores.append(score)
    assert len(held_out) == len(set(held_out)) == 15
    frame = analyse_stores([tmp_path / "runs"], resamples=20, curves=False).scores
    (row,) = frame[(frame["metric"] == "auroc") & (frame["class"] == "mean")].to_dict("records")
    expected = roc_auc_score(np.concatenate(targets)[:, 1], np.concatenate(scores)[:, 1])
    assert row["value"] == pytest.approx(expected)
    assert (row["records"], row["patients"], row["split"]) == (30, 15, "leave-one-out")

    folders = [run.folder for run in runs]
    done = CliRunner().invoke(main, ["export", *map(str, folders[1:]), "--out", "model"])
    assert "one of each fold" in done.output
    assert "Name one run of each of the 15" in done.output
    benchmd("export", *folders, "--out", "model")
    page = (tmp_path / "model" / "README.md").read_text()
    assert "each trained without the patients of one fold" in page
    assert "leave-one-out" in page
    assert f"{expected:.3f}" in page
    file = next((raw / "signals").iterdir())
    benchmd("predict", "model", file, "--out", "average.csv")
    probabilities = []
    for number, folder in enumerate(folders):
        benchmd("predict", folder, file, "--out", f"{number}.csv")
        probabilities.append(pd.read_csv(f"{number}.csv")["p: tremor"].iloc[0])
    average = pd.read_csv("average.csv")["p: tremor"].iloc[0]
    assert average == pytest.approx(np.mean(probabilities), abs=1e-5)


@pytest.mark.slow
@pytest.mark.ray
def test_a_search_in_every_fold_is_scored_on_all_held_out_records(
    ray_cluster, tmp_path, monkeypatch
):
    """What each fold's choice says of the patients held out is averaged and scored again here."""
    monkeypatch.setenv(CARDS, str(tmp_path / "cards"))
    write_card(tmp_path / "cards", {"cross_validation": 2})
    write_wrist(tmp_path / "raw", noise=2.0)
    store, catalog = tmp_path / "runs", tmp_path / "wrist"
    for arguments in (
        ("catalog", "build", "wrist", "--raw", tmp_path / "raw", "--out", catalog),
        (
            *("tune", "--catalog", catalog, "--store", store, "--small", "--trials", 2),
            *("--technique", "random-kernels", "--set", "encoder.options={kernels: 20}"),
            *("--fix", "encoder.options.kernels"),
        ),
    ):
        done = CliRunner().invoke(main, [*map(str, arguments)])
        assert done.exit_code == 0, done.output
    assert "2 searches, one after the other, one for each held-out fold" in done.output
    searches = {r.sources[0]["catalog"]: r for r in read_searches([store]).found}
    folds = fold_catalogs(open_catalog(catalog, folds=True))
    assert searches.keys() == {fold.digest for fold in folds}
    aurocs, held_out = [], []
    for fold in folds:
        record = searches[fold.digest]
        made = [
            run
            for run in read_stores([store]).found
            if run.description["kind"] == "transfer"
            and run.description["determinants"]["catalog"] == fold.digest
            and (run.settings.tuned == record.name) == bool(record.best)
        ]
        assert len(made) == len(record.folds) >= 5
        tables = [
            read_predictions(run.folder / "predictions" / "classification" / "wrist.parquet")
            for run in made
        ]
        (truth, *_), *_ = (table.of_split("test") for table in tables)
        mean = np.mean([table.of_split("test")[1] for table in tables], axis=0)
        aurocs.append(roc_auc_score(truth[:, 1], mean[:, 1]))
        patients = set(tables[0].table["group_id"].to_pylist())
        assert patients == patients_of(fold, ["test"])
        for run in made:
            assert patients.isdisjoint(read_learned(run.folder).records.patients)
        held_out += patients
    assert len(held_out) == len(set(held_out)) == 15
    tuned = analyse_stores([store], resamples=20, curves=False).tuned
    (row,) = tuned[tuned["protocol"] == "tuned ensemble"].to_dict("records")
    assert row["value"] == pytest.approx(np.mean(aurocs))
    assert row["split"] == "cross-validation"
