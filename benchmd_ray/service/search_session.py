"""One session of one search: trials until its budget is used or a signal comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from benchmd_ray.cluster.connection import require_shared
from benchmd_ray.console.interrupts import Stopping
from benchmd_ray.console.progress import Display, board
from benchmd_ray.console.repeating import repeating
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.provenance import together
from benchmd_ray.errors import BenchmdError, Transient, count_of
from benchmd_ray.files.atomic import locked, remove
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hashed_json
from benchmd_ray.runs.files import SEARCH, SEARCHES
from benchmd_ray.runs.files import TRIALS as TABLE
from benchmd_ray.runs.places import location_of
from benchmd_ray.runs.store import read_run, shown
from benchmd_ray.schema.typed import Finite
from benchmd_ray.service.logged import LoggedSearch
from benchmd_ray.service.searches import Inner, SearchPlan, Tuning, inner_digest, of_splits
from benchmd_ray.service.trial_place import Room, longest
from benchmd_ray.settings.definition import Settings, default_settings
from benchmd_ray.ssl import protocol_encoder
from benchmd_ray.tuning.confirm import Decision, SamplingVariance
from benchmd_ray.tuning.known import Trial
from benchmd_ray.tuning.limits import Limits
from benchmd_ray.tuning.racing import steps_within
from benchmd_ray.tuning.records import STATES, read_plan, read_trials
from benchmd_ray.tuning.sampling import sampled
from benchmd_ray.tuning.search import search
from benchmd_ray.tuning.stages import Arm, TrialContext
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.trial_files import MOST_SECONDS, TRIALS, leave_only
from benchmd_ray.tuning.written import (
    SearchOutcome,
    best_settings,
    trial_row,
    write_result,
    write_trials,
)


class TrialObserver(Protocol):
    """Is notified of trials; see `service.tracked.TrackedSearch`."""

    def trial_ended(self, search: str, about: Mapping[str, Any], trial: Mapping[str, Any]) -> None:
        """A trial ended."""
        pass

    def closed(self) -> None:
        """Nothing more will be reported."""
        pass


@dataclass(frozen=True)
class Searched:
    plan: SearchPlan
    folder: Path
    trials: tuple[Trial, ...]
    chosen: SearchOutcome | None
    """The choice; None if there is nothing to choose from."""
    changes: Mapping[str, Any]
    """Chosen settings that differ from the fixed protocol, by group."""
    device_hours: float
    device: str
    undecided: bool = False
    """Whether the budget ended before all evaluations of the finalists."""

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
        if failed and failed[0].number == 0 and self.plan.method.choosing == "confirmed":
            return [
                *lines,
                "    the start failed, so no trial can be compared with it: fix the cause, and "
                f"remove {shown(self.folder)} to start over",
            ]
        if self.chosen is None:
            return [*lines, "    no trial has a score yet, so there is nothing to choose"]
        lines += self._choice(self.chosen)
        return [*lines, f"    written: {shown(self.folder)}"]

    def _choice(self, chosen: SearchOutcome) -> list[str]:
        name, best, decision = self.plan.metric.upper(), chosen.trial, chosen.decision
        values = [f"        {name}: {value}" for name, value in best.values.items()]
        if self.plan.method.choosing == "highest":
            first = self.trials[0]
            began = f"; the start had {first.score:.4f}" if first.evaluations else ""
            score = f"{name} {best.score:.4f} on the search's validation records"
            return [f"    highest: trial {best.number}, {score}{began}", *values]
        if decision is None:
            why = "no trial is above it" if len(self.trials) > 1 else "there is no other trial"
            if any(trial.tested for trial in self.trials):
                why = "the trials compared with it failed"
            if self.undecided:
                why = "the rest of the budget is too small to compare a trial with it again"
            return [f"    it keeps the start: {why}"]
        finalists = [
            f"    trial {finalist.number}: {name} {finalist.difference:+.4f} to the start's "
            f"{decision.start:.4f} over fresh evaluations, lower bound {finalist.low:+.4f}"
            for finalist in decision.finalists
        ]
        if not best.number:
            more = ", and the budget ended before all evaluations: a larger budget continues them"
            return [
                *finalists,
                "    it keeps the start: no lower bound is above 0" + more * self.undecided,
            ]
        return [
            *finalists,
            f"    chosen: trial {best.number}, {name} {decision.expected:.4f} expected",
            *values,
        ]


SWEEP_SECONDS = 60.0
"""Seconds between removals of ended trials' files on S3 and records of the time worked."""
STATE_WORDS = {"stopped": "stopped early"}
"""Words for states of trials, where they differ."""


