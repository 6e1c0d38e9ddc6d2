"""Progress of a job whose workers are other processes, and the record of how they ended; no Ray.

Progress is read from what the first worker writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from benchmd_ray.console.progress import above, progress
from benchmd_ray.console.repeating import repeating
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import count_of, first_line
from benchmd_ray.files.atomic import append_text
from benchmd_ray.runs.history import last_metrics
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.training.jobs import PretrainJob, TransferJob

LOOK_SECONDS = 1.0

RESTARTS = "restarts.jsonl"
"""In a run's folder, where workers were lost: one line for each loss and each new start."""
GONE = "is gone"
ACTOR_ERRORS = ("RayActorError", "ActorDiedError", "ActorUnavailableError")
WAITED = ("timed out", "timeout", "health check has been hanging")


@dataclass(frozen=True)
class JobEnd:
    """How a Ray Train job ended without finishing its work."""

    event: Literal["lost", "stalled", "preempted", "growing"]
    """A worker is gone or failed; one stood still; one was told to end; all were, as there is room
    for more."""
    reason: str


def end_of(error: Exception, workers: int) -> JobEnd:
    """Why a Ray Train job with this many workers ended, in one line."""
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    reasons = {rank: _reason(failure) for rank, failure in sorted(failures.items())}
    # If one worker is gone or hangs, the others only report that they cannot reach it.
    gone = {rank: reason for rank, reason in reasons.items() if reason.startswith(GONE)}
    lines = [f"worker {rank} of {workers} {why}" for rank, why in (gone or reasons).items()]
    text = "; ".join(lines)
    waited = not gone and any(word in why.lower() for why in reasons.values() for word in WAITED)
    if waited:
        text = f"a worker stood still for execution.stall_seconds: {text}"
    return JobEnd("stalled" if waited else "lost", text or first_line(error))


def _reason(failure: Exception) -> str:
    failure = getattr(failure, "health_check_failure", failure)
    if type(failure).__name__ not in ACTOR_ERRORS:
        line = first_line(failure)
        broken = "by peer" in line  # it may be noticed before that worker's end itself
        return "lost the connection to another" if broken else f"says {line!r}"
    where = re.findall(r"^\s*(pid|ip): (\S+)$", str(failure), re.MULTILINE)
    return f"{GONE} ({', '.join(f'{name} {value}' for name, value in where) or 'node lost'})"


def record(folder: Path, event: str, line: str, **values: Any) -> None:
    """Print what happened to standard error, and write it into the run's folder."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    append_text(folder / RESTARTS, json.dumps({"event": event, "time": time, **values}) + "\n")
    with above():
        echo(f"{time} {line}", err=True)


@contextmanager
def following(job: PretrainJob | TransferJob) -> Iterator[None]:
    """Show the progress of a job whose first worker writes its metrics elsewhere."""
    settings = job.settings
    if isinstance(job, PretrainJob):
        stage, total = "pretrain", job.last
    else:
        stage, total = "transfer", settings.transfer.epochs
    title = f"{stage}, {count_of(settings.execution.workers, 'worker')}"
    display = progress(title, total, unit_of(job), checkpoint_step(job.folder))

    def show() -> None:
        display.update(*last_line(job.folder))

    try:
        with repeating(show, LOOK_SECONDS):
            yield
    finally:
        show()
        display.close()


def record_end(job: PretrainJob | TransferJob, ended: JobEnd, workers: int) -> None:
    """Print and record how a Ray Train job with this many workers ended."""
    done, unit = last_line(job.folder)[0], unit_of(job)
    line = f"after {done} {unit} with {count_of(workers, 'worker')}: {ended.reason}"
    values = {"reason": ended.reason, "done": done, "workers": workers}
    record(job.folder, ended.event, line, **values)


def record_restart(job: PretrainJob | TransferJob, step: int, workers: int) -> None:
    """Print and record the step that the next job resumes from, and its workers."""
    asked = job.settings.execution.workers
    line = (
        f"resumes from the checkpoint after {step} {unit_of(job)} with {workers} of {asked} workers"
    )
    record(job.folder, "restarted", line, **{"from": step, "workers": workers})


def last_line(folder: Path) -> tuple[int, dict[str, float]]:
    """Units done and values of the last line of metrics."""
    last = last_metrics(folder)
    if last is None:
        return 0, {}
    values = {key: value for key, value in last.items() if key not in ("done", "per_second")}
    return int(last["done"]), values


def unit_of(job: PretrainJob | TransferJob) -> str:
    """What a job counts."""
    return "steps" if isinstance(job, PretrainJob) else "epochs"
