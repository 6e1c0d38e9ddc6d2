"""Metrics that training reports while it works: ``metrics.jsonl`` in a run's folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmd_ray.files.integrity import read_line, read_lines

METRICS = "metrics.jsonl"
TAIL_BYTES = 4096
"""Bytes at the end of the file that hold its last line."""


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Lines of a run's metrics: ``done`` (steps or epochs) and values by name.

    Damaged lines are skipped.
    """
    return [line for line in read_lines(folder / METRICS) if _is_metrics(line)]


def last_metrics(folder: Path) -> dict[str, float] | None:
    """The last line of a run's metrics; None without one."""
    path = folder / METRICS
    try:
        if not path.is_file():  # a pipe has no end
            return None
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            texts = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    lines = (read_line(text) for text in reversed(texts))
    return next((line for line in lines if line is not None and _is_metrics(line)), None)


def _is_metrics(line: dict[str, Any]) -> bool:
    """Whether a line has numbers only, and a count in ``done``."""
    done = line.get("done")
    return all(map(_is_number, line.values())) and isinstance(done, int) and done >= 0


def _is_number(value: object) -> bool:
    """Whether a value is a number that fits arrays; a loss may be infinite or NaN."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**53
    return isinstance(value, float)
