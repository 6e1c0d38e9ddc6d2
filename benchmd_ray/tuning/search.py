"""A search: Ray Tune executes the jobs of a study, until the budget is used.

Ray Tune places jobs, keeps processes warm, and restarts a job whose process was lost, which resumes
from its folder. Proposals, grants, early stopping and outcomes are decided by the study and stored
in its journal, so a killed search resumes without any state of Ray Tune.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmd_ray.cluster.connection import free_reserved
from benchmd_ray.cluster.gpu_memory import is_exhausted, take_share
from benchmd_ray.errors import DiskFull, Transient
from benchmd_ray.files.atomic import is_disk_full, remove
from benchmd_ray.tuning.limits import RESTARTS, Ended, Limits, Place
from benchmd_ray.tuning.stages import TrialContext
from benchmd_ray.tuning.trial import Catalogs, Reached, out_of_memory, run_trial, why_failed
from benchmd_ray.tuning.trial_files import leave_only

ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the study stores what they would write
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # a signal halts the search, see `Limits`
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # nothing is restored from these
    "TUNE_FORCE_TRIAL_CLEANUP_S": "5",
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # the number of jobs is decided by `Limits`
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Read by Ray Tune when it is imported or started."""
CRASHES = 2
"""Crashes of Ray Tune, over all sessions, after which the trials that were running fail."""
WAITING = {"memory": 1.0}
"""Resources of a job that waits for its workers, whose resources Ray Train reserves: one byte, as
zero is not allowed.
"""
AWAY_SECONDS = 15.0
"""Seconds before a job that failed for lack of resources or storage is restarted."""


def search(work: TrialContext, limits: Limits, ended: Ended, catalogs: Catalogs) -> None:
    """Run jobs until the budget is used, those interrupted in an earlier session first.

    ``catalogs`` gives the inner catalogs of an evaluation, one of each source, and may write them.
    Ray must be connected; raises `Transient` if Ray Tune itself fails repeatedly.
    """
    limits.study.end_stopped()
    leave_only(work.folder, limits.study.unfinished())
    storage = work.local / "ray_tune"
    with quiet_tune():
        while True:
            remove(storage)
            if limits.out_of_time or not (limits.waiting or limits.next_job()):
                break
            error: Exception | None = None
            try:
                _fit(work, limits, ended, catalogs, storage)
            except Exception as raised:  # such as by a trial that used up a node's memory
                error = raised
            remove(storage)
            if limits.place.workers > 1:
                free_reserved()  # of jobs that were interrupted
            limits.draining = False
            if limits.trouble is not None:
                raise limits.trouble
            if not limits.out_of_time:
                _after_crash(limits, error, ended)
            limits.running.clear()


def _after_crash(limits: Limits, error: Exception | None, ended: Ended) -> None:
    """After a crash of Ray Tune, fail the trials that were running at so many of them."""
    lines = str(error or "Ray Tune gave no reason").strip().splitlines()
    line = lines[-1] if lines else type(error).__name__
    lost = [
        job for job in limits.study.unfinished() if (job.number, job.evaluation) in limits.running
    ]
    if error is not None and not lost:
        raise Transient(f"Ray Tune failed: {line}. Run the same command again.") from error
    for job in lost:
        limits.lost(job.number, line)
        if limits.study.crashed(job.number) >= CRASHES:
            reason = f"its process was lost: {line}"
            limits.study.ended(job.number, job.evaluation, seconds=job.seconds, reason=reason)
            ended(job.number)


@contextmanager
def quiet_tune() -> Iterator[None]:
    """Keep Ray Tune from writing logs, on the terminal or next to its results."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    levels = {name: logging.getLogger(name).level for name in ("ray.tune", "ray.train")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _fit(
    work: TrialContext, limits: Limits, ended: Ended, catalogs: Catalogs, storage: Path
) -> None:
    from ray import tune

    from benchmd_ray.tuning.ray_tune import Jobs, Judge, Watch

    place = limits.place

    def resources_of(config: Mapping[str, Any]) -> Any:
        return tune.PlacementGroupFactory([resources(config, work, place)])

    trainable = tune.with_resources(tune.with_parameters(trial_loop, work=work), resources_of)
    # What a lost job reserved for its workers is freed when nothing runs any more, see `Judge`.
    restarts = RESTARTS if place.workers == 1 else 0
    tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=Jobs(limits, catalogs),
            scheduler=Judge(limits, ended, work),
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="search",
            storage_path=str(storage),
            stop=Watch(limits),
            failure_config=tune.FailureConfig(max_failures=restarts),
            verbose=0,
        ),
    ).fit()


def resources(config: Mapping[str, Any], work: TrialContext, place: Place) -> dict[str, float]:
    """What Ray Tune reserves for a job; families may differ in their workers, as heads have one."""
    if work.families[config["family"]].workers > 1:
        return WAITING
    return {"CPU": place.cpus / place.workers, "GPU": config["gpus"] / place.workers}


def trial_loop(config: Mapping[str, Any], work: TrialContext) -> None:
    """One job in a process of Ray Tune.

    Errors of the trial are reported; others are reported and raised, so that another process tries.
    """
    from ray import tune

    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = "60"  # a stopped job may be saving a file

    def report(reached: Reached) -> None:
        tune.report({**vars(reached), "scores": dict(reached.scores), "failed": ""})

    start = time.monotonic()
    try:
        take_share(config["gpus"])
        job = {name: value for name, value in config.items() if name != "gpus"}
        run_trial(work, report=report, **job)
    except Exception as error:
        seconds, lost = config["seconds"] + time.monotonic() - start, not is_of_trial(error, work)
        reason, memory = why_failed(error) or "no reason", is_exhausted(error)
        tune.report({"failed": reason, "lost": lost, "memory": memory, "seconds": seconds})
        if lost:
            time.sleep(AWAY_SECONDS)
            raise
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the next job may share this GPU


def is_of_trial(error: Exception, work: TrialContext) -> bool:
    """Whether an error is due to a trial's values, and not to disk, network, cluster or storage."""
    from ray.exceptions import RayError

    if isinstance(error, Transient | DiskFull | RayError) or is_disk_full(error, work.local):
        return False
    return not isinstance(error, OSError) or out_of_memory(error)
