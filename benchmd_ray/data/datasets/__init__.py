"""One module per raw layout: it lists what a raw folder holds and turns a file into records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets import cinc, ptbxl
from benchmd_ray.data.datasets.ecg import Discovery, RawItem
from benchmd_ray.data.records import Record


@dataclass(frozen=True)
class Dataset:
    """The two functions that know a dataset's raw layout."""

    discover: Callable[[Path, DatasetCard, str, Path | None], Discovery]
    """(raw folder, card, policy, released split table) → what the folder holds."""
    read: Callable[[Path, RawItem, DatasetCard], list[Record]]
    """(raw folder, item, card) → its records."""


_CINC = Dataset(cinc.discover, cinc.read)

DATASETS: dict[str, Dataset] = {
    "ptb-xl": Dataset(ptbxl.discover, ptbxl.read),
    "chapman-shaoxing": _CINC,
    "georgia": _CINC,
    "cpsc": _CINC,
}

__all__ = ["DATASETS", "Dataset", "Discovery", "RawItem"]
