"""What a raw folder holds, before and after its files are read."""

from __future__ import annotations

import fnmatch
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.records import Record, RecordError
from benchmd_ray.modalities import UNKNOWN

GroupedBy = Literal["patient", "lesion", "record"]


@dataclass(frozen=True)
class Choices:
    """How a raw folder is to be labelled and split."""

    policy: str = "clean"
    split_table: Path | None = None
    """The split table that BenchMD released, for policy ``released`` where there is one."""
    options: Mapping[str, str] = field(default_factory=dict)
    """A value for each of the card's options."""


@dataclass(frozen=True, slots=True)
class RawItem:
    """One raw file before it is read; plain data, so that it can be sent to a worker."""

    path: str
    """Relative to the raw folder: the file, or the folder of a series of files."""
    record_id: str
    """Unique in the dataset; names no person."""
    group_id: str
    """The patient, hashed."""
    split: str
    label: str | None = None
    """Its class, where a table gives the one it has."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """1, 0 or -1 (unknown) of each label, where a table gives several."""
    metadata: dict[str, float | str | None] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """What else reading it takes, such as sibling files; JSON-serialisable."""

    def target(self, card: DatasetCard) -> list[int]:
        """One value per class of the card: 1, 0, or -1 for unknown.

        Raises:
            RecordError: A label is no class of the card.
        """
        strange = set(self.labels or (self.label,)) - set(card.classes)
        if strange:
            raise RecordError(f"its label {strange.pop()!r} is no class of {card.name}")
        if self.labels:
            return [self.labels.get(name, UNKNOWN) for name in card.classes]
        return [int(name == self.label) for name in card.classes]


@dataclass(frozen=True)
class Discovery:
    """What a raw folder holds."""

    layout: str
    items: list[RawItem]
    missing: list[str] = field(default_factory=list)
    """Files that a table names and that are not there."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Records that are left out before reading, by reason."""
    grouped_by: GroupedBy = "patient"
    """What a group stands for where the source names no patients."""


@dataclass
class Reading:
    """What a raw file gave."""

    records: list[Record]
    left_out: Counter[str] = field(default_factory=Counter)
    """Parts of the file that the protocol leaves out, by reason: an unscored epoch."""
    remarks: Counter[str] = field(default_factory=Counter)
    """What readers of the manifest should know of records that are kept: a padded scan."""


@dataclass(frozen=True)
class Dataset:
    """The two functions that know a dataset's raw layout."""

    discover: Callable[[Path, DatasetCard, Choices], Discovery]
    """(raw folder, card, choices) → what the folder holds."""
    read: Callable[[Path, RawItem, DatasetCard], Reading]
    """(raw folder, item, card) → its records."""


def files(root: Path, *patterns: str) -> list[Path]:
    """Files below ``root`` whose name matches a pattern, without regard to case, by name."""
    wanted = [pattern.lower() for pattern in patterns]
    found = [
        Path(folder, name)
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in wanted)
    ]
    return sorted(found, key=lambda p: (p.stem, p.as_posix()))
