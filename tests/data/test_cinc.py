"""Datasets in the CinC layout: discovery, labels by SNOMED CT code, header quirks."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import cinc
from benchmd_ray.data.raw import DUPLICATE, Choices, RawItem
from benchmd_ray.data.records import RecordError, RecordExcluded
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import resource_folder

TARGETS = ("chapman-shaoxing", "georgia", "cpsc")
GEORGIA = dataset_card("georgia")


def item(path: str) -> RawItem:
    return RawItem(path, "E1", "E1", "test")


@pytest.mark.parametrize("name", TARGETS)
def test_clean_scores_every_record_of_a_target(synthetic_raw, name):
    found = cinc.discover(synthetic_raw[name], dataset_card(name), Choices())
    headers = sorted(path.stem for path in synthetic_raw[name].rglob("*.hea"))
    assert [i.record_id for i in found.items] == headers
    assert {i.split for i in found.items} == {"test"}
    assert len({i.group_id for i in found.items}) == 35
    assert found.grouped_by == "record"


@pytest.mark.parametrize("name", TARGETS)
def test_labels_age_and_sex_are_those_of_the_headers(synthetic_raw, name):
    root, card = synthetic_raw[name], dataset_card(name)
    rows = pd.read_csv(resource_folder("data_catalog") / "tables" / "ecg_snomed.csv", dtype=str)
    classes = rows[rows["dataset"] == name].set_index("code")["class"].dropna().to_dict()
    kept = 0
    for raw in cinc.discover(root, card, Choices()).items:
        text = (root / raw.path).read_text()
        field = {k: re.search(rf"{k}: (.*)", text)[1] for k in ("Age", "Sex", "Dx")}
        named = {classes[code] for code in field["Dx"].split(",") if code in classes}
        if int(text.split()[3]) < 5000 or not named:
            with pytest.raises(RecordExcluded, match="no class" if not named else "shorter"):
                cinc.read(root, raw, card)
            continue
        records = cinc.read(root, raw, card).records
        (expected,) = named - {"normal"} or named
        for record in records:
            kept += 1
            assert card.task.classes[list(record.target).index(1)] == expected
            assert sum(record.target) == 1
            assert record.metadata["age"] == float(field["Age"])
            assert record.metadata["sex"] == field["Sex"].lower()
    assert kept >= 30


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("426783006,164889003", "atrial fibrillation/flutter"),  # Georgia keeps its fibrillation
        ("426177001, 270492004", "conduction disturbance"),
        ("164865005,164873001,999", "myocardial infarction"),
        ("426783006", "normal"),
    ],
)
def test_codes_of_a_header_give_one_class(tmp_path, write_cinc, ecg_signal, codes, expected):
    write_cinc(tmp_path, "E1", ecg_signal, comments=[f"#Dx: {codes}"])
    (record,) = cinc.read(tmp_path, item("E1.hea"), GEORGIA).records
    assert GEORGIA.task.classes[list(record.target).index(1)] == expected
    assert record.metadata == {"age": None, "sex": None}


def test_same_code_can_mean_another_class_elsewhere(tmp_path, write_cinc, ecg_signal):
    write_cinc(tmp_path, "A1", ecg_signal, comments=["# Dx: 164884008"])
    for name, expected in (("georgia", "other"), ("cpsc", "conduction disturbance")):
        card = dataset_card(name)
        (record,) = cinc.read(tmp_path, item("A1.hea"), card).records
        assert card.task.classes[list(record.target).index(1)] == expected


@pytest.mark.parametrize("codes", ["54329005", "999", ""])
def test_code_that_maps_to_no_class_leaves_the_record_out(tmp_path, write_cinc, ecg_signal, codes):
    write_cinc(tmp_path, "E1", ecg_signal, comments=[f"# Dx: {codes}", "# Rx: 426783006"])
    with pytest.raises(RecordExcluded, match="its codes map to no class"):
        cinc.read(tmp_path, item("E1.hea"), GEORGIA)


def test_header_without_codes_is_refused(tmp_path, write_cinc, ecg_signal):
    write_cinc(tmp_path, "E1", ecg_signal, comments=["# Age: 5"])
    with pytest.raises(RecordError, match="has no '# Dx:' line"):
        cinc.read(tmp_path, item("E1.hea"), GEORGIA)


@pytest.mark.parametrize(
    ("text", "expected"), [("Male", "male"), ("F", "female"), ("FEMALE", "female"), ("NaN", None)]
)
def test_sex(tmp_path, write_cinc, ecg_signal, text, expected):
    write_cinc(tmp_path, "E1", ecg_signal, comments=[f"# Sex: {text}", "# Dx: 426783006"])
    (record,) = cinc.read(tmp_path, item("E1.hea"), GEORGIA).records
    assert record.metadata["sex"] == expected


def test_headers_are_found_in_any_subfolder_once_and_in_order(tmp_path):
    for name in ("b/E00002.hea", "a/E00003.hea", "E00001.hea", "c/E00002.hea", "a/JS00001.hea"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = cinc.discover(tmp_path, GEORGIA, Choices())
    assert [i.path for i in found.items] == ["E00001.hea", "b/E00002.hea", "a/E00003.hea"]
    assert found.excluded == {DUPLICATE: 1}


def test_released_takes_the_table_and_counts_the_others(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / f"E0000{number}.hea").touch()
    table = tmp_path / "Ga_splits.csv"
    table.write_text("patient,split,label\nE00001,train,0\nE00003,val,5\nE00009,val,1\n")
    found = cinc.discover(tmp_path, GEORGIA, Choices("released", table))
    assert [(i.record_id, i.split, i.label) for i in found.items] == [
        ("E00001", "train", "normal"),
        ("E00003", "validation", "atrial fibrillation/flutter"),
    ]
    assert found.excluded == {"it is not in the released split table": 1}
    assert found.missing == ["E00009"]


def test_released_label_wins_over_the_header(tmp_path, write_cinc, ecg_signal):
    write_cinc(tmp_path, "E1", ecg_signal)
    raw = RawItem("E1.hea", "E1", "E1", "validation", "hypertrophy")
    (record,) = cinc.read(tmp_path, raw, GEORGIA).records
    assert list(record.target) == [0, 0, 0, 0, 0, 0, 1]


def test_released_needs_its_table(tmp_path):
    with pytest.raises(BenchmdError, match=r"needs the split table .*Ga_splits\.csv"):
        cinc.discover(tmp_path, GEORGIA, Choices("released"))


def test_source_in_this_layout_is_split_by_a_hash_of_the_patient(tmp_path):
    for number in range(400):
        (tmp_path / f"HR{number:05d}.hea").touch()
    found = cinc.discover(tmp_path, dataset_card("ptb-xl"), Choices())
    train = [i.record_id for i in found.items if i.split == "train"]
    assert {i.split for i in found.items} == {"train", "validation"}
    assert 0.74 < len(train) / 400 < 0.86
