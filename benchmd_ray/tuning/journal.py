"""The journal of a search: one line with a checksum for each event, in a file or a log in a bucket.

Only one process writes at a time: the holder of the search's lock, or in a bucket of its lease. If
a process has lost the lease without noticing, the log refuses its lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmd_ray.errors import Transient
from benchmd_ray.files.atomic import append, open_regular
from benchmd_ray.files.integrity import MAX_LOG_BYTES, Damaged, line, read_line
from benchmd_ray.storage.location import Address, Location, log_at

REMEDY = "Restore it from a copy, or remove the search's folder to start it over."


class Journal:
    """Events in the order in which they were appended, each a JSON object."""

    def __init__(self, place: Location) -> None:
        self.place = place
        self._segments = log_at(place, MAX_LOG_BYTES) if isinstance(place, Address) else None
        self._failure: Exception | None = None
        """Why an event may not be written: then no other may follow."""

    def read(self) -> list[dict[str, Any]]:
        """All events; none if it does not exist yet.

        Raises:
            Damaged: It is not a regular file, is too long, or was changed.
        """
        try:
            data = self._read_file() if self._segments is None else self._segments.read()
            *lines, rest = data.decode("utf-8").split("\n")
        except ValueError as error:  # includes decoding errors
            raise Damaged(self.place, str(error), REMEDY) from error
        if rest:
            raise Damaged(self.place, "its last line was cut off", REMEDY)
        events = []
        for number, text in enumerate(lines, 1):
            if (event := read_line(text)) is None:
                raise Damaged(self.place, f"line {number} is not what was written", REMEDY)
            events.append(event)
        return events

    def _read_file(self) -> bytes:
        """Content of the file, from which the line that a killed process cut off is removed."""
        path = Path(str(self.place))
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ValueError("it is a link or not a regular file")
        if not path.exists():
            return b""
        if path.stat().st_size > MAX_LOG_BYTES:
            raise ValueError(f"it has more than {MAX_LOG_BYTES:,} bytes")
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
        return data[:whole]

    def append(self, event: Mapping[str, Any]) -> None:
        """Write an event, all or nothing.

        Raises:
            Transient: The process was interrupted while it wrote an earlier one.
        """
        if self._failure is not None:
            raise self._failure
        try:
            self._write(line(event).encode())
        except BaseException as error:  # a signal may also come before it is written
            why = f"writing to {self.place} was interrupted: run the same command again."
            self._failure = error if isinstance(error, Exception) else Transient(why)
            raise

    def _write(self, data: bytes) -> None:
        if self._segments is not None:
            self._segments.append(data)
            return
        path = Path(str(self.place))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(open_regular(path, flags), "ab", buffering=0) as file:
            append(file, data, path)
            os.fsync(file.fileno())
