"""What is known of the files of a store's runs, so that unchanged ones are not read again.

The index of a store is one Parquet file in the user's cache (`files.cache`), not in the store: a
store may come from somebody else, and an index within it could state anything of its files. This
one was written by whoever may write to the cache, after each file had passed all checks.

An entry holds for a file's size, times of change, inode and the code that read it. Of these the
time of the last change of the inode (ctime) cannot be set back, so that a file that was written in
place is read again. A missing or damaged index only costs time, and of two processes that write it
at once the last one wins: what the other had read is read again.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import to_json

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import cache_folder, digest, parse_json
from benchmd_ray.files.cache import used
from benchmd_ray.files.integrity import Damaged, is_whole, replacing_hashed
from benchmd_ray.files.parquet import read_table

STATE = ("size", "mtime_ns", "ctime_ns", "inode")
COLUMNS = pa.schema(
    [("file", pa.string()), *((name, pa.uint64()) for name in STATE), ("content", pa.string())]
)
"""``file`` is relative to the store, ``content`` is JSON."""
CODE = b"code"
"""Metadata with the digest of the code that read the files."""
LEAST = 100
"""New entries for which the index is written; fewer are read again in less time."""
SETTLED_NS = 2 * 10**9
"""Nanoseconds since its last change after which a file is indexed: clocks of file systems are
coarse, and a file could change twice within one tick."""
State = tuple[int, ...]


@dataclass
class _Entries:
    """The entries of one store, by file."""

    path: Path
    of_files: dict[str, tuple[State, str]]
    new: int = 0


@dataclass
class Index:
    """Indexes of the stores whose files are asked for."""

    _stores: dict[str, _Entries] = field(default_factory=dict)

    def known(self, folder: Path, file: str, read: Callable[[], Any]) -> Any:
        """What ``read`` returns for a file of a run: from the index if the file has not changed.

        ``read`` verifies the file; what it returns is JSON-serialisable. If it raises, nothing is
        recorded.
        """
        path = folder / file
        store, run = str(folder.parent), folder.name
        entries, name = self._of(store), f"{run}/{file}"
        state = _state(path)
        entry = entries.of_files.get(name)
        if entry is not None and entry[0] == state:
            return parse_json(entry[1])
        content = read()
        if state and _is_settled(state) and _state(path) == state and not folder.is_symlink():
            with suppress(ValueError):  # nested deeper than that follows
                entries.of_files[name] = state, to_json(content).decode()
                entries.new += 1
        return content

    def save(self) -> None:
        """Write the indexes with at least `LEAST` new entries; those of removed files are dropped.

        Nothing is written where the cache is read-only or full, or a name or time cannot be stored.
        """
        for store, entries in self._stores.items():
            if entries.new >= LEAST:
                with suppress(OSError, BenchmdError, ValueError, OverflowError):
                    _write(store, entries)

    def _of(self, store: str) -> _Entries:
        if store not in self._stores:
            path = index_path(Path(store))
            self._stores[store] = _Entries(path, _entries(path))
        return self._stores[store]


@contextmanager
def indexed() -> Iterator[Index]:
    """An index that is saved at the end, also after an error."""
    index = Index()
    try:
        yield index
    finally:
        index.save()


def index_path(store: Path) -> Path:
    """The file with the index of a store."""
    return cache_folder() / "index" / f"{digest(os.fsencode(store.resolve()).hex())[:32]}.parquet"


def _state(path: Path) -> State:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _is_settled(state: State) -> bool:
    return time.time_ns() - max(state[1:3]) > SETTLED_NS


def _entries(path: Path) -> dict[str, tuple[State, str]]:
    """Entries of an index that this code wrote; none where it is missing or damaged."""
    if not path.is_file() or not is_whole(path):
        return {}
    try:
        table = read_table(path, path, "")
    except (Damaged, OSError):
        return {}
    used(path)
    if not table.schema.equals(COLUMNS) or (table.schema.metadata or {}).get(CODE) != _code():
        return {}
    if any(table[name].null_count for name in COLUMNS.names):
        return {}
    states = zip(*(table[name].to_pylist() for name in STATE), strict=True)
    names, contents = (table[name].to_pylist() for name in ("file", "content"))
    return dict(zip(names, zip(states, contents, strict=True), strict=True))


def _write(store: str, entries: _Entries) -> None:
    rows = dict(row for row in entries.of_files.items() if os.path.isfile(f"{store}/{row[0]}"))
    columns: dict[str, list[Any]] = {
        "file": [*rows],
        **{name: [entry[0][at] for entry in rows.values()] for at, name in enumerate(STATE)},
        "content": [entry[1] for entry in rows.values()],
    }
    table = pa.table(columns, schema=COLUMNS.with_metadata({CODE: _code()}))
    with replacing_hashed(entries.path) as partial:
        pq.write_table(table, partial, compression="lz4", use_dictionary=False)
    entries.new = 0


@functools.cache
def _code() -> bytes:
    """Digest of the package's files as they are, since other code may refuse what this accepts."""
    package = Path(__file__).resolve().parents[1]
    states = {
        path.relative_to(package).as_posix(): _state(path)[:2] for path in package.rglob("*.py")
    }
    return digest(states).encode()
