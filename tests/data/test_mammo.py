"""VinDr-Mammo and CBIS-DDSM: labels, splits, files that are missing, double or nobody's."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pydicom
import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import cbis_ddsm, vindr_mammo
from benchmd_ray.data.datasets.images import read_dicom_image
from benchmd_ray.data.raw import Choices
from benchmd_ray.data.records import decode_signals, decode_targets, hashed_patient
from benchmd_ray.data.transforms import fitted
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError

VINDR, CBIS = dataset_card("vindr-mammo"), dataset_card("cbis-ddsm")
BREASTS = "breast-level_annotations.csv"
MASSES, CALCIFICATIONS = cbis_ddsm.TABLES


@pytest.fixture
def vindr(synthetic_mammo, tmp_path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(synthetic_mammo["vindr-mammo"], tmp_path / "vindr"))


@pytest.fixture
def cbis(synthetic_mammo, tmp_path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(synthetic_mammo["cbis-ddsm"], tmp_path / "cbis"))


def table(root: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(root / name, dtype=str, keep_default_na=False)


def change(root: Path, name: str, row: int, column: str, value: str) -> None:
    """Change one value of a table."""
    rows = table(root, name)
    rows.loc[row, column] = value
    rows.to_csv(root / name, index=False)


def by_hand(path: Path) -> np.ndarray:
    """Grey levels of a file as decision D6 has them, from pydicom's own samples."""
    dataset = pydicom.dcmread(path)
    grey = dataset.pixel_array.astype(float)
    grey = np.rint((grey - grey.min()) * 255 / (grey.max() - grey.min())).astype(np.uint8)
    return 255 - grey if dataset.PhotometricInterpretation == "MONOCHROME1" else grey


@pytest.mark.parametrize("policy", ["clean", "released"])
def test_vindr_takes_labels_and_splits_of_its_table(synthetic_mammo, policy):
    root = synthetic_mammo["vindr-mammo"]
    found = vindr_mammo.discover(root, VINDR, Choices(policy))
    rows = table(root, BREASTS).set_index("image_id")
    assert (found.missing, found.excluded) == ([], {"no table names it": 1})
    assert found.grouped_by == "exam"
    assert [item.record_id for item in found.items] == rows.index.to_list()
    for item in found.items:
        row = rows.loc[item.record_id]
        assert item.label == row["breast_birads"]
        assert item.path == f"images/{row['study_id']}/{item.record_id}.dicom"
        assert item.split == {"training": "train", "test": "validation"}[row["split"]]
        assert item.metadata["view"] == f"{row['laterality']}-{row['view_position']}"
        assert item.group_id == hashed_patient("vindr-mammo", row["study_id"])
    assert Counter(Counter(i.group_id for i in found.items).values()) == {4: 11, 2: 1}


def test_vindr_ages_and_devices_come_from_the_table_of_headers(synthetic_mammo, vindr):
    rows = table(vindr, "metadata.csv").set_index("SOP Instance UID")
    items = vindr_mammo.discover(vindr, VINDR, Choices()).items
    for item in items:
        row = rows.loc[item.record_id]
        age = row["Patient's Age"]
        assert item.metadata["age"] == (float(age.removesuffix("Y")) if age else None)
        maker, model = row["Manufacturer"], row["Manufacturer's Model Name"]
        assert item.metadata["device"] == f"{maker} {model}"
    assert {item.metadata["age"] for item in items} > {None, 42.0}
    (vindr / "metadata.csv").unlink()
    without = vindr_mammo.discover(vindr, VINDR, Choices()).items
    assert {(i.metadata["age"], i.metadata["device"]) for i in without} == {(None, None)}
    assert [i.label for i in without] == [i.label for i in items]


