"""One session of one search: trials until its budget is used or a signal comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from benchmd_ray.cluster.connection import require_shared
from benchmd_ray.console.interrupts import Stopping
from benchmd_ray.console.progress import Display, board
from benchmd_ray.console.repeating import repeating
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.provenance import together
from benchmd_ray.errors import BenchmdError, Transient, count_of
from benchmd_ray.files.atomic import locked, remove
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hashed_json
from benchmd_ray.runs.files import SEARCH, SEARCHES
from benchmd_ray.runs.files import TRIALS as TABLE
from benchmd_ray.runs.places import location_of
from benchmd_ray.runs.store import read_run, shown
from benchmd_ray.schema.typed import Finite
from benchmd_ray.service.families import Tuning, family_stage
from benchmd_ray.service.logged import LoggedSearch
from benchmd_ray.service.searches import SearchPlan
from benchmd_ray.service.trial_place import Room, longest
from benchmd_ray.settings.definition import Settings, default_settings
from benchmd_ray.ssl import protocol_encoder
from benchmd_ray.storage.location import Location
from benchmd_ray.training.jobs import Fold
from benchmd_ray.tuning.families import Family, by_name
from benchmd_ray.tuning.ladder import START, steps_within
from benchmd_ray.tuning.limits import Limits
from benchmd_ray.tuning.records import STATES, read_plan, read_trials
from benchmd_ray.tuning.search import search
from benchmd_ray.tuning.stages import Arm, FamilyWork, TrialContext
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.trial_files import (
    KEPT,
    MODELS,
    MOST_SECONDS,
    TRIALS,
    job_name,
    keep_best,
    leave_only,
)
from benchmd_ray.tuning.trials import Trial, best_of_families
from benchmd_ray.tuning.written import (
    best_settings,
    folds,
    trial_row,
    write_result,
    write_trials,
)


class TrialObserver(Protocol):
    """Is notified of trials; see `service.tracked.TrackedSearch`."""

    def trial_ended(self, search: str, about: Mapping[str, Any], trial: Mapping[str, Any]) -> None:
        """A trial ended, or has more evaluations."""
        pass

    def closed(self) -> None:
        """Nothing more will be reported."""
        pass


@dataclass(frozen=True)
class Searched:
    plan: SearchPlan
    folder: Path
    trials: tuple[Trial, ...]
    chosen: Trial | None
    """The choice, which may be the start; None if there is nothing to choose from."""
    changes: Mapping[str, Any]
    """Settings of the choice that differ from the fixed protocol, by group."""
    optimism: float | None
    """By how much the score of the choice is too high for having been the highest."""
    device_hours: float
    device: str
    catalogs: Mapping[int, Sequence[Location]]
    """Inner catalogs of each evaluation whose models are averaged, by source."""
    kept: Location
    """The search's folder on the storage of its trials, with the weights that it kept."""

    def family_of(self, number: int) -> Family:
        """Family of a trial."""
        return by_name(self.plan.families)[self.trials[number].family]

    def folds_of(self, number: int) -> dict[str, list[Fold]]:
        """Folds of a trial's models that are averaged, by source."""
        sources = self.plan.sources
        folds: dict[str, list[Fold]] = {source.name: [] for source in sources}
        for evaluation, catalogs in self.catalogs.items():
            models = self.kept / MODELS / job_name(number, evaluation)
            for place, (source, catalog) in enumerate(zip(sources, catalogs, strict=True), 1):
                model = models / str(place) if len(sources) > 1 else models
                folds[source.name].append(Fold(evaluation, catalog, model))
        return folds

    @property
    def lines(self) -> list[str]:
        """Text for the user."""
        counts = {state: sum(t.state == state for t in self.trials) for state in STATES}
        states = ", ".join(
            f"{n} {STATE_WORDS.get(state, state)}" for state, n in counts.items() if n
        )
        lines = [
            f"{self.plan.name}: {states or 'no trial'}; {self.device_hours:.3g} {self.device} hours"
        ]
        failed = [trial for trial in self.trials if trial.state == "failed"]
        lines += [f"    trial {trial.number} failed: {trial.reason}" for trial in failed]
        if failed and failed[0].number == START:
            return [
                *lines,
                "    the start failed, so no trial can be compared with it: fix the cause, and "
                f"remove {shown(self.folder)} to start over",
            ]
        if self.chosen is None:
            return [*lines, "    no trial has a score yet, so there is nothing to choose"]
        return [*lines, *self._choice(self.chosen), f"    written: {shown(self.folder)}"]

    def _choice(self, best: Trial) -> list[str]:
        name, start = self.plan.metric.upper(), self.trials[START]
        lines = []
        if len(self.plan.families) > 1:
            lines = [
                f"    best of {trial.family}: trial {trial.number}, {name} {trial.score:.4f} over "
                f"{count_of(len(trial.evaluations), 'evaluation')}"
                for trial in best_of_families(self.trials)
            ]
        evaluations = count_of(len(best.evaluations), "evaluation")
        if best.number == START:
            margin = " by more than one standard error" * self.plan.method.cautious
            return [
                *lines,
                f"    it keeps the start ({start.family}), {name} {start.score:.4f} over "
                f"{evaluations}: no trial with as many is above it{margin}",
            ]
        too_high = "" if self.optimism is None else f", by about {self.optimism:.3f}"
        return [
            *lines,
            f"    chosen: trial {best.number} ({best.family}), {name} {best.score:.4f} over "
            f"{evaluations}; the start ({start.family}) has {start.score:.4f}",
            f"    {best.score:.4f} is too high for having been the highest{too_high}; the report "
            "has scores on records that no search saw",
            *(f"        {setting}: {value}" for setting, value in best.values.items()),
        ]


