"""Records of tables, folders and lists of splits, without code."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from made_nifti import nifti
from made_tiff import page
from made_tiff import write as tiff
from PIL import Image

from benchmd_ray.data import any_table
from benchmd_ray.data.any_table import parquet_columns, table_rows
from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets.any_file import read_file
from benchmd_ray.data.datasets.listed import (
    CONSTANT,
    NO_CLASS,
    NO_PATIENT,
    NOWHERE,
    FileNames,
    discover,
    read,
)
from benchmd_ray.data.discovery import discovered
from benchmd_ray.data.quarantine import named
from benchmd_ray.data.raw import DUPLICATE, Choices, RawItem
from benchmd_ray.data.records import Record, RecordError, checked
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.card_folders import CARDS


@pytest.fixture
def card(tmp_path, monkeypatch):
    """Makes a card of these files."""
    folders = []

    def make(files, **about):
        name = f"own-{len(folders)}"
        folders.append(tmp_path / "cards" / name)
        folders[-1].mkdir(parents=True)
        text = {"name": name, "modality": "derm", "files": files} | about
        text.setdefault("task", {"kind": "single-label", "classes": ["a", "b"]})
        (folders[-1] / f"{name}.yaml").write_text(yaml.safe_dump(text))
        monkeypatch.setenv(CARDS, os.pathsep.join(map(str, folders)))
        return dataset_card(name)

    return make


@pytest.fixture
def raw(tmp_path):
    """Folders a and b with three pictures each."""
    rng = np.random.default_rng(0)
    for kind in "ab":
        (tmp_path / "raw" / kind).mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 256, (6, 6, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "raw" / kind / f"{kind}{number}.png")
    return tmp_path / "raw"


def splits(found) -> dict[str, str]:
    return {item.path: item.split for item in found.items}


LISTS = {"train": "lists/train.txt", "validation": "lists/val.txt", "test": "lists/test.txt"}


def write_lists(raw, **lines) -> None:
    (raw / "lists").mkdir(exist_ok=True)
    for name, held in lines.items():
        (raw / "lists" / f"{name}.txt").write_text("\n".join(held))


def test_splits_come_from_lists_of_paths_or_names(raw, card):
    write_lists(raw, train=["a/a0.png", "b0.png", ""], val=["a/a1", "", "b1"], test=["a2.png"])
    found = discover(raw, card({"lists": LISTS}), Choices())
    assert splits(found) == {
        "a/a0.png": "train",
        "b/b0.png": "train",
        "a/a1.png": "validation",
        "b/b1.png": "validation",
        "a/a2.png": "test",
    }
    assert (found.excluded, found.missing) == ({NOWHERE: 1}, [])


def test_lists_go_with_a_table(raw, card):
    (raw / "table.csv").write_text("path,label\n" + "".join(f"a/a{n}.png,a\n" for n in range(3)))
    write_lists(raw, train=["a0"], val=["a1"], test=["a2"])
    found = discover(raw, card({"table": "table.csv", "lists": LISTS}), Choices())
    assert set(splits(found).values()) == {"train", "validation", "test"}


def test_a_line_that_names_no_file_is_missing(raw, card):
    write_lists(raw, train=["a0", "", "a7"], val=["a1"], test=["a2"])
    found = discover(raw, card({"lists": LISTS}), Choices())
    assert found.missing == ["what line 3 of lists/train.txt names"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"train": ["a0"], "val": ["a0"], "test": []}, r"val\.txt, line 1: .* is in another list"),
        ({"train": ["same"], "val": [], "test": []}, r"train\.txt, line 1: .* stands for 2 files"),
        ({"train": ["a0"], "val": ["a1"]}, r"test\.txt cannot be read as a list of files"),
    ],
)
def test_odd_lists_are_refused(raw, card, lines, message):
    for kind in "ab":
        shutil.copy(raw / kind / f"{kind}0.png", raw / kind / "same.png")
    write_lists(raw, **lines)
    with pytest.raises(BenchmdError, match=message):
        discover(raw, card({"lists": LISTS}), Choices())


def test_lists_within_the_raw_folder_alone(raw, card):
    for where in ({"lists": {"train": "../x.txt"}}, {"folder": "/etc"}, {"table": "a/../../t.csv"}):
        with pytest.raises(BenchmdError, match="is not a path within the raw folder"):
            card(where)


def test_several_labels_have_a_column_each(raw, card):
    rows = ["path,oedema,effusion,large effusion,odd"]
    rows += ["a/a0.png,1,0,1,1", "a/a1.png,,yes,no,0", "a/a2.png,False,,,0", "b/b0.png,,,,1"]
    rows += ["b/b1.png,maybe,1,1,1"]
    (raw / "table.csv").write_text("\n".join(rows))
    own = card(
        {"table": "table.csv", "labels": ["oedema", "effusion", "large effusion", "odd"]},
        task={"kind": "multi-label", "classes": ["oedema", "effusion"]},
        class_mapping={"large effusion": "effusion", "odd": ""},
    )
    found = discover(raw, own, Choices())
    assert {item.path: item.target(own) for item in found.items} == {
        "a/a0.png": [1, 1],  # of two columns of one class the highest
        "a/a1.png": [-1, 1],
        "a/a2.png": [0, -1],
    }
    assert found.excluded == {
        "none of its labels is known": 1,
        "its value of oedema is neither 1 nor 0": 1,
        "no table names it": 1,
    }


def test_constant_segments_are_excluded(tmp_path, card):
    values = np.random.default_rng(2).normal(size=(12, 4 * 5000)) * 0.1
    values[:, 5000:10_000] = 0.3  # a lead that is off
    values[:, 15_000:] += 1e9  # less than a step
    (tmp_path / "raw" / "a").mkdir(parents=True)
    np.save(tmp_path / "raw" / "a" / "x.npy", values)
    own = card({"rate": 500.0}, modality="ecg")
    found = discover(tmp_path / "raw", own, Choices())
    reading = read(tmp_path / "raw", found.items[0], own)
    assert [record.record_id for record in reading.records] == ["a/x-0000", "a/x-0002"]
    assert reading.excluded == {CONSTANT: 2}


@pytest.mark.parametrize("named", ["folders", "table"])
def test_a_folder_of_slices_is_one_record(tmp_path, write_slice, card, named):
    raw, rng = tmp_path / "raw", np.random.default_rng(1)
    for kind in "ab":
        for scan in ("1.2.3", "1.2.4"):
            for number in range(3):
                values = rng.integers(0, 1000, (8, 8)).astype(np.int16)
                write_slice(raw / kind / scan / f"{number}.dcm", values, 2.5 * number)
    files = {"levels": ["class"]}
    if named == "table":
        files = {"table": "t.csv", "path": "scan", "label": "kind"}
        lines = [f"{kind}/{scan},{kind}" for kind in "ab" for scan in ("1.2.3", "1.2.4")]
        (raw / "t.csv").write_text("scan,kind\n" + "\n".join(lines))
    own = card(files, modality="ldct")
    found = discover(raw, own, Choices())
    names = [f"{kind}/{scan}" for kind in "ab" for scan in ("1.2.3", "1.2.4")]
    assert sorted(item.record_id for item in found.items) == names
    assert not found.excluded
    (record,) = read(raw, found.items[0], own).records
    assert record.valid_size == (3, 256, 256)


def test_patients_in_several_splits_are_refused(raw, card):
    held = [("a0", "p", "train"), ("a1", "q", "train"), ("b0", "q", "test"), ("b1", "r", "test")]
    lines = [f"{name[0]}/{name}.png,{name[0]},{who},{split}\n" for name, who, split in held]
    (raw / "table.csv").write_text("path,label,who,split\n" + "".join(lines))
    own = card({"table": "table.csv", "patient": "who", "split": "split"})
    with pytest.raises(
        BenchmdError,
        match=r"1 of 3 patients of own-0 are in several splits: of one the record a/a1 is in train "
        r"and b/b0 in test\. Expected each in one",
    ) as error:
        discovered(own, raw, "clean", None, {})
    assert "'q'" not in str(error.value)
    (raw / "table.csv").write_text("path,label,who,split\n" + "".join(lines[:2] + lines[3:]))
    _, found, _ = discovered(own, raw, "clean", None, {})
    assert splits(found) == {"a/a0.png": "train", "a/a1.png": "train", "b/b1.png": "test"}


def test_of_a_file_in_two_rows_the_first_row_counts(raw, card):
    (raw / "table.csv").write_text(
        "path,label,split\na/a0.png,a,train\na/a0.png,a,train\nb/b0.png,b,test\n"
    )
    _, found, _ = discovered(card({"table": "table.csv", "split": "split"}), raw, "clean", None, {})
    assert [(item.path, item.label, item.split) for item in found.items] == [
        ("a/a0.png", "a", "train"),
        ("b/b0.png", "b", "test"),
    ]
    assert found.excluded[DUPLICATE] == 1


def test_a_row_without_its_patient_is_excluded(raw, card):
    (raw / "table.csv").write_text("path,label,who\na/a0.png,a,p\na/a1.png,a,\nb/b0.png,b,q\n")
    found = discover(raw, card({"table": "table.csv", "patient": "who"}), Choices())
    assert {item.path for item in found.items} == {"a/a0.png", "b/b0.png"}
    assert found.excluded[NO_PATIENT] == 1


def test_folders_of_patients_are_not_written_down(raw, card):
    own = card({"levels": ["class", "patient"]})
    for number, path in enumerate(sorted(raw.glob("*/*.png"))):
        (path.parent / f"Doe{number % 3}").mkdir()
        path.rename(path.parent / f"Doe{number % 3}" / path.name)
    found = discover(raw, own, Choices())
    assert len(found.items) == 6
    assert not any("Doe" in item.record_id + item.group_id for item in found.items)
    assert len({item.group_id for item in found.items}) == 3
    assert "Doe" not in named(found.items[0], own)


def test_files_of_one_name_and_two_formats_are_two_records(raw, card):
    shutil.copy(raw / "a" / "a0.png", raw / "a" / "a0.bmp")
    found = discovered(card({"drawn": {"train": 1.0}}), raw, "clean", None, {})[1]
    ids = {item.path: item.record_id for item in found.items}
    assert (ids["a/a0.png"], ids["a/a0.bmp"], ids["a/a1.png"]) == ("a/a0.png", "a/a0.bmp", "a/a1")
    assert DUPLICATE not in found.excluded


def test_a_file_named_like_a_part_of_another_is_another_record(tmp_path, card):
    (tmp_path / "raw" / "a").mkdir(parents=True)
    values = np.random.default_rng(2).normal(size=(12, 2 * 5000))
    np.save(tmp_path / "raw" / "a" / "x.npy", values)
    np.save(tmp_path / "raw" / "a" / "x-0001.npy", values[:, :5000])
    own = card({"rate": 500.0}, modality="ecg")
    items = discovered(own, tmp_path / "raw", "clean", None, {})[1].items
    records = [record for item in items for record in read(tmp_path / "raw", item, own).records]
    ids = sorted(record.record_id for record in records)
    assert ids == ["a/x-0000", "a/x-0001", "a/x-0001.npy"]


def test_reasons_quote_no_value_where_names_are_hidden(card):
    own = card({}, private_names=True)
    item = RawItem("a/1.png", "1", "g", "train", label="Mueller, Eva")
    with pytest.raises(RecordError, match=r"its label is not a class of own-\d$"):
        item.target(own)
    record = Record("1", "g", "1", np.ones((3, 224, 224), np.uint8), 1.0, (224, 224), [1, 0])
    odd = dataclasses.replace(record, metadata={"age": "Mueller, Eva"})
    with pytest.raises(RecordError, match="1: its age is of another type, expected float"):
        checked(odd, own)
    with pytest.raises(RecordError, match="its age is 'Mueller, Eva', expected float"):
        checked(odd, dataclasses.replace(own, private_names=False))
    with pytest.raises(RecordError, match="its name has another ending than files of derm") as no:
        read_file(Path("1.Mueller, Eva"), own.signal, own.files)
    assert "Mueller" not in str(no.value)


def test_a_whole_path_in_a_list_stands_for_its_own_file(raw, card):
    for where in ("a", "."):
        shutil.copy(raw / "a" / "a0.png", raw / where / "same.png")
    write_lists(raw, train=["same.png"], val=["a/same.png"], test=["a1"])
    (raw / "table.csv").write_text("path,label\nsame.png,a\na/same.png,a\na/a1.png,b\n")
    found = discover(raw, card({"table": "table.csv", "lists": LISTS}), Choices())
    assert splits(found) == {
        "same.png": "train",
        "a/same.png": "validation",
        "a/a1.png": "test",
    }


@pytest.mark.parametrize("values", [[1.0, float("nan"), 2.0], [" 1.0", None, "2.0 "]])
def test_tables_in_parquet_read_as_those_in_csv(tmp_path, values):
    table = pa.table({"path": ["x", "y", "z"], "age": values})
    pq.write_table(table, tmp_path / "t.parquet")
    rows = list(table_rows(tmp_path / "t.parquet", ["path", "age"], "it"))
    assert [row["age"] for row in rows] == ["1.0", "", "2.0"]


def test_odd_tables_in_parquet_are_refused(tmp_path, monkeypatch):
    twice = pa.Table.from_arrays([pa.array(["x"])] * 2, names=["path", "path"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(BenchmdError, match=r"twice\.parquet is damaged: a column appears twice"):
        list(table_rows(tmp_path / "twice.parquet", ["path"], "it"))
    pq.write_table(pa.table({"path": ["x"], "n": [1], "boxes": [[1, 2]]}), tmp_path / "t.parquet")
    with pytest.raises(BenchmdError, match="has no column 'label'; it has 'path', 'n', 'boxes'"):
        list(table_rows(tmp_path / "t.parquet", ["label"], "it"))
    with pytest.raises(BenchmdError, match=r"'boxes' is of type list<.*, expected text, numbers"):
        list(table_rows(tmp_path / "t.parquet", ["path", "boxes"], "it"))
    assert parquet_columns(tmp_path / "t.parquet") == ["path", "n"]
    pq.write_table(pa.table({"path": pa.array([], pa.string())}), tmp_path / "none.parquet")
    with pytest.raises(BenchmdError, match="holds no record, expected a row for each"):
        list(table_rows(tmp_path / "none.parquet", ["path"], "it"))
    (tmp_path / "odd.parquet").write_bytes(b"PAR1")
    with pytest.raises(BenchmdError, match="is not a whole Parquet file"):
        list(table_rows(tmp_path / "odd.parquet", ["path"], "it"))
    monkeypatch.setattr(any_table, "MAX_VALUES", 1)
    with pytest.raises(BenchmdError, match=r"expected at most 2,097,152 rows and 1 values"):
        list(table_rows(tmp_path / "t.parquet", ["path", "n"], "it"))


def test_a_long_text_that_all_rows_have_is_in_memory_once_and_counted(tmp_path):
    """Decoded, 4,096 rows of it would take 4 GiB; its file takes less than a megabyte."""
    path = tmp_path / "long.parquet"
    text = pa.array(["x" * 2**20])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int32)), text)
    pq.write_table(pa.table({"path": column}), path, store_schema=False)
    assert path.stat().st_size < 2**20
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(BenchmdError, match="expected at most 268,435,456 characters"):
            list(table_rows(path, ["path"], "it"))
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() < 2**26


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_texts_in_delta_encodings_are_read(tmp_path, encoding):
    texts = [f"folder/{number:05d}.png" for number in range(9_998)] + ["", None]
    table = pa.table({"path": texts, "kind": ["a", "b"] * 5000, "age": range(10_000)})
    how = {"use_dictionary": ["kind"], "column_encoding": {"path": encoding}}
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=7000, **how)
    rows = list(table_rows(tmp_path / "t.parquet", ["path", "kind", "age"], "it"))
    assert [row["path"] for row in rows] == [text or "" for text in texts]
    assert [(row["kind"], row["age"]) for row in rows[-2:]] == [("a", "9998"), ("b", "9999")]
    table = pa.table({"path": pa.array(["a", "b"]).dictionary_encode()})
    how = {"use_dictionary": False, "column_encoding": {"path": encoding}}
    pq.write_table(table, tmp_path / "t.parquet", **how)
    with pytest.raises(BenchmdError, match="'path' holds categories in a DELTA encoding, which"):
        list(table_rows(tmp_path / "t.parquet", ["path"], "it"))


def test_a_long_text_in_a_delta_encoding_is_decoded_a_few_times_at_once(tmp_path, monkeypatch):
    """Decoded at once it takes 64 MiB."""
    monkeypatch.setattr(any_table, "MAX_BYTES", 2**25)
    monkeypatch.setattr(any_table, "BATCH_BYTES", 2**22)
    path, part = tmp_path / "long.parquet", pa.table({"path": ["x" * 2**15] * 2048})
    how = {"use_dictionary": False, "column_encoding": {"path": "DELTA_BYTE_ARRAY"}}
    pq.write_table(part, path, **how)
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(BenchmdError, match="expected at most 33,554,432 characters"):
            list(table_rows(path, ["path"], "it"))
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() < 2**24


def test_a_table_of_more_rows_than_a_csv_file_may_have_is_refused(tmp_path):
    """As rows these would take gigabytes; their file has some thousand bytes."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"path": pa.nulls(2**21 + 1, pa.string())}), path)
    assert path.stat().st_size < 10_000
    with pytest.raises(BenchmdError, match="too large for a table: expected at most 2,097,152 row"):
        next(table_rows(path, ["path"], "it"))
    pq.write_table(pa.table({"path": pa.nulls(2**21, pa.string())}), path)
    assert next(table_rows(path, ["path"], "it")) == {"path": ""}


