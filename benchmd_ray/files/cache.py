"""What a machine keeps below ``BENCHMD_CACHE`` and may lose.

Decoded splits, computations, and working files of searches on S3.

Everything here is made again where it is missing. Local mirrors of stores on S3 and leases are in
the same folder and are not part of this: they may hold what is nowhere else yet.
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
"""Variable with the size in GiB beyond which the least recently used goes, whenever a split is
decoded; without it nothing goes by itself."""
RECENT_SECONDS = 3600.0
"""What was used later than that is in use, or will be again."""
GIB = 2**30


@dataclass(frozen=True)
class CacheEntry:
    """A file of the cache, or the folder of a search."""

    path: Path
    bytes: int
    used: float
    """When it was last used, in seconds since 1970."""


def used(path: Path) -> None:
    """Note that a file of the cache is used now."""
    with suppress(OSError):  # a cache that cannot be written
        os.utime(hash_path(path))


def entries() -> list[CacheEntry]:
    """What can be made again, the least recently used first."""
    folder, cached = cache_folder(), []
    for path in (
        *folder.glob("*.npy"),
        *folder.glob("*.parquet"),
        *folder.glob("report/*.parquet"),
    ):
        with suppress(FileNotFoundError):  # removed meanwhile
            times = [each.stat().st_mtime for each in (path, hash_path(path)) if each.is_file()]
            cached.append(CacheEntry(path, path.stat().st_size, max(times)))
    for path in folder.glob("searches/*"):
        with suppress(FileNotFoundError):  # removed meanwhile
            held = [each.stat() for each in (path, *path.rglob("*")) if not each.is_dir()]
            newest = max((each.st_mtime for each in held), default=path.stat().st_mtime)
            cached.append(CacheEntry(path, sum(each.st_size for each in held), newest))
    return sorted(cached, key=lambda entry: (entry.used, entry.path))


def prune(limit_bytes: float, *, dry_run: bool = False) -> list[CacheEntry]:
    """Remove the least recently used entries until the others take no more than a size.

    What was used within `RECENT_SECONDS`, or is being written, stays.

    Args:
        limit_bytes: The size.
        dry_run: Only say what would go.

    Returns:
        What was removed.
    """
    found = entries()
    left, removed = sum(entry.bytes for entry in found), []
    for entry in found:
        if left <= limit_bytes or time.time() - entry.used < RECENT_SECONDS:
            break
        if dry_run or _removed(entry.path):
            removed.append(entry)
            left -= entry.bytes
    return removed


def _removed(path: Path) -> bool:
    locks = sorted(path.glob("locks/*")) if path.is_dir() else [path.with_suffix(".lock")]
    try:
        with ExitStack() as held:
            for lock in locks:
                held.enter_context(locked(lock, f"what is kept at {path}"))
            remove(path)
            remove(hash_path(path))
    except (Busy, OSError):  # somebody works on it, or it cannot be removed
        return False
    return True


def stated_limit() -> float | None:
    """Bytes that `LIMIT` allows; None where it is not set.

    Raises:
        BenchmdError: It is not a number of GiB.
    """
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
    """Remove what `LIMIT` leaves no room for."""
    limit = stated_limit()
    if limit is not None:
        prune(limit)
