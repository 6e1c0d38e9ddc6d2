"""Execution of a trial: training with its values on the inner catalogs."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmd_ray.cluster.gpu_memory import is_exhausted
from benchmd_ray.data.catalog import confined
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import locked, remove, without_home
from benchmd_ray.files.integrity import write_hash
from benchmd_ray.training.seeds import derived_seed
from benchmd_ray.tuning.spaces import applied
from benchmd_ray.tuning.stages import OUT_OF_SAMPLE, Clock, Setup, TrialContext, on_workers
from benchmd_ray.tuning.trial_files import Archive, put_scores, remove_idle


@dataclass(frozen=True)
class Reached:
    """Progress of a trial."""

    evaluation: int
    step: int
    score: float
    """Score on the validation records so far: AUROC, or DSC for masks; mean over finished arms."""
    scores: Mapping[str, float]
    seconds: float
    whole: bool = False
    complete: bool = False
    """Whether it was the last requested evaluation."""


Report = Callable[[Reached], None]


def run_trial(
    work: TrialContext,
    number: int,
    values: Mapping[str, Any],
    report: Report,
    seconds: float = 0.0,
    *,
    evaluations: Sequence[int] = (0,),
    resumed: bool = True,
    unfinished: Sequence[int] = (),
) -> None:
    """Run evaluations of a trial, resuming an interrupted process.

    ``resumed``: whether a process may have begun them, here or on another machine; ``seconds``:
    earlier work; ``unfinished``: trials that may continue (`trial_files.remove_idle`).

    Raises:
        BenchmdError: The trial fails with these values: its loss is NaN, it ran out of memory, or a
            value does not fit the data.
    """
    torch.set_num_threads(max(1, work.cpus))
    # A process of a killed driver may still be working on it for seconds.
    lock = locked(work.local / "locks" / f"{number:05d}", f"trial {number}", wait=True)
    opened = (arm.catalogs[n] for arm in work.arms for n in evaluations)
    archive = Archive(work.folder, number)
    with lock, confined(opened), limited(work.memory_bytes):
        remove_idle(work.folder, number, unfinished)
        if not resumed:
            remove(work.trial_folder(number))
        work.trial_folder(number).mkdir(parents=True, exist_ok=True)
        if resumed:
            archive.restore()
        clock = Clock(work.trial_folder(number), seconds, archive)
        for evaluation in evaluations:
            folder = work.trial_folder(number) / f"{evaluation:03d}"
            step, scores = _evaluated(work, values, evaluation, folder, report, clock)
            if (folder / "1" / OUT_OF_SAMPLE).is_file():
                path = work.scores_file(number, evaluation)
                path.parent.mkdir(exist_ok=True)
                os.replace(folder / "1" / OUT_OF_SAMPLE, path)
                write_hash(path)
                put_scores(work.folder, path)
            last = evaluation == evaluations[-1]
            report(Reached(evaluation, step, _mean(scores), scores, clock.seconds, True, last))
            if not last:  # the last evaluation removes the trial's whole folder
                remove(folder)


def _evaluated(
    work: TrialContext,
    values: Mapping[str, Any],
    evaluation: int,
    folder: Path,
    report: Report,
    clock: Clock,
) -> tuple[int, dict[str, float]]:
    """Run one evaluation; returns its last step and the score by modality."""
    done: dict[str, float] = {}

    def reached(step: int, scores: Mapping[str, float]) -> None:
        if evaluation == 0 and step in work.rungs:
            report(Reached(evaluation, step, _mean(scores), dict(scores), clock.seconds))

    several = len(work.arms) > 1
    elsewhere = several or any(on_workers(arm.settings) for arm in work.arms)
    kept = not elsewhere and work.fresh_from is not None and evaluation >= work.fresh_from
    for place, arm in enumerate(work.arms, 1):
        settings = replace(
            applied(arm.settings, values), seed=seed_of(arm.settings.seed, evaluation)
        )
        inside = None if elsewhere or evaluation else reached
        arm_folder = folder / str(place)  # a modality's name may be too long for an archive
        setup = Setup(arm, settings, arm.catalogs[evaluation], arm_folder, clock, inside, kept)
        done[arm.modality] = work.stage.train(work, setup)
        if several and place < len(work.arms):
            reached(place, done)
    return (len(work.arms) if several else work.stage.last_step(settings)), done


def seed_of(seed: int, evaluation: int) -> int:
    """Seed of an evaluation: the search's for the first, derived ones for the others."""
    return seed if evaluation == 0 else derived_seed(seed, evaluation) % 2**31


def _mean(done: Mapping[str, float]) -> float:
    return math.fsum(done.values()) / len(done)


OUT_OF_MEMORY = ("can't allocate memory", "cannot allocate memory", "bad_alloc", "out of memory")


def out_of_memory(error: Exception) -> bool:
    """Whether an error means that a GPU or the machine has no memory left."""
    words = any(word in str(error).lower() for word in OUT_OF_MEMORY)
    return isinstance(error, MemoryError) or words or is_exhausted(error)


def why_failed(error: Exception) -> str:
    """A trial's error in one line: what the user can act on, without the home folder."""
    text = without_home((str(error).strip().splitlines() or [type(error).__name__])[0])
    text = text.encode("utf-8", "replace").decode()  # a path may not be UTF-8
    if out_of_memory(error):
        return f"ran out of memory: {text}"
    return text if isinstance(error, BenchmdError) else f"{type(error).__name__}: {text}"


@contextmanager
def limited(memory_bytes: int | None) -> Iterator[None]:
    """Limit this process's memory, so that exceeding it is an error.

    A process that takes all of a node's memory is killed, and others with it.
    """
    if memory_bytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    set_before = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([memory_bytes, *set_before]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
