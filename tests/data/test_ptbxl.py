"""PTB-XL: what the table says, against an independent reading of it."""

from __future__ import annotations

import ast
import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import ptbxl
from benchmd_ray.data.raw import NO_ROW, Choices
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import resource_folder

CARD = dataset_card("ptb-xl")
ORDER = ["atrial fibrillation/flutter", "myocardial infarction", "conduction disturbance",
         "ischemic st-t changes", "hypertrophy", "other"]  # fmt: skip


@pytest.fixture
def table(synthetic_raw) -> pd.DataFrame:
    return pd.read_csv(synthetic_raw["ptb-xl"] / "ptbxl_database.csv", index_col="ecg_id")


@pytest.fixture
def raw(tmp_path, synthetic_raw) -> Path:
    """A folder with the table alone and empty stand-ins for the records."""
    content = (synthetic_raw["ptb-xl"] / "ptbxl_database.csv").read_text()
    (tmp_path / "ptbxl_database.csv").write_text(content)
    for row in csv.DictReader(content.splitlines()):
        header = tmp_path / f"{row['filename_hr']}.hea"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.touch()
    return tmp_path


TABLE = pd.read_csv(resource_folder("data_catalog") / "tables" / "ptbxl_scp.csv", index_col="code")


def expected_label(scp_codes: str) -> str:
    """The class of a record, by walking through decision D8 class by class."""
    codes = ast.literal_eval(scp_codes)
    is_normal = codes.get("NORM", 0) >= 80
    ranked = []
    for code, likelihood in codes.items():
        kind, name = TABLE.loc[code, ["kind", "class"]]
        if likelihood == 0 and kind == "rhythm":
            likelihood = 100
        uncounted = likelihood == 0 and kind.endswith("form") and is_normal
        if name != "normal" and not uncounted:
            ranked.append((-likelihood, ORDER.index(name)))
    return ORDER[min(ranked)[1]] if ranked else "normal"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        # a rhythm without a likelihood counts as certain
        ({"AFIB": 0, "LMI": 50, "ISCIL": 100}, "atrial fibrillation/flutter"),
        ({"AFLT": 0, "ASMI": 100, "CRBBB": 100}, "atrial fibrillation/flutter"),
        ({"PACE": 0, "IMI": 50}, "other"),
        ({"PACE": 0, "IMI": 100}, "myocardial infarction"),  # a tie, by precedence
        ({"SVTAC": 0, "NORM": 100}, "conduction disturbance"),
        ({"AFIB": 15, "IMI": 50}, "myocardial infarction"),  # a stated likelihood is believed
        ({"SR": 0, "IMI": 15}, "myocardial infarction"),  # a normal rhythm outranks nothing
        # a form without a likelihood does not count next to a normal ECG, whatever its class
        ({"NORM": 80, "ABQRS": 0, "SR": 0}, "normal"),
        ({"NORM": 100, "NT_": 0}, "normal"),
        ({"NORM": 100, "VCLVH": 0}, "normal"),
        ({"NORM": 100, "LPR": 0}, "normal"),
        ({"NORM": 100, "INVT": 0}, "normal"),
        ({"NORM": 100, "NST_": 0}, "normal"),  # both diagnostic and form
        ({"NORM": 79, "ABQRS": 0}, "other"),
        ({"NORM": 0, "ABQRS": 0}, "other"),
        ({"NORM": 100, "PVC": 100}, "other"),  # a stated likelihood is believed
        ({"ABQRS": 0, "SR": 0}, "other"),
        ({"INVT": 0, "LVH": 15}, "hypertrophy"),  # behind every diagnosis that states one
        # so does a diagnosis without a likelihood, which still is none of a normal ECG
        ({"IMI": 0, "LVH": 15}, "hypertrophy"),
        ({"IMI": 0, "NORM": 100}, "myocardial infarction"),
    ],
)
def test_likelihoods_that_are_not_stated(raw, codes, expected):
    path = raw / "ptbxl_database.csv"
    table = pd.read_csv(path, dtype=str)
    table.loc[0, "scp_codes"] = str(codes)
    table.to_csv(path, index=False)
    assert ptbxl.discover(raw, CARD, Choices()).items[0].label == expected
    assert expected_label(str(codes)) == expected


