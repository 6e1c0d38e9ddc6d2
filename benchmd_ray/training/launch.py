"""Start a training core: in this process for one worker, as a Ray Train job for several."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmd_ray.cluster import connected, require_shared
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.feed import streams
from benchmd_ray.errors import BenchmdError, Transient
from benchmd_ray.files import remove, write_json
from benchmd_ray.progress import progress
from benchmd_ray.training.engine import choose_device
from benchmd_ray.training.pretrain import PretrainJob, pretrain, require_pretrainable
from benchmd_ray.training.reporter import Reporter, RunReporter, SilentReporter, read_metrics
from benchmd_ray.training.transfer import TransferJob, require_transferable, transfer

Job = PretrainJob | TransferJob
Core = Callable[[Any, Worker, Reporter], None]

CORES: dict[type[Job], Core] = {PretrainJob: pretrain, TransferJob: transfer}
ERROR = "error.json"
SPLITS: dict[type[Job], tuple[str, ...]] = {
    PretrainJob: ("train",),
    TransferJob: ("train", "validation"),
}


def launch(job: Job, *, on_ray: bool = False, reporter: Reporter | None = None) -> None:
    """Run a job to its end, from its newest checkpoint on where there is one.

    The shards are hashed here, once; the workers look at their sizes alone.

    Args:
        job: What to do. Its paths are absolute: workers have working folders of their own.
        on_ray: Run a single worker on Ray too, on the cluster this process is connected to.
        reporter: Is told what a worker in this process does, instead of the folder's
            ``metrics.jsonl`` and the terminal. What it raises ends the work and is passed on as it
            is; the job started again goes on from its newest checkpoint.

    Raises:
        BenchmdError: The job cannot work as the settings say, a shard was altered, the work
            failed, or there is a reporter for workers in other processes.
    """
    if reporter is not None and (on_ray or job.settings.execution.workers > 1):
        raise BenchmdError(
            "a reporter of one's own is told of work in this process alone, and the job is for "
            f"{job.settings.execution.workers} workers on Ray: expected execution.workers=1."
        )
    catalog = open_catalog(job.catalog)
    execution, splits = job.settings.execution, SPLITS[type(job)]
    for split in splits:
        catalog.require_split(split)
        catalog.require_unaltered(split)
    if execution.workers > 1 or on_ray:
        if isinstance(job, PretrainJob):  # refused here before workers start; they look again
            require_pretrainable(job, catalog)
        else:
            require_transferable(job, catalog)
        # A spare CPU: Ray Data starves where workers hold them all.
        with connected(cpus=execution.workers * execution.cpus_per_worker + 1):
            _launch_on_ray(job)
        return
    streaming = any(streams(catalog, split, execution) for split in splits)
    with connected(cpus=2) if streaming else contextlib.nullcontext():
        worker = Worker(device=choose_device(execution.device))
        CORES[type(job)](job, worker, RunReporter(job.folder) if reporter is None else reporter)


def _launch_on_ray(job: Job) -> None:
    """Run a job as a Ray Train job and show the progress that its first worker reports."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    execution = job.settings.execution
    choose_gpu = execution.device == "cuda" or (
        execution.device == "auto" and ray.cluster_resources().get("GPU", 0) > 0
    )
    if choose_gpu and ray.cluster_resources().get("GPU", 0) < execution.workers:
        raise BenchmdError(
            f"{execution.workers} workers need as many GPUs and the cluster has "
            f"{ray.cluster_resources().get('GPU', 0):g}. Take fewer workers or "
            "--set execution.device=cpu."
        )
    require_shared(job.folder)
    storage = job.folder / "ray_train"
    for leftover in (job.folder / ERROR, storage):
        remove(leftover)
    trainer = TorchTrainer(
        worker_loop,
        train_loop_config={"job": job},
        scaling_config=ScalingConfig(
            num_workers=execution.workers,
            use_gpu=choose_gpu,
            resources_per_worker={"CPU": execution.cpus_per_worker, "GPU": int(choose_gpu)},
        ),
        run_config=RunConfig(
            name=job.folder.name,
            storage_path=str(storage.resolve()),
            failure_config=FailureConfig(max_failures=execution.max_failures),
        ),
    )
    try:
        with following(job):
            trainer.fit()
    except Exception as error:  # Ray wraps whatever a worker raised
        raise _worker_error(job, error) from error
    finally:
        remove(storage)


def _worker_error(job: Job, error: Exception) -> BenchmdError:
    """What a worker said it failed of, or what Ray says."""
    import json

    path = job.folder / ERROR
    if path.is_file():
        return BenchmdError(json.loads(path.read_text("utf-8"))["message"])
    return Transient(
        f"the Ray Train job in {job.folder} failed: {error}. Run the command again: it goes on "
        "from the newest checkpoint."
    )


def worker_loop(config: dict[str, Any]) -> None:
    """One worker of a Ray Train job."""
    import ray.train

    job: Job = config["job"]
    context = ray.train.get_context()
    if (job.folder / ERROR).is_file():
        raise RuntimeError("the work failed before; see the message there")
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
    reporter: Reporter = RunReporter(job.folder, silent=True) if first else SilentReporter()
    try:
        CORES[type(job)](job, worker, reporter)
    except BenchmdError as error:
        write_json(job.folder / ERROR, {"message": str(error)})
        raise


@contextlib.contextmanager
def following(job: Job) -> Iterator[None]:
    """Show the progress of a job whose first worker writes its metrics elsewhere."""
    done = threading.Event()

    def follow() -> None:
        pretraining = isinstance(job, PretrainJob)
        settings = job.settings
        total = job.last if isinstance(job, PretrainJob) else settings.transfer.epochs
        what = f"{'pretrain' if pretraining else 'transfer'}, {settings.execution.workers} workers"
        shown = progress(what, total, "steps" if pretraining else "epochs", _last(job.folder)[0])
        while not done.wait(1.0):
            shown.update(*_last(job.folder))
        shown.update(*_last(job.folder))
        shown.close()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _last(folder: Path) -> tuple[int, dict[str, float]]:
    """Units done and values of the last line of metrics."""
    lines = read_metrics(folder)
    if not lines:
        return 0, {}
    values = {key: value for key, value in lines[-1].items() if key not in ("done", "per_second")}
    return int(lines[-1]["done"]), values
