"""A search, followed by runs of its start and its choice: on folds, and maybe on all labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmd_ray.evaluation.registry import USUAL
from benchmd_ray.service.capacity import cluster_capacity
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning, family_choice, family_stage
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.search_session import Searched
from benchmd_ray.service.searches import SearchPlan, of_sources, planned_searches
from benchmd_ray.service.tracked import TrackedSearch, observers
from benchmd_ray.service.tune import run_searches, tuning_cluster
from benchmd_ray.tracking.dashboard import Dashboard
from benchmd_ray.training.jobs import PRETRAINED, Fold
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.ladder import START
from benchmd_ray.tuning.trial import seed_of

Folds = Mapping[str, Sequence[Fold]]
"""Folds of each source, by its name."""


def search_and_train(
    tuning: Tuning,
    store: Path,
    *,
    say: Callable[[str], None],
    address: str | None = None,
    cpus: int | None = None,
    dashboard: Dashboard | None = None,
    tflops: float | None = None,
    search_only: bool = False,
) -> bool:
    """Search, and score the fold models of start and choice unless asked not to.

    Returns whether everything was done.

    Raises:
        Busy: Another process works on one of these searches.
        Stopped: A signal asked to stop; the same call resumes.
    """
    dashboard = dashboard or Dashboard()
    with tuning_cluster(tuning, address, cpus) as is_embedded:
        plans = planned_searches(tuning, gpu=cluster_capacity(cpus).gpus > 0)
        if len(plans) > 1:
            folds = {source.fold for plan in plans for source in plan.sources} - {None}
            each = ", one for each held-out fold" if len(folds) == len(plans) else ""
            say(f"{len(plans)} searches, one after the other{each}; the budget is of each")
        observer = None if dashboard.mode == "off" else TrackedSearch(store, dashboard, say)
        searched = run_searches(
            tuning, plans, store, say=say, cpus=cpus, own=is_embedded, observer=observer
        )
    whole = all(search.chosen is not None for search in searched)
    plan = final_plan(tuning, searched, store, tflops=tflops)
    if search_only or plan is None:
        return whole
    which = "fold models of start and choice" + " and models on all labels" * tuning.single
    say(f"{len(plan.items)} entries: {which}")
    outcome = run_plan(
        plan,
        store,
        say=say,
        address=address,
        weights=tuning.choice.weights,
        cpus=cpus,
        observers=observers(store, dashboard, plan, say, [search.plan.name for search in searched]),
    )
    for line in outcome.lines():
        say(line)
    return whole and outcome.whole


def final_plan(
    tuning: Tuning, searched: Sequence[Searched], store: Path, *, tflops: float | None = None
) -> Plan | None:
    """The runs of start and choice for finished searches; None if nothing was chosen."""
    items: dict[str, Item] = {}
    notes: dict[str, None] = {}
    basis = ""
    for search in searched:
        if search.chosen is None:
            continue
        numbers = dict.fromkeys((START, search.chosen.number))
        for number in numbers:
            changes = search.changes if number else {}
            family = search.family_of(number)
            for folds in (search.folds_of(number), *([None] if tuning.single else [])):
                plan = candidate_plan(
                    tuning, search.plan, family, changes, folds, store, tflops=tflops
                )
                items |= {item.name: item for item in plan.items}
                notes |= dict.fromkeys(plan.notes)
                basis = basis or plan.basis
    return Plan(tuple(items.values()), basis, (*notes,)) if items else None


def candidate_plan(
    tuning: Tuning,
    search: SearchPlan,
    family: Family,
    changes: Mapping[str, Any],
    folds: Folds | None,
    store: Path,
    *,
    tflops: float | None = None,
) -> Plan:
    """The runs of the start of a search or of its choice, with their evaluations.

    What trials share, such as a pretraining on the whole training split, is shared here, too.

    Args:
        tuning: The request; its first seed is the search's.
        search: The search, whose name precedes those of the choice's items.
        family: That of the trial.
        changes: Settings that differ from the fixed protocol, by group; empty for the start.
        folds: Those of the fold runs, each with the seed of its evaluation; None for runs on all
            labels, with each seed of the request.
        store: As in `make_plan`.
        tflops: As in `make_plan`.
    """
    choice = replace(
        family_choice(tuning, family.technique, family.setting),
        modalities=tuple(source.modality for source in search.sources),
        seeds=tuning.choice.seeds if folds is None else tuning.choice.seeds[:1],
    )
    device = family.settings[0].execution.device
    usual = make_plan(choice, store, device=device, tflops=tflops)
    plan = usual
    if changes:
        plan = make_plan(_changed(choice, changes), store, device=device, tflops=tflops)
    before = {item.name: item for item in of_sources(usual, search)}
    items = [  # on as many workers as the start's
        replace(i, settings=replace(i.settings, execution=before[i.name].settings.execution))
        for i in of_sources(plan, search)
    ]
    within = family_stage(family).pretrains
    shared = {
        item.name
        for item in items
        if not item.step.scores
        and (not within if folds is not None else _trains_alike(before[item.name], item))
    }
    final = [before[item.name] for item in items if item.name in shared]
    others = [item for item in items if item.name not in shared]
    prefix = f"{search.name}/" if changes else ""
    if folds is None:
        final += _renamed(others, lambda item: prefix + item.name)
    else:
        for source, of_source in folds.items():
            for fold in of_source:
                final += _of_fold([i for i in others if i.source == source], fold, prefix)
    return Plan(tuple(final), usual.basis, usual.notes)


def _changed(choice: Choice, changes: Mapping[str, Any]) -> Choice:
    """A choice with the settings of a trial instead of those of the start."""
    return replace(
        choice,
        overrides=(),
        bench=USUAL,  # whose default start is the base of the changes
        start="",
        evaluated=choice.evaluated or choice.bench,
        changes=changes,
    )


def _trains_alike(item: Item, other: Item) -> bool:
    """Whether two pretrainings are the same, as a search varied only the transfer."""
    ours, theirs = item.settings, other.settings
    return (ours.encoder, ours.pretrain) == (theirs.encoder, theirs.pretrain)


def _renamed(items: Sequence[Item], name_of: Callable[[Item], str]) -> Iterator[Item]:
    """Items with other names; what they come after may be among them."""
    names = {item.name: name_of(item) for item in items}
    for item in items:
        after = None if item.after is None else names.get(item.after, item.after)
        yield replace(item, name=names[item.name], after=after)


def _of_fold(items: Sequence[Item], fold: Fold, prefix: str) -> Iterator[Item]:
    """Items of the plan of one seed, the search's, for a fold."""

    def name_of(item: Item) -> str:
        return prefix + item.name.replace(f"/seed-{item.seed}/", f"/fold-{fold.evaluation}/")

    for item in _renamed(items, name_of):
        seed = seed_of(item.seed, fold.evaluation)
        of_run: Fold | None = fold if item.step.makes_run else None
        if of_run is not None and not item.step.scores:
            kept = None if fold.model is None else fold.model / PRETRAINED
            of_run = replace(fold, model=kept)
        yield replace(item, seed=seed, settings=replace(item.settings, seed=seed), fold=of_run)