def test_columns_of_categories_are_read_as_their_values(tmp_path):
    kinds = pa.array(["a", None, " b"] * 3000).dictionary_encode()
    numbers = pa.array([3, None, 5] * 3000).dictionary_encode()
    pq.write_table(pa.table({"kind": kinds, "number": numbers}), tmp_path / "t.parquet")
    rows = list(table_rows(tmp_path / "t.parquet", ["number", "kind"], "it"))
    assert rows[:3] == [
        {"number": "3", "kind": "a"},
        {"number": "", "kind": ""},
        {"number": "5", "kind": "b"},
    ]
    assert rows == rows[:3] * 3000


def test_labels_that_the_card_does_not_name_are_counted_and_never_written_down(raw, card):
    shutil.copytree(raw / "a", raw / "Mueller, Eva")
    found = discover(raw, card({}), Choices())
    assert found.excluded == {NO_CLASS: 3}
    own = card({}, task={"kind": "single-label", "classes": ["c", "d"]})
    with pytest.raises(
        BenchmdError, match=r"9 records .* 3 labels, such as .* Expected c, d"
    ) as no:
        discover(raw, own, Choices())
    assert "Mueller" in str(no.value)  # a class, as far as the card says
    with pytest.raises(BenchmdError, match="9 records") as no:
        discover(raw, dataclasses.replace(own, private_names=True), Choices())
    assert "Mueller" not in str(no.value)