def test_labels_splits_and_patients_are_those_of_the_table(synthetic_raw, table):
    found = ptbxl.discover(synthetic_raw["ptb-xl"], CARD, Choices())
    assert (found.layout, found.missing, found.excluded) == ("physionet", [], {})
    assert len(found.items) == len(table) == 140
    for item in found.items:
        row = table.loc[int(item.record_id.removeprefix("HR"))]
        split = {9: "validation", 10: "test"}.get(row["strat_fold"], "train")
        assert item.split == split
        assert item.label == expected_label(row["scp_codes"])
        assert item.group_id == hashed_patient("ptb-xl", str(int(row["patient_id"])))
        assert item.path == f"{row['filename_hr']}.hea"


def test_metadata_are_those_of_the_table(synthetic_raw, table):
    for item in ptbxl.discover(synthetic_raw["ptb-xl"], CARD, Choices()).items:
        row = table.loc[int(item.record_id.removeprefix("HR"))]
        assert item.metadata == {
            "age": 90.0 if row["age"] == 300 else min(row["age"], 90.0),  # 300: above 89
            "sex": ["male", "female"][row["sex"]],
            "site": str(int(row["site"])),
            "device": {"CS-12   E": "CS-12 E", "AT-6 C 5.5": "AT-6 C 5.5"}[row["device"]],
        }
    assert (table["age"] == 300).any()


def test_read_gives_the_samples_of_the_file(synthetic_raw):
    root = synthetic_raw["ptb-xl"]
    item = ptbxl.discover(root, CARD, Choices()).items[3]
    (record,) = ptbxl.read(root, item, CARD).records
    samples = np.fromfile((root / item.path).with_suffix(".dat"), "<i2").reshape(-1, 12).T
    assert np.array_equal(record.signal, samples)
    assert record.scale == pytest.approx(0.001)
    assert CARD.task.classes[int(np.argmax(record.target))] == item.label


def test_folds_give_the_official_splits():
    splits = [ptbxl.FOLDS[str(fold)] for fold in range(1, 11)]
    assert splits == ["train"] * 8 + ["validation", "test"]


def test_missing_files_are_named(raw):
    (raw / "records500/00000/00007_hr.hea").unlink()
    found = ptbxl.discover(raw, CARD, Choices())
    assert found.missing == ["records500/00000/00007_hr.hea"]
    assert len(found.items) == 139


def test_case_of_file_names_does_not_matter(raw):
    named = raw / "records500/00000/00007_hr.hea"
    named.rename(named.with_name("00007_HR.HEA"))
    found = ptbxl.discover(raw, CARD, Choices())
    assert found.missing == []
    assert "records500/00000/00007_HR.HEA" in [item.path for item in found.items]


def test_released_takes_split_and_label_from_its_table(raw, tmp_path):
    split_table = tmp_path / "ptbxl_splits.csv"
    split_table.write_text("patient,split,label\nHR00001,val,2\nHR00002,train,6\nHR90000,train,0\n")
    found = ptbxl.discover(raw, CARD, Choices("released", split_table))
    assert [(i.record_id, i.split, i.label) for i in found.items] == [
        ("HR00001", "validation", "myocardial infarction"),
        ("HR00002", "train", "hypertrophy"),
    ]
    assert found.excluded == {"it is not in the released split table": 138}
    assert found.missing == []
    assert found.grouped_by == "patient"


def test_released_needs_its_table(raw):
    with pytest.raises(BenchmdError, match=r"needs the split table .*ptbxl_splits\.csv"):
        ptbxl.discover(raw, CARD, Choices("released"))


def test_clean_needs_the_database(tmp_path):
    with pytest.raises(BenchmdError, match=r"has no ptbxl_database\.csv.*--policy released"):
        ptbxl.discover(tmp_path, CARD, Choices())


def test_table_of_another_kind_is_refused(tmp_path):
    (tmp_path / "ptbxl_database.csv").write_text("patient,split,label\nHR00001,train,0\n")
    with pytest.raises(BenchmdError, match="has no column 'ecg_id'; expected the table of PTB-XL"):
        ptbxl.discover(tmp_path, CARD, Choices())


def test_table_that_is_cut_off_is_refused(raw):
    path = raw / "ptbxl_database.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:50], lines[50][:60]]))
    with pytest.raises(BenchmdError, match=r"record 50: .*: the file is cut off"):
        ptbxl.discover(raw, CARD, Choices())


