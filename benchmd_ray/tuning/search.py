"""A search: Ray Tune executes the trials that a study proposes, until the budget is used.

Ray Tune places trials, notices lost processes and keeps processes warm. Proposals, early stopping,
retries and outcomes are decided here and stored in the study, so a killed search resumes without
any state of Ray Tune.
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
from benchmd_ray.errors import DiskFull, Gone, NoRoom, Transient
from benchmd_ray.files.atomic import is_disk_full, remove
from benchmd_ray.tuning.limits import LOSSES, Ended, Limits
from benchmd_ray.tuning.stages import TrialContext, on_workers
from benchmd_ray.tuning.trial import Reached, out_of_memory, run_trial, why_failed
from benchmd_ray.tuning.trial_files import leave_only

ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the study stores what they would write
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # a signal halts the search, see `Limits`
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # nothing is restored from these
    "TUNE_FORCE_TRIAL_CLEANUP_S": "5",
    "TUNE_MAX_PENDING_TRIALS_PG": "64",  # the number of trials is decided here
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",  # otherwise Ray Tune restarts such a trial
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Read by Ray Tune when it is imported or started."""
WAITING = {"memory": 1.0}
"""Resources of a trial that waits for its workers, whose resources Ray Train reserves: one byte, as
zero is not allowed.
"""
AWAY_SECONDS = 5.0
"""Seconds before a trial that found no resources or no storage is retried."""


def search(work: TrialContext, limits: Limits, ended: Ended) -> None:
    """Run trials until the budget is used, those interrupted in an earlier session first.

    Ray must be connected; raises `Transient` if Ray Tune itself fails repeatedly.
    """
    limits.study.end_stopped()
    leave_only(work.folder, [trial.number for trial in limits.study.unfinished()])
    storage = work.local / "ray_tune"
    with quiet_tune():
        while True:
            remove(storage)
            limits.waiting = limits.study.unfinished()
            if limits.out_of_time:
                break
            if not limits.waiting:
                if (job := limits.next_job()) is None:
                    break
                limits.waiting = [job]
            error: Exception | None = None
            try:
                _fit(work, limits, ended, storage)
            except (
                Exception
            ) as raised:  # of Ray Tune, such as by a trial that used up a node's memory
                error = raised
            remove(storage)
            if limits.place.workers > 1:
                free_reserved()  # of trials that were interrupted
            limits.draining = False
            if limits.trouble is not None:
                raise limits.trouble
            if not limits.out_of_time:
                _after_crash(limits, error, ended)
            limits.running.clear()


def _after_crash(limits: Limits, error: Exception | None, ended: Ended) -> None:
    """After a crash of Ray Tune, fail running trials that were lost too often."""
    lines = str(error or "Ray Tune gave no reason").strip().splitlines()
    line = lines[-1] if lines else type(error).__name__
    lost = [job for job in limits.study.unfinished() if job.number in limits.running]
    if error is not None and not lost:
        raise Transient(f"Ray Tune failed: {line}. Run the same command again.") from error
    for job in lost:
        limits.lost(job.number, line)
        if limits.study.crashed(job.number) >= LOSSES:
            reason = f"its process was lost: {line}"
            limits.study.ended(job.number, seconds=job.seconds, reason=reason)
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


def _fit(work: TrialContext, limits: Limits, ended: Ended, storage: Path) -> None:
    from ray import tune

    from benchmd_ray.tuning.ray_tune import Jobs, Judge, Watch

    place = limits.place

    def resources_of(config: Mapping[str, Any]) -> Any:
        resources = {"CPU": place.cpus, "GPU": config["gpus"]}
        return tune.PlacementGroupFactory([resources if place.workers == 1 else WAITING])

    trainable = tune.with_resources(tune.with_parameters(trial_loop, work=work), resources_of)
    tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=Jobs(limits),
            scheduler=Judge(limits, ended, work),
            num_samples=-1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="search",
            storage_path=str(storage),
            stop=Watch(limits),
            failure_config=tune.FailureConfig(max_failures=0),  # see `Judge`
            verbose=0,
        ),
    ).fit()


def _failure_report(error: Exception, work: TrialContext) -> dict[str, Any]:
    from ray.exceptions import RayError

    away = isinstance(error, NoRoom | RayError) or getattr(error, "away", False)
    workers = any(on_workers(arm.settings) for arm in work.arms)
    transient = isinstance(error, Transient | DiskFull) or is_disk_full(error, work.local)
    broken = isinstance(error, OSError) and not out_of_memory(error)  # disk or network
    elsewhere = workers and isinstance(error, Transient) and not isinstance(error, Gone)
    lost = away or elsewhere or (broken and not transient)
    return {
        "failed": why_failed(error) or "no reason",
        "memory": is_exhausted(error),
        "away": away,  # its nodes or storage went away
        "lost": lost,  # another process may succeed
        "trouble": transient and not lost,  # fails until it is fixed
    }


def trial_loop(config: Mapping[str, Any], work: TrialContext) -> None:
    """One trial in a process of Ray Tune; every error is reported, not raised."""
    import ray
    from ray import tune

    node = ray.get_runtime_context().get_node_id()

    def report(reached: Reached) -> None:
        about = {"scores": dict(reached.scores), "failed": "", "node": node}
        tune.report({**vars(reached), **about})

    start = time.monotonic()
    try:
        take_share(config["gpus"])
        job = {name: value for name, value in config.items() if name not in ("gpus", "whole")}
        run_trial(work, report=report, **job)
    except Exception as error:
        seconds = config["seconds"] + time.monotonic() - start
        outcome = _failure_report(error, work)
        if outcome["away"]:
            time.sleep(AWAY_SECONDS)
        tune.report({**outcome, "seconds": seconds})
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the next trial may share this GPU
