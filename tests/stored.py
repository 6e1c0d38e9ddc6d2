"""What stores hold, all of which must be readable: else the first reason is raised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import Item, StoredItems
from benchmd_ray.runs.store import Run, read_stores
from benchmd_ray.tuning.records import SearchRecord, read_searches


def runs(paths: list[Path]) -> list[Run]:
    """Runs of stores."""
    return whole(read_stores(paths))


def searches(stores: Sequence[Path]) -> list[SearchRecord]:
    """Searches of stores."""
    return whole(read_searches(stores))


def whole(stored: StoredItems[Item]) -> list[Item]:
    """All of them."""
    for why in stored.damaged.values():
        raise BenchmdError(why)
    return stored.found