def test_a_policy_that_the_card_does_not_have_is_refused(raw, card):
    for policy in ("released", "odd"):
        with pytest.raises(BenchmdError, match=rf"unknown policy of own-\d: '{policy}'"):
            discovered(card({}), raw, policy, None, {})


def test_an_override_of_the_normaliser_takes_no_parameters_of_the_other(card):
    own = card({}, modality="eeg", signal={"normaliser": "none"})
    assert own.signal.parameters == {}
    own = card({}, modality="eeg", signal={"normaliser": "fixed-range"})
    assert own.signal.parameters == {"low": -125, "high": 125}  # it is not another
    assert card({}, modality="eeg").signal.parameters == {"low": -125, "high": 125}


def test_a_folder_or_a_suffix_that_is_wrong_is_said_before_anything_is_counted(raw, card):
    (raw / "table.csv").write_text("path,label\na0,a\na1,other\na2,a\n")
    with pytest.raises(BenchmdError, match=r"raw/as is not a folder, .* Did you mean 'a'"):
        discover(raw, card({"table": "table.csv", "folder": "as"}), Choices())
    with pytest.raises(BenchmdError, match=r"none of the 3 .* first is a/a0\.jpg; .* 3 \.png"):
        discover(raw, card({"table": "table.csv", "folder": "a", "suffix": ".jpg"}), Choices())
    (raw / "a" / "a1.png").unlink()
    own = card({"table": "table.csv", "folder": "a", "suffix": ".png"})
    found = discover(raw, own, Choices())
    assert (found.missing, len(found.items), found.excluded) == (["a/a1.png"], 2, {})


