"""Catalogs of which only the manifest is there: planning reads no record."""

from collections.abc import Callable
from pathlib import Path

import made_catalogs
import pytest
from made_catalogs import origin

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.manifest import manifest_of
from benchmd_ray.data.splits import TARGET_SPLIT

ROWS = {"train": 100, "validation": 30}


@pytest.fixture
def write_manifest(tmp_path: Path) -> Callable[..., Path]:
    """Writes the manifest of a catalog: its dataset, policy, rows and positives of each split.

    The dataset is the name of a card, or a card.
    """

    def write(dataset, policy="clean", rows=None, classes=None, folder=None):
        card = dataset_card(dataset) if isinstance(dataset, str) else dataset
        rows = rows or (ROWS if card.role == "source" else {TARGET_SPLIT[policy]: 50})
        positives = classes or dict.fromkeys(card.classes, 10)
        splits = {
            split: {"records": count, "units": count, "patients": count, "classes": positives}
            for split, count in rows.items()
        }
        shards = [
            {
                "file": f"shards/{split}-00000.parquet",
                **{"split": split, "rows": count, "bytes": 1, "sha256": "0" * 64},
            }
            for split, count in rows.items()
        ]
        path = (folder or tmp_path / "catalogs") / f"{card.name}-{policy}"
        about = manifest_of(card, origin(card, path) | {"policy": policy}, [])
        made_catalogs.write_manifest(path, about | {"splits": splits, "shards": shards})
        return path

    return write
