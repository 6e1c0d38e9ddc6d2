"""A job as a Ray Train job: its workers, and how a stop reaches them."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import distributed_c10d

from benchmd_ray.console.repeating import repeating
from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError, Stopped, Transient
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.training.engine import choose_device
from benchmd_ray.training.hardware import record_hardware
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.notice import note, noted
from benchmd_ray.training.pretrain import pretrain
from benchmd_ray.training.reporter import MeteredReporter, Reporter, RunReporter, SilentReporter
from benchmd_ray.training.transfer import transfer

Job = PretrainJob | TransferJob
Core = Callable[[Any, Worker, Reporter], None]
CORES: dict[type[Job], Core] = {PretrainJob: pretrain, TransferJob: transfer}
ERROR = "error.json"
ERROR_FIELDS = {"message": str}
"""What it holds."""
STOP = "stop"
"""In a run's folder: its workers are to write a checkpoint and stop."""
LOOK_SECONDS = 0.5
"""How often what comes from elsewhere is looked at."""


def reporter_of(job: Job, *, silent: bool = False) -> Reporter:
    """Writes the metrics of a job's run, and tells Prometheus where this is a process of Ray."""
    samples = job.settings.pretrain.batch_size if isinstance(job, PretrainJob) else 0
    return MeteredReporter(RunReporter(job.folder, silent=silent), job.folder.name, samples)


def trainer_of(job: Job, gpus: int, storage: Path) -> Any:
    """A Ray Train job that starts nothing again by itself."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    execution = job.settings.execution
    os.environ |= {
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": f"{execution.stall_seconds:g}",
        # Another one may take the room that was just found.
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{max(60.0, execution.wait_seconds):g}",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # it would start workers again by itself
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
    """Ray Train's process group, whose workers note SIGTERM and wait for each other so long."""
    from ray.train.torch import TorchConfig
    from ray.train.torch.config import _TorchBackend

    class Noting(_TorchBackend):  # type: ignore[misc]
        def on_training_start(self, worker_group: Any, backend_config: Any) -> None:
            worker_group.execute(_prepare, backend_config.timeout_s)

        def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
            """Nothing: the processes end, and one that hangs would be waited for."""

    class Config(TorchConfig):  # type: ignore[misc]
        @property
        def backend_cls(self) -> type:
            return Noting

    return Config(timeout_s=max(1, math.ceil(stall_seconds)))


def _prepare(timeout_s: int) -> None:
    """Runs in the main thread of a worker, the only one that can handle signals; Ray would exit."""
    signal.signal(signal.SIGTERM, lambda number, _: _note_once(number))
    # DeepSpeed makes further process groups, without a word on how long they wait.
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        setattr(distributed_c10d, name, timedelta(seconds=timeout_s))


def _note_once(number: int) -> None:
    if not noted():
        note(number)


def unless_stopped(
    work: Callable[[], Any], folder: Path, room: Callable[[], bool]
) -> tuple[Any, bool]:
    """Do the work in another thread, and tell the workers to stop where there is a reason.

    In this thread Ray Train would take Ctrl-C for itself, and end the workers at once.

    Returns:
        What the work gave, and whether it was stopped for that room.
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
    """One worker of a Ray Train job.

    Returns:
        The signal that it stopped for; None where the work is done.
    """
    import ray.train

    job: Job = config["job"]
    context = ray.train.get_context()
    # Frees DeepSpeed from guessing: Ray Train has made the process group.
    os.environ.setdefault("LOCAL_RANK", str(context.get_local_rank()))
    worker = Worker(
        rank=context.get_world_rank(),
        world=context.get_world_size(),
        device=choose_device(job.settings.execution.device, context.get_local_rank()),
    )
    if worker.device.type == "cuda":
        torch.cuda.set_device(worker.device)  # for NCCL
    first = worker.rank == 0
    reporter = reporter_of(job, silent=True) if first else SilentReporter()
    try:
        with _noting_stop(job.folder) if first else contextlib.nullcontext():
            record_hardware(job.folder, worker)
            CORES[type(job)](job, worker, reporter)
    except Stopped as stop:
        return int(stop.args[0])
    except Transient:
        raise  # as a worker that is lost: it is started again
    except BenchmdError as error:
        write_hashed_json(job.folder / ERROR, {"message": str(error)})
        raise
    return None


@contextlib.contextmanager
def _noting_stop(folder: Path) -> Iterator[None]:
    """Note the signal that came to the process that waits for the workers."""

    def look() -> None:
        if (folder / STOP).exists():
            _note_once(signal.SIGTERM)

    with repeating(look, LOOK_SECONDS):
        yield
