"""What all datasets of colour photographs have in common."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.raw import Choices, Discovery

DERM = ("bcn20000", "ham10000", "pad-ufes-20")
FUNDUS = ("messidor-2", "aptos-2019", "jinchi")
NAMES = (*DERM, *FUNDUS)
POLICIES = ("clean", "released")


def discover(name: str, root: Path, policy: str = "clean") -> Discovery:
    return DATASETS[name].discover(root, dataset_card(name), Choices(policy))


def tables(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_file() and path.suffix != ".jpg"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_order_of_columns_and_rows_does_not_matter(synthetic_photos, copied_photos, name, policy):
    root = copied_photos(name)
    for path in tables(root):
        separator = ";" if path.name == "messidor-2.csv" else ","
        rows = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
        rows = rows[random.Random(3).sample(list(rows.columns), len(rows.columns))]
        rows.sample(frac=1, random_state=3).to_csv(path, sep=separator, index=False)
    before, after = discover(name, synthetic_photos[name], policy), discover(name, root, policy)
    assert sorted(before.items, key=repr) == sorted(after.items, key=repr)
    assert before.excluded == after.excluded


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_splits_are_drawn_once_and_never_overlap(synthetic_photos, copied_photos, name, policy):
    first = discover(name, synthetic_photos[name], policy)
    assert first == discover(name, synthetic_photos[name], policy)
    ids = [item.record_id for item in first.items]
    assert len(ids) == len(set(ids))
    if policy == "clean":
        return
    counts = Counter((item.label, item.split) for item in first.items)
    rounding = round if name in DERM else int
    for label in {item.label for item in first.items}:
        total = counts[label, "train"] + counts[label, "validation"]
        assert counts[label, "train"] == rounding(0.8 * total)
    root = copied_photos(name)  # who is drawn does not depend on which files are there
    (root / first.items[4].path).unlink()
    fewer = discover(name, root, policy)
    assert fewer.items == [item for item in first.items if item is not first.items[4]]


@pytest.mark.parametrize("name", NAMES)
def test_a_second_file_of_an_image_is_counted(synthetic_photos, copied_photos, name):
    expected = discover(name, synthetic_photos[name])
    root = copied_photos(name)
    image = root / expected.items[0].path
    further = image.parent / "zz" / f"{image.stem}{image.suffix.upper()}"
    further.parent.mkdir()
    shutil.copy(image, further)
    found = discover(name, root)
    assert found.items == expected.items
    reason = "its id appears twice; the first is kept"
    assert found.excluded == expected.excluded | {reason: 1}
    assert found.total == expected.total


@pytest.mark.parametrize("name", NAMES)
def test_read_fits_the_image_into_the_square(synthetic_photos, name):
    root, card = synthetic_photos[name], dataset_card(name)
    shapes = set()
    for item in discover(name, root).items[:12]:
        (record,) = DATASETS[name].read(root, item, card).records
        image = Image.open(root / item.path).convert("RGB")
        factor = 224 / max(image.size)
        width, height = (round(side * factor) for side in image.size)
        small = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
        top, left = (224 - height) // 2, (224 - width) // 2
        expected = np.zeros((224, 224, 3), np.uint8)
        expected[top : top + height, left : left + width] = small
        assert np.array_equal(record.signal.transpose(1, 2, 0), expected)
        assert record.valid_size == (height, width)
        assert [card.classes[i] for i, on in enumerate(record.target) if on] == [item.label]
        shapes.add(record.valid_size)
    assert len(shapes) == {"bcn20000": 2, "ham10000": 1}.get(name, len(shapes))
    assert name != "pad-ufes-20" or any(height > width for height, width in shapes)
