"""Cards and code tables: complete, consistent, the paper's counts."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import re

import pytest
import yaml
from kinds import CLASSES

from benchmd_ray.data import cards
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.modality.modalities import modality

FOLDER = resource_folder("data_catalog")
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_card_loads_and_names_only_what_exists(path):
    card = cards.dataset_card(path.stem)
    assert card.name == path.stem
    assert (card.collection or card.name) in DATASETS
    assert card.collection or card.modality == modality(card.modality.name)
    assert not card.code_table or (FOLDER / "tables" / card.code_table).is_file()
    assert set(card.evaluation_splits) == set(cards.POLICIES)
    assert "train" not in {s for splits in card.evaluation_splits.values() for s in splits}
    about = (card.title, card.homepage, card.access, card.licence, card.citation, card.layouts)
    assert all(about)
    for layout in card.layouts.values():
        assert layout.records > 0
        assert layout.rows_per_record > 0
        assert layout.pattern or layout.tree
    for option in card.options.values():
        for policy in cards.POLICIES:
            assert not option.choices or option.default_under(policy) in option.choices
    opening = itertools.takewhile(lambda line: line[:1] == "#", path.read_text().splitlines())
    command = f"#   benchmd catalog build {card.name} "
    assert any(line.startswith(command) for line in opening)


def test_every_dataset_has_its_card():
    made = cards.cards()
    assert {card.collection or card.name for card in made.values()} == set(DATASETS)
    assert {name for name, card in made.items() if not card.collection} < {p.stem for p in FILES}
    assert {path.stem for path in FILES} <= set(made)


@pytest.mark.parametrize(
    ("name", "split", "total"),
    [
        ("ptb-xl", "train", 17476),
        ("ptb-xl", "validation", 4361),
        ("chapman-shaoxing", "validation", 2051),
        ("georgia", "validation", 2067),
        ("cpsc", "validation", 1377),
    ],
)
def test_expected_counts_sum_to_the_papers_totals(name, split, total):
    card = cards.dataset_card(name)
    counts = card.expected["released"][split]
    assert tuple(counts) == card.task.classes
    assert sum(counts.values()) == total


@pytest.mark.parametrize("path", sorted((FOLDER / "tables").glob("*.csv")), ids=lambda p: p.stem)
def test_code_table_names_only_classes_and_each_code_once(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    users = [card for card in cards.cards().values() if card.code_table == path.name]
    assert users
    assert {row["class"] for row in rows} <= {"", *(c for card in users for c in card.classes)}
    keys = [(row.get("dataset"), row["code"]) for row in rows]
    assert len(keys) == len(set(keys))
    assert all(code == code.strip() and code for _, code in keys)
    for row in rows:
        assert cards.code_classes(path.name, row.get("dataset"))[row["code"]] == row["class"]


@pytest.mark.parametrize("name", ["cpsc", "georgia", "chapman-shaoxing"])
def test_atrial_fibrillation_is_atrial_fibrillation_everywhere(name):
    classes = cards.code_classes("ecg_snomed.csv", name)
    assert classes["164889003"] == "atrial fibrillation/flutter"
    assert classes["426783006"] == "normal"


def test_classes_of_a_card_are_the_modalitys_or_those_that_merge_them():
    georgia = cards.dataset_card("georgia")
    assert georgia.classes == CLASSES["ecg"]
    merged = {"normal": ("normal",), "ill": ("other", "hypertrophy")}
    assert dataclasses.replace(georgia, merged_classes=merged).classes == ("normal", "ill")


def test_unknown_dataset_suggests_the_nearest():
    with pytest.raises(BenchmdError, match=r"unknown dataset 'ptbxl'\. Did you mean 'ptb-xl'\?"):
        cards.dataset_card("ptbxl")


def refusal(path):
    """What is said of a card, without its folder; of a key without its line."""
    with pytest.raises(BenchmdError) as refused:
        cards._cards_of(path)
    return re.sub(r", line \d+", "", str(refused.value).replace(f"{path.parent}/", ""))


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text((FOLDER / "georgia.yaml").read_text() + "version: 7\n")
    assert "card x.yaml: the key 'version' appears twice" in refusal(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"tasks": "binary-class"},
            "key in the card breastmnist.yaml: images: 'tasks'. Did you mean 'task'",
        ),
        ({"md5": {"64": "0" * 32}}, r"yaml: images is incomplete: md5 of size 28 is missing"),
        ({"md5": {"28": "0" * 32, "32": "1" * 32}}, r"breastmnist\.yaml names images of size 32"),
        (
            {"md5": {"28": 7}},
            r"breastmnist\.yaml: images: md5\.28 is 7, expected text: write it in quotes",
        ),
        ({"md5": ["0" * 32]}, r"breastmnist\.yaml: images: md5 is \[.*expected names with values"),
        (
            {"dimensions": 4},
            r"value of .*yaml: images: dimensions: '4'.*Valid: 2, 3",
        ),
        ({"channels": 10**9}, r"value of .*yaml: images: channels: '1000000000'.*Valid: 1, 3"),
        ({"classes": "benign"}, r"yaml: images: classes is 'benign', expected a list"),
        ({"records": None}, r"breastmnist\.yaml: images: records is None, expected names with val"),
    ],
)
def test_faulty_facts_of_images_are_named(tmp_path, change, message):
    content = yaml.safe_load((FOLDER / "breastmnist.yaml").read_text())
    content["images"] |= change
    path = tmp_path / "breastmnist.yaml"
    path.write_text(yaml.safe_dump(content))
    assert re.search(message, refusal(path))


@pytest.mark.parametrize("content", ["", "- 1\n", "georgia\n", "7"])
def test_a_card_that_is_no_mapping_is_named(tmp_path, content):
    (tmp_path / "x.yaml").write_text(content)
    assert re.search(r"the card x\.yaml holds .*, expected its keys", refusal(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"licens": "MIT"}, "key in the card x.yaml: 'licens'. Did you mean 'licence'"),
        ({"modality": "ekg"}, "unknown modality 'ekg'.*Valid: .*ecg"),
        (
            {"expected": {"clean": {"test": {"norml": 1}}}},
            "class in the card x.yaml: expected, clean, test: 'norml'",
        ),
        ({"class_mapping": {"MI": "mi"}}, "class in the card x.yaml: class_mapping: 'mi'"),
        ({"merged_classes": {"ill": ["other", "norml"]}}, "x.yaml: merged_classes: 'norml'"),
        (
            {"merged_classes": {"ill": ["other"]}, "class_mapping": {"": "", "a": "other"}},
            "class in the card x.yaml: class_mapping: 'other'.*Valid: ill",
        ),
        ({"options": {"view": {"description": "d"}}}, r"x\.yaml: options\.view .*: default is mis"),
        ({"layouts": {"cinc": {"description": "d"}}}, r"x\.yaml: layouts\.cinc .*: records is mis"),
        ({"modality": None}, r"x\.yaml is incomplete: modality is missing"),
        ({"layouts": ["cinc"]}, r"x\.yaml: layouts is \['cinc'\], expected names with values"),
        ({"layouts": {"cinc": 7}}, r"x\.yaml: layouts\.cinc is 7, expected the keys description"),
        ({"notes": "one"}, r"x\.yaml: notes is 'one', expected a list"),
        ({"version": "1"}, r"x\.yaml: version is '1', expected a whole number"),
        ({"version": 2**63}, r"x\.yaml: version is 9223372036854775808, expected a number of 64"),
        ({"role": "sauce"}, r"value of the card x\.yaml: role: 'sauce'\. Did you mean 'source'"),
        (
            {"class_mapping": {1: "normal"}},
            r"the card x\.yaml: class_mapping has the name 1, expected",
        ),
        ({"name": "../x"}, r"x\.yaml: '\.\./x' is not a valid name of a dataset: use"),
        (
            {"name": "x", "code_table": "../t.csv"},
            r"code_table in .*x\.yaml is '\.\./t\.csv'",
        ),
        (
            {"name": "x", "split_table": "/t.csv"},
            r"split_table in .* is '/t\.csv': expected",
        ),
    ],
)
def test_faulty_card_is_named(tmp_path, change, message):
    content = yaml.safe_load((FOLDER / "georgia.yaml").read_text()) | change
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}))
    assert re.search(message, refusal(path))
