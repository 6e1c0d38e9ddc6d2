"""VinDr-CXR: the official test set, joined by image id."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pydicom
import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import vindr_cxr
from benchmd_ray.data.raw import Choices
from benchmd_ray.data.records import RecordError, decode_signals
from benchmd_ray.data.transforms import fitted
from benchmd_ray.errors import BenchmdError

CARD = dataset_card("vindr-cxr")
COLUMNS = ["Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Pleural effusion"]
TABLE = "annotations/image_labels_test.csv"


@pytest.fixture
def root(synthetic_cxr) -> Path:
    return synthetic_cxr["vindr-cxr"]


@pytest.fixture
def copied(root, tmp_path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(root, tmp_path / "vindr"))


def table(root: Path) -> pd.DataFrame:
    return pd.read_csv(root / TABLE, dtype=str)


def labels(found) -> dict[str, tuple[str, list[int]]]:
    return {item.record_id: (item.path, item.target(CARD)) for item in found.items}


def shown(path: Path) -> np.ndarray:
    """Grey levels of a file as it is to be looked at, by hand."""
    dataset = pydicom.dcmread(path)
    values = np.frombuffer(dataset.PixelData, "<u2").reshape(dataset.Rows, dataset.Columns)
    grey = (values - float(values.min())) * 255 / (int(values.max()) - int(values.min()))
    grey = np.rint(grey).astype(np.uint8)
    return 255 - grey if dataset.PhotometricInterpretation == "MONOCHROME1" else grey


@pytest.mark.parametrize(("policy", "split"), [("clean", "test"), ("released", "validation")])
def test_labels_are_those_of_the_table(root, policy, split):
    found = vindr_cxr.discover(root, CARD, Choices(policy))
    rows = table(root).set_index("image_id")
    assert (found.layout, found.missing, found.excluded) == ("physionet", [], {})
    assert sorted(rows.index) == sorted(item.record_id for item in found.items)
    assert len({item.group_id for item in found.items}) == len(rows)
    assert found.grouped_by == "record"
    for item in found.items:
        assert item.target(CARD) == rows.loc[item.record_id, COLUMNS].astype(int).tolist()
        assert (item.path, item.split) == (f"test/{item.record_id}.dicom", split)


def test_labels_are_taken_by_column_name_not_position(root, copied):
    rows = table(copied)
    rows[rows.columns[::-1]].to_csv(copied / TABLE, index=False)
    expected = vindr_cxr.discover(root, CARD, Choices())
    assert vindr_cxr.discover(copied, CARD, Choices()) == expected


def test_images_meet_their_own_labels_whatever_the_order_of_the_table(root, copied):
    expected = labels(vindr_cxr.discover(root, CARD, Choices()))
    assert len({tuple(target) for _, target in expected.values()}) > 3
    listed = [path.stem for path in sorted((root / "test").iterdir())]
    assert table(root)["image_id"].tolist() != listed
    for rows in (table(copied).sort_values("image_id"), table(copied)[::-1]):
        rows.to_csv(copied / TABLE, index=False)
        assert labels(vindr_cxr.discover(copied, CARD, Choices())) == expected


def test_files_and_rows_without_each_other_are_counted(copied):
    rows = table(copied)
    rows[1:].to_csv(copied / TABLE, index=False)
    (copied / "test" / f"{rows.loc[3, 'image_id']}.dicom").unlink()
    found = vindr_cxr.discover(copied, CARD, Choices())
    assert found.missing == [f"test/{rows.loc[3, 'image_id']}.dicom"]
    assert found.excluded == {"no table names it": 1}
    assert len(found.items) == len(rows) - 2


def test_a_catalog_holds_the_pixels_as_they_are_to_be_looked_at(copied, build_here, tmp_path):
    rows = table(copied)
    pd.concat([rows, rows[:1]]).to_csv(copied / TABLE, index=False)
    catalog = build_here("vindr-cxr", copied, tmp_path / "out")
    ((shard, count, *_),) = catalog.shards("test")
    held = pq.read_table(shard)
    kinds = set()
    for name, signal in zip(
        held["record_id"].to_pylist(), decode_signals(held["signal"], CARD.signal), strict=True
    ):
        path = copied / "test" / f"{name}.dicom"
        kinds.add(pydicom.dcmread(path).PhotometricInterpretation)
        expected = fitted(shown(path), 224)[0].astype(int)
        assert np.abs(signal - expected).max() <= 1  # rounding
    assert (count, kinds) == (len(rows), {"MONOCHROME1", "MONOCHROME2"})
    assert catalog.manifest["excluded"] == {"its id appears twice; the first is kept": 1}


def test_age_and_sex_are_those_of_the_header(root):
    for item in vindr_cxr.discover(root, CARD, Choices()).items[:12]:
        header = pydicom.dcmread(root / item.path)
        (record,) = vindr_cxr.read(root, item, CARD).records
        years = int(header.PatientAge.removesuffix("Y"))
        sex = {"M": "male", "F": "female"}[header.PatientSex]
        assert record.metadata == {"age": min(years, 90) or None, "sex": sex, "view": None}


@pytest.mark.parametrize("value", ["-1", "", "2", "x"])
def test_a_label_that_is_neither_0_nor_1_is_refused(copied, value):
    rows = table(copied)
    rows.loc[4, "Edema"] = value
    rows.to_csv(copied / TABLE, index=False)
    with pytest.raises(BenchmdError, match=rf"record 5: Edema is '{value}', expected 1, 0\."):
        vindr_cxr.discover(copied, CARD, Choices())


def test_a_file_that_is_no_dicom_is_refused(copied):
    item = vindr_cxr.discover(copied, CARD, Choices()).items[0]
    (copied / item.path).write_bytes(b"no dicom")
    with pytest.raises(RecordError, match="cannot be read as a DICOM file"):
        vindr_cxr.read(copied, item, CARD)


def test_a_second_file_of_an_image_is_counted(root, copied):
    expected = vindr_cxr.discover(root, CARD, Choices())
    image = copied / expected.items[0].path
    shutil.copy(image, image.with_suffix(".dcm"))
    found = vindr_cxr.discover(copied, CARD, Choices())
    assert [i.record_id for i in found.items] == [i.record_id for i in expected.items]
    assert found.excluded == {"its id appears twice; the first is kept": 1}
