"""One session of one search: trials until its budget is used or a signal comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmd_ray.cluster import require_shared
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.files import remove
from benchmd_ray.integrity import read_hashed_json, write_hashed_json
from benchmd_ray.interrupts import Stopping
from benchmd_ray.progress import SilentBoard, board
from benchmd_ray.results.store import read_run, shown
from benchmd_ray.service.logged import LoggedSearch
from benchmd_ray.service.searches import SearchPlan, Tuning
from benchmd_ray.service.trial_place import longest
from benchmd_ray.settings import Settings, default_settings
from benchmd_ray.ssl import protocol_encoder
from benchmd_ray.tuning.limits import Limits, Place
from benchmd_ray.tuning.records import SEARCH, STATES, read_search
from benchmd_ray.tuning.search import search
from benchmd_ray.tuning.study import Study, Trial, rungs
from benchmd_ray.tuning.trial import Arm, Work
from benchmd_ray.tuning.written import best_settings, trial_row, write_result, write_trials


class TrialObserver(Protocol):
    """Is notified of trials; see `service.tracked.TrackedSearch`."""

    def trial_ended(self, search: str, about: Mapping[str, Any], trial: Mapping[str, Any]) -> None:
        """A trial ended."""

    def closed(self) -> None:
        """Nothing more will be reported."""


@dataclass(frozen=True)
class Searched:
    """What became of a search."""

    plan: SearchPlan
    folder: Path
    trials: tuple[Trial, ...]
    best: Trial | None
    changes: Mapping[str, Any]
    """By group, what the best trial's settings change of the fixed protocol; empty without one."""
    device_hours: float
    device: str

    @property
    def lines(self) -> list[str]:
        """What a user reads of it."""
        counts = {state: sum(t.state == state for t in self.trials) for state in STATES}
        told = ", ".join(f"{n} {TOLD.get(state, state)}" for state, n in counts.items() if n)
        lines = [
            f"{self.plan.name}: {told or 'no trial'}; {self.device_hours:.3g} {self.device} hours"
        ]
        failed = [trial for trial in self.trials if trial.state == "failed"]
        lines += [f"    trial {trial.number} failed: {trial.reason}" for trial in failed]
        if failed and failed[0].number == 0:
            lines.append(
                "    the start failed, so no trial can be compared with it: mend its reason, and "
                f"remove {shown(self.folder)} to begin anew"
            )
        if self.best is None:
            return [*lines, "    no trial is complete, so there is nothing to choose"]
        first = self.trials[0]
        began = f"; the start had {first.score:.4f}" if first.state == "complete" else ""
        name = self.plan.metric.upper()
        score = f"{name} {self.best.score:.4f} on the search's validation records"
        lines.append(f"    best: trial {self.best.number}, {score}{began}")
        lines += [f"        {name}: {value}" for name, value in self.best.values.items()]
        return [*lines, f"    written: {shown(self.folder)}"]


TOLD = {"complete": "complete", "stopped": "stopped early"}
"""States of trials in words, where these are others."""