def test_vindr_without_some_headers_or_ages_of_zero(vindr):
    rows = table(vindr, "metadata.csv")
    name = rows["SOP Instance UID"][0]
    rows.loc[0, "Patient's Age"] = "000Y"
    rows.drop(columns="Manufacturer")[:1].to_csv(vindr / "metadata.csv", index=False)
    items = {i.record_id: i for i in vindr_mammo.discover(vindr, VINDR, Choices()).items}
    assert items[name].metadata["age"] is None
    assert items[name].metadata["device"] == rows["Manufacturer's Model Name"][0]
    assert sum(item.metadata["device"] is not None for item in items.values()) == 1


def test_vindr_columns_may_stand_in_any_order(synthetic_mammo, vindr):
    rows = table(vindr, BREASTS)
    rows[rows.columns[::-1]].to_csv(vindr / BREASTS, index=False)
    expected = vindr_mammo.discover(synthetic_mammo["vindr-mammo"], VINDR, Choices())
    assert vindr_mammo.discover(vindr, VINDR, Choices()) == expected


def test_vindr_images_without_file_or_label_are_counted(vindr):
    rows = table(vindr, BREASTS)
    path = f"images/{rows['study_id'][0]}/{rows['image_id'][0]}.dicom"
    (vindr / path).unlink()
    change(vindr, BREASTS, 1, "breast_birads", "")
    change(vindr, BREASTS, 2, "breast_birads", "BI-RADS 6")
    found = vindr_mammo.discover(vindr, VINDR, Choices())
    assert found.missing == [path]
    assert found.excluded == {
        "it has no label": 1,
        "its label 'BI-RADS 6' is unknown": 1,
        "no table names it": 1,
    }
    assert len(found.items) == 46 - 3


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (3, "split", "val", r"record 4: split is 'val', expected one of training, test\. Fetch"),
        (0, "split", "test", "record 2: the exam [0-9a-f]{32} is in both splits"),
    ],
)
def test_vindr_splits_that_cannot_be_are_refused(vindr, row, column, value, message):
    assert table(vindr, BREASTS)["split"][0] == "training"
    change(vindr, BREASTS, row, column, value)
    with pytest.raises(BenchmdError, match=message):
        vindr_mammo.discover(vindr, VINDR, Choices())


def test_vindr_table_that_is_missing_or_another_is_refused(vindr):
    table(vindr, BREASTS).drop(columns="breast_birads").to_csv(vindr / BREASTS, index=False)
    with pytest.raises(BenchmdError, match="has no column 'breast_birads'"):
        vindr_mammo.discover(vindr, VINDR, Choices())
    (vindr / BREASTS).unlink()
    with pytest.raises(BenchmdError, match="is missing: expected the table of VinDr-Mammo"):
        vindr_mammo.discover(vindr, VINDR, Choices())


def test_vindr_records_are_the_images_fitted(synthetic_mammo):
    root = synthetic_mammo["vindr-mammo"]
    syntaxes, kinds = set(), set()
    for item in vindr_mammo.discover(root, VINDR, Choices()).items[:8]:
        (record,) = read_dicom_image(root, item, VINDR).records
        signal, valid = fitted(by_hand(root / item.path), 224)
        assert np.abs(record.signal.astype(int) - signal).max() <= 1  # rounding of ties
        assert record.valid_size == valid == (224, 179)
        assert record.unit_id == record.record_id == item.record_id
        assert VINDR.classes[int(np.argmax(record.target))] == item.label
        header = pydicom.dcmread(root / item.path, stop_before_pixels=True)
        syntaxes.add(header.file_meta.TransferSyntaxUID.name)
        kinds.add((header.PhotometricInterpretation, header.BitsStored))
    assert syntaxes == {"Explicit VR Little Endian", "JPEG 2000 Image Compression (Lossless Only)"}
    assert kinds == {("MONOCHROME2", 12), ("MONOCHROME1", 14), ("MONOCHROME1", 16)}


