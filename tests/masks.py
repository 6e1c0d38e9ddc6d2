"""A small dataset of volumes with masks, in a catalog made without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import made_catalogs
import numpy as np

from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.geometry import Geometry, Grid
from benchmd_ray.data.records import Record
from benchmd_ray.demo.segmentation import drawn_volume
from benchmd_ray.modality.signals import valid_area

EXTENTS = (16, 24, 16)
COUNTS = {"train": 8, "validation": 4, "test": 4}


def small_card(extents: Sequence[int] = EXTENTS, **changes: object) -> DatasetCard:
    """The card of the hippocampus for small volumes."""
    card = dataset_card("hippocampus")
    shape = (1, *extents)
    signal = replace(
        card.signal, stored_shape=shape, input_shape=shape, patch=(8, 8, 8), name="small-mr"
    )
    return replace(card, modality=replace(card.modality, signal=signal), **changes)


def mask_record(number: int, card: DatasetCard, seed: int = 0) -> Record:
    """A record of a drawn volume, its middle cut out."""
    stored = card.signal.stored_shape[1:]
    values, mask = drawn_volume(number, seed)
    size = tuple(min(a, b - number % 3) for a, b in zip(values.shape, stored, strict=True))
    pairs = zip(values.shape, size, strict=True)
    middle = tuple(slice((a - b) // 2, (a - b) // 2 + b) for a, b in pairs)
    signal = np.full(card.signal.stored_shape, values.min(), np.int16)
    target = np.zeros(stored, np.uint8)
    area = valid_area(stored, size)
    signal[0, *area], target[area] = values[middle], mask[middle]
    start = [part.start for part in reversed(area)]
    identity = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    spacing = (1.0, 1.0, 1.2)
    file = Grid(tuple(reversed(size)), spacing, (5.0, 6.0, 7.0), identity)
    origin = tuple(o - s * w for o, s, w in zip(file.origin, spacing, start, strict=True))
    geometry = Geometry(file, Grid(tuple(reversed(stored)), spacing, origin, identity))
    name = f"case_{number:03d}"
    return Record(name, name, name, signal, 1.0, size, target, geometry=geometry)


def mask_splits(
    card: DatasetCard, counts: Mapping[str, int] = COUNTS
) -> dict[str, list[list[Record]]]:
    """Records of each split in two shards."""
    found, first = {}, 0
    for split, count in counts.items():
        records = [mask_record(first + number, card) for number in range(count)]
        found[split] = [records[: count // 2], records[count // 2 :]]
        first += count
    return found


def write_masks(path: Path, card: DatasetCard | None = None) -> Catalog:
    """A catalog of them."""
    card = card or small_card()
    return open_catalog(made_catalogs.write_catalog(path, card, mask_splits(card)))
