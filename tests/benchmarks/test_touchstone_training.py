"""Networks that segment as a benchmark: starts, plan, masks as files, scores, search."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import made_catalogs
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import SimpleITK
import yaml
from masks import mask_splits, small_card, write_masks
from scipy.stats import ttest_rel

from benchmd_ray.benchmarks.touchstone import NETWORKS, report_rows, start_settings
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.geometry import image_of
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.demo.segmentation import write_segmentation
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.benchmark import Benchmark
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, SEGMENTATION, Asked, usual_evaluation
from benchmd_ray.evaluation.registry import benchmark, evaluations_asked, protocol_of
from benchmd_ray.evaluation.segmentation import measured, score_rows
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.modality.modalities import modality
from benchmd_ray.models.encoder import require_fitting
from benchmd_ray.report.analysis import analyse
from benchmd_ray.report.figures_parts import FigureContext
from benchmd_ray.report.page import page
from benchmd_ray.report.tables import main_table
from benchmd_ray.report.write import write_tables
from benchmd_ray.runs.predictions import Predictions, predictions_path, read_predictions
from benchmd_ray.runs.store import read_run
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.execute import evaluate_run, transfer_run
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.plan import make_plan
from benchmd_ray.service.scored import is_scored
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.settings.definition import updated
from benchmd_ray.training.segmented import BASELINE, COLUMNS, fault, mask_folder
from benchmd_ray.tuning.stages import Arm, FamilyWork, Transfer, TrialContext
from benchmd_ray.tuning.trial import run_trial

pytest.importorskip("monai")

KIND = dataset_card("hippocampus").modality
CHANGES = {
    "encoder": {"options": {"width": 4, "depth": 2, "patch": 8}},
    "transfer": {"epochs": 2},
    "execution": {"device": "cpu"},
}
SMALL = updated(start_settings(KIND, "scratch", ""), CHANGES)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    return write_masks(tmp_path_factory.mktemp("masks") / "catalog")


@pytest.fixture(scope="module")
def run(catalog, tmp_path_factory):
    """A finished run with its predictions."""
    return transfer_run(catalog.path, tmp_path_factory.mktemp("store") / "runs", SMALL)


@pytest.fixture(scope="module")
def predictions(run):
    path = predictions_path(run.folder, "hippocampus", "segmentation")
    return read_predictions(path, SEGMENTATION.form)


# Starts ------------------------------------------------------------------------------------------


def test_each_network_is_a_start_that_fits_the_dataset():
    own = benchmark("touchstone")
    assert "hippocampus" in own.datasets()
    for name in ("", *NETWORKS):
        start, variant = own.start_named(name, KIND)
        settings = start.settings(KIND, "scratch", variant)
        assert settings.encoder.network == (name or "monai-unet")
        require_fitting(KIND.signal, settings.encoder)
        parts = {"encoder": vars(settings.encoder), "transfer": _plain(settings)["transfer"]}
        assert start.followed(KIND, "scratch", parts)
        assert protocol_of(KIND, "scratch", parts) == "small-baseline"
        changed = parts | {"transfer": parts["transfer"] | {"epochs": 7}}
        assert not start.followed(KIND, "scratch", changed)


def _plain(settings):
    return json.loads(json.dumps(settings, default=vars))


def test_a_start_is_for_masks():
    with pytest.raises(BenchmdError, match="networks of Touchstone segment, and the task of derm"):
        start_settings(modality("derm"), "scratch", "")
    with pytest.raises(BenchmdError, match="unknown network of Touchstone 'unet'"):
        start_settings(KIND, "scratch", "unet")


def test_the_usual_evaluation_follows_the_task():
    assert usual_evaluation(KIND.task) is SEGMENTATION
    assert usual_evaluation(modality("derm").task) is CLASSIFICATION
    assert evaluations_asked("touchstone") == (SEGMENTATION,)
    assert set(evaluations_asked("ood-released")) >= {CLASSIFICATION, SEGMENTATION}


def test_a_benchmark_has_an_evaluation_that_chooses_epochs():
    own = benchmark("touchstone")
    with pytest.raises(BenchmdError, match="or SEGMENTATION for masks"):
        replace(own, name="other", evaluations=())
    assert isinstance(own, Benchmark)


# Plans -------------------------------------------------------------------------------------------


def plan(catalog, **choice):
    return make_plan(Choice((catalog.path,), **choice), device="cpu", tflops=0.1)


def test_a_plan_has_one_run_which_scores_itself(catalog):
    made = plan(catalog, bench="touchstone")
    (item,) = made.items
    assert (item.setting, item.technique) == ("finetune-full", "scratch")
    assert item.step.evaluation is SEGMENTATION
    assert item.seconds > 0


def test_other_benchmarks_skip_masks_and_say_why(catalog):
    with pytest.raises(BenchmdError, match="transformer is not a network for segmentation"):
        plan(catalog)
    with pytest.raises(BenchmdError, match="networks of masks are trained from random weights"):
        plan(catalog, techniques=("mae",))
    made = plan(catalog, assignments=("encoder.network=monai-unet",))
    assert [item.setting for item in made.items] == ["finetune-full"]


def test_linear_evaluation_of_masks_is_not_planned(catalog):
    with pytest.raises(BenchmdError, match="is for the setting finetune-full, and linear was ch"):
        plan(catalog, bench="touchstone", settings=("linear",))


# Predictions -------------------------------------------------------------------------------------


def records():
    card = small_card()
    return {r.record_id: r for shard in mask_splits(card)["test"] for r in shard}


def test_a_finished_run_has_a_mask_for_each_case_in_the_grid_of_its_file(run, predictions):
    table = predictions.table.to_pandas()
    own = table[table["method"] == ""]
    assert set(own["record_id"]) == records().keys()
    folder = predictions_path(run.folder, "hippocampus", "segmentation").with_suffix("")
    assert sorted(f"hippocampus/{p.name}" for p in folder.iterdir()) == sorted(set(own["file"]))
    for name, record in records().items():
        image = SimpleITK.ReadImage(str(folder / f"{name}.nii.gz"))
        file = record.geometry.file
        assert image.GetSize() == file.extents
        np.testing.assert_allclose(image.GetOrigin(), file.origin, atol=1e-5)
        np.testing.assert_allclose(image.GetSpacing(), file.spacing, atol=1e-6)
        assert image.GetPixelID() == SimpleITK.sitkUInt8


@pytest.mark.parametrize("method", ["", BASELINE])
def test_scores_are_those_of_the_files(method, run, predictions):
    path = predictions_path(run.folder, "hippocampus", "segmentation")
    table = predictions.table.to_pandas()
    own = table[table["method"] == method].set_index(["record_id", "class"])
    for name, record in records().items():
        file = path.parent / own.loc[(name, "anterior"), "file"]
        assert file == mask_folder(path, method) / f"{name}.nii.gz"
        assert hashlib.sha256(file.read_bytes()).hexdigest() in own["sha256"].to_list()
        image = SimpleITK.ReadImage(str(file))
        ours = SimpleITK.GetArrayFromImage(image)
        stored = image_of(record.target, record.geometry.stored)
        truth = SimpleITK.GetArrayFromImage(SimpleITK.Resample(stored, image, interpolator=1))
        for label, kind in ((1, "anterior"), (2, "posterior")):
            a, b, row = ours == label, truth == label, own.loc[(name, kind)]
            if b.any():
                assert row["dsc"] == pytest.approx(2 * (a & b).sum() / (a.sum() + b.sum()))
            else:
                assert np.isnan(row["dsc"])
            assert row["volume_ref_ml"] == pytest.approx(b.sum() * 1.2 / 1000)
            assert row["volume_pred_ml"] == pytest.approx(a.sum() * 1.2 / 1000)


def test_the_mean_mask_is_the_commonest_class_of_each_voxel(predictions):
    masks = np.stack([r.target for shard in mask_splits(small_card())["train"] for r in shard])
    common = np.zeros(masks.shape[1:], int)
    for place in itertools.product(*map(range, masks.shape[1:])):
        values = masks[(slice(None), *place)].tolist()
        common[place] = max(range(3), key=lambda k: (values.count(k), -k))
    table = predictions.table.to_pandas()
    own = table[table["method"] == BASELINE].set_index(["record_id", "class"])
    for name, record in records().items():
        for label, kind in ((1, "anterior"), (2, "posterior")):
            a, b = common == label, record.target == label
            if b.any():  # the volumes of these cases hold all that is common
                found = own.loc[(name, kind), "dsc"]
                assert found == pytest.approx(2 * (a & b).sum() / (a.sum() + b.sum()), abs=0.02)


def test_a_finished_run_is_not_done_again(run, catalog):
    assert is_scored(run, catalog, SEGMENTATION, whole=True)
    assert not is_scored(run, catalog)
    path = predictions_path(run.folder, "hippocampus", "segmentation")
    before = path.stat().st_mtime_ns
    again = transfer_run(catalog.path, run.folder.parent, SMALL)
    assert again.folder == run.folder
    assert evaluate_run(read_run(run.folder), catalog.path, SMALL) == path
    assert path.stat().st_mtime_ns == before


def test_masks_are_the_same_when_they_are_made_again(run, catalog, predictions):
    path = predictions_path(run.folder, "hippocampus", "segmentation")
    strays = [mask_folder(path, m) / "case_of_another_catalog.nii.gz" for m in ("", BASELINE)]
    for stray in strays:
        stray.write_bytes(b"mask")
    table = SEGMENTATION.compute(Asked(run.folder, catalog, SMALL, Worker()))
    assert table.equals(predictions.table)
    assert not any(stray.exists() for stray in strays)
    assert read_predictions(path, SEGMENTATION.form).table.equals(table)


def test_masks_are_not_classified(run, catalog):
    with pytest.raises(BenchmdError, match="segments: name one that classifies"):
        CLASSIFICATION.compute(Asked(run.folder, catalog, SMALL, Worker()))


def test_a_catalog_of_another_signal_is_refused(run, tmp_path):
    other = write_masks(tmp_path / "other", small_card((24, 24, 16)))
    with pytest.raises(
        BenchmdError, match=r"is a model of small-mr, the catalog .* is of small-mr"
    ):
        SEGMENTATION.compute(Asked(run.folder, other, SMALL, Worker()))


def test_a_target_is_segmented_zero_shot_and_has_no_mean_mask(catalog, tmp_path):
    card = small_card(name="others", role="target")
    shards = {"test": mask_splits(card)["test"]}
    target = open_catalog(made_catalogs.write_catalog(tmp_path / "target", card, shards))
    run = transfer_run(catalog.path, tmp_path / "runs", SMALL, targets=(target.path,))
    path = predictions_path(run.folder, "others", "segmentation")
    table = read_predictions(path, SEGMENTATION.form).table
    assert set(table["method"].to_pylist()) == {""}
    assert len(list(path.with_suffix("").iterdir())) == 4
    assert not mask_folder(path, BASELINE).exists()


def changed(table, name, value, row=0):
    values = table[name].to_pylist()
    values[row] = value
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values, COLUMNS[name]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns("code"), "it lacks the column code"),
        (lambda t: t.slice(0, 0), "it has no rows"),
        (lambda t: changed(t, "dsc", 1.5), "a DSC is outside 0 to 1"),
        (lambda t: changed(t, "class", "background"), "its column class has the value 'backg"),
        (lambda t: changed(t, "code", "fine"), "its column code has the value 'fine'"),
        (lambda t: changed(t, "method", "other"), "its column method has the value 'other'"),
        (lambda t: changed(t, "volume_ref_ml", -1.0), "column volume_ref_ml has a value that is"),
        (lambda t: changed(t, "volume_pred_ml", float("inf")), "volume_pred_ml has a value that"),
        (lambda t: changed(t, "record_id", None), "its column record_id has missing values"),
        (
            lambda t: t.set_column(4, "method", pa.array([0] * len(t))),
            "its column method is of the type int64",
        ),
    ],
)
def test_a_table_of_another_form_is_refused(predictions, change, message):
    assert fault(predictions) == ""
    assert message in fault(Predictions(change(predictions.table), predictions.description))


def test_damaged_predictions_are_noticed(run, tmp_path, catalog):
    path = predictions_path(run.folder, "hippocampus", "segmentation")
    held = path.read_bytes()
    try:
        path.write_bytes(held[:-9] + b"damaged!!")
        with pytest.raises(Damaged):
            read_predictions(path, SEGMENTATION.form)
        assert not is_scored(run, catalog, SEGMENTATION, whole=True)
    finally:
        path.write_bytes(held)


# Scores ------------------------------------------------------------------------------------------


def table_of(scores, groups=None):
    """Predictions of a model with these DSC, {class: values}."""
    rows = [
        {
            "record_id": f"r{row}",
            "unit_id": f"r{row}",
            "group_id": f"g{row}" if groups is None else groups[row],
            "split": "test",
            "method": "",
            "class": name,
            "dsc": value,
            "code": "both",
            "volume_ref_ml": 1.0,
            "volume_pred_ml": 1.0,
        }
        for name, values in scores.items()
        for row, value in enumerate(values)
    ]
    schema = pa.schema(list(COLUMNS.items()))
    task = {"kind": "segmentation", "classes": ["background", "anterior", "posterior"]}
    table = pa.Table.from_pylist(rows, schema=schema)
    return Predictions(table, {"task": json.dumps(task | {"scored": "records"})})


def test_the_mean_is_that_of_the_classes_over_the_cases_that_have_them():
    rng = np.random.default_rng(0)
    first, second = rng.uniform(0.5, 0.9, (2, 40))
    second[:10] = np.nan
    rows = score_rows(table_of({"anterior": first, "posterior": second}), 2000).set_index("class")
    assert rows.loc["anterior", "value"] == pytest.approx(first.mean())
    assert rows.loc["posterior", "value"] == pytest.approx(second[10:].mean())
    assert rows.loc["mean", "value"] == pytest.approx((first.mean() + second[10:].mean()) / 2)
    assert rows["positives"].to_dict() == {"mean": 40, "anterior": 40, "posterior": 30}
    assert set(rows["metric"]) == {"dsc"}
    for name, held in (("anterior", first), ("posterior", second[10:])):
        half = (rows.loc[name, "high"] - rows.loc[name, "low"]) / 2
        by_formula = 2.02 * held.std(ddof=1) / np.sqrt(len(held))
        assert half == pytest.approx(by_formula, rel=0.12)


def test_patients_with_several_cases_widen_the_interval():
    rng = np.random.default_rng(1)
    of_patient = np.repeat(rng.uniform(0.4, 0.9, 20), 4)
    scores = {"anterior": of_patient, "posterior": of_patient}
    groups = [f"g{row // 4}" for row in range(80)]
    alone, grouped = (
        score_rows(table_of(scores, names), 2000).set_index("class").loc["mean"]
        for names in (None, groups)
    )
    assert grouped["patients"] == 20
    assert grouped["high"] - grouped["low"] > 1.7 * (alone["high"] - alone["low"])


def test_few_patients_have_no_interval():
    rows = score_rows(table_of({"anterior": [0.5] * 8, "posterior": [0.7] * 8}), 200)
    assert rows["low"].isna().all()
    assert rows["caution"].str.contains("no interval: 8 patients").all()


def test_a_class_in_no_case_has_no_value_and_does_not_count():
    scores = {"anterior": [0.4, 0.6] * 10, "posterior": [np.nan] * 20}
    rows = score_rows(table_of(scores), 200).set_index("class")
    assert np.isnan(rows.loc["posterior", "value"])
    assert rows.loc["mean", "value"] == pytest.approx(0.5)


@pytest.fixture(scope="module")
def reported(run, catalog):
    """The analysis of two seeds of a network and one of another."""
    others = {"encoder": {"options": {"width": 8, "depth": 2, "patch": 8}}}
    store = run.folder.parent
    second = transfer_run(catalog.path, store, updated(SMALL, {"seed": 1}))
    wide = transfer_run(catalog.path, store, updated(SMALL, others))
    return analyse([read_run(one.folder) for one in (run, second, wide)], resamples=100)


def test_a_report_has_the_scores_beside_the_mean_masks(reported):
    own = reported.rows[reported.rows["evaluation"] == "segmentation"]
    assert set(own["method"]) == {"", BASELINE}
    assert set(own["class"]) == {"mean", "anterior", "posterior"}
    assert set(own["split"]) == {"test"}
    assert set(own["source"]) == {"hippocampus"}
    assert set(own["raw_records"]) == set(own["raw_expected"]) == {9}


def test_a_report_pools_seeds_and_compares_networks(reported, tmp_path):
    rows = report_rows.networks_frame(reported).set_index(["technique", "class"])
    assert len(rows) == 6
    singles = reported.rows[reported.rows["evaluation"] == "segmentation"]
    singles = singles.set_index(["technique", "class", "method", "seed"])["value"].sort_index()
    for (technique, name), row in rows.iterrows():
        seeds = singles[technique, name, ""]
        assert row["seeds"] == len(seeds)
        assert row["value"] == pytest.approx(seeds.mean())
        base = singles[technique, name, BASELINE].iloc[0]
        assert row["baseline"] == pytest.approx(base)
        assert row["difference"] == pytest.approx(seeds.mean() - base)
        assert "no interval" in row["caution"]
    assert sorted(rows["seeds"]) == [1, 1, 1, 2, 2, 2]
    (pair,) = report_rows.pairs_frame(reported).to_dict("records")
    names = [pair[end].removesuffix(", custom)") + ")" for end in ("a", "b")]
    assert all(name.startswith("U-Net, scratch (") for name in names)
    first, other = (singles[name, "mean", "", 0] for name in names)
    assert pair["difference"] == pytest.approx(other - first)  # of the seed that both have
    written = write_tables(reported, tmp_path)
    assert main_table(reported).name == "segmentation-networks-means"
    content = page(reported, [])
    glance = content[content.index('id="main"') : content.index('id="notes"')]
    first = main_table(reported).printed(reported)
    assert first is not None
    assert first.rows == 2
    assert first.caption in unescape(glance)
    text = (tmp_path / "segmentation-networks-means.md").read_text()
    assert "mean mask" in text
    assert "custom: settings that the user changed" in text
    assert tmp_path / "segmentation-networks-pairs.csv" in written
    (figure,) = report_rows.draw_networks(FigureContext(reported, {}, ()))
    assert figure.name == "segmentation-networks-hippocampus-test"
    assert figure.aggregate


def test_differences_are_those_of_the_same_cases():
    rng = np.random.default_rng(3)
    easy = rng.uniform(0.3, 0.9, 60)  # cases differ much, networks little
    gain = rng.normal(0.02, 0.03, 60)
    ours, others = (
        {0: measured(table_of({"anterior": each, "posterior": each}), 4000)["test", "", "mean"]}
        for each in (easy + gain, easy)
    )
    found = report_rows._difference(ours, others)
    expected = ttest_rel(easy + gain, easy)
    low, high = expected.confidence_interval(0.95)
    assert found["difference"] == pytest.approx(gain.mean())
    assert (found["difference_low"], found["difference_high"]) == pytest.approx(
        (low, high), abs=0.1 * (high - low)
    )
    assert found["p"] == pytest.approx(expected.pvalue, rel=0.5, abs=2 / 4001)


# Searches ----------------------------------------------------------------------------------------


def planned(catalog):
    choice = Choice(
        (catalog.path,),
        bench="touchstone",
        assignments=("encoder.options.width=0", "execution.device=cpu"),
    )
    return planned_searches(Tuning(choice, ("scratch",), ("finetune-full",)), gpu=False)


def test_a_search_varies_rate_width_patch_and_decay(catalog):
    (search,) = planned(catalog)
    (family,) = search.families
    names = {parameter.name: parameter for parameter in family.space.parameters}
    assert {
        "transfer.optimiser.lr",
        "transfer.optimiser.weight_decay",
        "encoder.options.width",
        "encoder.options.patch",
    } <= names.keys()
    assert names["encoder.options.patch"].default == 96  # as the start has it
    assert names["transfer.optimiser.lr"].default == 1e-3
    assert "segmentation" in search.determinants["parts"]


def test_a_trial_is_scored_by_dice_on_the_inner_fold(catalog, tmp_path):
    inner = inner_catalog(catalog, tmp_path / "inner")
    family = FamilyWork("scratch", Transfer(), (Arm("hippocampus-mr", SMALL),), (1,))
    work, reports = TrialContext({"scratch finetune": family}, tmp_path / "search"), []
    values = {"transfer.optimiser.lr": 3e-3, "encoder.options.width": 8}
    run_trial(work, 0, 0, "scratch finetune", values, [inner.path], reports.append, keep=True)
    model = tmp_path / "search" / "models" / "00000-000"
    score = json.loads((model / "training.json").read_text())["validation_dsc"]
    assert [(reached.step, reached.whole) for reached in reports] == [(1, False), (2, True)]
    assert reports[-1].score == score
    assert 0 <= score <= 1


# The whole way -----------------------------------------------------------------------------------


def card_file(folder: Path) -> Path:
    """A card of small volumes with their own name."""
    content = yaml.safe_load(Path("data_catalog/hippocampus.yaml").read_text("utf-8"))
    content["name"] = "beans"
    content["modality"]["name"] = content["modality"]["signal"]["name"] = "beans-mr"
    for name in ("stored_shape", "input_shape"):
        content["modality"]["signal"][name] = [1, 32, 32, 32]
    content["layouts"]["pairs"]["records"] = 24
    folder.mkdir()
    path = folder / "beans.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    return path


@pytest.mark.slow
def test_from_raw_files_to_masks_and_a_report_by_the_command_line(tmp_path):
    raw = write_segmentation(tmp_path / "raw")["hippocampus"]
    card_file(tmp_path / "cards")
    paths = os.pathsep.join([str(Path.cwd()), *sys.path])
    known = os.environ | {"BENCHMD_CARDS": str(tmp_path / "cards"), "PYTHONPATH": paths}

    def benchmd(*words):
        command = [sys.executable, "-m", "benchmd_ray.cli", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=known, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    benchmd("catalog", "build", "beans", "--raw", raw, "--out", "catalogs/beans")
    benchmd("catalog", "verify", "catalogs/beans")
    small = ("encoder.options.width=4", "encoder.options.depth=3", "encoder.options.patch=16")
    small += ("transfer.epochs=8", "transfer.optimiser.lr=1e-2")
    changes = [word for one in small for word in ("--set", one)]
    common = ("--bench", "touchstone", "--catalog", "catalogs", "--setting", "finetune-full")
    benchmd("run", *common, *changes)
    (folder,) = (tmp_path / "runs").glob("transfer-*")
    masks = sorted((folder / "predictions" / "segmentation" / "beans").iterdir())
    assert len(masks) == 5
    for path in masks:
        ours, truth = (SimpleITK.ReadImage(str(p)) for p in (path, raw / "labelsTr" / path.name))
        assert ours.GetSize() == truth.GetSize()
        np.testing.assert_allclose(ours.GetDirection(), truth.GetDirection(), atol=1e-6)
        np.testing.assert_allclose(ours.GetOrigin(), truth.GetOrigin(), atol=1e-4)
    before = [path.stat().st_mtime_ns for path in masks]
    benchmd("run", *common, *changes)
    assert [path.stat().st_mtime_ns for path in masks] == before
    shown = benchmd("report", "runs", "--out", "report")
    rows = pd.read_csv(tmp_path / "report" / "segmentation-networks.csv").set_index("class")
    assert f"{rows.loc['mean', 'value']:.3f}" in shown
    for method, expected in (("", rows["value"]), (BASELINE, rows["baseline"])):
        masks = mask_folder(folder / "predictions" / "segmentation" / "beans.parquet", method)
        benchmd("segment", "score", masks, raw / "labelsTr", "--task", "hippocampus", "--out", "s")
        scored = pd.read_parquet(tmp_path / "s" / "scores.parquet")
        found = scored.groupby("class")["dsc"].mean()
        for name in ("anterior", "posterior"):  # both sides of files of one grid
            assert found[name] == pytest.approx(expected[name], abs=1e-6)
        shutil.rmtree(tmp_path / "s")
