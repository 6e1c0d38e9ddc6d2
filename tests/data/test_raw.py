"""Raw folders: finding files, and an item's target."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
from kinds import MODALITIES

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.discovery import discovered
from benchmd_ray.data.raw import (
    DUPLICATE,
    NO_ROW,
    Discovery,
    RawItem,
    RawReader,
    by_key,
    files,
    inside,
)
from benchmd_ray.errors import BenchmdError

FUNDUS = dataclasses.replace(dataset_card("georgia"), modality=MODALITIES["fundus"])
CXR = dataclasses.replace(dataset_card("georgia"), modality=MODALITIES["cxr"])
MERGED = dataclasses.replace(
    FUNDUS, merged_classes={"none": ("ICDR 0",), "some": ("ICDR 1", "ICDR 2", "ICDR 3", "ICDR 4")}
)


@pytest.fixture
def folder(tmp_path):
    for name in ("b/x2.JPG", "a/x3.jpg", "x10.Jpeg", "x1.png", "c/d/x2.jpg", "a/x3.jpg.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def found(folder, *patterns):
    return [path.relative_to(folder).as_posix() for path in files(folder, *patterns)]


def test_files_are_found_in_any_case_and_subfolder_in_order_of_name(folder):
    expected = ["b/x2.JPG", "c/d/x2.jpg", "a/x3.jpg"]
    for pattern in ("*.jpg", "*.JPG", "X[23].Jpg"):
        assert found(folder, pattern) == expected
    assert found(folder, "*.jpeg", "*.jpg") == ["x10.Jpeg", *expected]


@pytest.mark.parametrize("patterns", list(itertools.permutations(["*.jpg", "x*", "*.png"])))
def test_a_file_of_several_patterns_is_found_once(folder, patterns):
    every = found(folder, *patterns)
    assert sorted(every) == sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    assert [name.split("/")[-1].split(".")[0] for name in every] == sorted(
        name.split("/")[-1].split(".")[0] for name in every
    )


def test_a_pattern_is_of_the_name_and_not_of_the_folder(folder):
    assert found(folder, "a*") == found(folder, "none.*") == found(folder) == []


def test_folders_behind_links_are_searched(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "linked").symlink_to(folder / "c", target_is_directory=True)
    assert found(other, "*.jpg") == ["linked/d/x2.jpg"]


def test_a_link_that_leads_back_is_followed_once(folder):
    (folder / "c" / "back").symlink_to(folder, target_is_directory=True)
    (folder / "a" / "self").symlink_to(folder / "a", target_is_directory=True)
    assert found(folder, "*.jpg") == ["b/x2.JPG", "c/d/x2.jpg", "a/x3.jpg"]


def test_hidden_files_and_folders_are_passed_over(folder):
    (folder / "b" / "._x2.JPG").touch()
    (folder / ".snapshot").mkdir()
    (folder / ".snapshot" / "x2.jpg").touch()
    assert found(folder, "*.jpg") == ["b/x2.JPG", "c/d/x2.jpg", "a/x3.jpg"]


@pytest.mark.parametrize("where", ["x\udcff.jpg", "caf\udce9/x.jpg"])
def test_a_name_that_is_no_utf8_is_refused_where_it_matters(folder, where):
    (folder / where).parent.mkdir(exist_ok=True)
    (folder / where).touch()
    with pytest.raises(BenchmdError, match=r"has a name that is not UTF-8\. Rename it") as refused:
        files(folder, "*.jpg")
    str(refused.value).encode()
    if "/" not in where:
        assert found(folder, "*.png") == ["x1.png"]


def test_of_files_with_one_key_the_first_is_kept_and_the_others_counted():
    paths = [Path(name) for name in ("b/1.rec", "a/1.rec", "2.rec", "x.rec", "c/1.rec", "y.rec")]
    kept, duplicates = by_key(paths, lambda p: int(p.stem) if p.stem.isdigit() else None)
    assert kept == {1: Path("b/1.rec"), 2: Path("2.rec")}
    assert list(kept) == [1, 2]
    assert duplicates == 2


def test_a_record_counts_once_however_often_it_is_there():
    held = Discovery("flat", [item("x"), item("y")], excluded={DUPLICATE: 5, NO_ROW: 3})
    assert held.total == 2 + 3


def item(label=None, **labels):
    return RawItem(
        "a.png", "a", "p", "train", label, {k.replace("_", " "): v for k, v in labels.items()}
    )


@pytest.mark.parametrize("card", [FUNDUS, MERGED], ids=["fundus", "merged"])
def test_a_label_is_one_of_the_cards_classes(card):
    for number, name in enumerate(card.classes):
        target = [0] * len(card.classes)
        target[number] = 1
        assert item(name).target(card) == target


def test_labels_that_are_not_stated_are_unknown():
    assert item(edema=1, cardiomegaly=0, pleural_effusion=-1).target(CXR) == [-1, 0, -1, 1, -1]
    everything = dict.fromkeys(("atelectasis", "cardiomegaly", "consolidation", "edema"), 0)
    assert item(**everything, pleural_effusion=1).target(CXR) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a/.."])
def test_a_path_that_leads_out_of_the_raw_folder_is_refused(name):
    with pytest.raises(
        BenchmdError, match=r"table\.csv names a file that is not within the raw folder"
    ):
        inside(name, Path("table.csv"))
    assert inside("a/b..c/x.dcm", Path("table.csv")) == "a/b..c/x.dcm"


def test_no_datasets_items_lead_out_of_its_raw_folder(tmp_path, monkeypatch):
    item = RawItem("../x.hea", "x", "x", "test")
    dataset = RawReader(lambda *_: Discovery("cinc", [item]), lambda *_: None)
    monkeypatch.setitem(DATASETS, "georgia", dataset)
    with pytest.raises(BenchmdError, match="names a file that is not within the raw folder"):
        discovered(dataset_card("georgia"), tmp_path, "clean", None, {})
