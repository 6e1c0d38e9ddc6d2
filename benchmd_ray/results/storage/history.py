"""What happened to a run: one line per session that started, finished, failed or was killed.

``history.jsonl`` in a run's folder. A session that was killed wrote no end; the next one writes it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmd_ray.files import read_json_lines, without_home

HISTORY = "history.jsonl"
METRICS = "metrics.jsonl"
"""What training writes while it works: its last change is when a killed session was last alive."""
INTERRUPTED = "interrupted"
"""Reason of a session that a signal ended."""
LONGEST_REASON = 300
"""Characters of a failure's reason that are kept."""


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append(folder: Path, event: str, **values: Any) -> None:
    """Write one line."""
    line = json.dumps({"event": event, "time": now(), **values}, ensure_ascii=False)
    with (folder / HISTORY).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Lines of a run's history, oldest first; a line that was cut off is left out.

    Each has ``event`` and ``time`` (ISO, UTC). ``started`` has ``device`` and ``from`` (steps or
    epochs done before); ``finished``, ``failed`` and ``killed`` have ``seconds``, ``failed`` its
    ``reason``. A last line ``started`` is a session at work, or one killed that none followed.
    """
    return read_json_lines(folder / HISTORY)


def seconds_worked(folder: Path) -> float:
    """Seconds of work in all sessions of a run.

    A session without an end counts until training last wrote its metrics.
    """
    lines = read_history(folder)
    ended = sum(float(line.get("seconds", 0.0)) for line in lines)
    return ended + (_open_seconds(folder, lines[-1]) if _open(lines) else 0.0)


def close_killed(folder: Path) -> None:
    """Write the end of a session that was killed; called when it is known that nobody works."""
    path, lines = folder / HISTORY, read_history(folder)
    if path.is_file() and not path.read_bytes().endswith(b"\n"):  # cut off within a line
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    if _open(lines):
        append(folder, "killed", seconds=round(_open_seconds(folder, lines[-1]), 3))


def reason(error: BaseException) -> str:
    """First line of an error, without the home folder of who ran it."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    first = without_home((str(error).strip().splitlines() or [""])[0])
    text = first if type(error).__name__ == "BenchmdError" else f"{type(error).__name__}: {first}"
    return text[:LONGEST_REASON]


def _open(lines: list[dict[str, Any]]) -> bool:
    return bool(lines) and lines[-1]["event"] == "started"


def _open_seconds(folder: Path, started: dict[str, Any]) -> float:
    path = folder / METRICS
    if not path.is_file():
        return 0.0
    return max(0.0, path.stat().st_mtime - datetime.fromisoformat(started["time"]).timestamp())