def test_columns_that_say_nothing_of_what_they_are_named_for_are_refused(raw, card):
    rows = ["path,label,years,part"] + [f"a/a{n}.png,a,male,one" for n in range(3)]
    (raw / "table.csv").write_text("\n".join(rows))
    swapped = card({"table": "table.csv", "metadata": {"age": "years"}})
    with pytest.raises(BenchmdError, match=r"none of the 3 values of the column years .* as age"):
        discover(raw, swapped, Choices())
    with pytest.raises(BenchmdError, match=r"the column part .* of no record: translate"):
        discover(raw, card({"table": "table.csv", "split": "part"}), Choices())
    with pytest.raises(BenchmdError, match=r"table\.xlsx is a spreadsheet: save it as CSV"):
        discover(raw, card({"table": "table.xlsx"}), Choices())


def test_shares_that_do_not_add_up_are_refused(card):
    with pytest.raises(BenchmdError, match=r"the shares add up to 1\.2, expected 1"):
        card({"drawn": {"train": 0.7, "test": 0.5}})


def test_pipes_are_no_files(raw, card):
    os.mkfifo(raw / "a" / "pipe.png")
    found = discover(raw, card({}), Choices())
    assert "a/pipe.png" not in splits(found)
    (raw / "table.csv").write_text("path,label\na/pipe.png,a\na/a0.png,a\n")
    found = discover(raw, card({"table": "table.csv"}), Choices())
    assert (found.missing, set(splits(found))) == (["a/pipe.png"], {"a/a0.png"})


