"""Synthetic CT in the owners' layouts, and what released code got wrong, from files to scores."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pydicom
import pytest
import SimpleITK
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from written import content

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import decode_signals, decode_targets
from benchmd_ray.demo import WRITERS
from benchmd_ray.demo.ct import write_ct
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, Asked
from benchmd_ray.runs.predictions import Predictions, predictions_path, read_predictions
from benchmd_ray.scores.metrics import auroc
from benchmd_ray.scores.units import Units
from benchmd_ray.settings.definition import load_settings
from benchmd_ray.training.jobs import RESULT, TransferJob
from benchmd_ray.training.reporter import Reporter
from benchmd_ray.training.transfer import transfer

pytestmark = pytest.mark.slow


def test_same_seed_gives_the_same_bytes(tmp_path):
    folders = WRITERS["ldct"](tmp_path / "a", source_records=3, target_records=3)
    write_ct(tmp_path / "b", source_records=3, target_records=3)
    write_ct(tmp_path / "c", source_records=3, target_records=3, seed=1)
    first, second, other = (content(tmp_path / name) for name in "abc")
    assert list(folders) == ["lidc-idri", "lndb"]
    assert first == second
    scans = {name for name in first if name.endswith((".dcm", ".raw")) and "data" in name}
    assert scans
    assert not {first[name] for name in scans} & set(other.values())


def test_source_is_a_dicom_series_with_an_annotation_of_four(synthetic_ct):
    root = synthetic_ct["lidc-idri"]
    folder = next(
        path.parent for path in sorted(root.rglob("*.xml")) if "XML-only" not in str(path)
    )
    slices = [pydicom.dcmread(path) for path in sorted(folder.glob("*.dcm"))]
    assert {s.Modality for s in slices} == {"CT"}
    assert {str(s.PatientID) for s in slices} == {folder.parent.parent.name}
    assert {str(s.SeriesInstanceUID) for s in slices} == {folder.name}
    assert len({float(s.ImagePositionPatient[2]) for s in slices}) == len(slices)
    values = slices[5].pixel_array * float(slices[5].RescaleSlope) + slices[5].RescaleIntercept
    assert values.min() >= -1024
    assert -900 < np.median(values[25:40, 16:22]) < -750  # a lung
    text = next(folder.glob("*.xml")).read_text()
    assert text.count("<readingSession>") == 4
    assert 'xmlns="http://www.nih.gov"' in text
    assert set(re.findall(r"<imageSOP_UID>(.*?)<", text)) <= {s.SOPInstanceUID for s in slices}


def test_source_has_the_quirks_of_the_real_one(synthetic_ct, ct_catalogs):
    manifest = ct_catalogs["lidc-idri"].manifest
    assert manifest["raw"]["records"] == 20
    assert manifest["excluded"] == {"it has no annotation": 1}
    assert manifest["warnings"]["it has fewer than 24 slices and is padded with air"] == 1
    assert manifest["warnings"]["slices are missing between others"] == 1
    assert manifest["splits"]["train"]["patients"] < manifest["splits"]["train"]["units"]
    assert manifest["quarantined"] == []
    assert list(synthetic_ct["lidc-idri"].rglob("LIDC-XML-only/tcia-lidc-xml/157/*.xml"))


def test_target_has_the_owners_tables_masks_and_metaimages(synthetic_ct):
    root = synthetic_ct["lndb"]
    with (root / "trainset_csv" / "trainNodules_gt.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "LNDbID", "RadID", "RadFindingID", "FindingID", "x", "y", "z", "AgrLevel", "Nodule",
        "Volume", "Text",
    ]  # fmt: skip
    assert {row["Volume"] for row in rows if row["Nodule"] == "0"} == {"14.13716694"}
    outlined = next(row for row in rows if float(row["Volume"]) > 20)
    name = f"LNDb-{int(outlined['LNDbID']):04d}"
    scan = SimpleITK.ReadImage(str(next(root.rglob(f"{name}.mhd"))))
    mask = SimpleITK.ReadImage(str(root / "masks" / f"{name}_rad1.mhd"))
    assert scan.GetSize() == mask.GetSize()
    labels = SimpleITK.GetArrayFromImage(mask)
    centre = scan.TransformPhysicalPointToIndex([float(outlined[axis]) for axis in "xyz"])
    assert labels[centre[::-1]] == int(outlined["FindingID"])


def test_labels_of_both_datasets_stand_in_the_same_order(ct_catalogs):
    """The released code has [large, small] for LIDC and [small, large] for LNDb."""
    held = by_split(ct_catalogs)
    schemas = {str(pq.read_schema(built.shards(split)[0][0])) for built, split in held}
    assert len(schemas) == 1
    orders = [list(built.manifest["splits"][split]["classes"]) for built, split in held]
    assert orders == [["small nodule", "large nodule"]] * len(orders)
    # Large nodules are balls of 150 HU and small ones dots of more: the brightest voxels tell.
    for dataset in ([held[0], held[1]], [held[2]]):
        parts = [rows(built, split) for built, split in dataset]
        signals, targets = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        dots = (signals[..., 16:240, 16:240] > 400).sum(axis=(1, 2, 3, 4))
        assert roc_auc_score(targets[:, 0], dots) > 0.9
        assert roc_auc_score(targets[:, 1], dots) < 0.8


def by_split(catalogs: dict[str, Catalog]) -> list[tuple[Catalog, str]]:
    return [
        (catalogs["lidc-idri"], "train"),
        (catalogs["lidc-idri"], "validation"),
        (catalogs["lndb"], "test"),
    ]


def rows(built: Catalog, split: str):
    """Signals (rows, 1, z, y, x), targets and units of a split."""
    parts = [pq.read_table(path) for path, *_ in built.shards(split)]
    signals = np.concatenate([decode_signals(part["signal"], built.signal) for part in parts])
    targets = np.concatenate([decode_targets(part["target"]) for part in parts])
    return signals, targets, [unit for part in parts for unit in part["unit_id"].to_pylist()]


@pytest.fixture(scope="module")
def larger(build_once, tmp_path_factory) -> dict[str, tuple[np.ndarray, np.ndarray, list[str]]]:
    """Features of patches of datasets that are enough to learn from, by split."""
    root = tmp_path_factory.mktemp("larger")
    written = write_ct(root, source_records=28, target_records=12)
    built = {name: build_once(name, raw, root / f"{name}-catalog") for name, raw in written.items()}
    held = {}
    for catalog, split in by_split(built):
        signals, targets, units = rows(catalog, split)
        patches = signals.reshape(len(signals), 24, 16, 16, 16, 16).clip(-1350, 150)
        means = patches.mean(axis=(1, 3, 5))[:, 4:12, 2:14]  # the lungs
        seen = [means.mean(axis=(1, 2)), means.std(axis=(1, 2)), means.max(axis=(1, 2))]
        bright = (patches > 100).mean(axis=(1, 3, 5))[:, 4:12, 2:14]
        seen += [bright.max(axis=(1, 2)), bright.mean(axis=(1, 2)), bright.std(axis=(1, 2))]
        held[f"{catalog.dataset} {split}"] = np.stack(seen, axis=1), targets, units
    return held


def test_classes_can_be_learnt_from_simple_features_and_transfer_worse(larger):
    features, targets, _ = larger["lidc-idri train"]
    centre, spread = features.mean(axis=0), features.std(axis=0)
    models = [
        LogisticRegression(max_iter=1000).fit((features - centre) / spread, targets[:, column])
        for column in range(2)
    ]
    for name, least in (("lidc-idri validation", 0.8), ("lndb test", 0.7)):
        found, known, units = larger[name]
        scores = [model.decision_function((found - centre) / spread) for model in models]
        scans = Units(units)
        best = scans.scores(np.stack(scores, axis=1))
        assert auroc(scans.targets(known), best).mean > least


class Silent(Reporter):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def start(self, *_) -> None:
        pass

    def report(self, done, values) -> None:
        self.lines.append(dict(values))

    def finish(self) -> None:
        pass


@pytest.fixture(scope="module")
def run(ct_catalogs, tmp_path_factory) -> tuple[Path, Silent]:
    """A linear evaluation on the synthetic source, scored on both datasets."""
    folder, reporter = tmp_path_factory.mktemp("run"), Silent()
    settings = load_settings(
        assignments=[
            "encoder=tiny", "execution.device=cpu", "transfer.mode=linear", "transfer.epochs=12",
            "transfer.batch_size=8", "transfer.optimiser.lr=0.03",
        ]
    )  # fmt: skip
    job = TransferJob(settings, ct_catalogs["lidc-idri"].path, folder, None)
    transfer(job, Worker(), reporter)
    for built in ct_catalogs.values():
        CLASSIFICATION.predict(Asked(folder, built, settings, Worker()))
    return folder, reporter


def test_a_ct_run_selects_its_best_epoch_by_validation_auroc(run):
    """The released code names a metric that CT never reports, so nothing is selected."""
    folder, reporter = run
    result = json.loads((folder / RESULT).read_text())
    scores = [line["validation_auroc"] for line in reporter.lines]
    assert len(scores) == 12
    assert all(map(math.isfinite, scores))
    assert max(scores) > min(scores)
    assert result["validation_auroc"] == max(scores)
    assert result["best_epoch"] == scores.index(max(scores))


@pytest.mark.parametrize(("dataset", "split"), [("lidc-idri", "validation"), ("lndb", "test")])
def test_windows_of_one_scan_pool_to_one_score(run, ct_catalogs, dataset, split):
    """The released code groups windows by tensor object, so every window is a scan of its own."""
    found: Predictions = read_predictions(predictions_path(run[0], dataset))
    table = found.table.to_pandas()
    targets, scores, patients = found.of_split(split)
    stated = ct_catalogs[dataset].manifest["splits"][split]
    assert len(scores) == stated["units"] < stated["records"] == len(table)
    units = list(dict.fromkeys(table["unit_id"]))
    for unit, target, score, patient in zip(units, targets, scores, patients, strict=True):
        own = table[table["unit_id"] == unit]
        assert score.tolist() == np.stack(list(own["scores"])).max(axis=0).tolist()
        assert target.tolist() == np.stack(list(own["target"])).max(axis=0).tolist()
        assert set(own["group_id"]) == {patient}
    assert targets.sum(axis=0).tolist() == list(stated["unit_classes"].values())


def test_the_selected_score_is_that_of_the_pooled_validation_scans(run):
    folder, _ = run
    found = read_predictions(predictions_path(folder, "lidc-idri"))
    targets, scores, _ = found.of_split("validation")
    best = json.loads((folder / RESULT).read_text())["validation_auroc"]
    assert auroc(targets, scores).mean == pytest.approx(best, abs=1e-6)
