"""MIMIC-CXR-JPG: labels, splits and the draw, against an independent reading of the tables."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from PIL import Image

from benchmd_ray.cli import main
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS, mimic_cxr
from benchmd_ray.data.discovery import chosen
from benchmd_ray.data.records import RecordError, decode_signals, hashed_patient
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.tasks import UNKNOWN

CARD = dataset_card("mimic-cxr")
COLUMNS = ["Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Pleural Effusion"]
KEYS = ["subject_id", "study_id"]
LABELS, SPLIT, METADATA = (
    f"mimic-cxr-2.0.0-{name}.csv.gz" for name in ("chexpert", "split", "metadata")
)


def choose(policy="clean", **options):
    return chosen(CARD, policy, None, options)


def to_fetch(root, policy="clean", **options):
    return mimic_cxr.files_to_fetch(root, CARD, choose(policy, **options))


def tables(root: Path) -> pd.DataFrame:
    """A row per image: the three tables joined."""
    labels, split, metadata = (
        pd.read_csv(root / name, dtype={"subject_id": str, "study_id": str})
        for name in (LABELS, SPLIT, METADATA)
    )
    joined = split.merge(labels, on=KEYS, how="left", indicator=True)
    return joined.merge(metadata[["dicom_id", "ViewPosition"]], on="dicom_id").set_index("dicom_id")


@pytest.fixture
def root(synthetic_cxr) -> Path:
    return synthetic_cxr["mimic-cxr"]


@pytest.fixture
def copied(root, tmp_path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(root, tmp_path / "mimic"))


@pytest.fixture
def large(tmp_path) -> Path:
    """Tables of 2,000 images of 400 patients without an image file."""
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(400) + 10_000_000, 5)
    rows = pd.DataFrame(
        {
            "dicom_id": [f"{value:040x}" for value in rng.permutation(2000)],
            "subject_id": patients,
            "study_id": np.arange(2000) // 2 + 50_000_000,
        }
    )
    rows["study_id"] = rows["subject_id"] * 10 + np.arange(2000) % 5 // 2
    part = rows["subject_id"] % 4
    rows["split"] = np.select([part < 2, part == 2], ["train", "validate"], "test")
    rows["ViewPosition"] = "PA"
    studies = rows[KEYS].drop_duplicates()
    for column in COLUMNS:
        studies[column] = rng.choice([1.0, 0.0], len(studies))
    rows[["dicom_id", *KEYS, "split"]].to_csv(tmp_path / SPLIT, index=False)
    rows[["dicom_id", *KEYS, "ViewPosition"]].to_csv(tmp_path / METADATA, index=False)
    studies.to_csv(tmp_path / LABELS, index=False)
    return tmp_path


def test_labels_splits_patients_and_views_are_those_of_the_tables(root):
    found = mimic_cxr.discover(root, CARD, choose())
    rows = tables(root)
    labelled = rows[rows["_merge"] == "both"]
    assert (found.layout, found.missing) == ("physionet", [])
    assert sorted(labelled.index) == [item.record_id for item in found.items]
    official = {"train": "train", "validate": "validation", "test": "test"}
    for item in found.items:
        row = rows.loc[item.record_id]
        values = [{1.0: 1, 0.0: 0, -1.0: UNKNOWN}.get(row[column], 0) for column in COLUMNS]
        assert item.target(CARD) == values
        assert item.split == official[row["split"]]
        assert item.group_id == hashed_patient("mimic-cxr", row["subject_id"])
        view = {"LATERAL": "lateral"}.get(row["ViewPosition"], row["ViewPosition"])
        assert item.metadata == {"view": view}
        assert Path(item.path).parts[2:] == (
            f"p{row['subject_id']}", f"s{row['study_id']}", f"{item.record_id}.jpg",
        )  # fmt: skip
    assert {1, 0, UNKNOWN} == {v for i in found.items for v in i.labels.values()}
    assert {i.split for i in found.items} == {"train", "validation", "test"}


def test_images_of_a_study_without_labels_are_excluded_and_counted(root):
    found = mimic_cxr.discover(root, CARD, choose())
    rows = tables(root)
    unlabelled = int((rows["_merge"] == "left_only").sum())
    assert unlabelled > 0
    assert found.excluded == {"its study is not in the table of labels": unlabelled}
    assert len(found.items) + unlabelled == len(rows)


def test_patients_in_two_splits_never(root, large):
    for folder, policy in ((root, "clean"), (large, "clean"), (large, "released")):
        for path in to_fetch(folder, policy, images="1000"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        splits: dict[str, set[str]] = {}
        for item in mimic_cxr.discover(folder, CARD, choose(policy, images="1000")).items:
            splits.setdefault(item.group_id, set()).add(item.split)
        assert len(splits) > 10
        assert all(len(own) == 1 for own in splits.values())


def test_labels_are_taken_by_column_name_not_position(root, copied):
    expected = [(i.record_id, i.target(CARD), i.split) for i in
                mimic_cxr.discover(root, CARD, choose()).items]  # fmt: skip
    for name in (LABELS, SPLIT, METADATA):
        table = pd.read_csv(copied / name, dtype=str)
        table[table.columns[::-1]].to_csv(copied / name, index=False)
    found = mimic_cxr.discover(copied, CARD, choose()).items
    assert [(i.record_id, i.target(CARD), i.split) for i in found] == expected


@pytest.mark.parametrize(
    ("uncertain", "unmentioned", "expected"),
    [
        ("masked", "negative", [1, 0, -1, 0, 0]),
        ("negative", "negative", [1, 0, 0, 0, 0]),
        ("positive", "negative", [1, 0, 1, 0, 0]),
        ("masked", "masked", [1, 0, -1, -1, -1]),
    ],
)
def test_uncertain_and_unmentioned_findings_follow_the_options(
    copied, uncertain, unmentioned, expected
):
    table = pd.read_csv(copied / LABELS, dtype=str)
    study = table.loc[0, "study_id"]
    table.loc[0, COLUMNS] = ["1.0", "0.0", "-1.0", None, ""]
    table.loc[0, "No Finding"] = None
    table.to_csv(copied / LABELS, index=False)
    found = mimic_cxr.discover(
        copied, CARD, choose(uncertain=uncertain, unmentioned=unmentioned)
    ).items
    (target,) = {tuple(i.target(CARD)) for i in found if f"/s{study}/" in i.path}
    assert list(target) == expected


def test_a_report_without_any_finding_is_negative_in_any_case(copied):
    table = pd.read_csv(copied / LABELS, dtype=str)
    table[COLUMNS] = None
    table["No Finding"] = None
    table.loc[0, "No Finding"] = "1.0"
    table.to_csv(copied / LABELS, index=False)
    found = mimic_cxr.discover(copied, CARD, choose(unmentioned="masked"))
    assert found.items
    assert all(f"/s{table.loc[0, 'study_id']}/" in item.path for item in found.items)
    assert found.items[0].target(CARD) == [0, 0, 0, 0, 0]
    assert sum(found.excluded.values()) == len(tables(copied)) - len(found.items)
    assert set(found.excluded) >= {"none of its labels is known"}


def test_a_draw_takes_whole_patients_of_each_official_split(large):
    rows = tables(large)
    drawn = {Path(p).stem for p in to_fetch(large, images="500")}
    taken = rows[rows.index.isin(drawn)]
    assert taken["split"].value_counts().to_dict() == {"train": 400, "validate": 50, "test": 50}
    images = rows["subject_id"].value_counts()
    cut = taken["subject_id"].value_counts().sub(images).dropna()
    assert (cut != 0).sum() <= 3  # of the last patient of each split as many as are wanted
    official = to_fetch(large, policy="released", images="500")
    splits = rows.loc[[Path(p).stem for p in official], "split"].value_counts()
    assert splits["train"] == 400
    assert splits["validate"] + splits["test"] == 100


def test_a_draw_is_the_same_again_and_nested_in_a_larger_one(large):
    small, larger = (to_fetch(large, images=number) for number in ("200", "500"))
    assert small == to_fetch(large, images="200")
    assert set(small) < set(larger)
    for name in (SPLIT, LABELS, METADATA):  # the order of the rows means nothing
        table = pd.read_csv(large / name, dtype=str)
        table.sample(frac=1, random_state=1).to_csv(large / name, index=False)
    assert small == to_fetch(large, images="200")
    everything = to_fetch(large, images="all")
    assert len(everything) == 2000
    assert to_fetch(large) == everything  # 1,000 train, 500 each


def test_the_default_draws_the_papers_numbers():
    assert CARD.options["images"].default == "10000"
    assert {k: round(10000 * v) for k, v in mimic_cxr.SHARES["released"].items()} == {
        split: 8000 if split == "train" else 2000 for split in CARD.expected["released"]
    }
    assert sum(mimic_cxr.SHARES["clean"].values()) == pytest.approx(1)


def test_only_files_that_are_drawn_have_to_be_there(large):
    wanted = to_fetch(large, images="50")
    for path in wanted[1:]:
        (large / path).parent.mkdir(parents=True, exist_ok=True)
        (large / path).touch()
    found = mimic_cxr.discover(large, CARD, choose(images="50"))
    assert [item.path for item in found.items] == wanted[1:]
    assert found.missing == [f"image {Path(wanted[0]).stem}"]
    assert found.excluded == {mimic_cxr.UNDRAWN: 1950}
    subject = Path(wanted[0]).parts[2].removeprefix("p")
    assert subject not in found.missing[0]


@pytest.mark.parametrize("number", ["0", "-1", "1e4", "ten", "", "²"])
def test_a_number_of_images_that_is_none_is_refused(root, number):
    with pytest.raises(BenchmdError, match=r"images of mimic-cxr .* expected a number of images"):
        mimic_cxr.discover(root, CARD, choose(images=number))


def test_files_that_the_table_of_splits_does_not_name_are_counted(root, copied):
    expected = mimic_cxr.discover(root, CARD, choose())
    folder = (copied / expected.items[0].path).parent
    for name in ("0a-1b.jpg", "._0a-1b.jpg", "index.html"):
        (folder / name).touch()
    found = mimic_cxr.discover(copied, CARD, choose())
    assert found.items == expected.items
    assert found.excluded == expected.excluded | {"no table names it": 1}


def test_a_second_row_of_a_study_is_counted_or_refused(root, copied):
    expected = mimic_cxr.discover(root, CARD, choose())
    table = pd.read_csv(copied / LABELS, dtype=str)
    table.loc[len(table)] = table.loc[0]
    table.to_csv(copied / LABELS, index=False)
    found = mimic_cxr.discover(copied, CARD, choose())
    assert found.items == expected.items
    reason = "its id appears twice; the first is kept"
    assert found.excluded == expected.excluded | {reason: 1}
    table.loc[0, "Edema"] = "0.0" if table.loc[0, "Edema"] == "1.0" else "1.0"
    table.to_csv(copied / LABELS, index=False)
    with pytest.raises(BenchmdError, match=f"record {len(table)} contradicts an earlier") as caught:
        mimic_cxr.discover(copied, CARD, choose())
    assert table.loc[0, "subject_id"] not in str(caught.value)


def test_the_command_prints_the_files_that_are_drawn(large):
    arguments = ["catalog", "files", "mimic-cxr", "--raw", str(large), "--option", "images=50"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    assert result.output.split() == to_fetch(large, images="50")
    assert len(result.output.split()) == 50


def test_tables_may_be_packed_or_not(root, copied):
    for name in (LABELS, SPLIT, METADATA):
        content = gzip.decompress((copied / name).read_bytes())
        (copied / name).unlink()
        (copied / name.removesuffix(".gz")).write_bytes(content)
    expected = mimic_cxr.discover(root, CARD, choose())
    assert mimic_cxr.discover(copied, CARD, choose()) == expected


@pytest.mark.parametrize(
    ("name", "column", "value", "message"),
    [
        (LABELS, "Edema", "2.0", r"record 1: Edema is '2\.0', expected 1, 0, -1 or nothing"),
        (LABELS, "Edema", "yes", r"chexpert\.csv\.gz, record 1: Edema is 'yes'"),
        (SPLIT, "split", "val", r"record 1, 'val'\. Did you mean 'validate'"),
        (SPLIT, "dicom_id", "../../../x", r"split\.csv\.gz names a file .*not within the raw f"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(copied, name, column, value, message):
    table = pd.read_csv(copied / name, dtype=str)
    table.loc[0, column] = value
    table.to_csv(copied / name, index=False)
    with pytest.raises(BenchmdError, match=message):
        mimic_cxr.discover(copied, CARD, choose())


@pytest.mark.parametrize("name", [LABELS, SPLIT, METADATA])
def test_a_table_that_is_missing_cut_off_or_another_one_is_refused(copied, name):
    path = copied / name
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    with pytest.raises(BenchmdError, match="not a whole gzip file"):
        mimic_cxr.discover(copied, CARD, choose())
    path.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(BenchmdError, match=r"has no column .*expected the table of MIMIC"):
        mimic_cxr.discover(copied, CARD, choose())
    path.unlink()
    with pytest.raises(BenchmdError, match="is missing: expected the table of MIMIC-CXR-JPG"):
        mimic_cxr.discover(copied, CARD, choose())


def test_a_catalog_holds_the_images_and_names_no_patient(copied, build_here, tmp_path):
    files = sorted(copied.rglob("*.jpg"))
    files[0].write_bytes(b"\xff\xd8\xff\xe0 no image")
    files[1].unlink()
    catalog = build_here("mimic-cxr", copied, tmp_path / "out", max_quarantined=0.1)
    shard = next(iter(catalog.shards("train")))[0]
    table = pq.read_table(shard)
    name = table["record_id"][0].as_py()
    (file,) = copied.rglob(f"{name}.jpg")
    with Image.open(file) as image:
        resized = image.convert("L").resize(
            (round(image.width * 224 / image.height), 224), Image.Resampling.BILINEAR
        )
    signal = decode_signals(table["signal"], catalog.signal)[0]
    left = (224 - resized.width) // 2
    assert np.array_equal(signal[0, :, left : left + resized.width], np.asarray(resized))
    assert table["valid_size"][0].as_py() == [224, resized.width]
    manifest = catalog.manifest
    assert (manifest["raw"]["missing"], len(manifest["quarantined"])) == (1, 1)
    assert manifest["quarantined"][0]["record"] == files[0].stem
    assert set(manifest["splits"]) == {"train", "validation", "test"}
    assert manifest["statistics"]["mean"][0] > 0
    text = (tmp_path / "out" / "manifest.json").read_text()
    for row in tables(copied).itertuples():
        assert row.subject_id not in text
        assert row.study_id not in text


def test_an_image_that_is_none_is_refused(copied):
    item = mimic_cxr.discover(copied, CARD, choose()).items[0]
    (copied / item.path).write_bytes(b"")
    with pytest.raises(RecordError, match="image"):
        DATASETS["mimic-cxr"].read(copied, item, CARD)
