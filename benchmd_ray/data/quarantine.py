"""Raw files that cannot be read: what a catalog says of them, and which to try again instead."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.raw import RawItem
from benchmd_ray.data.records import RecordError
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import FULL

TRANSIENT = {errno.EIO, errno.ESTALE, errno.ENFILE, errno.EMFILE, errno.ENOMEM}
TRANSIENT |= {*FULL}
"""Errors of the system that say nothing of the file: a failing disk or mount, too many open files,
no space for what a reader keeps for a while."""


def quarantined(
    error: Exception, item: RawItem, root: str, card: DatasetCard
) -> dict[str, str | None]:
    """An entry of the quarantine, without file names where these name patients.

    Raises:
        BenchmdError: The error may be gone when the file is read again.
    """
    reason = _reason(error)
    reason = reason.replace(f"{root}/", "").replace(root, "the raw folder")
    file: str | None = item.path
    if card.hides_names:
        file = None
        for name in _names(item, root, card):
            # not within another word: a folder "1" is not part of "12 leads"
            reason = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", "…", reason)
    if _is_transient(error):
        raise BenchmdError(
            f"{named(item, card)} cannot be read at the moment: {reason}. See to the disks and "
            "their space, the mount, the limits of open files and memory, and run the same command "
            "again: it resumes where it stopped. If it stays so, fetch that file anew."
        )
    return {"record": item.record_id, "file": file, "reason": reason}


def summarised(entries: Sequence[Mapping[str, str | None]]) -> list[str]:
    """Files with the reason they cannot be read; records of one file and reason together."""
    records: dict[tuple[str | None, str], list[str]] = {}
    for entry in entries:
        file, reason = entry["file"], str(entry["reason"]).rstrip(".")
        key = (file, reason) if file else (f"record {entry['record']}", reason)
        records.setdefault(key, []).append(str(entry["record"]))
    return [
        f"{name}: {reason}"
        if len(ids) == 1
        else f"{name}, {len(ids):,} records such as {ids[0]}: {reason}"
        for (name, reason), ids in records.items()
    ]


def named(item: RawItem, card: DatasetCard) -> str:
    """An item's file for messages, or its record where file names name patients."""
    return f"the record {item.record_id}" if card.hides_names else item.path


def _reason(error: Exception) -> str:
    """Why a file cannot be read. Only readers know which words of a file name nobody."""
    if isinstance(error, RecordError):
        return str(error)
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    functions = [frame.name for frame in frames if "benchmd_ray" in frame.filename]
    return f"{type(error).__name__} in {functions[-1] if functions else 'reading it'}"


def _is_transient(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is one of `TRANSIENT`."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in TRANSIENT:
            return True
        error = error.__cause__ or error.__context__
    return False


def _names(item: RawItem, root: str, card: DatasetCard) -> list[str]:
    """Names of the item's files and folders that a reason may hold, the longest first.

    Words of the layout's drawing without a digit are excluded: they are the same for everybody.
    """
    paths = {item.path, *_paths(item.details)}
    paths |= {path.relative_to(root).as_posix() for path in Path(root, item.path).rglob("*")}
    names: set[str] = set()
    for text in paths:
        path = Path(text)
        names |= {text, *path.parts, path.stem, path.name.partition(".")[0]}
    drawn = {word for layout in card.layouts.values() for word in layout.tree.split()}
    shared = {part for word in drawn for part in Path(word).parts if not re.search(r"\d", part)}
    return sorted(names - shared - {"", "/"}, key=lambda name: (-len(name), name))


def _paths(value: Any) -> Iterator[str]:
    """Texts of a nested dict or list that may be a path: with a slash or a suffix."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _paths(part)
    elif isinstance(value, str) and ("/" in value or Path(value).suffix):
        yield value
