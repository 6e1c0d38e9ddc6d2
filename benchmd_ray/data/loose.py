"""Files that no table names, read as records of a signal: new data, without labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmd_ray.data.apart import Apart, Died
from benchmd_ray.data.card_files import Files
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.chunks import as_request
from benchmd_ray.data.datasets.any_file import is_volume, suffixes
from benchmd_ray.data.raw import RawItem, walk
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task

NAME = "new-data"
"""Dataset that such records are of."""
NAMED_BY = {".hea": (".dat", ".mat"), ".mhd": (".raw", ".zraw")}
"""Endings of files that a header of the same name is read with."""
TRIES = 2
"""Times that a file may end the process that reads it."""
PROCESS = Apart("benchmd_ray.data.reading")
"""Reads the files."""


@dataclass(frozen=True)
class Loose:
    """What a file gave."""

    name: str
    """Of the file, below the folder that was named."""
    table: pa.Table | None
    """Its records, with the columns of a catalog; None where it cannot be read."""
    reason: str = ""
    """Why it cannot."""
    row: int | None = None
    """Of the file, from 0, where each row is a record."""
    row_id: str = ""
    """What the file calls that row, if it has a column of IDs."""


def loose_files(path: Path, signal: Signal, stated: Sequence[str] = ()) -> list[str]:
    """Files of a signal's formats: the file itself, or all below a folder, relative to it.

    A folder of DICOM files is one volume. ``stated``: endings that a card names instead.

    Raises:
        BenchmdError: There is none.
    """
    if path.is_file():
        return [path.name]
    if not path.is_dir():
        raise BenchmdError(f"{path} does not exist: name a catalog, a file or a folder of files.")
    ends = tuple(stated) or suffixes(signal)
    paths: list[str] = []
    for folder, names in walk(path, *(f"*{end}" for end in ends)):
        series = is_volume(signal) and all(name.lower().endswith(".dcm") for name in names)
        places = [folder] if series else [folder / name for name in names]
        paths += [place.relative_to(path).as_posix() for place in places]
    if not paths:
        raise BenchmdError(
            f"{path} holds no file of {signal.name}: expected a catalog, or files that end with "
            f"{', '.join(ends)}."
        )
    return sorted(paths)


def ignored_files(path: Path, signal: Signal) -> list[Path]:
    """Files below a folder that neither `loose_files` lists nor a header names."""
    ends = suffixes(signal)
    paths = []
    for folder, names in walk(path, "*"):
        named = {
            name.removesuffix(end) + part
            for end, parts in NAMED_BY.items()
            for name in map(str.lower, names)
            if end in ends and name.endswith(end)
            for part in parts
        }
        paths += [
            folder / name
            for name in names
            if not name.lower().endswith(ends) and name.lower() not in named
        ]
    return paths


def read_loose(
    path: Path, names: Sequence[str], signal: Signal, task: Task, files: Files | None = None
) -> Iterator[Loose]:
    """Read files, as `loose_files` names them, in a separate process; a crash costs one file only.

    A file over time that states no rate is taken to have the signal's. The task is that of the
    model they are for; their classes are unknown. ``files``: how a card reads its files.

    Raises:
        BenchmdError: A file cannot be read for now.
    """
    modality = Modality(NAME, signal, task, 1)
    usual = files or Files()
    usual = replace(usual, rate=usual.rate or signal.rate)
    card = DatasetCard(NAME, modality, files=usual)
    root = path.parent if path.is_file() else path
    for name in names:
        item = RawItem(name, name, name, "heldout", metadata={"held_out": NAME})
        yield from read_items(root, [item], card)


def read_items(root: Path, items: Sequence[RawItem], card: DatasetCard) -> Iterator[Loose]:
    """Read items of one file, each to what it gave; see `read_loose`."""
    request = as_request(card, items[0].split, str(root.resolve()), items)
    fault = "the process that reads it was ended from outside"
    for attempt in range(TRIES):
        try:
            head, data = PROCESS.call(request)
        except Died as died:
            if died.outside or attempt < TRIES - 1:
                continue
            fault = f"it {died.how}"
            break
        if "error" in head:
            raise BenchmdError(head["error"])
        if "fault" in head:
            fault = head["fault"]
            break
        yield from _by_item(items, head, pa.ipc.open_stream(pa.py_buffer(data)).read_all())
        return
    yield from (Loose(item.path, None, fault, item.details.get("row")) for item in items)


def _by_item(items: Sequence[RawItem], head: dict[str, Any], table: pa.Table) -> Iterator[Loose]:
    faults = {place: str(entry["reason"]) for place, entry in head["quarantined"]}
    rows: dict[str, list[int]] = {item.record_id: [] for item in items}
    for at, record in enumerate(table["record_id"].to_pylist()):
        rows[record if record in rows else record.rpartition("-")[0]].append(at)
    for place, item in enumerate(items):
        row = item.details.get("row")
        if place in faults:
            yield Loose(item.path, None, faults[place], row)
            continue
        own = table.take(pa.array(rows[item.record_id], pa.int64()))
        yield Loose(item.path, own, "" if len(own) else "; ".join(head["excluded"]), row)