def test_vindr_catalog(synthetic_mammo, vindr, build_here, tmp_path):
    damaged = next(iter(sorted(vindr.glob("images/*/*.dicom"))))
    name = damaged.stem
    damaged.write_bytes(damaged.read_bytes()[:2000])
    built = build_here("vindr-mammo", vindr, tmp_path / "out", max_quarantined=0.1)
    verification = verify(built)
    assert not verification.faults
    (entry,) = built.manifest["quarantined"]
    assert (entry["record"], entry["file"]) == (name, damaged.relative_to(vindr).as_posix())
    rows = table(vindr, BREASTS)
    rows = rows[rows["image_id"] != name]
    for split, own in (("train", "training"), ("validation", "test")):
        counts = rows[rows["split"] == own]["breast_birads"].value_counts()
        stated = built.manifest["splits"][split]["classes"]
        assert stated == {c: counts.get(c, 0) for c in VINDR.classes}
    assert 0 < built.manifest["statistics"]["mean"][0] < 100


def film(row: pd.Series) -> tuple[str, str]:
    """Patient, and side and view."""
    return row["patient_id"], f"{row['left or right breast'][0]}-{row['image view']}"


def films(root: Path) -> dict[tuple[str, str], list[int]]:
    """Assessments of each film, of both tables."""
    found: dict[tuple[str, str], list[int]] = {}
    for name in cbis_ddsm.TABLES:
        for _, row in table(root, name).iterrows():
            found.setdefault(film(row), []).append(int(row["assessment"]))
    return found


@pytest.mark.parametrize(("policy", "split"), [("clean", "test"), ("released", "validation")])
def test_cbis_takes_the_highest_assessment_of_a_film(synthetic_mammo, policy, split):
    root = synthetic_mammo["cbis-ddsm"]
    found = cbis_ddsm.discover(root, CBIS, Choices(policy))
    expected = films(root)
    assert len(expected) == 40
    items = {item.record_id: item for item in found.items}
    for (patient, view), assessments in expected.items():
        name = f"{hashed_patient('cbis-ddsm', patient)}-{view}"
        if max(assessments) == 0:
            assert name not in items
            continue
        item = items.pop(name)
        assert item.label == f"BI-RADS {max(assessments)}"
        assert item.split == split
        assert (item.group_id, item.metadata) == (name[:16], {"view": view})
        assert patient in item.path
    assert not items
    assert any(len(set(assessments)) > 1 for assessments in expected.values())


def test_cbis_counts_films_that_are_in_both_sets_or_not_assessed(synthetic_mammo):
    root = synthetic_mammo["cbis-ddsm"]
    found = cbis_ddsm.discover(root, CBIS, Choices())
    sets = [{film(row) for _, row in table(root, name).iterrows()} for name in cbis_ddsm.TABLES]
    zero = [key for key, assessments in films(root).items() if max(assessments) == 0]
    both = sets[0] & sets[1]
    assert both
    assert zero
    assert not both & set(zero)
    assert found.excluded == {cbis_ddsm.TWICE: len(both), "its label '0' has no class": len(zero)}
    whole = [p for p in root.rglob("*.dcm") if p.parents[2].name[-1] in "CO"]
    assert len(found.items) + sum(found.excluded.values()) == len(whole)
    assert len(whole) < len(list(root.rglob("*.dcm")))  # there are cut-outs too
    assert not [item.path for item in found.items if not item.path.endswith("/1-1.dcm")]


def test_cbis_label_of_a_film_in_both_sets_is_the_higher(cbis):
    masses, calcifications = table(cbis, MASSES), table(cbis, CALCIFICATIONS)
    row = masses.iloc[0]
    same = (calcifications[["patient_id", "left or right breast", "image view"]]
            == row[["patient_id", "left or right breast", "image view"]]).all(axis=1)  # fmt: skip
    masses["assessment"] = "2"
    calcifications.loc[same, "assessment"] = "5"
    masses.to_csv(cbis / MASSES, index=False)
    calcifications.to_csv(cbis / CALCIFICATIONS, index=False)
    first = cbis_ddsm.discover(cbis, CBIS, Choices()).items[0]
    assert (first.label, "Mass-Test" in first.path) == ("BI-RADS 5", True)


