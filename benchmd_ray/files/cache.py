"""The machine's cache below ``BENCHMD_CACHE``: splits, computations, files of searches in a bucket.

Everything in the cache is recomputed when missing. Local mirrors of stores in a bucket and leases
are in the same folder but are not part of the cache: they may have unpublished work.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmd_ray.errors import BenchmdError, Busy
from benchmd_ray.files.atomic import cache_folder, locked, remove
from benchmd_ray.files.integrity import hash_path

LIMIT = "BENCHMD_CACHE_GIB"
"""Size in GiB beyond which the least recently used entries are removed when a split is decoded;
unset, nothing is removed."""
RECENT_SECONDS = 3600.0
"""Entries used within this time (seconds) are kept."""
GIB = 2**30


@dataclass(frozen=True)
class CacheEntry:
    """A file of the cache, or the folder of a search."""

    path: Path
    bytes: int
    used: float


def used(path: Path) -> None:
    """Mark a file of the cache as used now, by its hash or description."""
    with suppress(OSError):  # the cache may be read-only
        os.utime(path if path.suffix == ".json" else hash_path(path))


def entries() -> list[CacheEntry]:
    """Entries of the cache, least recently used first."""
    folder, cached = cache_folder(), []
    patterns = ("*.npy", "*.parquet", "report/*.parquet", "index/*.parquet", "features/*.npy")
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        with suppress(FileNotFoundError):  # removed meanwhile
            files = (path, *_about(path))
            times = [file.stat().st_mtime for file in files if file.is_file()]
            cached.append(CacheEntry(path, path.stat().st_size, max(times)))
    for path in folder.glob("searches/*"):
        with suppress(FileNotFoundError):  # removed meanwhile
            stats = [file.stat() for file in (path, *path.rglob("*")) if not file.is_dir()]
            newest = max((stat.st_mtime for stat in stats), default=path.stat().st_mtime)
            cached.append(CacheEntry(path, sum(stat.st_size for stat in stats), newest))
    return sorted(cached, key=lambda entry: (entry.used, entry.path))


def prune(limit_bytes: float, *, dry_run: bool = False) -> list[CacheEntry]:
    """Remove the least recently used entries until the rest fits a size; returns the removed ones.

    Entries used within `RECENT_SECONDS` or being written stay. ``dry_run`` only reports.
    """
    cached = entries()
    left, removed = sum(entry.bytes for entry in cached), []
    for entry in cached:
        if left <= limit_bytes or time.time() - entry.used < RECENT_SECONDS:
            break
        if dry_run or _removed(entry.path):
            removed.append(entry)
            left -= entry.bytes
    return removed


def _removed(path: Path) -> bool:
    locks = sorted(path.glob("locks/*")) if path.is_dir() else [path.with_suffix(".lock")]
    try:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(locked(lock, f"the cache entry {path}"))
            for file in (path, *_about(path)):
                remove(file)
    except (Busy, OSError):  # it is in use, or cannot be removed
        return False
    return True


def _about(path: Path) -> tuple[Path, Path]:
    """Files with the hash or the description of an entry."""
    return hash_path(path), path.with_suffix(".json")


def stated_limit() -> float | None:
    """Bytes that `LIMIT` allows; None if it is not set."""
    text = os.environ.get(LIMIT, "")
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise BenchmdError(f"{LIMIT} is {text!r}, expected a number of GiB, 0 or more.")
    return limit * GIB


def keep_within_limit() -> None:
    """Remove entries until `LIMIT` is kept."""
    limit = stated_limit()
    if limit is not None:
        prune(limit)
