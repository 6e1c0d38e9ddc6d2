"""A dataset of MedMNIST from its file to the report, whose every table marks an unofficial one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from in_process import build_in_process
from sklearn.metrics import roc_auc_score
from stored import runs

from benchmd_ray.benchmarks.medmnist import report as medmnist
from benchmd_ray.data import build as building
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.analysis import Analysis, analyse
from benchmd_ray.report.page import page
from benchmd_ray.report.write import write_tables
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.service.choice import Choice, chosen_datasets
from benchmd_ray.service.execute import pretrain_run, transfer_run
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.plan import make_plan
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.service.tune_and_train import candidate_plan
from benchmd_ray.settings.definition import ENCODERS, Settings, default_settings, updated
from benchmd_ray.tuning import stages
from benchmd_ray.tuning.trial import run_trial

SMALL = updated(
    Settings(encoder=ENCODERS["tiny"]),
    {
        "pretrain": {"steps": 2, "batch_size": 8},
        "transfer": {"mode": "finetune", "epochs": 12, "batch_size": 16, "optimiser": {"lr": 1e-3}},
    },
)
COUNTS = {"train": 64, "val": 16, "test": 24}
NAMES = ("breastmnist", "nodulemnist3d")


def write_bright_and_dark(folder: Path, name: str) -> Path:
    """A file of random images; those of class 1 are brighter."""
    kind, rng, held = dataset_card(name).signal, np.random.default_rng(2), {}
    for prefix, count in COUNTS.items():
        labels = np.arange(count) % 2
        shape = (count, *kind.stored_shape[1:])
        noise = rng.integers(0, 120, shape)
        bright = 120 * labels.reshape(-1, *[1] * (len(shape) - 1))
        held[f"{prefix}_images"] = (noise + bright).astype(np.uint8)
        held[f"{prefix}_labels"] = labels.astype(np.uint8)[:, None]
    path = folder / f"{name}.npz"
    np.savez_compressed(path, **held)
    return path


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory) -> dict[str, Catalog]:
    raw, out = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("catalogs")
    with pytest.MonkeyPatch.context() as patch:
        build_in_process(patch)
        return {
            name: building.build(
                name,
                write_bright_and_dark(raw, name).parent,
                out / name,
                allow_missing=True,
                options={"md5": "allow"},
            )
            for name in NAMES
        }


@pytest.fixture(scope="module")
def store(catalogs, tmp_path_factory) -> Path:
    """Runs on both, one of them pretrained."""
    store = tmp_path_factory.mktemp("runs")
    transfer_run(catalogs["breastmnist"].path, store, SMALL)
    volumes = catalogs["nodulemnist3d"].path
    upstream = pretrain_run("mae", volumes, store, SMALL)
    transfer_run(volumes, store, SMALL, upstream=upstream.folder)
    return store


def test_test_images_are_scored_and_the_classes_are_learnt(store, catalogs):
    found = [run for run in runs([store]) if run.description["kind"] == "transfer"]
    assert {run.modality.signal.name for run in found} == set(NAMES)
    for run in found:
        name = f"{run.modality.signal.name}-unofficial"
        predictions = read_predictions(predictions_path(run.folder, name))
        assert predictions.splits == ["test"]
        assert predictions.description["dataset"] == run.description["source"] == name
        targets, scores, _ = predictions.of_split("test")
        assert len(targets) == COUNTS["test"]
        assert roc_auc_score(targets[:, 1], scores[:, 1]) > 0.95


def test_every_table_marks_an_unofficial_file(store, tmp_path):
    analysis = analyse(runs([store]), resamples=20, curves=False)
    marked = {f"{name}-unofficial" for name in NAMES}
    written = write_tables(analysis, tmp_path)
    named = 0
    for path in written:
        own = path.stem.startswith("medmnist")
        if path.stem == "medmnist_averages":
            continue
        if path.suffix != ".csv":
            names = [f"{name} (unofficial file)" for name in NAMES] if own else marked
            assert all(name in path.read_text("utf-8") for name in names)
            continue
        table = pd.read_csv(path)
        if own:
            assert set(table.loc[table["protocol"] != "published", "file"]) == {"unofficial"}
            continue
        if path.stem == "scores":
            assert table["run"].isna().any()
            table = table[table["run"].notna()]
        for column in {"source", "dataset"} & set(table.columns):
            named += 1
            assert set(table[column]) == marked
    assert named >= 5
    for name in NAMES:
        start = f"{name}-unofficial: 104 records: "
        notes = [n.removeprefix(start) for n in analysis.notes if n.startswith(start)]
        assert sum("of an unofficial file, MD5" in note for note in notes) == 1
        assert sum(note.startswith("its patient is unknown") for note in notes) == 1


def test_a_plan_takes_datasets_of_medmnist_by_name_and_without(catalogs):
    folders = tuple(catalog.path for catalog in catalogs.values())
    found = chosen_datasets(Choice(catalogs=folders)).datasets
    assert [dataset.modality for dataset in found] == ["medmnist-2d", "medmnist-3d"]
    assert [dataset.rows for dataset in found] == [{"train": 64, "validation": 16, "test": 24}] * 2
    chosen = chosen_datasets(Choice(catalogs=folders, modalities=("medmnist-2d",))).datasets
    assert [dataset.name for dataset in chosen] == ["breastmnist-unofficial"]


def test_a_baseline_is_planned_from_scratch_on_all_labels_with_its_recipe(catalogs):
    folders = (catalogs["nodulemnist3d"].path,)
    choice = Choice(catalogs=folders, bench="medmnist", start="resnet18-acs", seeds=(0, 1, 2))
    items = make_plan(choice, tflops=1.0).items
    assert [item.settings.seed for item in items] == [0, 1, 2]
    for item in items:
        assert (item.kind, item.technique, item.setting) == ("transfer", "scratch", "finetune-full")
        optimiser = item.settings.transfer.optimiser
        assert item.settings.encoder.network == "resnet18-acs"
        assert (item.settings.transfer.epochs, item.settings.transfer.batch_size) == (100, 32)
        assert (optimiser.lr, optimiser.schedule, optimiser.drops) == (1e-3, "steps", [0.5, 0.75])
    again = Choice(
        catalogs=folders, bench="medmnist", start="resnet18-acs", assignments=("transfer.epochs=3",)
    )
    assert [item.settings.transfer.epochs for item in make_plan(again, tflops=1.0).items] == [3]


def test_a_baseline_that_is_none_or_with_other_choices_is_refused(catalogs):
    folders = (catalogs["breastmnist"].path,)
    with pytest.raises(BenchmdError, match="unknown start of medmnist 'resnet19'"):
        make_plan(Choice(catalogs=folders, bench="medmnist", start="resnet19"))
    with pytest.raises(BenchmdError, match="mae was chosen: omit --technique"):
        Choice(catalogs=folders, bench="medmnist", start="resnet18", techniques=("scratch", "mae"))
    with pytest.raises(BenchmdError, match="linear was chosen: omit --setting"):
        Choice(catalogs=folders, bench="medmnist", start="resnet18", settings=("linear",))
    chosen = Choice(catalogs=folders, bench="medmnist", start="resnet18")
    for searched in (("finetune-full", "finetune-small"), ("finetune-small",)):
        with pytest.raises(BenchmdError, match=r"cannot compare|only finetune-small would be"):
            planned_searches(Tuning(chosen, searched=searched), gpu=False)


def test_the_winner_of_a_search_from_a_baseline_is_trained_without_its_recipe(catalogs, tmp_path):
    choice = Choice(catalogs=(catalogs["breastmnist"].path,), bench="medmnist", start="resnet18")
    tuning = Tuning(choice, ("scratch",), choice.settings)
    (plan,) = planned_searches(tuning, gpu=False)
    (family,) = plan.families
    changes = {"tuned": "it", "transfer": {"epochs": 30}}  # else fixed: transformer
    start, tuned = (
        candidate_plan(tuning, plan, family, changed, None, tmp_path, tflops=1.0).items[0]
        for changed in ({}, changes)
    )
    assert start.settings.encoder.network == "resnet18"
    assert start.settings.transfer == family.settings[0].transfer
    assert tuned.settings.tuned == "it"
    fixed = default_settings(catalogs["breastmnist"].card.modality)
    changed = {"transfer": {"mode": "finetune", "epochs": 30}}
    assert tuned.settings.encoder == fixed.encoder
    assert tuned.settings.transfer == updated(fixed, changed).transfer


def test_medmnist_s_own_scores_stand_beside_the_published_ones(store, catalogs, tmp_path):
    analysis = analyse(runs([store]), resamples=50, curves=False)
    frame = medmnist.run_frame(analysis)
    assert frame["dataset"].tolist() == list(NAMES)
    assert set(frame["file"]) == {"unofficial"}
    assert frame["method"].tolist() == ["transformer scratch-28", "transformer mae"]
    for row in frame.itertuples():
        table = read_predictions(predictions_path(store / row.run, f"{row.dataset}-unofficial"))
        targets, scores, _ = table.of_split("test")
        assert row.auc == pytest.approx(roc_auc_score(targets[:, 1], scores[:, 1]))
        assert row.acc == pytest.approx(np.mean((scores[:, 1] > 0.5) == targets[:, 1]))
    both = medmnist.compared(analysis)
    mine = both[both["protocol"] != medmnist.PUBLISHED].set_index("dataset")
    for row in frame.itertuples():
        assert mine.loc[row.dataset, "auc"] == row.auc
        assert mine.loc[row.dataset, "acc"] == row.acc
        assert mine.loc[row.dataset, "acc_low"] < row.acc <= mine.loc[row.dataset, "acc_high"]
    paper = both[(both["dataset"] == "breastmnist") & (both["method"] == "resnet18-28")]
    assert paper[["auc", "acc"]].to_numpy().tolist() == [[0.901, 0.863]]  # table 3
    assert len(both) == 2 + 7 + 8  # methods of table 3 and of table 4
    means = medmnist.averages(both)
    ours = means[means["protocol"] != medmnist.PUBLISHED]
    assert ours["auc"].tolist() == sorted(frame["auc"], key=list(frame["auc"]).index)
    *tables, first, second = medmnist.write(analysis, tmp_path)
    names = ["runs.csv", "medmnist.csv", "medmnist_averages.csv"]
    assert [path.name for path in tables] == names
    shown = page(analysis, [])
    assert '<section id="medmnist"' in shown
    assert "ACC [95 %]" in shown
    assert first.name.startswith("breastmnist_test_[AUC]")
    assert first.name.endswith("@seed0.csv")
    assert pd.read_csv(first, index_col=0, header=None).shape == (COUNTS["test"], 2)
    assert second.name.startswith("nodulemnist3d_test_")
    with pytest.raises(BenchmdError, match="none of the 0 runs"):
        medmnist.run_frame(Analysis())


def test_trials_of_every_network_train_and_can_open_no_test_image(catalogs, tmp_path, monkeypatch):
    source = catalogs["breastmnist"]
    inner = inner_catalog(source, tmp_path / "inner")
    assert inner.rows("train") + inner.rows("validation") == COUNTS["train"] + COUNTS["val"]
    launched = []

    def launch(job, **more):
        with pytest.raises(BenchmdError, match="must not be opened"):
            open_catalog(source.path)
        with pytest.raises(BenchmdError, match="must not be opened"):
            source.shards("test")
        launched.append(job.settings.encoder)
        real(job, **more)

    real = stages.launch
    monkeypatch.setattr(stages, "launch", launch)
    encoder = {"network": "resnet18", "options": {"width": 2, "resize": 14}}
    start = updated(SMALL, {"encoder": encoder, "transfer": {"epochs": 1}})
    start = updated(start, {"execution": {"device": "cpu", "precision": "float32"}})
    arm = stages.Arm("breastmnist", start)
    family = stages.FamilyWork("scratch", stages.Transfer(), (arm,), ())
    work = stages.TrialContext({"scratch finetune": family}, tmp_path)
    scores = []
    for number, values in enumerate(
        (
            {"encoder.network": "resnet18", "encoder.options.dropout": 0.25},
            {"encoder.network": "transformer", "encoder.depth": 1},
        )
    ):
        run_trial(work, number, 0, "scratch finetune", values, [inner.path], scores.append)
    assert [encoder.network for encoder in launched] == ["resnet18", "transformer"]
    assert [encoder.options for encoder in launched] == [
        {"width": 2, "resize": 14, "dropout": 0.25},
        {},
    ]
    assert all(reached.whole and 0 <= reached.score <= 1 for reached in scores)
    assert len(scores) == 2
