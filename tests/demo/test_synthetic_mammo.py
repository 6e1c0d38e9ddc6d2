"""Synthetic mammograms: the owners' layouts, the same bytes again, the assessment in the pixels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pydicom
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from written import content, records, small

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.raw import Choices
from benchmd_ray.demo import WRITERS
from benchmd_ray.demo.mammo import write_mammo

pytestmark = pytest.mark.slow

NAMES = ("vindr-mammo", "cbis-ddsm")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> dict[str, tuple[list, np.ndarray, np.ndarray]]:
    """Items, images of 28 × 28 and classes of each dataset, enough of them to learn from."""
    folders = write_mammo(tmp_path_factory.mktemp("learnt"), source_records=240, target_records=90)
    result = {}
    for name, root in folders.items():
        items, read = records(root, name)
        result[name] = items, small(read), np.array([np.argmax(record.target) for record in read])
    return result


def test_same_arguments_give_the_same_bytes(tmp_path):
    folders = write_mammo(tmp_path / "a", source_records=9, target_records=5)
    write_mammo(tmp_path / "b" / "deeper", source_records=9, target_records=5)
    write_mammo(tmp_path / "c", source_records=9, target_records=5, seed=1)
    first, second = content(tmp_path / "a"), content(tmp_path / "b" / "deeper")
    other = content(tmp_path / "c")
    assert first == second
    assert tuple(folders) == NAMES
    assert WRITERS["mammo"] is write_mammo
    images = {name for name in first if not name.endswith(".csv")}
    assert len([name for name in images if name.endswith(".dicom")]) == 10
    assert not {first[name] for name in images} & set(other.values())


@pytest.mark.parametrize("records", [1, 2, 3])
def test_the_smallest_sizes_are_complete_datasets(tmp_path, records):
    folders = write_mammo(tmp_path, source_records=records, target_records=records)
    for name, root in folders.items():
        found = DATASETS[name].discover(root, dataset_card(name), Choices())
        assert (len(found.items), found.missing) == (records, [])


def test_tables_have_the_owners_columns(synthetic_mammo):
    root = synthetic_mammo["vindr-mammo"]
    breasts = pd.read_csv(root / "breast-level_annotations.csv", dtype=str)
    assert list(breasts) == [
        "study_id", "series_id", "image_id", "laterality", "view_position", "height", "width",
        "breast_birads", "breast_density", "split",
    ]  # fmt: skip
    assert breasts["image_id"].is_unique
    assert breasts["image_id"].str.fullmatch("[0-9a-f]{32}").all()
    full = breasts.groupby("study_id").filter(lambda own: len(own) == 4)
    views = full.groupby("study_id")[["laterality", "view_position"]].apply(
        lambda own: set(own.itertuples(index=False, name=None))
    )
    assert all(own == {(side, v) for side in "LR" for v in ("CC", "MLO")} for own in views)
    assert (breasts.groupby("study_id")["split"].nunique() == 1).all()
    assert set(breasts["split"]) == {"training", "test"}
    assert set(breasts["breast_density"]) == {f"DENSITY {letter}" for letter in "ABCD"}
    for kind, own in (("mass", "breast_density"), ("calc", "breast density")):
        path = synthetic_mammo["cbis-ddsm"] / f"{kind}_case_description_test_set.csv"
        rows = pd.read_csv(path, dtype=str)
        assert (len(rows.columns), rows.columns[1]) == (14, own)
        assert rows["image file path"].str.endswith("/000000.dcm").all()
        assert rows["ROI mask file path"].str.endswith("\n").all()
        assert rows["patient_id"].str.fullmatch(r"P_9\d{4}").all()
        assert rows["image file path"].nunique() < len(rows)


def test_views_of_a_breast_share_its_assessment(synthetic_mammo):
    breasts = pd.read_csv(synthetic_mammo["vindr-mammo"] / "breast-level_annotations.csv")
    assert (breasts.groupby(["study_id", "laterality"])["breast_birads"].nunique() == 1).all()
    assert (breasts.groupby("study_id")["breast_birads"].nunique() > 1).any()


def test_files_are_dicom_of_several_kinds(synthetic_mammo):
    kinds: dict[str, set[tuple[str, int, bool]]] = {}
    for name in NAMES:
        for path in synthetic_mammo[name].rglob("*.d*c*m"):
            dataset = pydicom.dcmread(path)  # not forced: it is a DICOM file
            assert dataset.SOPInstanceUID.is_valid
            assert dataset.SOPInstanceUID == dataset.file_meta.MediaStorageSOPInstanceUID
            assert not dataset.PatientName
            top = 2**dataset.BitsStored
            assert 0 < dataset.pixel_array.max() < top
            whole = dataset.Rows == 160
            assert not whole or dataset.pixel_array.max() > 0.9 * top
            kinds.setdefault(name, set()).add(
                (
                    dataset.PhotometricInterpretation,
                    dataset.BitsStored,
                    dataset.file_meta.TransferSyntaxUID.is_compressed,
                )
            )
    assert kinds["vindr-mammo"] == {
        ("MONOCHROME2", 12, False), ("MONOCHROME1", 14, False),
        ("MONOCHROME2", 12, True), ("MONOCHROME1", 16, True),
    }  # fmt: skip
    assert kinds["cbis-ddsm"] == {("MONOCHROME2", 16, False)}


@pytest.mark.parametrize("name", NAMES)
def test_every_class_occurs_in_every_split(learnt, name):
    items, _, classes = learnt[name]
    for split in {item.split for item in items}:
        assert set(classes[[item.split == split for item in items]]) == set(range(5))
    assert len({item.group_id for item in items}) < len(items) / 2


def test_assessments_can_be_learnt_and_carry_over(learnt):
    def features(images: np.ndarray) -> np.ndarray:
        flat = images.reshape(len(images), -1)
        return np.concatenate([flat, np.sort(flat)[:, -60:]], axis=1)

    items, images, classes = learnt["vindr-mammo"]
    train = np.array([item.split == "train" for item in items])
    known = features(images)
    mean, std = known[train].mean(axis=0), known[train].std(axis=0) + 1
    model = LogisticRegression(C=0.02, max_iter=1000)
    model.fit((known - mean)[train] / std, classes[train])
    for name, rows, least in (("vindr-mammo", ~train, 0.8), ("cbis-ddsm", slice(None), 0.6)):
        _, own, truth = learnt[name]
        scores = model.predict_proba((features(own[rows]) - mean) / std)
        assert roc_auc_score(truth[rows], scores, multi_class="ovr") > least
        assert roc_auc_score(truth[rows] >= 3, scores[:, 3:].sum(axis=1)) > 0.8  # in their order


def test_target_looks_otherwise(learnt):
    def grain(images: np.ndarray) -> float:
        """Roughness where nothing is shown."""
        return float(np.median(np.quantile(images.reshape(len(images), -1), 0.4, axis=1)))

    assert grain(learnt["cbis-ddsm"][1]) > 1.2 * grain(learnt["vindr-mammo"][1]) + 1
    prevalence = {name: np.bincount(learnt[name][2]) / len(learnt[name][2]) for name in NAMES}
    assert prevalence["cbis-ddsm"][0] < 0.2 < prevalence["vindr-mammo"][0]
