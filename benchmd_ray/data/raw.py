"""What a raw folder holds, before and after its files are read."""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import numpy.typing as npt

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.records import Record, RecordError
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.modality.tasks import UNKNOWN

Key = TypeVar("Key", bound=Hashable)
GroupedBy = Literal["patient", "lesion", "exam", "record"]

DUPLICATE = "its id appears twice; the first is kept"
"""Why a further file or item of one id is excluded; it is not a further record of the dataset."""
NO_ROW = "no table names it"
"""Why a file is excluded that is in none of the tables."""
LONGEST_NAME, LONGEST_PATH = 255, 3000
"""Bytes of a file's name and characters of its path: what file systems allow, about."""


@dataclass(frozen=True)
class Choices:
    """How a raw folder is to be labelled and split."""

    policy: str = "clean"
    split_table: Path | None = None
    """The split table that BenchMD released, for policy ``released`` where there is one."""
    options: Mapping[str, str] = field(default_factory=dict)
    """A value for each of the card's options."""
    hold_out: tuple[str, ...] = ()
    """Conditions whose records nothing is trained on; see `data.holding_out`."""
    two_classes: tuple[str, ...] = ()
    """Conditions of normal records, where the task is to tell these from all others; see
    `data.binary`."""

    def conditions(self, stated: Iterable[str]) -> tuple[str, ...]:
        """Conditions of an item; empty unless a choice needs some, so that no digest changes."""
        return tuple(sorted({*stated})) if self.hold_out or self.two_classes else ()


@dataclass(frozen=True, slots=True)
class RawItem:
    """One raw file before it is read, as plain data for a worker."""

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
    conditions: tuple[str, ...] = ()
    """What the source states of it in addition to its labels: findings without a class, noise."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else reading it takes, such as sibling files; JSON-serialisable."""

    def target(self, card: DatasetCard) -> list[int]:
        """One value per class: 1, 0, or -1 for unknown, as all are of held-out records.

        Raises:
            RecordError: A label is not a class of the card.
        """
        if self.metadata.get("held_out"):
            return [UNKNOWN] * len(card.classes)
        strange = set(self.labels or (self.label,)) - set(card.classes)
        if strange:
            label = "" if card.hides_names else f" {shown(strange.pop())}"
            raise RecordError(f"its label{label} is not a class of {card.name}")
        if self.labels:
            return [self.labels.get(name, UNKNOWN) for name in card.classes]
        return [int(name == self.label) for name in card.classes]

    def record(
        self,
        card: DatasetCard,
        signal: npt.NDArray[Any],
        valid_size: tuple[int, ...],
        *,
        part: str = "",
        **others: Any,
    ) -> Record:
        """A record of this file; ``part`` is what the name of one of several adds to the file's.

        ``others`` are fields of the record that are not those of the file.
        """
        name = self.record_id + part
        usual: dict[str, Any] = {"unit_id": name, "scale": 1.0, "metadata": self.metadata}
        if "target" not in others:
            usual["target"] = self.target(card)
        return Record(name, self.group_id, signal=signal, valid_size=valid_size, **usual | others)


@dataclass(frozen=True)
class Discovery:
    """What a raw folder holds."""

    layout: str
    items: list[RawItem]
    missing: list[str] = field(default_factory=list)
    """Files that a table names and that are not there."""
    excluded: dict[str, int] = field(default_factory=dict)
    """Records that are excluded before reading, by reason."""
    grouped_by: GroupedBy = "patient"
    """What a group stands for where the source names no patients."""
    only_held_out: Mapping[str, str] = field(default_factory=dict)
    """Records that are listed only to be held out, by id: why they are excluded otherwise."""
    states: Mapping[str, str] = field(default_factory=dict)
    """Conditions of parts of a file that only reading tells, by the file's own codes."""
    warnings: Mapping[str, int] = field(default_factory=dict)
    """What readers of the manifest should know of records that are listed, and of how many."""
    twice: int = 0
    """Files that are listed once more, for their parts that are held out."""

    @property
    def total(self) -> int:
        """Raw records, read or excluded, each counted once."""
        listed = len(self.items) - self.twice
        return listed + sum(self.excluded.values()) - self.excluded.get(DUPLICATE, 0)


