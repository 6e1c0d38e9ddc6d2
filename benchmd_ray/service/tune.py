"""Execute searches: inner catalogs, what trials share, trials, and the winner as a run.

A search lies in ``<store>/searches/<name>``. What all searches on a source share, its inner catalog
and pretrainings on it, lies in ``<store>/inner``. Once the catalogs are cut, everything works
within `confined`: neither a split that is scored nor a target can be opened before the search has
ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from benchmd_ray.cluster import connected, embedded, own_cpus, require_shared
from benchmd_ray.data.catalog import Catalog, confined, open_catalog
from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files import locked, remove
from benchmd_ray.integrity import is_whole, read_hashed_json, write_hash, write_hashed_json
from benchmd_ray.interrupts import Stopping, stopping
from benchmd_ray.models.imagenet import imagenet_weights
from benchmd_ray.progress import SilentBoard, board
from benchmd_ray.results.storage.places import backing_of
from benchmd_ray.results.store import read_run, shown
from benchmd_ray.service.capacity import cluster_capacity
from benchmd_ray.service.logged import LoggedSearch, quieted
from benchmd_ray.service.plan import make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.searches import SearchPlan, Tuning
from benchmd_ray.service.trial_place import longest, memory_of, place_of
from benchmd_ray.settings import Settings, default_settings
from benchmd_ray.ssl import SCRATCH, protocol_encoder, technique_named
from benchmd_ray.storage.location import Location
from benchmd_ray.training.checkpoints import write_weights
from benchmd_ray.tuning.limits import Limits, Place
from benchmd_ray.tuning.records import SEARCH, SEARCHES, STATES, read_search
from benchmd_ray.tuning.search import search
from benchmd_ray.tuning.study import Study, Trial, rungs
from benchmd_ray.tuning.trial import Arm, Work
from benchmd_ray.tuning.written import best_settings, trial_row, write_result, write_trials

INNER = "inner"
"""Folder of a store: inner catalogs, and runs on them."""
MONITOR = "RAY_memory_monitor_refresh_ms"
"""Variable that sets how often Ray looks for processes to end for their memory; 0 is never."""


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
        began = f"; the start had {first.auroc:.4f}" if first.state == "complete" else ""
        score = f"AUROC {self.best.auroc:.4f} on the search's validation records"
        lines.append(f"    best: trial {self.best.number}, {score}{began}")
        lines += [f"        {name}: {value}" for name, value in self.best.values.items()]
        return [*lines, f"    written: {shown(self.folder)}"]


TOLD = {"complete": "complete", "stopped": "stopped early"}
"""States of trials in words, where these are others."""


def run_searches(
    tuning: Tuning,
    plans: Sequence[SearchPlan],
    store: Path,
    *,
    say: Callable[[str], None],
    cpus: int | None = None,
    own: bool = False,
    observer: TrialObserver | None = None,
    quiet: bool = False,
) -> list[Searched]:
    """Execute searches one after the other, each from where an earlier session left it.

    Needs a Ray that this process is connected to, see `tuning_cluster`.

    Args:
        tuning: What was asked for.
        plans: The searches.
        store: Folder of all runs.
        say: Takes a line for the user.
        cpus: CPUs to use at once; None takes all.
        own: Whether Ray is embedded: then the memory of trials is bounded here.
        observer: Is notified of each trial that ended.
        quiet: Show no progress.

    Raises:
        Stopped: A signal asked to stop; the same call resumes.
        Busy: Another process is at one of these searches.
        BenchmdError: A source cannot be cut, or what trials share cannot be made.
    """
    store = store.resolve()
    require_folder(store)
    capacity, log = cluster_capacity(cpus), LoggedSearch(store)
    quiet, say = quieted(quiet, say)
    found = []
    try:
        for plan in plans:
            folder = store / SEARCHES / plan.name
            with locked(folder / ".lock", f"the search {folder}"), stopping() as stop:
                inner = [_inner(source.catalog, store) for source in plan.sources]
                say(f"{plan.name}: {_counts(inner)}")
                with confined(catalog.path for catalog in inner):
                    place = place_of(plan, capacity, tuning.at_once, inner)
                    memory = memory_of(tuning, plan, place, own=own)
                    arms = _arms(tuning, plan, inner, store, say, cpus=cpus, quiet=quiet)
                    session = _Session(
                        tuning, plan, folder, arms, place, memory, stop, observer, say, log
                    )
                    with log.searching(plan.name):
                        found.append(session.run(inner, quiet=quiet))
                stop.check()
            for line in found[-1].lines:
                say(line)
    finally:
        if observer is not None:
            observer.closed()
    return found


def require_folder(store: Path) -> None:
    """Refuse a store on S3, whose mirror is only this machine's.

    Raises:
        BenchmdError: It is one.
    """
    if backing_of(store).on_s3:
        raise BenchmdError(
            f"searches cannot lie on S3 yet ({shown(store)}): name a folder that all nodes see "
            "with --store, and run its best.yaml with `benchmd run --store s3://…`."
        )


@contextmanager
def tuning_cluster(address: str | None, cpus: int | None) -> Iterator[bool]:
    """The Ray that searches work on; an embedded one leaves memory to the trials' own limits.

    A trial that Ray ends for its memory would interrupt the whole search.

    Yields:
        Whether it is embedded.
    """
    if not embedded(address):
        with connected(address):
            yield False
        return
    before = os.environ.get(MONITOR)
    os.environ[MONITOR] = before or "0"
    try:
        with connected(cpus=cpus or own_cpus()):
            yield True
    finally:
        if before is None:
            del os.environ[MONITOR]


def _inner(path: Location | None, store: Path) -> Catalog:
    assert path is not None  # `planned_searches` is given catalogs
    return inner_catalog(open_catalog(path), store / INNER / "catalogs")


def _counts(inner: Sequence[Catalog]) -> str:
    """Records of inner catalogs, in words."""
    return "; ".join(
        f"trains on {catalog.rows('train'):,} records of {catalog.dataset} and chooses by "
        f"{catalog.rows('validation'):,}"
        for catalog in inner
    )


def _arms(
    tuning: Tuning,
    plan: SearchPlan,
    inner: Sequence[Catalog],
    store: Path,
    say: Callable[[str], None],
    *,
    cpus: int | None,
    quiet: bool,
) -> tuple[Arm, ...]:
    """What trials work on; a transfer's pretraining is done here, once for all trials."""
    upstream: dict[str, Path] = {}
    if not plan.stage.pretrains and plan.technique != SCRATCH:
        choice = replace(
            tuning.choice,
            catalogs=tuple(catalog.path for catalog in inner),
            modalities=(),
            techniques=(plan.technique,),
            settings=("linear",),
            seeds=tuning.choice.seeds[:1],
        )
        whole = make_plan(choice, measure=False)
        items = tuple(
            replace(item, settings=_keeping(item.settings))
            for item in whole.items
            if not item.step.scores
        )
        runs = store / INNER / "runs"
        outcome = run_plan(
            replace(whole, items=items),
            runs,
            say=say,
            weights=tuning.choice.weights,
            cpus=cpus,
            quiet=quiet,
        )
        if outcome.failed:
            failure = outcome.failed[0]
            raise BenchmdError(f"{failure.item.name}, which all trials need: {failure.reason}")
        upstream = {item.source: outcome.folders[item.name] for item in items}
    return tuple(
        Arm(
            source.modality,
            catalog.path,
            settings,
            upstream.get(source.name),
            _start_weights(tuning, plan, catalog, store),
        )
        for source, catalog, settings in zip(plan.sources, inner, plan.starts, strict=True)
    )


def _start_weights(tuning: Tuning, plan: SearchPlan, catalog: Catalog, store: Path) -> Path | None:
    """File of the ImageNet weights that a searched pretraining starts from."""
    if not plan.stage.pretrains or not technique_named(plan.technique).imagenet:
        return None
    weights = imagenet_weights(tuning.choice.weights, catalog.signal)
    path = store / INNER / f"{weights.sha256[:12]}-{catalog.signal.name}.safetensors"
    if not is_whole(path):
        write_weights(path, weights.tensors)
        write_hash(path)
    return path


def _keeping(settings: Settings) -> Settings:
    """Settings of a run whose weights must stay."""
    return replace(settings, execution=replace(settings.execution, keep="models"))


class _Session:
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
            self.say(f"{plan.name}: continues, {study.begun} trials were begun before")
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