def test_cbis_film_whose_first_file_is_missing_is_read_from_the_other_set(cbis):
    complete = cbis_ddsm.discover(cbis, CBIS, Choices())
    first = complete.items[0]
    shutil.rmtree(cbis / "CBIS-DDSM" / first.path.split("/")[1])
    found = cbis_ddsm.discover(cbis, CBIS, Choices())
    assert found.missing == [f"a film of record {first.record_id}"]
    assert found.items[0].record_id == first.record_id
    assert "Calc-Test" in found.items[0].path
    assert found.excluded[cbis_ddsm.TWICE] == complete.excluded[cbis_ddsm.TWICE] - 1


@pytest.mark.parametrize(
    ("assessments", "label"),
    [
        (["0", "3"], "BI-RADS 3"),
        (["6", "4"], "BI-RADS 4"),
        (["", "2"], "BI-RADS 2"),
        (["6", "6"], None),
    ],
)
def test_cbis_assessments_without_a_class_do_not_count(cbis, assessments, label):
    rows = table(cbis, CALCIFICATIONS)
    several = rows.groupby("image file path")["assessment"].transform("size") == 2
    twice = several & ~rows["patient_id"].isin(table(cbis, MASSES)["patient_id"])
    path = rows[twice]["image file path"].iloc[0]
    rows.loc[rows["image file path"] == path, "assessment"] = assessments
    rows.to_csv(cbis / CALCIFICATIONS, index=False)
    found = cbis_ddsm.discover(cbis, CBIS, Choices())
    labels = {item.path.split("/")[1]: item.label for item in found.items}
    assert labels.get(path.split("/")[0]) == label
    assert found.excluded.get("its label '6' has no class", 0) == (label is None)


def test_cbis_columns_may_stand_in_any_order(synthetic_mammo, cbis):
    for name in cbis_ddsm.TABLES:
        rows = table(cbis, name)
        rows[rows.columns[::-1]].to_csv(cbis / name, index=False)
    expected = cbis_ddsm.discover(synthetic_mammo["cbis-ddsm"], CBIS, Choices())
    assert cbis_ddsm.discover(cbis, CBIS, Choices()) == expected


def test_cbis_files_are_found_by_readable_folder_names_too(synthetic_mammo, cbis):
    for folder in (cbis / "CBIS-DDSM").iterdir():
        (study,) = folder.iterdir()
        (series,) = study.iterdir()
        kind = "cropped images" if folder.name[-1].isdigit() else "full mammogram images"
        series.rename(study / f"1.000000-{kind}-12345")
        study.rename(folder / "10-04-2016-DDSM-NA-30104")
    found = cbis_ddsm.discover(cbis, CBIS, Choices())
    expected = cbis_ddsm.discover(synthetic_mammo["cbis-ddsm"], CBIS, Choices())
    assert [(i.record_id, i.label) for i in found.items] == [
        (i.record_id, i.label) for i in expected.items
    ]
    assert (found.missing, found.excluded) == (expected.missing, expected.excluded)
    assert all("full mammogram images" in item.path for item in found.items)


def test_cbis_of_several_files_the_tables_one_is_taken(cbis):
    items = cbis_ddsm.discover(cbis, CBIS, Choices()).items
    first, second = items[-1], items[-2]
    for item in (first, second):
        other = cbis / Path(item.path).parents[2] / "2.25.7" / "2.25.8"
        other.mkdir(parents=True)
        shutil.copy(cbis / item.path, other / "1-1.dcm")
    moved = cbis / Path(second.path).parents[1]
    moved.rename(moved.with_name("2.25.9"))  # neither lies where the table says
    found = cbis_ddsm.discover(cbis, CBIS, Choices())
    left = {item.record_id: item.path for item in found.items}
    assert left[first.record_id] == first.path
    assert second.record_id not in left
    assert found.excluded[cbis_ddsm.SEVERAL] == 1
    assert len(left) == len(items) - 1