def test_what_is_unusual_about_a_file_is_counted_with_its_records(card, tmp_path):
    (tmp_path / "raw" / "a").mkdir(parents=True)
    values = np.random.default_rng(1).integers(-900, 900, (30, 8, 8)).astype(np.int16)
    moved = np.column_stack([np.eye(3), (10, -5, 3)])
    (tmp_path / "raw" / "a" / "x.nii").write_bytes(nifti(values, codes=(1, 2), matrix=moved))
    own = card({"levels": ["class"]}, modality="ldct")
    (item,) = discover(tmp_path / "raw", own, Choices()).items
    reading = read(tmp_path / "raw", item, own)
    assert len(reading.records) == 2
    said = "its qform (code 1) and sform (code 2) place voxels apart; the sform is taken"
    assert reading.warnings == {said: 1}


def test_pictures_of_both_polarities_are_one_record_each_and_pages_are_refused(card, tmp_path):
    """A picture of 16 bits, its negative that says so, and a file of two pages."""
    folder = tmp_path / "raw" / "a"
    folder.mkdir(parents=True)
    ramp = np.tile(np.arange(4, 252, 8, np.uint16) * 257, (31, 1))
    tiff(folder / "black.tif", page(ramp, 1))
    tiff(folder / "white.tif", page(~ramp, 0))
    tiff(folder / "pages.tif", page(ramp, 1), page(ramp, 1))
    own = card({"levels": ["class"]})
    items = {item.record_id: item for item in discover(tmp_path / "raw", own, Choices()).items}
    black, white = (
        read(tmp_path / "raw", items[f"a/{n}"], own).records for n in ("black", "white")
    )
    assert np.array_equal(black[0].signal, white[0].signal)
    assert (black[0].signal[0, 0, 0], black[0].signal[0, 0, -1]) == (0, 255)
    with pytest.raises(RecordError, match="it has 2 pages, expected one"):
        read(tmp_path / "raw", items["a/pages"], own)