SWEEP_SECONDS = 60.0
"""Seconds between removals of ended trials' files and records of the time worked."""
STATE_WORDS = {"stopped": "stopped early"}
"""Words for states of trials, where they differ."""


@dataclass(eq=False)
class Session:
    tuning: Tuning
    plan: SearchPlan
    store: Path
    arms: Mapping[str, tuple[Arm, ...]]
    """Arms of each family by its name."""
    inner: Callable[[int], Sequence[Catalog]]
    """The inner catalogs of an evaluation, one for each source; written unless they exist."""
    room: Room
    memory: int | None
    """Bytes that a job may allocate; None sets no limit."""
    stop: Stopping
    observer: TrialObserver | None
    say: Callable[[str], None]
    log: LoggedSearch
    alone: Callable[[], None]
    """Raises an error if another process works on this search."""

    def __post_init__(self) -> None:
        plan = self.plan
        self.folder = self.store / SEARCHES / plan.name
        self.place = self.room.place
        families = {}
        for family in plan.families:
            arms, stage = self.arms[family.name], family_stage(family)
            several = len(arms) > 1
            steps = range(1, len(arms)) if several else steps_within(longest(family))
            families[family.name] = FamilyWork(family.technique, stage, arms, tuple(steps))
        self.work = TrialContext(
            families=families,
            folder=location_of(self.store) / SEARCHES / plan.name,
            cpus=max(1, int(self.place.cpus / self.place.workers)),
            memory_bytes=self.memory,
            metric=plan.metric,
        )
        self.clock = _Worked(self.folder)
        self._swept = time.monotonic()
        self._notified: dict[int, tuple[str, int]] = {}
        """State and evaluations of each trial that observers know."""

    def run(self, *, quiet: bool) -> Searched:
        """Search until the budget is used or a signal comes."""
        plan, folder = self.plan, self.folder
        self._begin()
        study = self._opened_study()
        display = Display() if quiet else board(self.tuning.budget.trials, "trials")
        with closing(display):
            limits = Limits(
                study,
                self.tuning.budget,
                self.place,
                lambda: bool(self.stop.number),
                display,
                self.clock.note(),
                lambda number, reason: self.log.trial_lost(plan.name, number, reason),
                self.room,
            )
            self.alone()  # files that other sessions left behind are removed now
            with self._working(), repeating(self.clock.note, SWEEP_SECONDS):
                try:
                    search(self.work, limits, lambda number: self._ended(limits, number), self._at)
                except BaseException:
                    with suppress(
                        Exception
                    ):  # the journal has everything that the next session needs
                        self._note(limits)
                    raise
                chosen = self._note(limits)
                self._tidy(limits)
        device = "GPU" if self.place.gpus else "CPU"
        changes: Mapping[str, Any] = {}
        catalogs: Mapping[int, Sequence[Location]] = {}
        if chosen is not None:
            changes = best_settings(folder, self.work, self._bases[chosen.family], chosen)
            catalogs = {evaluation: self._at(evaluation) for evaluation in folds(chosen)}
        return Searched(
            plan,
            folder,
            tuple(study.trials()),
            chosen,
            changes,
            study.optimism(),
            limits.device_hours,
            device,
            catalogs,
            self.work.folder,
        )

    def _at(self, evaluation: int) -> list[Location]:
        """Where the inner catalogs of an evaluation are."""
        return [catalog.path for catalog in self.inner(evaluation)]

    def _opened_study(self) -> Study:
        """Open the journal of the search with the trials of earlier sessions."""
        plan, folder = self.plan, self.work.folder
        path = folder / ("study.log" if isinstance(folder, Path) else "journal")
        first = [(settings.family, settings.values) for settings in plan.portfolio]
        study = Study(path, plan.families, plan.method, self.place.devices, first)
        self._require_whole(study)
        self._notified = {t.number: (t.state, len(t.evaluations)) for t in study.trials()}
        if study.begun:
            done = sum(len(trial.evaluations) for trial in study.trials())
            self.say(
                f"{plan.name} resumes: {count_of(study.begun, 'trial')} begun before, "
                f"{count_of(done, 'evaluation')} done"
            )
        elif folder != self.folder:
            remove(self.work.local)  # left by a search of the same name that was removed
        return study

    def _working(self) -> AbstractContextManager[None]:
        """Prevent other processes from clearing this machine's folder of a search in a bucket."""
        if isinstance(self.work.folder, Path):
            return nullcontext()
        return locked(self.work.local / "locks" / "search", f"the search {self.plan.name}")

    def _note(self, limits: Limits) -> Trial | None:
        """Write the trials and, once it is decided, the choice."""
        limits.look()
        write_trials(self.folder, limits.study, self.work)
        is_interrupted = bool(self.stop.number) or limits.trouble is not None
        chosen = None if is_interrupted else self._result(limits.study)
        for trial in limits.study.trials():
            if trial.state == "stopped":
                self._notify(trial)
        return chosen

    def _sweep(self, limits: Limits) -> None:
        """Remove the files of finished jobs, and the models of all but the best trials."""
        study = limits.study
        running = [study.job(*key) for key in limits.running]  # perhaps of a trial that has failed
        with suppress(Transient, OSError):  # if a process is still ending, the next time does it
            self.alone()
            leave_only(self.work.folder, [*study.unfinished(), *running])
            keep_best(self.work.folder, [START, *study.leading(KEPT)])

    def _tidy(self, limits: Limits) -> None:
        """Leave only what the next session and the fold runs need."""
        self._sweep(limits)
        if limits.study.unfinished():
            return
        if isinstance(self.work.folder, Path):
            for name in (TRIALS, "features", "locks"):
                remove(self.folder / name)
        else:
            with suppress(OSError):
                remove(self.work.local)

    def _begin(self) -> None:
        """Write the search's description, or require that it equals the existing one."""
        if isinstance(self.work.folder, Path) or self.place.workers > 1:
            self.work.local.mkdir(parents=True, exist_ok=True)
            require_shared(self.work.local)
        path, inner = self.folder / SEARCH, self.inner(0)
        if not path.is_file():
            write_hashed_json(path, self.plan.describe(inner))
            return
        # Only the plan: everything else follows from the journal and is written again.
        digests = [source["inner"] for source in read_plan(self.folder)["sources"]]
        if digests != [catalog.digest for catalog in inner]:
            raise BenchmdError(
                f"{shown(self.folder)} was started on other records than an inner catalog has now: "
                "its trials cannot be compared with new ones. Remove that folder to start over."
            )

    def _require_whole(self, study: Study) -> None:
        """Refuse a journal that has lost trials: it has fewer than the table of trials."""
        try:
            written = read_trials(self.folder / TABLE).num_rows
        except Damaged:  # or missing: it is written again
            return
        if written > study.begun:
            raise BenchmdError(
                f"{shown(self.folder)} has {count_of(written, 'trial')}, and its journal "
                f"{study.begun}. That of a search in a folder is study.log, that of one in a "
                "bucket is journal/: continue a search where it was started, or remove that folder "
                "to start over."
            )

    def _ended(self, limits: Limits, number: int) -> None:
        """Write the trials, and notify observers of one that has more evaluations or ended."""
        study = limits.study
        write_trials(self.folder, study, self.work)
        self.clock.note()
        if time.monotonic() > self._swept + SWEEP_SECONDS:
            self._swept = time.monotonic()
            self._sweep(limits)
        trial = study.trials()[number]
        if trial.state != "stopped":  # told at the end of the session
            self._notify(trial)

    def _notify(self, trial: Trial) -> None:
        """Notify log and observer of a trial, once per state and number of evaluations."""
        reached = trial.state, len(trial.evaluations)
        if self._notified.get(trial.number) == reached:
            return
        self._notified[trial.number] = reached
        row = trial_row(trial, self.work)
        self.log.trial_ended(self.plan.name, row)
        if self.observer is not None:
            about = {
                "modality": ", ".join(arm.modality for arm in self.arms[trial.family]),
                "provenance": self._provenance,
            }
            self.observer.trial_ended(self.plan.name, about, row)

    @cached_property
    def _provenance(self) -> str:
        return together(*(catalog.provenance for catalog in self.inner(0)))

    @property
    def _bases(self) -> dict[str, list[Settings]]:
        """The fixed protocol of each family's technique, by source."""
        return {
            family.name: [
                default_settings(source.kind, protocol_encoder(family.technique))
                for source in self.plan.sources
            ]
            for family in self.plan.families
        }

    def _result(self, study: Study) -> Trial | None:
        upstream = {
            arm.upstream.name: None
            for arms in self.arms.values()
            for arm in arms
            if arm.upstream is not None
        }
        runs = [read_run(self.store / name) for name in upstream]
        shared = sum(float(run.done.get("seconds", 0.0)) for run in runs)
        spent = {"seconds": self.clock.note(), "shared_seconds": shared}
        return write_result(self.folder, study, self.work, self._bases, spent)


class _Worked:
    """Wall-clock seconds of all sessions of a search."""

    def __init__(self, folder: Path) -> None:
        self._path, self._start = folder / "sessions.json", time.monotonic()
        self._before = 0.0
        if self._path.is_file():
            remedy = f"Remove it: only the seconds of earlier sessions of {folder} are lost."
            content = read_hashed_json(self._path, remedy, {"seconds": Finite})
            if not 0 <= content["seconds"] <= MOST_SECONDS:
                raise Damaged(self._path, f"its seconds are {content['seconds']}", remedy)
            self._before = float(content["seconds"])

    def note(self) -> float:
        seconds = round(self._before + time.monotonic() - self._start, 3)
        write_hashed_json(self._path, {"seconds": seconds})
        return seconds
