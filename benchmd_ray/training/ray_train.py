"""Training as a Ray Train job: its workers, stop requests, progress, and how it ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed import distributed_c10d

from benchmd_ray.cluster.hardware import from_json, hardware
from benchmd_ray.console.progress import above, progress
from benchmd_ray.console.repeating import repeating
from benchmd_ray.console.terminal import echo
from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError, Stopped, Transient, count_of, first_line
from benchmd_ray.files.atomic import append_text
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.runs.history import last_metrics, record_session
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.training.engine import choose_device, gather
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.notice import note, noted
from benchmd_ray.training.pretrain import pretrain
from benchmd_ray.training.reporter import Reporter, RunReporter, SilentReporter
from benchmd_ray.training.transfer import transfer

Job = PretrainJob | TransferJob
Core = Callable[[Any, Worker, Reporter], None]
CORES: dict[type[Job], Core] = {PretrainJob: pretrain, TransferJob: transfer}
ERROR = "error.json"
ERROR_FIELDS = {"message": str}
STOP = "stop"
"""File in a run's folder that asks its workers to write a checkpoint and stop."""
RESTARTS = "restarts.jsonl"
"""File in a run's folder with one line for each loss of workers and each restart."""
LOOK_SECONDS, SHOW_SECONDS = 0.5, 1.0
"""Seconds between checks for outside events, and between updates of progress."""
LONGEST = 2048
"""Buffer size in bytes for a description of hardware."""
GONE = "is gone"
ACTOR_ERRORS = ("RayActorError", "ActorDiedError", "ActorUnavailableError")
WAITED = ("timed out", "timeout", "health check has been hanging")


def reporter_of(job: Job, *, silent: bool = False) -> Reporter:
    """A reporter that writes a run's metrics, and in a Ray process exports them to Prometheus."""
    samples = job.settings.pretrain.batch_size if isinstance(job, PretrainJob) else 0
    return RunReporter(job.folder, silent=silent, samples=samples)


def trainer_of(job: Job, gpus: int, storage: Path) -> Any:
    """A Ray Train job without automatic restarts."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    execution = job.settings.execution
    os.environ |= {
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": f"{execution.stall_seconds:g}",
        # Another job may take the room that was just found.
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{max(60.0, execution.wait_seconds):g}",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # it would restart workers by itself
    }
    return TorchTrainer(
        worker_loop,
        train_loop_config={"job": job},
        torch_config=_process_group(execution.stall_seconds),
        scaling_config=ScalingConfig(
            num_workers=execution.workers,
            use_gpu=bool(gpus),
            resources_per_worker={"CPU": execution.cpus_per_worker, "GPU": gpus},
        ),
        run_config=RunConfig(
            name=job.folder.name,
            storage_path=str(storage.resolve()),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )


def _process_group(stall_seconds: float) -> Any:
    """Ray Train's process group; its workers note SIGTERM and wait this long for each other."""
    from ray.train.torch import TorchConfig
    from ray.train.torch.config import _TorchBackend

    class Noting(_TorchBackend):  # type: ignore[misc]
        def on_training_start(self, worker_group: Any, backend_config: Any) -> None:
            worker_group.execute(_prepare, backend_config.timeout_s)

        def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
            """Does nothing: the processes end anyway, and a hanging one would block."""

    class Config(TorchConfig):  # type: ignore[misc]
        @property
        def backend_cls(self) -> type:
            return Noting

    return Config(timeout_s=max(1, math.ceil(stall_seconds)))


def _prepare(timeout_s: int) -> None:
    """Set up a worker in its main thread, the only one that can handle signals; Ray would exit."""
    signal.signal(signal.SIGTERM, lambda number, _: _note_once(number))
    # DeepSpeed makes further process groups without setting their timeout.
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        setattr(distributed_c10d, name, timedelta(seconds=timeout_s))


def _note_once(number: int) -> None:
    if not noted():
        note(number)


