"""Catalogs of noise as a build would write them, where nothing of Ray or a decoder is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.data.catalog import MANIFEST, Catalog, open_catalog
from benchmd_ray.data.geometry import Geometry, Grid
from benchmd_ray.data.manifest import manifest_of, shard_part
from benchmd_ray.data.records import Record, to_table
from benchmd_ray.files.atomic import write_json

RAW = {
    **{"records": 1, "expected": 1, "missing": 0},
    **{"grouped_by": "patient", "provenance": "synthetic"},
}


def noise_catalog(dataset: str, folder: Path, rows: Mapping[str, int]) -> Catalog:
    """A catalog of noise with so many records of each split."""
    card = dataset_card(dataset)
    parts = []
    for split, count in rows.items():
        name = f"{split}-00000"
        table = to_table(list(_records(card, split, count)), split, card)
        part = {"name": name, "split": split, "rows": len(table)}
        parts.append(part | shard_part(table, folder / "shards" / f"{name}.parquet", card))
    about = {
        **{"policy": "clean", "options": {n: o.default for n, o in card.options.items()}},
        **{"held_out": [], "layout": next(iter(card.layouts)), "plan": "noise", "raw": RAW},
        **{"excluded": {}, "warnings": {}, "quarantined": []},
    }
    write_json(folder / MANIFEST, manifest_of(card, about, parts))
    return open_catalog(folder)


def _records(card: DatasetCard, split: str, count: int) -> Iterator[Record]:
    signal, classes = card.signal, len(card.classes)
    generator = np.random.default_rng([0, len(split)])
    high = 255 if signal.dtype == "uint8" else 1000
    for row in range(count):
        values = generator.integers(0, high, signal.stored_shape).astype(signal.dtype)
        target: Sequence[int] | npt.NDArray[np.uint8] = (
            [row % 2] if classes == 1 else [int(k == row % classes) for k in range(classes)]
        )
        name, extents, geometry = f"{split}{row}", signal.stored_shape[1:], None
        if card.target.is_mask:
            target = generator.integers(0, classes, card.target.shape).astype(np.uint8)
            axes = tuple(np.eye(3).ravel().tolist())
            grid = Grid(extents[::-1], (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), axes)
            geometry = Geometry(grid, grid)
        yield Record(name, name, name, values, 0.001, extents, target, geometry=geometry)
