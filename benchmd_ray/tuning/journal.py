"""Optuna's journal file, which holds all that a search knows, with a checksum on each line."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend

from benchmd_ray.files import remove
from benchmd_ray.integrity import MAX_LOG_BYTES, Damaged, checked, unchecked

REMEDY = "Put a copy in its place, or remove the search's folder to begin it anew."
FAULTS = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, AssertionError),
    *(OverflowError, RecursionError),
)
"""What Optuna raises of lines that it did not write."""


class Journal(JournalFileBackend):
    """Optuna's journal file, each line with its checksum."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines."""
        super().append_logs([checked(log) for log in logs])

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Lines from a number on.

        Raises:
            Damaged: One is not what was written.
        """
        for number, log in enumerate(super().read_logs(log_number_from), log_number_from + 1):
            if (held := unchecked(log)) is None:
                why = f"line {number} is not what was written"
                raise Damaged(self._file_path, why, REMEDY)
            yield held


def mend(path: Path) -> None:
    """Remove what a killed process left of a journal: its lock, and a line that was cut off."""
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