@dataclass
class Reading:
    """What a raw file gave."""

    records: list[Record]
    excluded: Counter[str] = field(default_factory=Counter)
    """Parts of the file that the protocol leaves out, by reason: an unscored epoch."""
    warnings: Counter[str] = field(default_factory=Counter)
    """What readers of the manifest should know of records that are kept: a padded scan."""


@dataclass(frozen=True)
class RawReader:
    """The two functions that know a dataset's raw layout."""

    discover: Callable[[Path, DatasetCard, Choices], Discovery]
    """(raw folder, card, choices) → what the folder holds."""
    read: Callable[[Path, RawItem, DatasetCard], Reading]
    """(raw folder, item, card) → its records."""
    source: str = ""
    """SHA-256 of the module, where it is not the package's."""
    packages: tuple[str, ...] = ()
    """Of `extras.EXTRAS`: what reading its files needs."""


def walk(root: Path, *patterns: str) -> Iterator[tuple[Path, list[str]]]:
    """Folders below ``root`` with the names of their files that match a pattern, in any case.

    Links are followed and each folder visited once. Hidden entries are skipped, as archives packed
    on a Mac hold a ``._`` file next to each; so are pipes, sockets and devices.

    Raises:
        BenchmdError: The name of a file is not UTF-8, which no catalog could hold.
    """
    wanted = re.compile("|".join(fnmatch.translate(pattern.lower()) for pattern in patterns))
    seen: set[tuple[int, int]] = set()
    waiting = [os.fspath(root)]
    while waiting:
        folder = waiting.pop()
        try:
            place, (folders, names) = os.stat(folder), _names_in(folder)
        except OSError:
            continue
        if (place.st_dev, place.st_ino) in seen:
            continue
        seen.add((place.st_dev, place.st_ino))
        waiting += [os.path.join(folder, name) for name in sorted(folders, reverse=True)]
        matching = [name for name in names if wanted.fullmatch(name.lower())]
        try:
            "".join([folder, *matching]).encode()
        except UnicodeEncodeError:
            raise BenchmdError(
                f"the folder {folder!r} or a file in it has a name that is not UTF-8. Rename it."
            ) from None
        if matching:
            yield Path(folder), matching


def _names_in(folder: str) -> tuple[list[str], list[str]]:
    """Names of the visible folders and files in a folder.

    A link that leads nowhere is a file: reading it says so.
    """
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if entry.name[0] != "."]
    folders = {
        entry.name
        for entry in visible
        if (os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir())
    }
    others = (entry for entry in visible if entry.name not in folders)
    return [*folders], [
        entry.name
        for entry in others
        if entry.is_file(follow_symlinks=False)
        or os.path.isfile(entry.path)
        or not os.path.exists(entry.path)
    ]


def files(root: Path, *patterns: str) -> list[Path]:
    """Files below ``root`` whose name matches a pattern, by name; see `walk`."""
    paths = [folder / name for folder, names in walk(root, *patterns) for name in names]
    return sorted(paths, key=lambda p: (p.stem, p.as_posix()))


def inside(name: str, source: Path) -> str:
    """A path that a table or a file names, relative to the raw folder.

    Raises:
        BenchmdError: It leads out of that folder, or cannot exist. The message does not quote it,
            as it may name a patient.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise BenchmdError(
            f"{source} names a file that is not within the raw folder: expected paths relative to "
            "it."
        )
    longest = max((len(part.encode()) for part in path.parts), default=0)
    if "\0" in name or longest > LONGEST_NAME or len(name) > LONGEST_PATH:
        raise BenchmdError(
            f"{source} names a file that cannot be: expected at most {LONGEST_NAME} bytes of a "
            f"name and {LONGEST_PATH:,} characters of a path."
        )
    return name


def by_key(paths: Iterable[Path], key: Callable[[Path], Key | None]) -> tuple[dict[Key, Path], int]:
    """Files by key, and the number of `DUPLICATE` ones.

    The first file of a key is kept; those with the key None are skipped.
    """
    by_name: dict[Key, Path] = {}
    duplicates = 0
    for path in paths:
        name = key(path)
        if name is not None:
            duplicates += name in by_name
            by_name.setdefault(name, path)
    return by_name, duplicates
