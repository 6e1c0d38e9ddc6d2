"""Logs in a run's folder: its history of sessions, metrics of training, hardware of each session.

``history.jsonl`` has the start and the end of each session.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmd_ray.cluster.hardware import Hardware, from_fields
from benchmd_ray.files.atomic import append_text, replacing, without_home
from benchmd_ray.files.integrity import line, read_line, read_lines

HISTORY = "history.jsonl"
EVENTS = ("started", "finished", "failed", "killed", "pruned")
INTERRUPTED = "interrupted"
LONGEST_REASON = 300


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append(folder: Path, event: str, **values: Any) -> None:
    append_text(folder / HISTORY, line({"event": event, "time": now(), **values}))


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Lines of a run's history, oldest first; those that were cut off or damaged are skipped.

    Each has ``event`` and ``time`` (ISO, UTC). ``started`` has ``device`` and ``from`` (steps or
    epochs done before); ``finished``, ``failed`` and ``killed`` have ``seconds``, ``failed`` its
    ``reason``. If the last line is ``started``, the session is running or was killed.
    """
    return list(filter(_is_event, read_lines(folder / HISTORY)))


def _is_event(line: dict[str, Any]) -> bool:
    try:
        timed = datetime.fromisoformat(line["time"]).tzinfo is not None
        return timed and line["event"] in EVENTS and 0 <= line.get("seconds", 0.0) < 2**53
    except (KeyError, TypeError, ValueError):
        return False


def seconds_worked(folder: Path) -> float:
    """Seconds of all sessions of a run; a session without an end counts until its last metrics."""
    lines = read_history(folder)
    ended = sum(float(event.get("seconds", 0.0)) for event in lines)
    return ended + (_open_seconds(folder, lines[-1]) if _open(lines) else 0.0)


def close_killed(folder: Path) -> None:
    """Write the end of a killed session; the caller must know that no process works on the run."""
    path, lines = folder / HISTORY, read_history(folder)
    if path.is_file() and not path.read_bytes().endswith(b"\n"):  # cut off within a line
        with replacing(path) as partial:
            partial.write_text("".join(map(line, lines)), "utf-8")
    if _open(lines):
        append(folder, "killed", seconds=round(_open_seconds(folder, lines[-1]), 3))


def reason(error: BaseException) -> str:
    """First line of an error, without the user's home folder."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    first = without_home((str(error).strip().splitlines() or [""])[0])
    text = first if type(error).__name__ == "BenchmdError" else f"{type(error).__name__}: {first}"
    return text[:LONGEST_REASON].encode("utf-8", "replace").decode()  # a path may not be UTF-8


def _open(lines: list[dict[str, Any]]) -> bool:
    return bool(lines) and lines[-1]["event"] == "started"


def _open_seconds(folder: Path, started: dict[str, Any]) -> float:
    path = folder / METRICS
    if not path.is_file():
        return 0.0
    return max(0.0, path.stat().st_mtime - datetime.fromisoformat(started["time"]).timestamp())


METRICS = "metrics.jsonl"
TAIL_BYTES = 4096
"""Bytes at the end of the file that hold its last line."""


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Lines of a run's metrics: ``done`` (steps or epochs) and values by name.

    Damaged lines are skipped.
    """
    return list(filter(_is_metrics, read_lines(folder / METRICS)))


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
    done = line.get("done")
    return all(map(_is_number, line.values())) and isinstance(done, int) and done >= 0


def _is_number(value: object) -> bool:
    """Whether a value is a number that fits arrays; a loss may be infinite or NaN."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**53
    return isinstance(value, float)


SESSIONS = "hardware.jsonl"
"""Log with a line for each session whose work is part of the result."""


def record_session(folder: Path, workers: Sequence[Hardware], step: int) -> None:
    """Record a session that starts from a checkpoint; sessions whose work was lost are dropped.

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
    sessions = []
    for fields in read_lines(folder / SESSIONS):
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            sessions.append(
                (int(fields["from"]), tuple(from_fields(worker) for worker in fields["workers"]))
            )
    return sessions
