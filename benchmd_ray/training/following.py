"""How far a job is whose workers are other processes, and what is said of them.

Read from what its first worker writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmd_ray.console.progress import progress
from benchmd_ray.console.repeating import repeating
from benchmd_ray.errors import count_of
from benchmd_ray.runs.training_log import last_metrics
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.restarts import Lost, record

LOOK_SECONDS = 1.0


@contextlib.contextmanager
def following(job: PretrainJob | TransferJob) -> Iterator[None]:
    """Show the progress of a job whose first worker writes its metrics elsewhere."""
    settings, pretraining = job.settings, isinstance(job, PretrainJob)
    total = job.last if isinstance(job, PretrainJob) else settings.transfer.epochs
    workers = count_of(settings.execution.workers, "worker")
    what = f"{'pretrain' if pretraining else 'transfer'}, {workers}"
    shown = progress(what, total, unit_of(job), checkpoint_step(job.folder))

    def show() -> None:
        shown.update(*last_line(job.folder))

    try:
        with repeating(show, LOOK_SECONDS):
            yield
    finally:
        show()
        shown.close()


def tell_loss(job: PretrainJob | TransferJob, ended: Lost, workers: int) -> None:
    """Say and record how a Ray Train job of so many workers ended."""
    done, unit = last_line(job.folder)[0], unit_of(job)
    line = f"after {done} {unit} with {count_of(workers, 'worker')}: {ended.reason}"
    values = {"reason": ended.reason, "done": done, "workers": workers}
    record(job.folder, ended.event, line, **values)


def tell_restart(job: PretrainJob | TransferJob, step: int, workers: int) -> None:
    """Say and record from which step on the next one works, with how many workers."""
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
