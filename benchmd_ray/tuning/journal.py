"""Optuna's journal of a search: a file, or a log on S3, each line with a checksum.

Only one process writes at a time: the holder of the search's lock, or on S3 of its lease. If a
process has lost the lease without noticing, the log refuses its lines.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock

from benchmd_ray.errors import Transient
from benchmd_ray.files.atomic import remove
from benchmd_ray.files.integrity import MAX_LOG_BYTES, Damaged, checked, line, read_line, unchecked
from benchmd_ray.storage.location import Address, Location, log_at

REMEDY = "Restore it from a copy, or remove the search's folder to start it over."
FAULTS = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError),
    *(OverflowError, RecursionError),
)
"""Errors of Optuna for lines that it did not write."""


def journal_at(place: Location) -> Journal | LoggedJournal:
    """The journal at a location, which may not exist yet.

    Raises:
        Damaged: It is not a regular file, is too long, or was changed.
    """
    if isinstance(place, Address):
        return LoggedJournal(place)
    mend(place)
    return Journal(place)


class Journal(JournalFileBackend):
    """Optuna's journal file, each line with its checksum."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), lock_obj=JournalFileOpenLock(str(path)))
        self.path: Location = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        super().append_logs([checked(log) for log in logs])

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Lines from a number on; raises `Damaged` if a line was changed."""
        for number, log in enumerate(super().read_logs(log_number_from), log_number_from + 1):
            if (entry := unchecked(log)) is None:
                why = f"line {number} is not what was written"
                raise Damaged(self.path, why, REMEDY)
            yield entry

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Does nothing: each line is written at once."""
        return contextlib.nullcontext()


class LoggedJournal(BaseJournalBackend):
    """A journal on S3, read only once, since no other process writes to it."""

    def __init__(self, address: Address) -> None:
        self.path: Location = address
        self._log = log_at(address, MAX_LOG_BYTES)
        try:
            *self._lines, rest = self._log.read().decode("utf-8").split("\n")
        except ValueError as error:  # includes decoding errors
            raise Damaged(address, str(error), REMEDY) from error
        if rest:
            raise Damaged(address, "its last line was cut off", REMEDY)
        self._pending: list[str] = []
        self._deep = 0
        self._failure: Exception | None = None
        """Why lines that are known here are not there: from then on nothing is known."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, now or at the end of `together`."""
        self._require_written()
        lines = [line(log) for log in logs]
        with self.together():
            self._lines += lines
            self._pending += lines

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Lines from a number on.

        Raises:
            Damaged: A line was changed.
            Transient: A line could not be written.
        """
        self._require_written()
        for number, text in enumerate(self._lines[log_number_from:], log_number_from + 1):
            if (entry := read_line(text)) is None:
                why = f"line {number} is not what was written"
                raise Damaged(self.path, why, REMEDY)
            yield entry

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Write all lines appended in the context with one request, all or none."""
        self._deep += 1
        try:
            yield
            if self._deep == 1 and self._pending:
                self._log.append("".join(self._pending).encode())
                self._pending = []
        except BaseException as error:  # a signal may also come before lines are written
            if not isinstance(error, Exception):
                why = f"writing to {self.path} was interrupted: run the same command again."
                self._failure = self._failure or Transient(why)
            else:
                self._failure = self._failure or error
            raise
        finally:
            self._deep -= 1

    def _require_written(self) -> None:
        if self._failure is not None:
            raise self._failure


def mend(path: Path) -> None:
    """Remove a killed process's lock and the line that it cut off."""
    for leftover in path.parent.glob(f"{path.name}.lock*"):
        remove(leftover)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Damaged(path, "it is a link or not a regular file", REMEDY)
    if path.is_file():
        if path.stat().st_size > MAX_LOG_BYTES:
            raise Damaged(path, f"it has more than {MAX_LOG_BYTES:,} bytes", REMEDY)
        whole = path.read_bytes().rfind(b"\n") + 1
        if whole < path.stat().st_size:
            os.truncate(path, whole)
