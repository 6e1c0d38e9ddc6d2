"""Stages of a trial: pretraining or transfer of one modality in one evaluation."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from benchmd_ray.console.repeating import repeating
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import remove, replacing
from benchmd_ray.files.integrity import copy_hashed
from benchmd_ray.runs.history import read_metrics
from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl import SCRATCH, technique_named
from benchmd_ray.storage.location import Location
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.training.jobs import PRETRAINED, PretrainJob, TransferJob, selected_by
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import Reporter, RunReporter, SilentReporter
from benchmd_ray.training.selection import crossed
from benchmd_ray.training.weights import START
from benchmd_ray.tuning.spaces import PRETRAIN
from benchmd_ray.tuning.trial_files import (
    SECONDS,
    TRANSFER,
    TRIALS,
    Archive,
    job_name,
    local_folder,
    start_here,
    weights_here,
    worked_seconds,
)


@dataclass(frozen=True)
class Arm:
    """One modality of a search."""

    modality: str
    settings: Settings
    """The family's start, with device and precision resolved."""
    upstream: Location | None = None
    """Pretraining on the source's training split, from which transfers start."""
    start: Location | None = None
    """File of ImageNet weights, if pretraining starts from them."""


@dataclass(frozen=True)
class FamilyWork:
    """What the trials of a family share."""

    technique: str
    stage: Stage
    arms: tuple[Arm, ...]
    """In the order of the search's sources."""
    rungs: tuple[int, ...]
    """Steps of the first evaluation at which a trial reports: pretraining steps, epochs, or arms
    done."""

    @property
    def workers(self) -> int:
        """Most workers on which its trials train; a frozen encoder has one."""
        return max(arm.settings.execution.workers for arm in self.arms)


@dataclass(frozen=True)
class TrialContext:
    """Everything that the trials of a search share."""

    families: Mapping[str, FamilyWork]
    """By `families.Family.name`."""
    folder: Location
    """Folder of the search, on storage shared by all nodes."""
    cpus: int = 1
    memory_bytes: int | None = None
    metric: str = "auroc"

    @property
    def local(self) -> Path:
        """Folder of the search on this machine."""
        return local_folder(self.folder)

    def job_folder(self, number: int, evaluation: int) -> Path:
        """Folder of an evaluation of a trial while it is running."""
        return self.local / TRIALS / job_name(number, evaluation)


NOTE_SECONDS = 2.0
"""Seconds between saves of a job's working time, for a process that resumes it."""
TICK_SECONDS = 2.0


class Clock:
    """Working time of a job, over all its processes."""

    def __init__(self, folder: Path, before: float, archive: Archive) -> None:
        self._path, self._start = folder / SECONDS, time.monotonic()
        self._noted, self._archive = self._start, archive
        self._before = max(before, worked_seconds(folder))

    @property
    def seconds(self) -> float:
        """Seconds of work on the job, over all processes."""
        return self._before + time.monotonic() - self._start

    def tick(self) -> None:
        """Save the time and publish the job's files, each at its interval."""
        if time.monotonic() - self._noted >= NOTE_SECONDS:
            self._noted = time.monotonic()
            with suppress(BenchmdError, OSError), replacing(self._path) as partial:
                partial.write_text(f"{self.seconds:.3f}", "utf-8")
        self._archive.tick()


@dataclass(frozen=True)
class Setup:
    """Training of one modality in one evaluation."""

    work: TrialContext
    family: FamilyWork
    arm: Arm
    settings: Settings
    """With the trial's values and the evaluation's seed."""
    catalog: Location
    folder: Path
    clock: Clock
    rungs: tuple[int, ...]
    """Steps at which the score is reported, before the last one."""
    report: Callable[[int, float], None]
    """Receives a step and the score there."""

    @property
    def on_workers(self) -> bool:
        """Whether it trains on several workers, in other processes that report only at the end."""
        return self.arm.settings.execution.workers > 1


class Stage(ABC):
    """What the trials of a family train."""

    steps: ClassVar[str] = "transfer.epochs"
    """Setting with the length of the training."""
    unit: ClassVar[str] = "epochs"
    scored_by: ClassVar[str] = ""
    """Suffix of the score's name in texts."""
    pretrains: ClassVar[bool] = False
    """Whether each trial pretrains; otherwise all share one pretraining."""

    def last_step(self, settings: Settings) -> int:
        """Step at which a trial of one modality is complete."""
        return settings.transfer.epochs if settings.transfer.by_epochs else 1

    @abstractmethod
    def train(self, setup: Setup) -> float:
        """Train, with the model in `TRANSFER`; the score on the validation records."""


