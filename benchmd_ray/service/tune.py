"""Execute searches: inner catalogs, shared runs, trials, and the choice.

Trials run within `confined`: no scored split and no target can be opened before the search ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmd_ray.cluster.connection import connected, embedded, own_cpus
from benchmd_ray.console.interrupts import Stopping, stopping
from benchmd_ray.data.catalog import Catalog, confined, open_catalog
from benchmd_ray.data.inner import barred_patients, inner_catalog
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.files.integrity import hash_path, is_whole, write_hash
from benchmd_ray.models.imagenet import imagenet_weights
from benchmd_ray.runs.files import INNER, SEARCHES
from benchmd_ray.runs.places import backing_of, location_of
from benchmd_ray.runs.store import read_run, require_weights
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.logged import LoggedSearch, quieted
from benchmd_ray.service.nodes import Nodes
from benchmd_ray.service.plan import make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.search_session import Searched, Session, TrialObserver
from benchmd_ray.service.searches import (
    Inner,
    SearchPlan,
    Tuning,
    labels_of,
    of_sources,
    planned_searches,
)
from benchmd_ray.service.trial_place import Room, memory_of
from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl import SCRATCH, technique_named
from benchmd_ray.storage.location import Address, Location, entries, put_file
from benchmd_ray.storage.patience import patiently
from benchmd_ray.training.weights import write_weights
from benchmd_ray.tuning.stages import Arm

MONITOR = "RAY_memory_monitor_refresh_ms"
"""Variable for the interval of Ray's memory monitor, which kills processes; 0 disables it."""


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
    """Execute searches one after the other, resuming earlier sessions.

    Ray must be connected, see `tuning_cluster`; with `own` it is embedded, and the memory of trials
    is limited here.

    Raises:
        Stopped: A signal asked to stop; the same call resumes.
        Busy: Another process works on one of these searches.
        BenchmdError: A source cannot be split, or a run that trials share failed.
    """
    store = store.resolve()
    log, backing = LoggedSearch(store), backing_of(store)
    quiet, say = quieted(quiet, say)

    def noted(line: str) -> None:
        say(line)
        log.noted(line)

    nodes = Nodes(cpus, attached=not own, say=noted)
    searched = []
    try:
        for plan in plans:
            folder = store / SEARCHES / plan.name
            with (
                backing.keeping_weights(),
                backing.searching(folder) as alone,
                stopping() as stop,
            ):
                pairs = zip(plan.sources, plan.starts, strict=True)
                inner = [_inner(source, start, store, plan, stop) for source, start in pairs]
                say(f"{plan.name}: {_counts(plan, inner)}")
                upstream = _upstream(tuning, plan, store, say, cpus=cpus, quiet=quiet)
                with confined(one.path for catalogs in inner for one in catalogs.values()):
                    first = [catalogs[0] for catalogs in inner]
                    room = Room(plan, nodes, tuning.at_once, first, stop=stop)
                    session = Session(
                        tuning=tuning,
                        plan=plan,
                        store=store,
                        arms=_arms(tuning, plan, inner, store, upstream=upstream),
                        inner=inner,
                        room=room,
                        memory=memory_of(tuning, plan, room.place, own=own),
                        stop=stop,
                        observer=observer,
                        say=say,
                        log=log,
                        alone=alone,
                    )
                    with log.searching(plan.name):
                        searched.append(session.run(quiet=quiet))
                stop.check()
            for line in searched[-1].lines:
                say(line)
    finally:
        with suppress(Exception):  # Ray itself may have gone
            nodes.close()
        if observer is not None:
            observer.closed()
    return searched


@contextmanager
def tuning_cluster(tuning: Tuning, address: str | None, cpus: int | None) -> Iterator[bool]:
    """Start or join the Ray cluster for searches; yields whether it is embedded.

    An embedded Ray does not kill processes for their memory, which would interrupt the whole
    search. It offers as many CPUs as the workers of one trial need.
    """
    if not embedded(address):
        with connected(address):
            yield False
        return
    before = os.environ.get(MONITOR)
    os.environ[MONITOR] = before or "0"
    try:
        with connected(cpus=max(cpus or own_cpus(), _cpus_of_workers(tuning))):
            yield True
    finally:
        if before is None:
            del os.environ[MONITOR]


