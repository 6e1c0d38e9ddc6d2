"""What the tests of synthetic data share."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from benchmd_ray.data.cards import dataset_card
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.discovery import chosen


def content(root: Path) -> dict[str, str]:
    """Hash of each file below a folder, by its path."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def records(root: Path, name: str):
    """Items of a raw folder, and the record of each, that a build would take."""
    card, dataset = dataset_card(name), DATASETS[name]
    discovery = dataset.discover(root, card, chosen(card, "clean", None, {}))
    assert not discovery.missing
    return discovery.items, [dataset.read(root, i, card).records[0] for i in discovery.items]


def small(read):
    """First channel of records as images of 28 × 28."""
    signals = np.stack([record.signal[0] for record in read]).astype(float)
    return signals.reshape(-1, 28, 8, 28, 8).mean(axis=(2, 4))