class Pretraining(Stage):
    """Pretraining, scored by linear evaluation at each rung and at the end."""

    steps, unit, scored_by = "pretrain.steps", "pretraining steps", " of linear evaluation"
    pretrains = True

    def last_step(self, settings: Settings) -> int:
        return settings.pretrain.steps

    def train(self, setup: Setup) -> float:
        """Pretrain, and return the AUROC of linear evaluation at the end."""
        total, linear = setup.settings.pretrain.steps, setup.folder / TRANSFER
        alone = replace(setup.settings.execution, workers=1, least_workers=0)
        settings = replace(with_linear(setup.settings), execution=alone)
        # Rungs before the checkpoint were reported by an earlier process.
        done, score = checkpoint_step(setup.folder / PRETRAINED), math.nan
        rungs = () if setup.on_workers else [step for step in setup.rungs if step >= done]
        for until in (*rungs, total):
            upstream = _pretrained(setup, until)
            remove(linear)
            job = TransferJob(settings, setup.catalog, linear, upstream)
            score = _trained(job, setup, rungs=())
            if until < total:
                setup.report(until, score)
        return score


class Transfer(Stage):
    """Transfer of one pretraining that all trials share, or from scratch."""

    def upstream(self, setup: Setup) -> Path | None:
        """Folder with the weights that the transfer starts from."""
        return weights_here(setup.arm.upstream, setup.work.folder)

    def train(self, setup: Setup) -> float:
        """Transfer, and return the score over the epochs."""
        upstream, folder = self.upstream(setup), setup.folder / TRANSFER
        # Features of an encoder that is the trial's alone serve no other trial.
        features = None if self.pretrains else setup.work.local / "features"
        job = TransferJob(setup.settings, setup.catalog, folder, upstream, features=features)
        return _trained(job, setup, setup.rungs)


class FittedTransfer(Transfer):
    """Transfer of an encoder that each trial fits itself, in seconds: random kernels."""

    pretrains = True

    def upstream(self, setup: Setup) -> Path:
        return _pretrained(setup, setup.settings.pretrain.steps)


def stage_of(technique: str, setting: str) -> Stage:
    """Stage of a family; its setting is `PRETRAIN` or a transfer setting."""
    if setting == PRETRAIN:
        return Pretraining()
    is_fitted = technique != SCRATCH and technique_named(technique).network is not None
    return FittedTransfer() if is_fitted else Transfer()


def with_linear(settings: Settings) -> Settings:
    """Settings that score a pretraining: linear evaluation on all labels."""
    return replace(settings, transfer=replace(settings.transfer, mode="linear", labels="full"))


def _pretrained(setup: Setup, until: int) -> Path:
    """Pretrain up to a step; the folder with the weights."""
    folder = setup.folder / PRETRAINED
    folder.mkdir(parents=True, exist_ok=True)
    if (start := start_here(setup.arm.start, setup.work.folder)) is not None:
        copy_hashed(start, folder / START)
    technique = setup.family.technique
    job = PretrainJob(setup.settings, technique, setup.catalog, folder, until=until)
    _launched(job, setup, _Ticking(setup.clock))
    return folder


def _launched(job: PretrainJob | TransferJob, setup: Setup, reporter: Reporter) -> None:
    """Run a job in this process, or on workers that report only at the end.

    The clock ticks in a thread, as files saved after an epoch must be published before the next
    epoch ends. The thread is not joined, since the process of a stopped trial starts the next trial
    at once.
    """
    with repeating(setup.clock.tick, TICK_SECONDS, wait=False):
        if setup.on_workers:
            launch(job, on_ray=True)
        else:
            launch(job, reporter=reporter)


class _Ticking(SilentReporter):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def report(self, done: int, values: Mapping[str, float]) -> None:
        self._clock.tick()


def _trained(job: TransferJob, setup: Setup, rungs: Collection[int]) -> float:
    """Run a transfer, and return its score, which is reported at ``rungs``."""
    job.folder.mkdir(parents=True, exist_ok=True)
    job = replace(job, halved=True)
    watch = _Scored(job, setup, rungs)
    _launched(job, setup, watch)
    if setup.on_workers:
        watch.lines = read_metrics(job.folder)
    return watch.score


class _Scored(RunReporter):
    """Reports the score so far after epochs of a transfer.

    The score is `selection.crossed`, or the best of the epochs if there are no halves.
    """

    def __init__(self, job: TransferJob, setup: Setup, rungs: Collection[int]) -> None:
        super().__init__(job.folder, silent=True)
        self._folder, self._name = job.folder, selected_by(open_catalog(job.catalog).task)
        self._setup, self._rungs = setup, rungs
        self.lines: list[dict[str, float]] = []

    @property
    def score(self) -> float:
        """Score so far; NaN if no epoch could be scored."""
        mean = crossed(self.lines)
        if math.isfinite(mean):
            return mean
        scores = [line[self._name] for line in self.lines]
        return max((score for score in scores if math.isfinite(score)), default=math.nan)

    def start(self, what: str, total: int, unit: str, done: int) -> None:
        """Read the reports of an interrupted process up to its checkpoint."""
        super().start(what, total, unit, done)
        self.lines = read_metrics(self._folder)

    def report(self, done: int, values: Mapping[str, float]) -> None:
        super().report(done, values)
        self.lines.append(dict(values))
        self._setup.clock.tick()
        if done in self._rungs and math.isfinite(self.score):
            self._setup.report(done, self.score)
