"""The history of a run, ``history.jsonl``: each session's start, and its end once it is known."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmd_ray.files.atomic import append_text, replacing, without_home
from benchmd_ray.files.integrity import line, read_lines
from benchmd_ray.runs.training_log import METRICS

HISTORY = "history.jsonl"
EVENTS = ("started", "finished", "failed", "killed", "pruned")
INTERRUPTED = "interrupted"
LONGEST_REASON = 300
"""Characters of a failure's reason that are kept."""


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append(folder: Path, event: str, **values: Any) -> None:
    """Append one event."""
    append_text(folder / HISTORY, line({"event": event, "time": now(), **values}))


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Lines of a run's history, oldest first; those that were cut off or damaged are skipped.

    Each has ``event`` and ``time`` (ISO, UTC). ``started`` has ``device`` and ``from`` (steps or
    epochs done before); ``finished``, ``failed`` and ``killed`` have ``seconds``, ``failed`` its
    ``reason``. A last line ``started`` is a session at work, or one that was killed.
    """
    return [held for held in read_lines(folder / HISTORY) if _is_event(held)]


def _is_event(line: dict[str, Any]) -> bool:
    try:
        timed = datetime.fromisoformat(line["time"]).tzinfo is not None
        return timed and line["event"] in EVENTS and 0 <= line.get("seconds", 0.0) < 2**53
    except (KeyError, TypeError, ValueError):
        return False


def seconds_worked(folder: Path) -> float:
    """Seconds of all sessions of a run; one without an end counts until its last metrics."""
    lines = read_history(folder)
    ended = sum(float(held.get("seconds", 0.0)) for held in lines)
    return ended + (_open_seconds(folder, lines[-1]) if _open(lines) else 0.0)


def close_killed(folder: Path) -> None:
    """Write the end of a session that was killed; the caller knows that nobody works on the run."""
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
    return text[:LONGEST_REASON].encode("utf-8", "replace").decode()  # of a path that is not UTF-8


def _open(lines: list[dict[str, Any]]) -> bool:
    return bool(lines) and lines[-1]["event"] == "started"


def _open_seconds(folder: Path, started: dict[str, Any]) -> float:
    path = folder / METRICS
    if not path.is_file():
        return 0.0
    return max(0.0, path.stat().st_mtime - datetime.fromisoformat(started["time"]).timestamp())
