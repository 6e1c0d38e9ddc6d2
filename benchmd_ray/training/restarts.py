"""What becomes of a Ray Train job's workers, and the record of it; knows no Ray."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from benchmd_ray.console.progress import above
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import first_line
from benchmd_ray.files.atomic import append_text

RESTARTS = "restarts.jsonl"
"""In a run's folder, where workers were lost: one line for each loss and each new start."""
GONE = "is gone"
ACTOR_ERRORS = ("RayActorError", "ActorDiedError", "ActorUnavailableError")
WAITED = ("timed out", "timeout", "health check has been hanging")


@dataclass(frozen=True)
class Lost:
    """How a Ray Train job ended that did not end well."""

    event: Literal["lost", "stalled", "preempted", "growing"]
    """A worker is gone or failed; one stood still; one was told to end; all were, as there is room
    for more."""
    reason: str


def lost(error: Exception, workers: int) -> Lost:
    """What a Ray Train job of so many workers ended of, in one line.

    Args:
        error: Of Ray Train, with the ``worker_failures`` of each rank where workers failed.
        workers: How many it had.
    """
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    said = {rank: _said(failure) for rank, failure in sorted(failures.items())}
    # Where one is gone or stands still, the others only say that they cannot reach it.
    gone = {rank: text for rank, text in said.items() if text.startswith(GONE)}
    text = "; ".join(f"worker {rank} of {workers} {each}" for rank, each in (gone or said).items())
    waited = not gone and any(word in each.lower() for each in said.values() for word in WAITED)
    if waited:
        text = f"a worker stood still for execution.stall_seconds: {text}"
    return Lost("stalled" if waited else "lost", text or first_line(error))


def _said(failure: Exception) -> str:
    """What became of a worker."""
    failure = getattr(failure, "health_check_failure", failure)
    if type(failure).__name__ not in ACTOR_ERRORS:
        line = first_line(failure)
        broken = "by peer" in line  # it may be noticed before that worker's end itself
        return "lost the connection to another" if broken else f"says {line!r}"
    where = re.findall(r"^\s*(pid|ip): (\S+)$", str(failure), re.MULTILINE)
    return f"{GONE} ({', '.join(f'{name} {value}' for name, value in where) or 'node lost'})"


def record(folder: Path, event: str, line: str, **values: Any) -> None:
    """Say what happened on standard error, and write it into the run's folder.

    Args:
        folder: The run's.
        event: Of `Lost`, or ``restarted``.
        line: What to say.
        values: What else the line in `RESTARTS` holds.
    """
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    append_text(folder / RESTARTS, json.dumps({"event": event, "time": time, **values}) + "\n")
    with above():
        echo(f"{time} {line}", err=True)
