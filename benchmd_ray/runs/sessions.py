"""The hardware of each session of a run's training, in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from benchmd_ray.cluster.hardware import Hardware, from_fields
from benchmd_ray.files.atomic import replacing
from benchmd_ray.files.integrity import line, read_lines

SESSIONS = "hardware.jsonl"
"""A line for each session whose work went into the result."""


def record_session(folder: Path, workers: Sequence[Hardware], step: int) -> None:
    """Record a session that begins at a checkpoint; sessions whose work is lost are dropped.

    ``step``: steps or epochs of that checkpoint, 0 without one.
    """
    earlier = [session for session in _sessions(folder) if session[0] < step]
    sessions = [*earlier, (step, tuple(dict.fromkeys(workers)))]
    with replacing(folder / SESSIONS) as partial, partial.open("w", encoding="utf-8") as file:
        for begin, distinct in sessions:
            file.write(
                line({"from": begin, "workers": [asdict(hardware) for hardware in distinct]})
            )


def trained_by(folder: Path) -> tuple[Hardware, ...]:
    """Distinct hardware that trained a run, in order; empty if unknown or nothing was trained."""
    return tuple(dict.fromkeys(hw for _, workers in _sessions(folder) for hw in workers))


def _sessions(folder: Path) -> list[tuple[int, tuple[Hardware, ...]]]:
    """First step and distinct hardware of each session, without damaged lines."""
    sessions = []
    for fields in read_lines(folder / SESSIONS):
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            sessions.append(
                (int(fields["from"]), tuple(from_fields(worker) for worker in fields["workers"]))
            )
    return sessions
