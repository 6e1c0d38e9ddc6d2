"""Files that no table names, read as records of a signal: new data, without labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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


def loose_files(path: Path, signal: Signal) -> list[str]:
    """Files of a signal's formats: the file itself, or all below a folder, relative to it.

    A folder of DICOM files is one volume.

    Raises:
        BenchmdError: There is none.
    """
    if path.is_file():
        return [path.name]
    if not path.is_dir():
        raise BenchmdError(f"{path} does not exist: name a catalog, a file or a folder of files.")
    ends = suffixes(signal)
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
    if usual.rows:
        raise BenchmdError(
            "files with a record in each row are not predicted: give their signals to "
            "classifier(run).predict in Python."
        )
    usual = replace(usual, rate=usual.rate or signal.rate)
    card = DatasetCard(NAME, modality, files=usual)
    root = path.parent if path.is_file() else path
    for name in names:
        yield _read(root, name, card)


def _read(root: Path, name: str, card: DatasetCard) -> Loose:
    item = RawItem(name, name, name, "heldout", metadata={"held_out": NAME})
    request = as_request(card, item.split, str(root.resolve()), [item])
    for attempt in range(TRIES):
        try:
            head, data = PROCESS.call(request)
        except Died as died:
            if died.outside or attempt < TRIES - 1:
                continue
            return Loose(name, None, f"it {died.how}")
        if "error" in head:
            raise BenchmdError(head["error"])
        if "fault" in head:
            return Loose(name, None, head["fault"])
        if head["quarantined"]:
            return Loose(name, None, str(head["quarantined"][0][1]["reason"]))
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        return Loose(name, table, "" if len(table) else "; ".join(head["excluded"]))
    return Loose(name, None, "the process that reads it was ended from outside")