class Session:
    """One session of one search."""

    def __init__(
        self,
        tuning: Tuning,
        plan: SearchPlan,
        folder: Path,
        arms: tuple[Arm, ...],
        place: Place,
        memory: int | None,
        stop: Stopping,
        observer: TrialObserver | None,
        say: Callable[[str], None],
        log: LoggedSearch,
    ) -> None:
        self.tuning, self.plan, self.folder = tuning, plan, folder
        self.place, self.stop, self.observer, self.say = place, stop, observer, say
        self.log = log
        self.work = Work(
            technique=plan.technique,
            stage=plan.stage,
            arms=arms,
            folder=folder,
            rungs=tuple(range(1, len(arms))) if len(arms) > 1 else rungs(longest(plan)),
            cpus=max(1, int(place.cpus)),
            memory_bytes=memory,
            metric=plan.metric,
        )
        self.clock = _Worked(folder)
        self.best: int | None = None

    def run(self, inner: Sequence[Catalog], *, quiet: bool) -> Searched:
        """Search until the budget is used or a signal comes."""
        plan, folder = self.plan, self.folder
        self._begin(inner)
        first = (*self.work.rungs, 1)[0]
        devices = self.place.devices
        study = Study(folder / "study.log", plan.space, plan.method, first, devices)
        if study.begun:
            self.say(f"{plan.name}: continues, {count_of(study.begun, 'trial')} were begun before")
        display = SilentBoard() if quiet else board(self.tuning.budget.trials, "trials")
        limits = Limits(
            study,
            self.tuning.budget,
            self.place,
            lambda: bool(self.stop.number),
            display,
            self.clock.seconds(),
            lambda number, reason: self.log.trial_lost(plan.name, number, reason),
        )
        try:
            search(self.work, limits, lambda number: self._ended(limits, number))
        finally:
            display.close()
            limits.look()
            write_trials(folder, study, self.work)
            best = self._result(limits)
            if all(trial.state != "unfinished" for trial in study.trials()):
                for name in ("trials", "features", "locks"):
                    remove(folder / name)
        device = "GPU" if self.place.gpus else "CPU"
        changes = best_settings(folder, self.work, self._bases, best) if best is not None else {}
        trials = tuple(study.trials())
        return Searched(plan, folder, trials, best, changes, limits.device_hours, device)

    def _begin(self, inner: Sequence[Catalog]) -> None:
        """Write what is searched, or make sure that it is what was searched before."""
        require_shared(self.folder)
        path = self.folder / SEARCH
        if not path.is_file():
            write_hashed_json(path, self.plan.describe(inner))
            return
        held = [source["inner"] for source in read_search(self.folder).sources]
        if held != [catalog.digest for catalog in inner]:
            raise BenchmdError(
                f"{self.folder} was begun on other records than an inner catalog has now: "
                "its trials cannot be compared with new ones. Remove that folder to begin anew."
            )

    def _ended(self, limits: Limits, number: int) -> None:
        """Write the trials anew and tell of the one that ended."""
        write_trials(self.folder, limits.study, self.work)
        best = limits.study.best()
        if best is not None and best.number != self.best:
            self.best = best.number
            self._result(limits)
        self.clock.seconds()
        trial = trial_row(limits.study.trials()[number], self.work)
        self.log.trial_ended(self.plan.name, trial)
        if self.observer is not None:
            about = {
                "technique": self.plan.technique,
                "setting": self.plan.setting,
                "modality": ", ".join(arm.modality for arm in self.work.arms),
            }
            self.observer.trial_ended(self.plan.name, about, trial)

    @property
    def _bases(self) -> list[Settings]:
        """The fixed protocol of each source."""
        return [
            default_settings(source.kind, protocol_encoder(self.plan.technique))
            for source in self.plan.sources
        ]

    def _result(self, limits: Limits) -> Trial | None:
        """Write what the search has found so far."""
        upstream = [read_run(arm.upstream) for arm in self.work.arms if arm.upstream is not None]
        shared = sum(float(run.done.get("seconds", 0.0)) for run in upstream)
        spent = {"seconds": self.clock.seconds(), "shared_seconds": shared}
        return write_result(self.folder, limits, self.work, self._bases, spent)


class _Worked:
    """Seconds that all sessions of a search have worked, by the clock."""

    def __init__(self, folder: Path) -> None:
        self._path, self._start = folder / "sessions.json", time.monotonic()
        self._before = 0.0
        if self._path.is_file():
            remedy = f"Remove it: only the seconds of earlier sessions of {folder} are lost."
            held = read_hashed_json(self._path, remedy, {"seconds": (int, float)})
            self._before = float(held["seconds"])

    def seconds(self) -> float:
        """So far; noted for the next session."""
        seconds = round(self._before + time.monotonic() - self._start, 3)
        write_hashed_json(self._path, {"seconds": seconds})
        return seconds
