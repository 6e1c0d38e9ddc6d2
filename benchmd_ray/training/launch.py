"""Start a training: in this process for one worker, as a Ray Train job for several."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from benchmd_ray.cluster.connection import connected, embedded, require_shared
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.sizes import streams
from benchmd_ray.errors import BenchmdError, NoRoom, Stopped, Transient, count_of, first_line
from benchmd_ray.files.atomic import remove
from benchmd_ray.files.integrity import read_hashed_json
from benchmd_ray.runs.history import METRICS
from benchmd_ray.settings.definition import ExecutionSettings
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.training.engine import choose_device
from benchmd_ray.training.jobs import PretrainJob, TransferJob
from benchmd_ray.training.notice import heeding, noted
from benchmd_ray.training.pretrain import require_pretrainable
from benchmd_ray.training.ray_train import (
    CORES,
    ERROR,
    ERROR_FIELDS,
    LOOK_SECONDS,
    STOP,
    Job,
    JobEnd,
    end_of,
    following,
    record_end,
    record_hardware,
    record_restart,
    reporter_of,
    trainer_of,
    unless_stopped,
)
from benchmd_ray.training.reporter import Reporter
from benchmd_ray.training.transfer import require_transferable

SHORTEST_WAIT = 2.0
"""Seconds within which a cluster with free resources reserves them."""
SPLITS: dict[type[Job], tuple[str, ...]] = {
    PretrainJob: ("train",),
    TransferJob: ("train", "validation"),
}


def launch(
    job: Job,
    *,
    on_ray: bool = False,
    reporter: Reporter | None = None,
    catalog: Catalog | None = None,
) -> None:
    """Run a job to its end, from its newest checkpoint if there is one.

    Shard hashes are verified here once; workers only check sizes. With ``on_ray`` a single worker
    runs on Ray too, on the cluster that this process is connected to. A ``reporter`` is called in
    this process instead of writing ``metrics.jsonl`` and progress; its exceptions end the work.
    ``catalog`` is the job's catalog, if already open.

    Raises:
        BenchmdError: The settings do not fit, a shard was altered, or the work failed.
        Stopped: Ctrl-C or SIGTERM came, and a checkpoint was written.
    """
    if reporter is not None and (on_ray or job.settings.execution.workers > 1):
        raise BenchmdError(
            "a custom reporter is only called for work in this process, and the job is for "
            f"{count_of(job.settings.execution.workers, 'worker')} on Ray: expected "
            "execution.workers=1."
        )
    catalog = catalog or open_catalog(job.catalog)
    execution, splits = job.settings.execution, SPLITS[type(job)]
    for split in splits:
        catalog.require_split(split)
        catalog.require_unaltered(split)
    if execution.workers > 1 or on_ray:
        if isinstance(job, PretrainJob):  # raises before workers start; they check again
            require_pretrainable(job, catalog)
        else:
            require_transferable(job, catalog)
        fewest = execution.workers if embedded() else _possible(job)[-1]
        # A spare CPU: Ray Data starves if workers take all.
        with connected(cpus=fewest * execution.cpus_per_worker + 1):
            _launch_on_ray(job)
        return
    streaming = any(streams(catalog, split, execution) for split in splits)
    # With a frozen encoder the work starts over: it writes nothing before its end.
    begins_anew = isinstance(job, TransferJob) and job.settings.transfer.freezes
    with (
        connected(cpus=2) if streaming else contextlib.nullcontext(),
        contextlib.nullcontext() if begins_anew else heeding(),
    ):
        worker = Worker(device=choose_device(execution.device))
        record_hardware(job.folder, worker)
        CORES[type(job)](job, worker, reporter or reporter_of(job))


def _launch_on_ray(job: Job) -> None:
    """Run a job as a series of Ray Train jobs until it is done.

    If workers are lost, stall or are asked to end, the next job resumes from the newest checkpoint
    with as many workers as fit on the cluster. A job with fewer workers is asked to end once there
    is room for all.

    Ray Train's elastic scaling (2.60) is not used: under the same faults it takes a worker asked to
    end for a finished one, scales up without a checkpoint, counts failures over the whole run, and
    uses numbers of workers that do not divide the batch.
    """
    execution, gpus = job.settings.execution, _gpus_of_worker(job)
    require_shared(job.folder)
    failures, step = 0, checkpoint_step(job.folder)
    with heeding():
        workers = _room(job, gpus)
        while (ended := _with_room(job, workers, gpus)) is not None:
            before, step = step, checkpoint_step(job.folder)
            failures = 0 if step > before else failures
            failures += ended.event not in ("preempted", "growing")
            record_end(job, ended, workers)
            if failures > execution.max_failures:
                raise Transient(
                    f"the Ray Train job in {job.folder} failed: {ended.reason}. Run the command "
                    "again: it resumes from the newest checkpoint."
                )
            workers = _room(job, gpus)
            record_restart(job, step, workers)


def _with_room(job: Job, workers: int, gpus: int) -> JobEnd | None:
    """Run one Ray Train job with this many workers until there is room for all."""
    if workers == job.settings.execution.workers:
        return _attempt(job, gpus)
    execution = replace(job.settings.execution, workers=workers)
    smaller = replace(job, settings=replace(job.settings, execution=execution))
    with _growth(job, workers, gpus) as has_room:
        return _attempt(smaller, gpus, has_room)


@contextlib.contextmanager
def _growth(job: Job, workers: int, gpus: int) -> Iterator[Callable[[], bool]]:
    """Whether there is room for all workers, checked once the current ones are running.

    Earlier, the reservation would take resources that these need.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    execution, metrics = job.settings.execution, job.folder / METRICS
    bundles = [_bundle(execution, gpus)] * (execution.workers - workers) + [{"CPU": 1.0}]
    requests: list[tuple[Any, Any]] = []

    def written() -> int:
        return metrics.stat().st_mtime_ns if metrics.is_file() else 0

    def has_room() -> bool:
        if not requests:
            if written() == before:
                return False
            group = placement_group(bundles)
            requests.append((group, group.ready()))
        return bool(ray.wait([requests[0][1]], timeout=0)[0])

    before = written()
    try:
        yield has_room
    finally:
        for group, _ in requests:
            remove_placement_group(group)


