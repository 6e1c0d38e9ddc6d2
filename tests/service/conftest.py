"""Catalogs of which only the manifest is there: planning reads no record."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.catalog import FORMAT, MANIFEST
from benchmd_ray.data.splits import TARGET_SPLIT
from benchmd_ray.files import digest, write_json

ROWS = {"train": 100, "validation": 30}


@pytest.fixture
def write_manifest(tmp_path: Path) -> Callable[..., Path]:
    """Writes the manifest of a catalog: its dataset, policy, rows and positives of each split."""

    def write(dataset, policy="clean", rows=None, classes=None, folder=None):
        card = dataset_card(dataset)
        rows = rows or (ROWS if card.role == "source" else {TARGET_SPLIT[policy]: 50})
        positives = classes or dict.fromkeys(card.classes, 10)
        manifest = {
            "format": FORMAT,
            "dataset": dataset,
            "card_version": card.version,
            "modality": card.modality,
            "role": card.role,
            "policy": policy,
            "plan": "",
            "layout": "made",
            "options": {},
            "raw": {"records": 9, "expected": 9},
            "left_out": {},
            "remarks": {},
            "statistics": None,
            "quarantined": [],
            "splits": {
                split: {"records": count, "units": count, "classes": positives}
                for split, count in rows.items()
            },
            "shards": [],
        }
        path = (folder or tmp_path / "catalogs") / f"{dataset}-{policy}"
        path.mkdir(parents=True)
        write_json(path / MANIFEST, manifest | {"digest": digest([manifest, str(path)])})
        return path

    return write
