"""Stages of a trial: pretraining or transfer of one modality in one evaluation."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmd_ray.console.repeating import repeating
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import remove, replacing
from benchmd_ray.files.integrity import copy_hashed
from benchmd_ray.runs.history import read_metrics
from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl import SCRATCH
from benchmd_ray.storage.location import Location
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.training.jobs import PretrainJob, TransferJob, selected_by
from benchmd_ray.training.launch import launch
from benchmd_ray.training.reporter import Reporter, RunReporter, SilentReporter
from benchmd_ray.training.selection import crossed, crossing, transfer_data
from benchmd_ray.training.weights import START
from benchmd_ray.tuning.spaces import PRETRAIN
from benchmd_ray.tuning.trial_files import (
    FRESH,
    SECONDS,
    TRIALS,
    Archive,
    local_folder,
    start_here,
    weights_here,
    worked_seconds,
)


@dataclass(frozen=True)
class Arm:
    """One modality of a search."""

    modality: str
    catalogs: Mapping[int, Location]
    settings: Settings
    """The start's settings, with device and precision resolved."""
    upstream: Location | None = None
    """Pretraining on the source's training split, from which transfers start."""
    start: Location | None = None
    """File of ImageNet weights, if pretraining starts from them."""


@dataclass(frozen=True)
class TrialContext:
    """Everything that the trials of a search share."""

    technique: str
    stage: Stage
    """The searched stage: pretraining, scored by linear evaluation, or transfer."""
    arms: tuple[Arm, ...]
    folder: Location
    """Folder of the search, on storage shared by all nodes."""
    rungs: tuple[int, ...]
    """Steps of the first evaluation at which a trial reports: pretraining steps, epochs, or arms
    done."""
    cpus: int = 1
    memory_bytes: int | None = None
    metric: str = "auroc"
    fresh_from: int | None = None
    """First evaluation whose scores per record are stored; None stores none."""

    @property
    def local(self) -> Path:
        """Folder of the search on this machine."""
        return local_folder(self.folder)

    def trial_folder(self, number: int) -> Path:
        """Folder of a trial while it is running."""
        return self.local / TRIALS / f"{number:05d}"

    def scores_file(self, number: int, evaluation: int) -> Path:
        """Scores of an evaluation's validation records, see `OUT_OF_SAMPLE`."""
        return self.local / FRESH / f"{number:05d}-{evaluation:03d}.npy"


NOTE_SECONDS = 2.0
"""Seconds between saves of a trial's working time, for a process that resumes it."""


TICK_SECONDS = 2.0


class Clock:
    """Working time of a trial, over all its processes."""

    def __init__(self, folder: Path, before: float, archive: Archive) -> None:
        self._path, self._start = folder / SECONDS, time.monotonic()
        self._noted, self._archive = self._start, archive
        self._before = max(before, worked_seconds(folder))
        self.shared = False
        """Whether what is done now is for all trials, and not to be noted."""

    @property
    def seconds(self) -> float:
        """Seconds of work on the trial, over all processes."""
        return self._before + time.monotonic() - self._start

    def tick(self) -> None:
        """Save the time and publish the trial's files, each at its interval."""
        if not self.shared and time.monotonic() - self._noted >= NOTE_SECONDS:
            self._noted = time.monotonic()
            with suppress(BenchmdError, OSError), replacing(self._path) as partial:
                partial.write_text(f"{self.seconds:.3f}", "utf-8")
        self._archive.tick()

    def leave_out(self, seconds: float) -> None:
        """Subtract work that all trials share."""
        self._before -= seconds


@dataclass(frozen=True)
class Setup:
    """Training of one modality in one evaluation."""

    arm: Arm
    settings: Settings
    catalog: Location
    folder: Path
    clock: Clock
    reached: Callable[[int, Mapping[str, float]], None] | None
    """Called with a step and the score by modality; None if steps are not reported."""
    kept: bool = False

    def tell(self, step: int, score: float) -> None:
        """Report an intermediate score."""
        if self.reached is not None:
            self.reached(step, {self.arm.modality: score})