COMPOSED, DECOMPOSED = "n\u00e4vus", "na\u0308vus"


def written(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")
    return FileNames(root, hidden=False)


@pytest.mark.parametrize("stored", [COMPOSED, DECOMPOSED])
@pytest.mark.parametrize("asked", [COMPOSED, DECOMPOSED])
def test_a_file_is_found_by_the_name_that_it_really_has(tmp_path, stored, asked):
    names = written(tmp_path, f"{stored}/{stored}/1{stored}.png")
    assert names.real(f"{asked}/{asked}/1{asked}.png") == f"{stored}/{stored}/1{stored}.png"
    assert names.real(asked) == stored
    assert names.real(f"{asked}/none.png") == f"{asked}/none.png"


def test_names_of_one_letter_that_becomes_ascii_are_found(tmp_path):
    names = written(tmp_path, "37\u212a.png")  # the sign for kelvin, whose composed form is a K
    assert names.real("37K.png") == "37\u212a.png"


def test_of_folders_in_both_forms_the_one_with_the_file_is_taken(tmp_path):
    names = written(tmp_path, f"{COMPOSED}/1.png", f"{DECOMPOSED}/2.png")
    assert names.real(f"{DECOMPOSED}/1.png") == f"{COMPOSED}/1.png"
    assert names.real(f"{COMPOSED}/2.png") == f"{DECOMPOSED}/2.png"


def test_two_files_that_differ_only_in_the_form_are_refused(tmp_path):
    names = written(tmp_path, f"a/{COMPOSED}.png", f"a/{DECOMPOSED}.png")
    with pytest.raises(BenchmdError, match=r"files 'a/n.*vus\.png' and 'a/n.*vus\.png'"):
        names.real(f"a/{COMPOSED}.png")
    hidden = FileNames(tmp_path, hidden=True)
    with pytest.raises(BenchmdError, match="holds files whose names differ only in the form") as no:
        hidden.real(f"a/{COMPOSED}.png")
    assert "vus" not in str(no.value).removeprefix(str(tmp_path))