@dataclass(eq=False)
class Session:
    tuning: Tuning
    plan: SearchPlan
    store: Path
    arms: tuple[Arm, ...]
    inner: Sequence[Inner]
    room: Room
    memory: int | None
    """Bytes that a trial may allocate; None sets no limit."""
    stop: Stopping
    observer: TrialObserver | None
    say: Callable[[str], None]
    log: LoggedSearch
    alone: Callable[[], None]
    """Raises an error if another process works on this search."""

    def __post_init__(self) -> None:
        plan, arms = self.plan, self.arms
        self.folder = self.store / SEARCHES / plan.name
        self.place = self.room.place
        self.work = TrialContext(
            technique=plan.technique,
            stage=plan.stage,
            arms=arms,
            folder=location_of(self.store) / SEARCHES / plan.name,
            rungs=tuple(range(1, len(arms))) if len(arms) > 1 else steps_within(longest(plan)),
            cpus=max(1, int(self.place.cpus / self.place.workers)),
            memory_bytes=self.memory,
            metric=plan.metric,
            fresh_from=plan.method.fresh[0],
        )
        self.clock = _Worked(self.folder)
        self._swept = time.monotonic()
        self._notified: dict[int, str] = {}
        """State of each trial that observers know."""
        self._sampled: dict[tuple[int, tuple[int, ...]], SamplingVariance | None] = {}
        """What is due to the patients, by trial and evaluations."""

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
                    search(self.work, limits, lambda number: self._ended(limits, number))
                except BaseException:
                    with suppress(
                        Exception
                    ):  # the journal has everything that the next session needs
                        self._note(limits)
                    raise
                chosen = self._note(limits)
                self._tidy(study)
        device = "GPU" if self.place.gpus else "CPU"
        changes: Mapping[str, Any] = {}
        if chosen is not None:
            changes = best_settings(folder, self.work, self._bases, chosen.trial)
        return Searched(
            plan,
            folder,
            tuple(study.trials()),
            chosen,
            changes,
            limits.device_hours,
            device,
            study.undecided(self.tuning.budget.numbers),
        )

    def _opened_study(self) -> Study:
        """Open the journal of the search with the trials of earlier sessions."""
        plan, folder = self.plan, self.work.folder
        path = folder / ("study.log" if isinstance(folder, Path) else "journal")
        first = [settings.values for settings in plan.portfolio]
        study = Study(path, plan.space, plan.method, self.place.devices, first)
        study.judge = partial(self._decision, study)
        self._require_whole(study)
        self._notified = {trial.number: trial.state for trial in study.trials()}
        if study.begun:
            self.say(
                f"{plan.name}: continues, {count_of(study.begun, 'trial')} were started before"
            )
        elif folder != self.folder:
            remove(self.work.local)  # left by a search of the same name that was removed
        return study

    def _working(self) -> AbstractContextManager[None]:
        """Prevent other processes from clearing this machine's folder of a search on S3."""
        if isinstance(self.work.folder, Path):
            return nullcontext()
        return locked(self.work.local / "locks" / "search", f"the search {self.plan.name}")

    def _note(self, limits: Limits) -> SearchOutcome | None:
        """Write the trials and, once it is decided, the choice."""
        limits.look()
        decision = limits.study.judge()
        write_trials(self.folder, limits.study, self.work, decision)
        chosen = None if self._to_be_settled(limits) else self._result(limits, decision)
        for trial in limits.study.trials():
            if trial.state == "stopped":
                self._notify(trial)
        return chosen

    def _tidy(self, study: Study) -> None:
        """Remove the files of finished trials."""
        unfinished = [job.number for job in study.unfinished()]
        with suppress(Transient, OSError):  # if a process is still ending, the next session does it
            self.alone()
            leave_only(self.work.folder, unfinished)
        if unfinished:
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
        path = self.folder / SEARCH
        if not path.is_file():
            write_hashed_json(path, self.plan.describe(self.inner))
            return
        # Only the plan: everything else follows from the journal and is written again.
        digests = [source["inner"] for source in read_plan(self.folder)["sources"]]
        if digests != [inner_digest(catalogs) for catalogs in self.inner]:
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
                f"{study.begun}. That of a search in a folder is study.log, that of one on S3 is "
                "journal/: continue a search where it was started, or remove that folder to start "
                "over."
            )

    def _ended(self, limits: Limits, number: int) -> None:
        """Write the trials, and notify observers of one that ended."""
        write_trials(self.folder, limits.study, self.work, None)
        self.clock.note()
        if time.monotonic() > self._swept + SWEEP_SECONDS and self.work.folder != self.folder:
            self._swept = time.monotonic()
            with suppress(Transient, OSError):  # it is repeated at the end
                self.alone()
                leave_only(self.work.folder, [job.number for job in limits.study.unfinished()])
        trial = limits.study.trials()[number]
        if trial.state in ("complete", "failed"):
            self._notify(trial)  # a stopped trial may get more evaluations until the race ends

    def _notify(self, trial: Trial) -> None:
        """Notify log and observer of a trial, once per state."""
        if self._notified.get(trial.number) == trial.state:
            return
        self._notified[trial.number] = trial.state
        row = trial_row(trial, self.work)
        self.log.trial_ended(self.plan.name, row)
        if self.observer is not None:
            about = {
                "technique": self.plan.technique,
                "setting": self.plan.setting,
                "modality": ", ".join(arm.modality for arm in self.work.arms),
                "provenance": self._provenance,
            }
            self.observer.trial_ended(self.plan.name, about, row)

    @cached_property
    def _provenance(self) -> str:
        inner = (next(iter(arm.catalogs.values())) for arm in self.work.arms)
        return together(*(open_catalog(path).provenance for path in inner))

    @property
    def _bases(self) -> list[Settings]:
        return [
            default_settings(source.kind, protocol_encoder(self.plan.technique))
            for source in self.plan.sources
        ]

    def _decision(self, study: Study) -> Decision | None:
        """Decision from the fresh evaluations of start and finalists."""
        confirmed = study.confirmed()
        start = confirmed.get(0, {})
        sampling = {}
        for number, scores in confirmed.items():
            common = tuple(evaluation for evaluation in scores if evaluation in start)
            if number and common and len(self.work.arms) == 1:
                if (number, common) not in self._sampled:
                    variance = sampled(self.work, self.inner[0], number, common)
                    self._sampled[number, common] = variance
                if (variance := self._sampled[number, common]) is not None:
                    sampling[number] = variance
        return study.decision(_ratio(self.inner), sampling)

    def _to_be_settled(self, limits: Limits) -> bool:
        """Whether the choice is left to the next session; an earlier choice stays until then."""
        interrupted = bool(self.stop.number) or limits.trouble is not None
        return interrupted and self.plan.method.choosing == "confirmed"

    def _result(self, limits: Limits, decision: Decision | None) -> SearchOutcome | None:
        names = [arm.upstream.name for arm in self.work.arms if arm.upstream is not None]
        upstream = [read_run(self.store / name) for name in names]
        shared = sum(float(run.done.get("seconds", 0.0)) for run in upstream)
        spent = {"seconds": self.clock.note(), "shared_seconds": shared}
        return write_result(self.folder, limits, self.work, self._bases, spent, decision)


def _ratio(inner: Sequence[Inner]) -> float:
    """Ratio of validation to training patients of an evaluation, mean over sources."""
    counts = [of_splits(catalogs[0], "patients") for catalogs in inner]
    return sum(patients["validation"] / patients["train"] for patients in counts) / len(counts)


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