def test_cbis_films_without_a_row_are_counted(synthetic_mammo, cbis):
    expected = cbis_ddsm.discover(synthetic_mammo["cbis-ddsm"], CBIS, Choices())
    film = cbis / expected.items[0].path
    for series in ("Mass-Test_P_99999_LEFT_CC", "Mass-Test_P_99999_LEFT_CC_1", "Mass-Training_P_1"):
        (cbis / series).mkdir()
        shutil.copy(film, cbis / series / "1-1.dcm")
    found = cbis_ddsm.discover(cbis, CBIS, Choices())
    assert found.items == expected.items
    assert found.excluded == expected.excluded | {"no table names it": 1}


def test_cbis_row_that_names_no_film_is_refused(cbis):
    path = table(cbis, MASSES)["image file path"][2]
    change(cbis, MASSES, 2, "image file path", path.replace("Mass-Test", "Mass-Training"))
    with pytest.raises(BenchmdError, match=r"record 3: the image file path starts with no folder"):
        cbis_ddsm.discover(cbis, CBIS, Choices())
    (cbis / CALCIFICATIONS).unlink()
    change(cbis, MASSES, 2, "image file path", path)
    with pytest.raises(BenchmdError, match="is missing: expected the table of CBIS-DDSM"):
        cbis_ddsm.discover(cbis, CBIS, Choices())


def test_cbis_catalog_names_no_patient(cbis, build_here, tmp_path):
    paths = [item.path for item in cbis_ddsm.discover(cbis, CBIS, Choices()).items]
    (cbis / paths[0]).write_bytes(b"no DICOM")
    (cbis / paths[1]).write_bytes((cbis / paths[1]).read_bytes()[:20_000])
    (cbis / paths[-1]).unlink()
    built = build_here("cbis-ddsm", cbis, tmp_path / "out", max_quarantined=0.5)
    assert not verify(built).faults
    assert built.manifest["raw"]["missing"] == 1
    assert [entry["file"] for entry in built.manifest["quarantined"]] == [None, None]
    text = json.dumps(built.manifest)
    shards = [path for path, *_ in built.shards("test")]
    stored = pq.read_table(shards[0])
    for content in (text, str(stored.drop(["signal"]).to_pylist())):
        assert "P_9" not in content
        assert "LEFT" not in content
    signals = decode_signals(stored["signal"], CBIS.signal)
    names = stored["record_id"].to_pylist()
    items = {i.record_id: i for i in cbis_ddsm.discover(cbis, CBIS, Choices()).items}
    assert names == [name for name, item in items.items() if item.path not in paths[:2]]
    targets = decode_targets(stored["target"])
    for name, signal, target in zip(names[:5], signals[:5], targets[:5], strict=True):
        expected, _ = fitted(by_hand(cbis / items[name].path), 224)
        assert np.abs(signal.astype(int) - expected).max() <= 1
        assert CBIS.classes[int(np.argmax(target))] == items[name].label


@pytest.mark.parametrize(
    ("card", "policy", "split", "total"),
    [
        (VINDR, "clean", "train", 16_000),
        (VINDR, "clean", "validation", 4_000),
        (VINDR, "released", "train", 16_000),
        (VINDR, "released", "validation", 4_000),
        (CBIS, "released", "validation", 365),
        (CBIS, "clean", "test", 595),
    ],
)
def test_expected_counts_sum_to_the_totals(card, policy, split, total):
    assert sum(card.expected[policy][split].values()) == total
    assert tuple(card.expected[policy][split]) == card.classes
    # 641 images of the test sets, 46 of them not assessed; four images have two files
    assert CBIS.layouts["tcia"].records == 595 + 46 + 4 == 361 + 284
