"""Execution of one evaluation of a trial: training with its values on the inner catalogs."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmd_ray.cluster.gpu_memory import is_exhausted
from benchmd_ray.data.catalog import confined
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest, locked, remove, without_home
from benchmd_ray.storage.location import Location
from benchmd_ray.training.seeds import derived_seed
from benchmd_ray.tuning.spaces import applied
from benchmd_ray.tuning.stages import Clock, Setup, TrialContext
from benchmd_ray.tuning.trial_files import Archive, job_name, keep_models, remove_idle


@dataclass(frozen=True)
class Reached:
    """Progress of an evaluation."""

    step: int
    score: float
    """Score on the validation records so far: AUROC, or DSC for masks; mean over finished arms."""
    scores: Mapping[str, float]
    seconds: float
    whole: bool = False
    """Whether the evaluation has ended."""


Report = Callable[[Reached], None]
Catalogs = Callable[[int], Sequence[Location]]
"""Inner catalogs of an evaluation, one of each source."""
JOB = "job"
"""File in a job's folder with the digest of what is trained there."""


def run_trial(
    work: TrialContext,
    number: int,
    evaluation: int,
    family: str,
    values: Mapping[str, Any],
    catalogs: Sequence[Location],
    report: Report,
    seconds: float = 0.0,
    *,
    keep: bool = False,
    unfinished: Collection[str] = (),
) -> None:
    """Run an evaluation of a trial, resuming from the files of an interrupted process.

    Nothing but ``catalogs``, the inner catalogs of the evaluation, one of each source, can be
    opened. Progress is reported at the family's rungs of the first evaluation, and at the end.
    ``seconds`` is the working time of earlier processes; with ``keep`` the models are kept;
    ``unfinished`` names the jobs that may continue (`trial_files.remove_idle`).

    Raises:
        BenchmdError: The trial fails with these values: its loss is NaN, it ran out of memory, or a
            value does not fit the data.
    """
    torch.set_num_threads(max(1, work.cpus))
    name, folder = job_name(number, evaluation), work.job_folder(number, evaluation)
    # A process of a killed driver may still be working on it for seconds.
    lock = locked(work.local / "locks" / name, f"trial {number}", wait=True)
    with lock, confined(catalogs), limited(work.memory_bytes):
        remove_idle(work.folder, name, unfinished)
        archive = Archive(work.folder, name)
        archive.restore()
        job = digest([family, dict(values), [catalog.name for catalog in catalogs]]).encode()
        if not _is_of(folder / JOB, job):
            remove(folder)  # of another search of the same name
            folder.mkdir(parents=True)
            (folder / JOB).write_bytes(job)
        clock, trained = Clock(folder, seconds, archive), work.families[family]
        rungs, arms = trained.rungs if evaluation == 0 else (), trained.arms

        def reached(step: int, scores: Mapping[str, float], whole: bool = False) -> None:
            mean = math.fsum(scores.values()) / len(scores)
            report(Reached(step, mean, dict(scores), clock.seconds, whole))

        def inside(step: int, score: float) -> None:
            reached(step, {arms[0].modality: score})

        done: dict[str, float] = {}
        parts = [folder / str(place) for place in range(1, len(arms) + 1)]
        for arm, catalog, part in zip(arms, catalogs, parts, strict=True):
            settings = applied(arm.settings, values)
            settings = replace(settings, seed=seed_of(settings.seed, evaluation))
            last = trained.stage.last_step(settings) if len(arms) == 1 else len(arms)
            looks = tuple(step for step in rungs if step < last)
            within = looks if len(arms) == 1 else ()
            setup = Setup(work, trained, arm, settings, catalog, part, clock, within, inside)
            done[arm.modality] = trained.stage.train(setup)
            if len(arms) > 1 and len(done) in looks:
                reached(len(done), done)
        if keep:
            keep_models(work.folder, name, parts)
        reached(last, done, whole=True)


def _is_of(path: Path, job: bytes) -> bool:
    """Whether a job's folder is of this job."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(job) + 1) == job


def seed_of(seed: int, evaluation: int) -> int:
    """Seed of an evaluation: the search's for the first, derived ones for the others."""
    return seed if evaluation == 0 else derived_seed(seed, evaluation) % 2**31


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
