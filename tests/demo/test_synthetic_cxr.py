"""Synthetic chest X-rays: the owners' layouts, the same bytes again, findings in the pixels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pydicom
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from written import content, records, small

from benchmd_ray.demo import WRITERS
from benchmd_ray.demo.cxr import write_cxr

pytestmark = pytest.mark.slow

NAMES = ("mimic-cxr", "chexpert", "vindr-cxr")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> dict[str, tuple[list, np.ndarray, np.ndarray]]:
    """Items, images of 28 × 28 and targets of each dataset, enough of them to learn from."""
    folders = write_cxr(tmp_path_factory.mktemp("learnt"), source_records=240, target_records=96)
    result = {}
    for name, root in folders.items():
        items, read = records(root, name)
        result[name] = items, small(read), np.array([record.target for record in read])
    return result


def test_same_arguments_give_the_same_bytes(tmp_path):
    folders = write_cxr(tmp_path / "a", source_records=16, target_records=6)
    write_cxr(tmp_path / "b", source_records=16, target_records=6)
    write_cxr(tmp_path / "c", source_records=16, target_records=6, seed=1)
    first, second, other = (content(tmp_path / name) for name in "abc")
    assert first == second
    assert tuple(folders) == NAMES
    assert WRITERS["cxr"] is write_cxr
    images = {name for name in first if not name.endswith((".csv", ".gz"))}
    assert len(images) == 28
    assert not {first[name] for name in images} & set(other.values())


def test_mimic_tables_have_the_owners_columns(synthetic_cxr):
    root = synthetic_cxr["mimic-cxr"]
    read = {
        name: pd.read_csv(root / f"mimic-cxr-2.0.0-{name}.csv.gz", dtype=str)
        for name in ("chexpert", "split", "metadata")
    }
    assert list(read["split"].columns) == ["dicom_id", "study_id", "subject_id", "split"]
    assert list(read["chexpert"].columns[:4]) == [
        "subject_id", "study_id", "Atelectasis", "Cardiomegaly",
    ]  # fmt: skip
    assert (read["chexpert"].shape[1], read["metadata"].shape[1]) == (16, 12)
    assert {"1.0", "0.0", "-1.0"} <= set(read["chexpert"]["Edema"].dropna())
    assert read["chexpert"]["Edema"].isna().any()
    split = read["split"]
    assert split["dicom_id"].str.fullmatch(r"([0-9a-f]{8}-){4}[0-9a-f]{8}").all()
    assert split["dicom_id"].is_unique
    assert split["subject_id"].nunique() < split["study_id"].nunique() < len(split)
    assert set(split["split"]) == {"train", "validate", "test"}
    assert (split.groupby("subject_id")["split"].nunique() == 1).all()
    assert {"PA", "AP", "LATERAL"} == set(read["metadata"]["ViewPosition"])


def test_target_tables_have_the_owners_columns(synthetic_cxr):
    valid = pd.read_csv(synthetic_cxr["chexpert"] / "CheXpert-v1.0-small" / "valid.csv")
    test = pd.read_csv(synthetic_cxr["chexpert"] / "CheXpert" / "test_labels.csv")
    assert list(valid.columns[:6]) == ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA",
                                       "No Finding"]  # fmt: skip
    assert list(valid.columns[5:]) == list(test.columns[1:])
    assert len(valid) < len(test)
    assert not set(valid["Path"].str.split("/").str[-3]) & set(test["Path"].str.split("/").str[-3])
    vindr = pd.read_csv(synthetic_cxr["vindr-cxr"] / "annotations" / "image_labels_test.csv")
    assert vindr.shape == (32, 29)
    assert list(vindr.columns[:3]) == ["image_id", "Aortic enlargement", "Atelectasis"]


def test_files_are_jpeg_and_dicom_of_several_sizes(synthetic_cxr):
    sizes = set()
    for name in NAMES[:2]:
        for path in synthetic_cxr[name].rglob("*.jpg"):
            with Image.open(path) as image:
                assert (image.format, image.mode) == ("JPEG", "L")
                sizes.add(image.size)
    assert len(sizes) == 2
    kinds = []
    for path in (synthetic_cxr["vindr-cxr"] / "test").iterdir():
        dataset = pydicom.dcmread(path)  # not forced: it is a DICOM file
        kinds.append(dataset.PhotometricInterpretation)
        assert dataset.pixel_array.max() < 2**dataset.BitsStored
        assert dataset.SOPInstanceUID.is_valid
    assert set(kinds) == {"MONOCHROME1", "MONOCHROME2"}


@pytest.mark.parametrize("name", NAMES)
def test_every_finding_occurs_and_is_absent(learnt, name):
    items, _, targets = learnt[name]
    for split in {item.split for item in items}:
        own = targets[[item.split == split for item in items]]
        assert ((own == 1).any(axis=0) & (own == 0).any(axis=0)).all()


def test_findings_can_be_learnt_and_carry_over(learnt):
    items, images, targets = learnt["mimic-cxr"]
    train = np.array([item.split == "train" for item in items])
    mean, std = images[train].mean(), images[train].std()
    scores: dict[str, list[float]] = {"mimic-cxr": [], "chexpert": [], "vindr-cxr": []}
    for column in range(targets.shape[1]):
        known = train & (targets[:, column] >= 0)
        model = LogisticRegression(C=1e-3, max_iter=200)
        features = (images - mean).reshape(len(images), -1) / std
        model.fit(features[known], targets[known, column])
        for name in NAMES:
            _, own, truth = learnt[name]
            held = truth[:, column] >= 0
            if name == "mimic-cxr":
                held &= ~train
            seen = (own[held] - mean).reshape(int(held.sum()), -1) / std
            scores[name].append(roc_auc_score(truth[held, column], model.decision_function(seen)))
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    assert means["mimic-cxr"] > 0.75
    assert min(means.values()) > 0.6


def test_targets_are_rendered_otherwise(learnt):
    lungs = {
        name: np.median(np.percentile(learnt[name][1][:, 6:22, 6:22], 20, axis=(1, 2)))
        for name in NAMES
    }
    assert lungs["chexpert"] + 8 < lungs["mimic-cxr"] < lungs["vindr-cxr"] - 8
    prevalence = {name: (learnt[name][2] == 1).mean() for name in NAMES}
    assert prevalence["vindr-cxr"] < prevalence["mimic-cxr"]