def _gpus_of_worker(job: Job) -> int:
    import ray

    execution, gpus = job.settings.execution, ray.cluster_resources().get("GPU", 0)
    if execution.device == "cpu" or (execution.device == "auto" and not gpus):
        return 0
    if gpus < (fewest := _possible(job)[-1]):
        raise NoRoom(
            f"{fewest} workers need as many GPUs and the cluster has {gpus:g}. Use fewer workers "
            "or --set execution.device=cpu."
        )
    return 1


def _possible(job: Job) -> list[int]:
    """Numbers of workers with which the job may resume, largest first."""
    settings, execution = job.settings, job.settings.execution
    # Fine-tuning pads its shares of a batch.
    batch = settings.pretrain.batch_size if isinstance(job, PretrainJob) else 0
    fewest = execution.least_workers or execution.workers
    numbers = range(execution.workers, fewest - 1, -1)
    return [n for n in numbers if batch % (n * execution.accumulation) == 0]


def _room(job: Job, gpus: int) -> int:
    """Wait for free resources, and return for how many workers they suffice.

    A reservation is requested and released, so that the autoscaler sees the demand, and dead nodes
    do not count even before the cluster notices them.
    """
    execution, possible = job.settings.execution, _possible(job)
    workers = possible[0]
    _stop_if_noted()
    while not _reservable(workers, execution, gpus):
        workers = next((n for n in possible if _holds(n, execution, gpus)), 0)
        if not workers:
            raise NoRoom(
                f"for {execution.wait_seconds:g} s the cluster has had no room for {possible[-1]} "
                f"workers of {execution.cpus_per_worker} CPUs{' and a GPU' if gpus else ''} each "
                "and a spare CPU. Run the command again when nodes were added: it resumes from the "
                "newest checkpoint. Or allow fewer workers: --set execution.least_workers=1."
            )
    return workers


def _stop_if_noted() -> None:
    if number := noted():
        raise Stopped(number)


def _reservable(workers: int, execution: ExecutionSettings, gpus: int) -> bool:
    """Whether the cluster can reserve what workers need, within `execution.wait_seconds`."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([_bundle(execution, gpus)] * workers + [{"CPU": 1.0}])
    end = time.monotonic() + max(execution.wait_seconds, SHORTEST_WAIT)
    try:
        while not group.wait(LOOK_SECONDS):
            _stop_if_noted()
            if time.monotonic() > end:
                return False
        return True
    finally:
        remove_placement_group(group)


def _bundle(execution: ExecutionSettings, gpus: int) -> dict[str, float]:
    return {"CPU": float(execution.cpus_per_worker), "GPU": float(gpus)}


def _holds(workers: int, execution: ExecutionSettings, gpus: int) -> bool:
    """Whether this many workers would fit on the cluster's nodes if they were idle."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    bundle = {"CPU": execution.cpus_per_worker} | ({"GPU": gpus} if gpus else {})
    places = [min(node.get(name, 0) // count for name, count in bundle.items()) for node in nodes]
    cpus = sum(node.get("CPU", 0) for node in nodes)
    return bool(sum(places) >= workers and cpus > workers * execution.cpus_per_worker)


def _attempt(job: Job, gpus: int, room: Callable[[], bool] = lambda: False) -> JobEnd | None:
    """Run one Ray Train job; None if the work is done.

    Its workers are asked to end once ``room`` reports room for more.

    Raises:
        Transient: Ray Train itself failed.
    """
    import ray.train

    storage = job.folder / "ray_train"
    for leftover in (job.folder / ERROR, job.folder / STOP, storage):
        remove(leftover)
    try:
        with following(job):
            work = trainer_of(job, gpus, storage).fit
            result, grown = unless_stopped(work, job.folder, room)
    except ray.train.TrainingFailedError as error:
        _stop_if_noted()  # the ending machine may take the workers with it
        if (job.folder / ERROR).is_file():
            failed = read_hashed_json(job.folder / ERROR, "Run the command again.", ERROR_FIELDS)
            raise BenchmdError(failed["message"]) from error
        return end_of(error, job.settings.execution.workers)
    except Exception as error:  # whatever happens to Ray Train's processes
        _stop_if_noted()
        raise Transient(
            f"the Ray Train job in {job.folder} failed: {first_line(error)} Run the command again: "
            "it resumes from the newest checkpoint."
        ) from error
    finally:
        for path in (storage, job.folder / STOP):
            remove(path)
    if result.return_value is None:
        return None
    _stop_if_noted()
    if grown:
        return JobEnd("growing", "there is room for all workers again")
    name = signal.Signals(result.return_value).name
    return JobEnd("preempted", f"a worker was asked to end ({name})")