def _cpus_of_workers(tuning: Tuning) -> int:
    """CPUs of one trial's workers plus one; 0 if trials have one worker."""
    plans = planned_searches(tuning, gpu=torch.cuda.is_available())
    each = [plan.starts[0].execution for plan in plans]
    return max(one.workers * one.cpus_per_worker + 1 if one.workers > 1 else 0 for one in each)


def _inner(
    source: PlannedDataset, start: Settings, store: Path, plan: SearchPlan, stop: Stopping
) -> Inner:
    assert source.catalog is not None  # `planned_searches` was given catalogs
    catalog, folder = open_catalog(source.catalog), location_of(store) / INNER / "catalogs"
    targets = (open_catalog(target.catalog) for target in plan.related if target.catalog)
    barred, labelled = barred_patients(catalog, targets), labels_of(start)
    return {
        number: inner_catalog(catalog, folder, number, stop.check, barred=barred, labelled=labelled)
        for number in plan.evaluations
    }


def _counts(plan: SearchPlan, inner: Sequence[Inner]) -> str:
    each = "; ".join(
        f"trains on {catalogs[0].rows('train'):,} records of {catalogs[0].dataset} and is scored "
        f"on {catalogs[0].rows('validation'):,}"
        for catalogs in inner
    )
    return f"an evaluation {each}; up to {count_of(plan.method.evaluations, 'evaluation')} a trial"


def _upstream(
    tuning: Tuning,
    plan: SearchPlan,
    store: Path,
    say: Callable[[str], None],
    *,
    cpus: int | None,
    quiet: bool,
) -> dict[str, Path]:
    """Folders of the pretrainings that all trials of a transfer start from, by source.

    The chosen settings start from them too: they use the source's whole training split, but no
    labels.
    """
    if plan.stage.pretrains or plan.technique == SCRATCH:
        return {}
    choice = replace(
        tuning.choice,
        modalities=tuple(source.modality for source in plan.sources),
        techniques=(plan.technique,),
        settings=("linear",),
        seeds=tuning.choice.seeds[:1],
    )
    device = plan.starts[0].execution.device
    whole = make_plan(choice, device=device, measure=False)
    items = tuple(
        replace(item, settings=_keeping(item.settings))
        for item in of_sources(whole, plan)
        if not item.step.scores
    )
    outcome = run_plan(
        replace(whole, items=items),
        store,
        say=say,
        weights=tuning.choice.weights,
        cpus=cpus,
        quiet=quiet,
    )
    if outcome.failed:
        failure = outcome.failed[0]
        raise BenchmdError(f"{failure.item.name}, which all trials need: {failure.reason}")
    folders = {
        item.source: outcome.folders[item.after]
        for item in of_sources(whole, plan)
        if item.step.makes_run and item.step.scores and item.after is not None
    }
    for folder in folders.values():
        require_weights(read_run(folder))  # from an earlier session, perhaps pruned
    return folders


def _arms(
    tuning: Tuning,
    plan: SearchPlan,
    inner: Sequence[Inner],
    store: Path,
    *,
    upstream: Mapping[str, Path],
) -> tuple[Arm, ...]:
    return tuple(
        Arm(
            source.modality,
            {number: catalog.path for number, catalog in catalogs.items()},
            settings,
            _everywhere(upstream.get(source.name), store),
            _start_weights(tuning, plan, catalogs[0], store),
        )
        for source, catalogs, settings in zip(plan.sources, inner, plan.starts, strict=True)
    )


def _everywhere(run: Path | None, store: Path) -> Location | None:
    return None if run is None else location_of(store) / run.name


def _start_weights(
    tuning: Tuning, plan: SearchPlan, catalog: Catalog, store: Path
) -> Location | None:
    """File of the ImageNet weights that a searched pretraining starts from."""
    if not plan.stage.pretrains or not technique_named(plan.technique).imagenet:
        return None
    weights = imagenet_weights(tuning.choice.weights, catalog.signal)
    name = f"{weights.sha256[:12]}-{catalog.signal.name}.safetensors"
    path, place = store / INNER / name, location_of(store) / INNER / name
    if not is_whole(path):
        write_weights(path, weights.tensors)
        write_hash(path)
    if isinstance(place, Address):
        there, _ = entries(place.parent)
        for file in (hash_path(path), path):
            if file.name not in there:
                patiently(partial(put_file, file, place.parent / file.name))
    return place


def _keeping(settings: Settings) -> Settings:
    return replace(settings, execution=replace(settings.execution, keep="models"))