def test_challenge_records_that_ptbxl_removed_are_counted(tmp_path, synthetic_raw):
    content = (synthetic_raw["ptb-xl"] / "ptbxl_database.csv").read_text().splitlines()
    (tmp_path / "ptbxl_database.csv").write_text("\n".join(content[:4]) + "\n")
    for number in (1, 2, 3, 137):
        path = tmp_path / "g1" / f"HR{number:05d}.hea"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = ptbxl.discover(tmp_path, CARD, Choices())
    assert found.layout == "cinc"
    assert [item.path for item in found.items] == [f"g1/HR0000{i}.hea" for i in (1, 2, 3)]
    assert found.excluded == {NO_ROW: 1}


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("strat_fold", "17", "strat_fold is '17', expected a fold from 1 to 10"),
        ("scp_codes", "{'NORM': ", "scp_codes is .*expected a dictionary of codes"),
        ("patient_id", "", "patient_id is not as it must be, expected a whole number"),
        ("ecg_id", "2", "ecg_id 2 appears twice"),
        ("filename_hr", "../../other/00001_hr", "names a file that is not within the raw folder"),
        ("filename_hr", "/etc/00001_hr", "names a file that is not within the raw folder"),
        ("filename_hr", "a/" * 2000, "names a file that cannot be"),
        ("filename_hr", "a" * 300, "names a file that cannot be"),
        ("filename_hr", "a\0b", "names a file that cannot be"),
        ("scp_codes", "-" * 100_000, "scp_codes is '---.*expected a dictionary of codes"),
        ("scp_codes", "{'NORM': 1" + "0" * 400 + "}", "scp_codes is .*expected a dictionary"),
        ("scp_codes", "[" * 50_000, "scp_codes is .*expected a dictionary of codes"),
        ("scp_codes", "{'NORM': nan}", "scp_codes is .*expected a dictionary of codes"),
        ("ecg_id", "9" * 400, "ecg_id is '999.*expected a whole number"),
        ("patient_id", "9" * 5000, "patient_id is not as it must be, expected a whole number"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(synthetic_raw, tmp_path, column, value, message):
    table = pd.read_csv(synthetic_raw["ptb-xl"] / "ptbxl_database.csv", dtype=str)
    table.loc[2, column] = value
    table.to_csv(tmp_path / "ptbxl_database.csv", index=False)
    with pytest.raises(BenchmdError, match=message):
        ptbxl.discover(tmp_path, CARD, Choices())


@pytest.mark.data
def test_codes_and_likelihoods_are_those_that_python_reads(real_data):
    path = real_data / "ptb-xl-500" / "ptbxl_database.csv"
    with path.open(encoding="utf-8", newline="") as file:
        texts = [row["scp_codes"] for row in csv.DictReader(file)]
    assert len(texts) == 500
    for text in (*texts, "{}", "{ 'A B': 3, \"1AVB\": 0.5 }"):
        assert ptbxl._likelihoods(text) == ast.literal_eval(text)


def test_a_message_does_not_give_a_patient_away(synthetic_raw, tmp_path):
    table = pd.read_csv(synthetic_raw["ptb-xl"] / "ptbxl_database.csv", dtype=str)
    table.loc[2, "patient_id"] = "Jane Doe"
    table.to_csv(tmp_path / "ptbxl_database.csv", index=False)
    with pytest.raises(BenchmdError, match="record 3: patient_id is not as it must be") as caught:
        ptbxl.discover(tmp_path, CARD, Choices())
    assert "Doe" not in str(caught.value)


def test_an_empty_table_is_no_missing_one(synthetic_raw, tmp_path):
    text = (synthetic_raw["ptb-xl"] / "ptbxl_database.csv").read_text()
    (tmp_path / "ptbxl_database.csv").write_text(text.splitlines()[0] + "\n")
    with pytest.raises(BenchmdError, match="holds no record"):
        ptbxl.discover(tmp_path, CARD, Choices())


def test_an_empty_released_table_never_gives_clean_labels(synthetic_raw, tmp_path):
    (tmp_path / "splits.csv").write_text("patient,split,label\n")
    with pytest.raises(BenchmdError, match="holds no record"):
        ptbxl.discover(synthetic_raw["ptb-xl"], CARD, Choices("released", tmp_path / "splits.csv"))
