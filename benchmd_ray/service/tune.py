"""Execute searches: inner catalogs, shared runs, trials, and the choice.

Jobs run within `confined`: they can open no scored split and no target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from benchmd_ray.cluster.connection import connected, embedded, own_cpus
from benchmd_ray.console.interrupts import stopping
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.inner import barred_patients, inner_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.integrity import hash_path, is_whole, write_hash
from benchmd_ray.models.imagenet import imagenet_weights
from benchmd_ray.runs.files import INNER, SEARCHES
from benchmd_ray.runs.places import backing_of, location_of
from benchmd_ray.runs.store import read_run, require_weights
from benchmd_ray.service.families import Tuning, family_choice, family_stage
from benchmd_ray.service.logged import LoggedSearch, quieted
from benchmd_ray.service.nodes import Nodes
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.search_session import Searched, Session, TrialObserver
from benchmd_ray.service.searches import SearchPlan, execution_of, of_sources, planned_searches
from benchmd_ray.service.trial_place import Room, memory_of
from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl import SCRATCH, technique_named
from benchmd_ray.storage.location import Address, Location, entries, put_file
from benchmd_ray.storage.patience import patiently
from benchmd_ray.training.weights import write_weights
from benchmd_ray.tuning.families import Family
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

    Ray must be connected, see `tuning_cluster`; with `own` it is embedded, and the memory of jobs
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
                inner = inner_catalogs(plan, store, stop.check)
                say(f"{plan.name}: {_counts(plan, inner(0))}")
                for note in plan.notes:
                    say(f"not searched: {note}")
                upstream = _upstream(tuning, plan, store, say, cpus=cpus, quiet=quiet)
                room = Room(plan, nodes, tuning.at_once, inner(0), stop=stop)
                session = Session(
                    tuning=tuning,
                    plan=plan,
                    store=store,
                    arms=_arms(tuning, plan, inner(0), store, upstream=upstream),
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
    each = [execution_of(plan) for plan in plans]
    return max(one.workers * one.cpus_per_worker + 1 if one.workers > 1 else 0 for one in each)


def inner_catalogs(
    plan: SearchPlan, store: Path, check: Callable[[], None]
) -> Callable[[int], list[Catalog]]:
    """The inner catalogs of an evaluation, one for each source, written when first asked for.

    ``check`` is called while another machine writes one; raises where waiting is to end.
    """
    folder = location_of(store) / INNER / "catalogs"
    targets = [open_catalog(t.catalog) for t in plan.related if t.catalog is not None]
    # `planned_searches` was given catalogs
    sources = [open_catalog(source.catalog) for source in plan.sources if source.catalog]
    barred = [barred_patients(source, targets) for source in sources]

    @cache
    def written(evaluation: int) -> list[Catalog]:
        about = {"labelled": plan.labelled}
        return [
            patiently(
                partial(inner_catalog, source, folder, evaluation, check, barred=patients, **about)
            )
            for source, patients in zip(sources, barred, strict=True)
        ]

    return written


def _counts(plan: SearchPlan, inner: Sequence[Catalog]) -> str:
    return "; ".join(
        f"an evaluation trains on {catalog.rows('train'):,} records of {source.name} and is "
        f"scored on {catalog.rows('validation'):,}{source.without}"
        for source, catalog in zip(plan.sources, inner, strict=True)
    )


def _upstream(
    tuning: Tuning,
    plan: SearchPlan,
    store: Path,
    say: Callable[[str], None],
    *,
    cpus: int | None,
    quiet: bool,
) -> dict[tuple[str, str], Path]:
    """Folders of the pretrainings that trials of a transfer start from, by technique and source.

    The chosen settings start from them too: they use the source's whole training split, but no
    labels.
    """
    items: dict[str, Item] = {}
    after: dict[tuple[str, str], str] = {}
    for family in plan.families:
        if family.technique == SCRATCH or family_stage(family).pretrains:
            continue
        choice = replace(
            family_choice(tuning, family.technique, family.setting),
            modalities=tuple(source.modality for source in plan.sources),
            seeds=tuning.choice.seeds[:1],
        )
        device = family.settings[0].execution.device
        for item in of_sources(make_plan(choice, device=device, measure=False), plan):
            if not item.step.scores:
                items[item.name] = replace(item, settings=_keeping(item.settings))
            elif item.step.makes_run and item.after is not None:
                after[family.technique, item.source] = item.after
    if not items:
        return {}
    outcome = run_plan(
        Plan(tuple(items.values()), ""),
        store,
        say=say,
        weights=tuning.choice.weights,
        cpus=cpus,
        quiet=quiet,
    )
    if outcome.failed:
        failure = outcome.failed[0]
        raise BenchmdError(f"{failure.item.name}, which trials need: {failure.reason}")
    folders = {key: outcome.folders[name] for key, name in after.items()}
    for folder in folders.values():
        require_weights(read_run(folder))  # from an earlier session, perhaps pruned
    return folders


def _arms(
    tuning: Tuning,
    plan: SearchPlan,
    inner: Sequence[Catalog],
    store: Path,
    *,
    upstream: Mapping[tuple[str, str], Path],
) -> dict[str, tuple[Arm, ...]]:
    return {
        family.name: tuple(
            Arm(
                source.modality,
                settings,
                _everywhere(upstream.get((family.technique, source.name)), store),
                _start_weights(tuning, family, catalog, store),
            )
            for source, catalog, settings in zip(plan.sources, inner, family.settings, strict=True)
        )
        for family in plan.families
    }


def _everywhere(run: Path | None, store: Path) -> Location | None:
    return None if run is None else location_of(store) / run.name


def _start_weights(
    tuning: Tuning, family: Family, catalog: Catalog, store: Path
) -> Location | None:
    """File of the ImageNet weights that a searched pretraining starts from."""
    if not family_stage(family).pretrains or not technique_named(family.technique).imagenet:
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
