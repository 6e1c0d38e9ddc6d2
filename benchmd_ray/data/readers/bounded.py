"""Files of which no more is held than there is, or than a reader needs."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from benchmd_ray.data.records import RecordError

VERSION = 1
MOST_PACKED = 1032
"""Bytes that gzip makes of one, at most."""
ANY = 2**62
"""A bound that no file reaches."""


def require_held(claimed: int, size: int, *, is_packed: bool) -> None:
    """Refuse a claim of more bytes than a file of that size can hold, compressed by gzip or not."""
    if claimed > size * (MOST_PACKED if is_packed else 1):
        packed = ", compressed" if is_packed else ""
        raise RecordError(
            f"it is cut off: expected {claimed:,} bytes, the file has {size:,}{packed}"
        )


def require_file(path: Path, what: str = "the file") -> None:
    """Refuse a pipe, a socket or a device: opening or reading one may never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder fails when it is opened
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket or a device"
        raise RecordError(f"{what} is {kind}, expected a file")


def read_bounded(path: Path, limit: int, what: str, *, first_bytes: int | None = None) -> bytes:
    """The bytes of a small file, or only the first; ``what`` names it in messages."""
    try:
        with BoundedFile(path, limit, what) as file:
            return file.read(first_bytes)
    except OSError as error:
        raise RecordError(f"{what} cannot be opened: {error.strerror or error}") from error


class BoundedFile(io.BufferedReader):
    """A file that sets no more memory aside than it has bytes, whatever a length in it claims.

    Refused are files of more than ``limit`` bytes, a call for more than ``at_once`` bytes, and more
    than ``reads`` calls.
    """

    def __init__(
        self,
        path: Path,
        limit: int,
        what: str = "the file",
        *,
        at_once: int = ANY,
        reads: int = ANY,
    ) -> None:
        require_file(path, what)
        super().__init__(io.FileIO(os.fspath(path)))
        self.bytes = os.fstat(self.fileno()).st_size
        self._at_once, self._reads = at_once, reads
        if self.bytes > limit:
            self.close()
            raise RecordError(f"{what} has {self.bytes:,} bytes, expected at most {limit:,}")

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self.bytes - self.tell(), 0)
        size = left if size is None or size < 0 else min(size, left)
        self._reads -= 1
        if size > self._at_once or self._reads < 0:
            raise RecordError(
                f"it has a part of {size:,} bytes (at most {self._at_once:,} are taken), or more "
                "parts than any such file"
            )
        return super().read(size)