class Stage(ABC):
    """A searched stage: pretraining or transfer."""

    steps: ClassVar[str]
    """Setting with the length of the training."""
    unit: ClassVar[str]
    scored_by: ClassVar[str] = ""
    """Suffix of the score's name in texts."""
    pretrains: ClassVar[bool] = False
    """Whether each trial pretrains; otherwise all share one pretraining."""

    @abstractmethod
    def last_step(self, settings: Settings) -> int:
        """Step at which a trial of one modality is complete."""

    @abstractmethod
    def train(self, work: TrialContext, setup: Setup) -> float:
        """Train, and return the score on the validation records."""


class Pretraining(Stage):
    """Pretraining, scored by linear evaluation at each rung and at the end."""

    steps, unit, scored_by = "pretrain.steps", "pretraining steps", " of linear evaluation"
    pretrains = True

    def last_step(self, settings: Settings) -> int:
        return settings.pretrain.steps

    def train(self, work: TrialContext, setup: Setup) -> float:
        """Pretrain, and return the AUROC of linear evaluation at the end."""
        total, folder, score = setup.settings.pretrain.steps, setup.folder / "pretrain", math.nan
        # Rungs before the checkpoint were reported by an earlier process.
        done = checkpoint_step(folder)
        looked = work.rungs if setup.reached is not None else ()
        for until in (*(step for step in looked if done <= step < total), total):
            folder.mkdir(parents=True, exist_ok=True)
            if (start := start_here(setup.arm.start, work.folder)) is not None:
                copy_hashed(start, folder / START)
            job = PretrainJob(setup.settings, work.technique, setup.catalog, folder, until=until)
            _launched(job, setup, _Ticking(setup.clock))
            linear = setup.folder / f"linear-{until}"
            alone = replace(setup.settings.execution, workers=1, least_workers=0)
            settings = replace(with_linear(setup.settings), execution=alone)
            score = _trained(TransferJob(settings, setup.catalog, linear, folder), setup)
            remove(linear)
            if until < total:
                setup.tell(until, score)
        return score


class Transfer(Stage):
    """Transfer of one pretraining that all trials share, or from scratch."""

    steps, unit = "transfer.epochs", "epochs"

    def last_step(self, settings: Settings) -> int:
        return settings.transfer.epochs

    def train(self, work: TrialContext, setup: Setup) -> float:
        """Transfer, and return the score over the epochs."""

        def reached(epoch: int, score: float) -> None:
            if epoch < setup.settings.transfer.epochs:
                setup.tell(epoch, score)

        upstream_run = None if work.technique == SCRATCH else setup.arm.upstream
        upstream = weights_here(upstream_run, work.folder)
        features, into = work.local / "features", setup.folder / "transfer"
        job = TransferJob(setup.settings, setup.catalog, into, upstream, features=features)
        scores = setup.folder / OUT_OF_SAMPLE if setup.kept else None
        return _trained(job, setup, reached, scores)


def stage_of(setting: str) -> Stage:
    """Stage of a searched setting: `PRETRAIN` or a transfer setting."""
    return Pretraining() if setting == PRETRAIN else Transfer()


def with_linear(settings: Settings) -> Settings:
    """Settings that score a pretraining: linear evaluation on all labels."""
    return replace(settings, transfer=replace(settings.transfer, mode="linear", labels="full"))


def on_workers(settings: Settings) -> bool:
    """Whether a trial trains on several workers, in other processes."""
    return settings.execution.workers > 1


def _launched(job: PretrainJob | TransferJob, setup: Setup, reporter: Reporter) -> None:
    """Run a job in this process, or on workers that report only at the end.

    The clock ticks in a thread, as files saved after an epoch must be published before the next
    epoch ends. The thread is not joined, since the process of a stopped trial starts the next trial
    at once.
    """
    with repeating(setup.clock.tick, TICK_SECONDS, wait=False):
        if on_workers(setup.arm.settings):
            launch(job, on_ray=True)
        else:
            launch(job, reporter=reporter)


