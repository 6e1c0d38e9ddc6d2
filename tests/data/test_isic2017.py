"""ISIC 2017: its parts, what happens when one is missing, and the real sample."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.raw import Choices, Discovery
from benchmd_ray.errors import BenchmdError

CARD = dataset_card("isic-2017")
CLASSES = {(1, 0): "mel", (0, 1): "other", (0, 0): "nev"}
PARTS = {"Training": range(40), "Validation": range(100, 110), "Test_v2": range(200, 220)}


def labels(number: int) -> tuple[int, int]:
    return (int(number % 5 == 1), int(number % 5 == 2))


def write_part(root: Path, part: str, images: bool = True) -> None:
    """The files of one part, with blank images."""
    folder = root / f"ISIC-2017_{part}_Data"
    folder.mkdir(parents=True)
    with (root / f"ISIC-2017_{part}_Part3_GroundTruth.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "melanoma", "seborrheic_keratosis"])
        for number in PARTS[part]:
            writer.writerow([f"ISIC_{number:07d}", *(f"{on:.1f}" for on in labels(number))])
    with (folder / f"ISIC-2017_{part}_Data_metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "age_approximate", "sex"])
        for number in PARTS[part]:
            known = ("unknown", "unknown") if number % 7 == 0 else (5 * (number % 18), "female")
            writer.writerow([f"ISIC_{number:07d}", *known])
    for number in PARTS[part] if images else ():
        (folder / f"ISIC_{number:07d}.jpg").touch()
        (folder / f"ISIC_{number:07d}_superpixels.png").touch()


@pytest.fixture
def root(tmp_path) -> Path:
    for part in PARTS:
        write_part(tmp_path, part)
    return tmp_path


def discover(root: Path, policy: str = "clean") -> Discovery:
    return DATASETS["isic-2017"].discover(root, CARD, Choices(policy))


def test_parts_are_the_splits_and_superpixels_no_images(root):
    found = discover(root)
    assert (found.layout, found.missing, found.excluded) == ("official", [], {})
    assert found.grouped_by == "record"
    split_of = {"Training": "train", "Validation": "validation", "Test_v2": "test"}
    expected = [
        (f"ISIC_{number:07d}", split_of[part], CLASSES[labels(number)])
        for part, numbers in PARTS.items()
        for number in numbers
    ]
    assert [(i.record_id, i.split, i.label) for i in found.items] == expected
    assert len({item.group_id for item in found.items}) == 70


def test_age_and_sex_come_from_the_tables_among_the_images(root):
    for item in discover(root).items:
        number = int(item.record_id.removeprefix("ISIC_"))
        known = number % 7 != 0
        assert item.metadata == {
            "age": float(5 * (number % 18)) if known else None,
            "sex": "female" if known else None,
        }


@pytest.mark.parametrize(
    ("parts", "layout", "splits"),
    [
        (["Training"], "training", {"train", "validation"}),
        (["Validation"], "validation", {"train", "validation"}),
        (["Training", "Test_v2"], "official", {"train", "validation", "test"}),
        (["Training", "Validation"], "official", {"train", "validation"}),
        (["Test_v2"], "official", {"test"}),
    ],
)
def test_a_part_alone_is_divided_by_a_hash(tmp_path, parts, layout, splits):
    for part in parts:
        write_part(tmp_path, part)
    found = discover(tmp_path)
    assert found.layout == layout
    assert {item.split for item in found.items} == splits
    assert found == discover(tmp_path)
    official = set(parts) >= {"Training", "Validation"}
    training = [i.split for i in found.items if int(i.record_id[5:]) in PARTS["Training"]]
    assert official == (training == ["train"] * 40)
    for item in found.items:
        assert (item.split == "test") == (int(item.record_id[5:]) in PARTS["Test_v2"])


def test_a_table_without_its_images_does_not_make_a_part(tmp_path):
    write_part(tmp_path, "Training", images=False)
    write_part(tmp_path, "Validation")
    found = discover(tmp_path)
    assert found.layout == "validation"
    assert len(found.missing) == 40
    assert found.missing[0] == "ISIC-2017_Training_Data/ISIC_0000000.jpg"
    assert Counter(item.split for item in found.items).keys() == {"train", "validation"}


def test_released_draws_from_all_parts(root):
    found = discover(root, "released")
    assert found == discover(root, "released")
    counts = Counter((item.label, item.split) for item in found.items)
    assert counts == {
        ("mel", "train"): 11, ("mel", "validation"): 3,
        ("other", "train"): 11, ("other", "validation"): 3,
        ("nev", "train"): 34, ("nev", "validation"): 8,
    }  # fmt: skip


def test_of_two_sizes_the_larger_is_read(tmp_path):
    write_part(tmp_path, "Validation")
    for folder, size in (("images_256", 10), ("images_full", 200), ("a_small", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ISIC_0000103.jpg").write_bytes(b"x" * size)
    found = discover(tmp_path)
    assert found.excluded == {"its id appears twice; the first is kept": 3}
    paths = {item.record_id: item.path for item in found.items}
    assert paths["ISIC_0000103"] == "images_full/ISIC_0000103.jpg"
    assert len(paths) == 10


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("1.0,1.0", "its label 'melanoma+seborrheic_keratosis' is unknown"),
        (",0.0", "its label '?' is unknown"),
        ("0.5,0.0", "its label '?' is unknown"),
    ],
)
def test_an_unclear_label_is_never_guessed(root, values, reason):
    path = root / "ISIC-2017_Training_Part3_GroundTruth.csv"
    lines = path.read_text().splitlines()
    lines[4] = f"ISIC_0000003,{values}"
    path.write_text("\n".join(lines))
    found = discover(root)
    assert found.excluded == {reason: 1}
    assert "ISIC_0000003" not in {item.record_id for item in found.items}


def test_a_folder_without_labels_is_refused(tmp_path):
    with pytest.raises(BenchmdError, match=r"has no ISIC-2017_…_Part3_GroundTruth\.csv"):
        discover(tmp_path)


def test_clean_counts_are_those_of_the_challenge():
    counts = {split: sum(own.values()) for split, own in CARD.expected["clean"].items()}
    assert counts == {"train": 2000, "validation": 150, "test": 600}
    assert sum(counts.values()) == CARD.layouts["official"].records


@pytest.mark.data
def test_real_labels_are_the_published_counts(real_data):
    folder = real_data / "isic2017"
    tables = {
        "train": "ISIC-2017_Training_Part3_GroundTruth.csv",
        "validation": "example_ground_truth.csv",
    }
    for split, name in tables.items():
        with (folder / name).open(newline="") as file:
            rows = [
                (int(float(r["melanoma"])), int(float(r["seborrheic_keratosis"])))
                for r in csv.DictReader(file)
            ]
        assert Counter(CLASSES[row] for row in rows) == CARD.expected["clean"][split]


@pytest.mark.data
def test_real_sample_is_the_validation_part(real_data):
    folder = real_data / "isic2017"
    with (folder / "example_ground_truth.csv").open(newline="") as file:
        rows = {r["image_id"]: r for r in csv.DictReader(file)}
    found = discover(folder)
    assert found.layout == "validation"
    assert found.excluded == {"its id appears twice; the first is kept": 10}
    assert len(found.missing) == 2000 + 150 - 98
    small = {path.stem for path in (folder / "images_256").iterdir()}
    full = {path.stem for path in (folder / "images_full").iterdir()}
    assert {item.record_id for item in found.items} == small
    assert len(small) == 98
    for item in found.items:
        row = rows[item.record_id]
        key = (int(float(row["melanoma"])), int(float(row["seborrheic_keratosis"])))
        assert item.label == CLASSES[key]
        where = "images_full" if item.record_id in full else "images_256"
        assert item.path == f"{where}/{item.record_id}.jpg"
    assert Counter(item.label for item in found.items) == {"nev": 54, "other": 34, "mel": 10}
    assert Counter(item.split for item in found.items) == {"train": 77, "validation": 21}


@pytest.mark.data
def test_every_real_image_reads_as_pillow_reads_it(real_data):
    folder = real_data / "isic2017"
    for item in discover(folder).items:
        (record,) = DATASETS["isic-2017"].read(folder, item, CARD).records
        image = Image.open(folder / item.path)
        height = round(image.height * 224 / image.width)
        small = np.asarray(image.resize((224, height), Image.Resampling.BILINEAR))
        assert record.valid_size == (height, 224)
        top = (224 - height) // 2
        inside = record.signal[:, top : top + height]
        assert np.array_equal(inside.transpose(1, 2, 0), small)
        assert not record.signal[:, :top].any()
        assert not record.signal[:, top + height :].any()


@pytest.mark.data
def test_the_small_copy_of_an_image_gives_nearly_the_same_record(real_data):
    folder = real_data / "isic2017"
    differences = []
    for item in discover(folder).items:
        other = folder / "images_256" / Path(item.path).name
        if item.path.startswith("images_full"):
            (record,) = DATASETS["isic-2017"].read(folder, item, CARD).records
            small = np.asarray(Image.open(other).resize(record.valid_size[::-1]))
            top = (224 - record.valid_size[0]) // 2
            inside = record.signal[:, top : top + record.valid_size[0]].transpose(1, 2, 0)
            differences.append(np.abs(inside.astype(int) - small).mean())
    assert len(differences) == 10
    assert max(differences) < 6  # grey levels of 255