def unless_stopped(
    work: Callable[[], Any], folder: Path, room: Callable[[], bool]
) -> tuple[Any, bool]:
    """Work in another thread, and ask the workers to stop if there is a reason.

    In the main thread Ray Train would handle Ctrl-C and end the workers at once. Returns the
    result, and whether the work was stopped because there is ``room`` for more workers.
    """
    ended: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            ended.append((work(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    grown = False
    while thread.is_alive():
        thread.join(LOOK_SECONDS)
        if not (folder / STOP).exists() and (noted() or room()):
            grown = not noted()
            (folder / STOP).touch()
    result, error = ended[0]
    if error is not None:
        raise error
    return result, grown


def worker_loop(config: dict[str, Any]) -> int | None:
    """One worker of a Ray Train job; returns the signal that it stopped for, None when done."""
    import ray.train

    job: Job = config["job"]
    context = ray.train.get_context()
    # Ray Train has made the process group; DeepSpeed must not guess.
    os.environ.setdefault("LOCAL_RANK", str(context.get_local_rank()))
    worker = Worker(
        rank=context.get_world_rank(),
        world=context.get_world_size(),
        device=choose_device(job.settings.execution.device, context.get_local_rank()),
    )
    if worker.device.type == "cuda":
        torch.cuda.set_device(worker.device)  # for NCCL
    first = worker.rank == 0

    def look() -> None:  # for a signal to the process that waits for the workers
        if (job.folder / STOP).exists():
            _note_once(signal.SIGTERM)

    reporter = reporter_of(job, silent=True) if first else SilentReporter()
    try:
        with repeating(look, LOOK_SECONDS) if first else contextlib.nullcontext():
            record_hardware(job.folder, worker)
            CORES[type(job)](job, worker, reporter)
    except Stopped as stop:
        return int(stop.args[0])
    except Transient:
        raise  # like a lost worker: it is restarted
    except BenchmdError as error:
        write_hashed_json(job.folder / ERROR, {"message": str(error)})
        raise
    return None


@dataclass(frozen=True)
class JobEnd:
    """How a Ray Train job ended without finishing its work."""

    event: Literal["lost", "stalled", "preempted", "growing"]
    """A worker was lost or failed; stalled; was asked to end; or all were, as there is room for
    more.
    """
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
        text = f"a worker stalled for execution.stall_seconds: {text}"
    return JobEnd("stalled" if waited else "lost", text or first_line(error))


def _reason(failure: Exception) -> str:
    failure = getattr(failure, "health_check_failure", failure)
    if type(failure).__name__ not in ACTOR_ERRORS:
        line = first_line(failure)
        broken = "by peer" in line  # may be noticed before that worker's own end
        return "lost the connection to another" if broken else f"says {line!r}"
    where = re.findall(r"^\s*(pid|ip): (\S+)$", str(failure), re.MULTILINE)
    return f"{GONE} ({', '.join(f'{name} {value}' for name, value in where) or 'node lost'})"


def record(folder: Path, event: str, line: str, **values: Any) -> None:
    """Print an event to standard error, and append it to the run's `RESTARTS`."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    append_text(folder / RESTARTS, json.dumps({"event": event, "time": time, **values}) + "\n")
    with above():
        echo(f"{time} {line}", err=True)


@contextlib.contextmanager
def following(job: Job) -> Iterator[None]:
    """Show the progress of a job whose metrics are written by a worker in another process."""
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
        with repeating(show, SHOW_SECONDS):
            yield
    finally:
        show()
        display.close()


def record_end(job: Job, ended: JobEnd, workers: int) -> None:
    """Print and record how a Ray Train job with this many workers ended."""
    done, unit = last_line(job.folder)[0], unit_of(job)
    line = f"after {done} {unit} with {count_of(workers, 'worker')}: {ended.reason}"
    values = {"reason": ended.reason, "done": done, "workers": workers}
    record(job.folder, ended.event, line, **values)


def record_restart(job: Job, step: int, workers: int) -> None:
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


def unit_of(job: Job) -> str:
    """Unit of a job's progress."""
    return "steps" if isinstance(job, PretrainJob) else "epochs"


def record_hardware(folder: Path, worker: Worker) -> None:
    """Record the hardware of all workers at the start of a session; every worker calls it."""
    text = hardware(worker.device).to_json().encode()
    encoded = torch.tensor([list(text.ljust(LONGEST))], dtype=torch.uint8, device=worker.device)
    workers = [from_json(bytes(row.tolist()).decode()) for row in gather(encoded)]
    if worker.rank == 0:
        record_session(folder, workers, checkpoint_step(folder))