class _Ticking(SilentReporter):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def report(self, done: int, values: Mapping[str, float]) -> None:
        self._clock.tick()


OUT_OF_SAMPLE = "out-of-sample.npy"
"""File of the probabilities (rows, classes) of an evaluation's validation records, each at the
epoch that was chosen on the other half of the patients.
"""


def _trained(
    job: TransferJob,
    setup: Setup,
    reached: Callable[[int, float], None] | None = None,
    scores: Path | None = None,
) -> float:
    """Run a transfer, and return its score; scores per record are written to ``scores``."""
    job.folder.mkdir(parents=True, exist_ok=True)
    job = replace(job, halved=True, scores_into=job.folder / LAST if scores else None)
    watch = _Scored(job, selected_by(open_catalog(job.catalog).task), setup.clock, reached)
    _launched(job, setup, watch)
    if on_workers(setup.arm.settings):
        watch.take(read_metrics(job.folder))
    if scores is not None:
        watch.write_scores(scores)
    return watch.score


LAST = "scores.npy"
"""File of the probabilities of the validation records after the newest epoch; with a number as
prefix, after that epoch.
"""


class _Scored(RunReporter):
    """Reports the score so far after every epoch of a transfer.

    The score is `selection.crossed`, or the best of the epochs if there are no halves.
    """

    def __init__(
        self,
        job: TransferJob,
        name: str,
        clock: Clock,
        reached: Callable[[int, float], None] | None,
    ) -> None:
        super().__init__(job.folder, silent=True)
        self._name, self._folder, self._job = name, job.folder, job
        self._clock, self._reached, self._begun = clock, reached, clock.seconds
        self._shares = job.features is not None and job.settings.transfer.mode == "linear"
        self._lines: list[Mapping[str, float]] = []
        clock.shared = self._shares

    @property
    def score(self) -> float:
        """Score so far; NaN if no epoch could be scored."""
        mean = crossed(self._lines)
        if math.isfinite(mean):
            return mean
        scores = [line[self._name] for line in self._lines]
        return max((score for score in scores if math.isfinite(score)), default=math.nan)

    def _scores_of(self, place: int) -> Path:
        return self._folder / f"{place:06d}-{LAST}"

    def write_scores(self, path: Path) -> None:
        """Write `OUT_OF_SAMPLE`, if there are halves."""
        places = crossing(self._lines)
        if places is None:
            return
        catalog = open_catalog(self._job.catalog)
        second = transfer_data(self._job.settings, catalog, halved=True).second_half
        assert second is not None  # halves have been scored
        first_best, second_best = (
            np.load(self._scores_of(place), allow_pickle=False) for place in places
        )
        np.save(path, np.where(second[:, None], first_best, second_best), allow_pickle=False)

    def start(self, what: str, total: int, unit: str, done: int) -> None:
        """Read the reports of an interrupted process up to its checkpoint.

        Extraction of features shared by all trials does not count as work of this trial.
        """
        super().start(what, total, unit, done)
        if self._shares:
            self._clock.leave_out(self._clock.seconds - self._begun)
            self._clock.shared = False
        self._lines = list(read_metrics(self._folder))

    def take(self, lines: Sequence[Mapping[str, float]]) -> None:
        """Process the metrics written by workers."""
        self._lines = list(lines)

    def report(self, done: int, values: Mapping[str, float]) -> None:
        super().report(done, values)
        self._lines.append(values)
        keeps_scores = self._job.scores_into is not None
        if keeps_scores and len(self._lines) - 1 in (crossing(self._lines) or ()):
            os.replace(self._folder / LAST, self._scores_of(len(self._lines) - 1))
        self._clock.tick()
        if self._reached is not None and math.isfinite(self.score):
            self._reached(done, self.score)
