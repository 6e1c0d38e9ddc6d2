"""Rows of tables: forms of Unicode, metadata that cannot be read, rows that contradict another."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets.listed import NO_PATIENT, discover, read
from benchmd_ray.data.discovery import discovered
from benchmd_ray.data.duplicates import COPIES
from benchmd_ray.data.new_card import new_card
from benchmd_ray.data.raw import DUPLICATE, Choices
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.data.verify import cautions, verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.card_folders import CARDS
from benchmd_ray.report.catalogs.describe_catalog import describe_catalog

NAEVUS = "n\u00e4vus"


def nfd(text):
    return unicodedata.normalize("NFD", text)


def nfc(text):
    return unicodedata.normalize("NFC", text)


def write_picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(path.name)).integers(0, 256, (6, 6, 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def card(tmp_path, monkeypatch):
    """Makes a card of these files, in a form of Unicode."""
    folders = []

    def make(files, *, form=nfc, classes=("a", "b"), kind="single-label", **about):
        name = f"own-{len(folders)}"
        folders.append(tmp_path / "cards" / name)
        folders[-1].mkdir(parents=True)
        task = {"kind": kind, "classes": list(classes)}
        text = {"name": name, "modality": "derm", "task": task, "files": files} | about
        content = form(yaml.safe_dump(text, allow_unicode=True))
        (folders[-1] / f"{name}.yaml").write_text(content, "utf-8")
        monkeypatch.setenv(CARDS, os.pathsep.join(map(str, folders)))
        return dataset_card(name)

    return make


@pytest.fixture
def table(tmp_path):
    """Writes a table next to the pictures that its first column names."""

    def make(text, name="t.csv"):
        raw = tmp_path / "raw"
        raw.mkdir()
        (raw / name).write_text(text, "utf-8")
        for line in text.splitlines()[1:]:
            write_picture(raw / re.split("[,;\t]", line)[0])
        return raw

    return make


ROWS = (("1", "melanoma", "M\u00fcller", "\u00fcben"), ("2", NAEVUS, "M\u00fcller", "\u00fcben"))


@pytest.mark.parametrize("of_card", [nfc, nfd])
@pytest.mark.parametrize("of_table", [nfc, nfd])
@pytest.mark.parametrize("of_files", [nfc, nfd])
@pytest.mark.parametrize("ends", ["csv", "parquet"])
def test_names_in_any_form_are_those_of_one_form(tmp_path, card, of_card, of_table, of_files, ends):
    raw, names = tmp_path / "raw", ("bild\u00e9", "kr\u00e4nk", "p\u00e4tient", "s\u00e9t")
    for number in "12":
        write_picture(raw / of_files(f"bilder\u00e4/\u00f6{number}.png"))
    columns = {
        of_table(name): [of_table(f"\u00f6{row[0]}" if at == 0 else row[at]) for row in ROWS]
        for at, name in enumerate(names)
    }
    path = raw / of_files(f"t\u00e4bl.{ends}")
    if ends == "parquet":
        pq.write_table(pa.table(columns), path)
    else:
        lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
        path.write_text("\n".join(lines), "utf-8")
    files = {"table": f"t\u00e4bl.{ends}", "folder": "bilder\u00e4", "suffix": ".png"}
    files |= dict(zip(("path", "label", "patient", "split"), names, strict=True))
    own = card(
        files | {"splits": {"\u00fcben": "train"}}, form=of_card, classes=("melanoma", NAEVUS)
    )
    _, found, own = discovered(own, raw, "clean", None, {})
    assert [(item.label, item.split, item.record_id) for item in found.items] == [
        ("melanoma", "train", "bilder\u00e4/\u00f61"),
        (NAEVUS, "train", "bilder\u00e4/\u00f62"),
    ]
    assert {item.group_id for item in found.items} == {hashed_patient(own.name, "M\u00fcller")}
    assert (found.missing, found.excluded) == ([], {})
    (record,) = read(raw, found.items[1], own).records
    assert list(record.target) == [0, 1]


def test_the_same_patient_in_two_forms_is_one(table, card):
    who = "Jos\u00e9"
    raw = table(f"path,label,who\n1.png,a,{nfc(who)}\n2.png,b,{nfd(who)}\n")
    found = discover(raw, card({"table": "t.csv", "patient": "who"}), Choices())
    assert len({item.group_id for item in found.items}) == 1
    assert len({item.split for item in found.items}) == 1


@pytest.mark.parametrize("of_files", [nfc, nfd])
def test_folders_and_lists_in_another_form(tmp_path, card, of_files):
    raw = tmp_path / "raw"
    for kind in ("melanoma", NAEVUS):
        for number in range(2):
            write_picture(raw / of_files(f"{kind}/\u00f6{number}.png"))
    (raw / of_files("t\u00e4g.txt")).write_text(nfd(f"{NAEVUS}/\u00f60.png\n"), "utf-8")
    (raw / "val.txt").write_text(nfc("melanoma/\u00f61\n"), "utf-8")
    lists = {"train": "t\u00e4g.txt", "validation": "val.txt"}
    own = card({"lists": lists}, classes=("melanoma", NAEVUS), form=nfd)
    found = discover(raw, own, Choices())
    assert {item.record_id: (item.label, item.split) for item in found.items} == {
        f"{NAEVUS}/\u00f60": (NAEVUS, "train"),
        "melanoma/\u00f61": ("melanoma", "validation"),
    }
    assert all((raw / item.path).is_file() for item in found.items)


def test_splits_do_not_depend_on_the_form_of_the_names_of_files(tmp_path, card):
    own, found = card({}), {}
    for form in (nfc, nfd):
        raw = tmp_path / form.__name__
        for number in range(20):
            write_picture(raw / "ab"[number % 2] / form(f"\u00e4{number}.png"))
        items = discover(raw, own, Choices()).items
        found[form] = sorted((item.record_id, item.group_id, item.split) for item in items)
    assert found[nfc] == found[nfd]
    assert len({split for _, _, split in found[nfc]}) == 3


def test_files_whose_names_differ_only_in_the_form_are_refused(tmp_path, card):
    raw = tmp_path / "raw"
    for form in (nfc, nfd):
        write_picture(raw / "a" / form("\u00e4.png"))
    (raw / "t.csv").write_text("path,label\na/\u00e4.png,a\n", "utf-8")
    for files in ({}, {"table": "t.csv"}):
        with pytest.raises(BenchmdError, match=r"differ only in the form of Unicode .*: rename or"):
            discover(raw, card(files), Choices())


@pytest.mark.parametrize("twin", ["K\u212a", ";\u037e", "`\u1fef"])
def test_ascii_names_that_others_are_composed_to_clash(tmp_path, card, twin):
    raw = tmp_path / "raw"
    for letter in twin:
        write_picture(raw / "a" / f"{letter}.png")
    (raw / "t.csv").write_text(f'path,label\n"a/{twin[0]}.png",a\n', "utf-8")
    for files in ({}, {"table": "t.csv"}):
        with pytest.raises(BenchmdError, match=r"differ only in the form of Unicode .*: rename or"):
            discover(raw, card(files), Choices())


def test_classes_and_labels_that_differ_only_in_the_form_are_refused(card):
    with pytest.raises(BenchmdError, match=r"class 'nävus' twice \(names are compared .* NFC\)"):
        card({}, classes=(nfc(NAEVUS), nfd(NAEVUS)))
    mapping = {nfc(NAEVUS): "a", nfd(NAEVUS): "b"}
    with pytest.raises(BenchmdError, match=r"key 'nävus' appears twice \(names are compared"):
        card({}, class_mapping=mapping)


def test_conditions_and_labels_of_a_module_may_have_another_form(tmp_path, card, monkeypatch):
    raw = tmp_path / "raw"
    for number in range(4):
        write_picture(raw / f"{number}_{nfd((NAEVUS, 'b', 'c')[number % 3])}.png")
    module = tmp_path / "modules" / "by_name.py"
    module.parent.mkdir()
    module.write_text(
        "from benchmd_ray.data.datasets.photographs import read\n"
        "from benchmd_ray.data.raw import Discovery, RawItem, files\n"
        "def discover(root, card, choices):\n"
        "    names = [(path.name, *path.stem.split('_')) for path in files(root, '*.png')]\n"
        "    items = [RawItem(file, n, n, 'test', label) for file, n, label in names]\n"
        "    return Discovery('files', items)\n"
    )
    monkeypatch.syspath_prepend(str(module.parent))
    own = card(None, module="by_name", role="target", classes=(NAEVUS, "b", "c"))
    _, found, _ = discovered(own, raw, "clean", None, {})
    assert [item.target(own) for item in found.items[:2]] == [[1, 0, 0], [0, 1, 0]]
    _, found, left = discovered(own, raw, "clean", None, {}, [nfd(NAEVUS)])
    assert left.classes == ("b", "c")
    assert Counter(item.split for item in found.items) == {"heldout": 2, "test": 2}


def test_a_guess_compares_names_in_one_form(tmp_path):
    raw = tmp_path / "raw"
    for number in range(4):
        write_picture(raw / "bilder" / nfd(f"\u00f6{number}.png"))
    lines = [f"\u00f6{number}.png,{('melanoma', NAEVUS)[number % 2]}\n" for number in range(4)]
    (raw / "t.csv").write_text(f"\ufeffsep=,\nbild,label\n{''.join(lines)}", "utf-8")
    _, guess = new_card("own", raw, tmp_path / "cards")
    assert guess.files == {"table": "t.csv", "path": "bild", "folder": "bilder", "label": "label"}
    assert guess.classes == ["melanoma", NAEVUS]


METADATA = {"age": "years", "sex": "kind"}
AGE = "its age in the column years is not a number of years from 0 to 120"
SEX = "its sex in the column kind is not a word for male or female"


def metadata_of(raw, own):
    """Age and sex of the records in the order of the table, and the warnings."""
    _, found, _ = discovered(own, raw, "clean", None, {})
    items = sorted(found.items, key=lambda item: item.path)
    return [(i.metadata["age"], i.metadata["sex"]) for i in items], found.warnings


VALUES = (
    ("61,5", "F", 61.5, "female"),
    ("061Y", "W", 61.0, "female"),
    ("018m", "m\u00e4nnlich", 1.5, "male"),
    ("95", "Mann", 90.0, "male"),
    ("999", "0", None, None),
    ("150", "1", None, None),
    ("-9", "2", None, None),
    ("sixty", "1", None, None),
    ("NA", "unknown", None, None),
    ("", "", None, None),
)


def test_values_that_cannot_be_read_are_counted_and_quoted(table, card):
    lines = [f"{at}.png;a;{years};{kind}\n" for at, (years, kind, *_) in enumerate(VALUES)]
    raw = table(f"path;label;years;kind\n{''.join(lines)}")
    values, warnings = metadata_of(raw, card({"table": "t.csv", "metadata": METADATA}))
    assert values == [(years, sex) for *_, years, sex in VALUES]
    assert warnings == {
        f"{AGE}, such as '999', '150', '-9': it is missing": 4,
        f"{SEX}, such as '0', '1', '2': it is missing": 4,
    }


def test_values_that_cannot_be_read_are_not_quoted_where_names_are_hidden(table, card):
    raw = table("path,label,years,kind\n1.png,a,Eva,0\n2.png,b,40,f\n")
    own = card({"table": "t.csv", "metadata": METADATA}, private_names=True)
    _, found, _ = discovered(own, raw, "clean", None, {})
    assert found.warnings == {f"{AGE}: it is missing": 1, f"{SEX}: it is missing": 1}


@pytest.mark.parametrize(("mark", "expected"), [(",", None), (";", 61.5), ("\t", 61.5)])
def test_a_comma_is_a_decimal_one_unless_it_separates(table, card, mark, expected):
    rows = (("path", "label", "years", "kind"), ("1.png", "a", '"61,5"', "f"))
    rows += (("2.png", "b", "40", "f"),)
    raw = table("".join(f"{mark.join(row)}\n" for row in rows))
    values, warnings = metadata_of(raw, card({"table": "t.csv", "metadata": METADATA}))
    assert values == [(expected, "female"), (40.0, "female")]
    assert list(warnings.values()) == ([1] if expected is None else [])


def test_labels_may_have_decimal_commas(table, card):
    raw = table("path;a;b\n1.png;1,0;0,0\n2.png;0;1\n")
    own = card({"table": "t.csv"}, kind="multi-label")
    found = discover(raw, own, Choices())
    assert {item.path: item.target(own) for item in found.items} == {
        "1.png": [1, 0],
        "2.png": [0, 1],
    }


@pytest.mark.parametrize("other", ["H", "V"])
def test_an_m_next_to_an_h_or_v_is_not_guessed(table, card, other):
    raw = table(f"path,label,years,kind\n1.png,a,40,{other}\n2.png,b,50,M\n3.png,b,50,mujer\n")
    values, warnings = metadata_of(raw, card({"table": "t.csv", "metadata": METADATA}))
    assert [sex for _, sex in values] == [None, None, "female"]
    assert warnings == {f"{SEX}, such as {other!r}, 'M': it is missing": 2}


def test_a_column_of_codes_is_refused_and_one_of_unknown_values_is_not(table, card):
    raw = table("path,label,years,kind,site\n1.png,a,40,0,N/A\n2.png,b,50,1,north\n")
    with pytest.raises(BenchmdError, match=r"2 values of the column kind .* as sex, a word for"):
        discover(raw, card({"table": "t.csv", "metadata": METADATA}), Choices())
    (raw / "t.csv").write_text("path,label,years,kind,site\n1.png,a,NA,-,N/A\n2.png,b,,?,north\n")
    own = card({"table": "t.csv", "metadata": METADATA | {"site": "site"}})
    found = discover(raw, own, Choices())
    assert [item.metadata for item in found.items] == [
        {"age": None, "sex": None, "site": None},
        {"age": None, "sex": None, "site": "north"},
    ]
    assert not found.warnings


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ("p0,train,a", "p4,test,a"),
            "patients and splits: it is of 'p0' in train .row 1. and of ",
        ),
        (("p0,train,a", "p4,train,a"), "patients: it is of 'p0' .row 1. and of 'p4' .row 3."),
        (("p0,train,a", "p0,test,a"), "splits: it is in train .row 1. and in test .row 3."),
        (("p0,train,a", "p0,train,b"), "labels: it is labelled 'a' .row 1. and labelled 'b' .row"),
        (("p0,train,a", ",train,a"), "patients: it is of 'p0' .row 1. and of no patient .row 3."),
        (("p0,train,", "p0,train,b"), "labels: it is labelled with no class of the card .row 1."),
    ],
)
def test_rows_of_a_file_that_contradict_each_other_are_refused(table, card, rows, message):
    lines = [f"1.png,{rows[0]}\n", "2.png,p1,train,b\n", f"./1.png,{rows[1]}\n"]
    raw = table(f"path,who,part,label\n{''.join(lines)}")
    files = {"table": "t.csv", "patient": "who", "split": "part"}
    with pytest.raises(BenchmdError, match=rf"t\.csv of own-0: the record 1 appears .* {message}"):
        discover(raw, card(files), Choices())
    with pytest.raises(
        BenchmdError, match=r"appears twice with different .*: rows 1 and 3\."
    ) as no:
        discover(raw, card(files, private_names=True), Choices())
    assert hashed_patient("own-1", "1") in str(no.value)
    assert not any(word in str(no.value) for word in ("p0", "p4", "train", "'a'"))


def test_several_labels_of_a_file_must_agree(table, card):
    raw = table("path,a,b\n1.png,1,0\n1.png,1,\n")
    with pytest.raises(BenchmdError, match=r"labelled a 1, b 0 \(row 1\) and labelled a 1, b -1 "):
        discover(raw, card({"table": "t.csv"}, kind="multi-label"), Choices())


def test_rows_that_agree_are_one_record_and_counted(table, card):
    lines = ["1.png,a,Train,x,p", "./1.png,a,train,x,p", "1.png,a,train,x,p", "2.png,b,test,40,q"]
    raw = table("path,label,part,years,who\n" + "\n".join(lines))
    files = {"table": "t.csv", "split": "part", "splits": {"Train": "train"}, "patient": "who"}
    _, found, _ = discovered(card(files | {"metadata": {"age": "years"}}), raw, "clean", None, {})
    assert [(i.path, i.label, i.split) for i in found.items] == [
        ("1.png", "a", "train"),
        ("2.png", "b", "test"),
    ]
    assert found.excluded == {DUPLICATE: 2}
    assert found.total == 2
    assert Counter(found.warnings.values()) == {1: 1}


DIFFERS = "its age in the column years differs between its rows of the table: it is missing"


def test_metadata_in_which_rows_of_a_file_differ_are_missing_and_counted(table, card):
    lines = [
        *("1.png,40,f", "2.png,40,f", "3.png,,f", "4.png,40,?", "5.png,x,f", "6.png,40,f"),
        *("1.png,41,f", "2.png,40.0,f", "3.png,40,", "4.png,41,?", "5.png,40,f", "1.png,40,m"),
    ]
    raw = table("path,years,kind,label\n" + "\n".join(f"{line},a" for line in lines))
    files = {"table": "t.csv", "metadata": METADATA}
    values, warnings = metadata_of(raw, card(files))
    assert values == [
        (None, None),
        (40.0, "female"),
        (40.0, "female"),
        (None, None),
        (40.0, "female"),
        (40.0, "female"),
    ]
    assert warnings == {DIFFERS: 2, DIFFERS.replace("age", "sex").replace("years", "kind"): 1}
    own = card(files, private_names=True)
    assert discovered(own, raw, "clean", None, {})[1].warnings == warnings


def test_a_catalog_says_what_was_not_read_and_which_classes_a_target_lacks(
    table, card, build_here, tmp_path
):
    raw = table("path,label,years,kind\n1.png,a,40,f\n2.png,a,x,0\n3.png,c,50,m\n4.png,a,50,\n")
    own = card({"table": "t.csv", "metadata": METADATA}, role="target")
    catalog = build_here(own.name, raw, tmp_path / "c")
    age, sex = (
        f"{text}, such as '{value}': it is missing" for text, value in ((AGE, "x"), (SEX, "0"))
    )
    assert catalog.manifest["warnings"] == {age: 1, sex: 1, COPIES: 2}
    said = " ".join(" ".join(describe_catalog(catalog)).split())
    assert f"noted: 1, {sex}" in said
    assert "caution: no record of b is in any split: check how its labels are written" in said
    assert f"1 record: {age}" in verify(catalog).notes
    few, absent = cautions(catalog)
    assert few.startswith("only 1 patient in test, fewer than 10: what is scored on so few is")
    assert absent == "no record of b is in any split: check how its labels are written"


def test_a_row_without_its_patient_is_excluded_once(table, card):
    raw = table("path,label,who\n1.png,a,\n2.png,b,p\n")
    found = discover(raw, card({"table": "t.csv", "patient": "who"}), Choices())
    assert found.excluded == {NO_PATIENT: 1}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"patient": {"pattern": "p[0-9]+"}}, r"patient is \{'pattern': 'p\[0-9\]\+'\}, expected"),
        ({"patient": {"patern": "(?P<patient>p)"}}, "the name of a column, or {pattern: …}"),
        ({"patient": {"pattern": "(?P<patient>["}}, "has \\(\\?P<patient>…\\)"),
        (
            {"patient": {"pattern": "(?P<patient>p)"}, "levels": ["class", "patient"]},
            "a level of folders says the patient, too",
        ),
        ({"rows": "label first", "table": "t.csv"}, "records in rows have no table"),
    ],
)
def test_a_pattern_of_patients_is_checked(files, message):
    from benchmd_ray.data.card_files import Files
    from benchmd_ray.schema.typed import typed

    with pytest.raises(BenchmdError, match=message):
        typed(Files, files, "the card x: files")


def test_files_without_the_patient_of_a_pattern_are_excluded(card, tmp_path):
    for name in ("p1_a", "p1_b", "p2_a", "odd"):
        picture = tmp_path / "raw" / "a" / f"{name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.touch()
    own = card({"patient": {"pattern": "(?P<patient>p[0-9])_"}})
    discovery = discovered(own, tmp_path / "raw", "clean", None, {})[1]
    assert len({item.group_id for item in discovery.items}) == 2
    assert discovery.excluded == {"the pattern finds no patient in its name": 1}
    assert discovery.grouped_by == "patient"
    assert not any("p1" in item.record_id for item in discovery.items)
