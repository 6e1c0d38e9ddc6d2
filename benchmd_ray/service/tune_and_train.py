"""A search, followed by runs of its start and its choice: on folds, or on all labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmd_ray.evaluation.registry import USUAL
from benchmd_ray.service.capacity import cluster_capacity
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.search_session import Searched
from benchmd_ray.service.searches import (
    SearchPlan,
    Tuning,
    of_sources,
    planned_searches,
    started,
)
from benchmd_ray.service.steps import Fit
from benchmd_ray.service.tracked import TrackedSearch, observers
from benchmd_ray.service.tune import run_searches, tuning_cluster
from benchmd_ray.tracking.dashboard import Dashboard
from benchmd_ray.training.jobs import PRETRAINED, Fold
from benchmd_ray.tuning.spaces import PRETRAIN
from benchmd_ray.tuning.trial import seed_of


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
    """Search, and train the choice unless asked not to; returns whether everything was done.

    Raises:
        Busy: Another process works on one of these searches.
        Stopped: A signal asked to stop; the same call resumes.
    """
    dashboard = dashboard or Dashboard()
    with tuning_cluster(tuning, address, cpus) as is_embedded:
        plans = planned_searches(tuning, gpu=cluster_capacity(cpus).gpus > 0)
        observer = None if dashboard.mode == "off" else TrackedSearch(store, dashboard, say)
        searched = run_searches(
            tuning, plans, store, say=say, cpus=cpus, own=is_embedded, observer=observer
        )
    whole = all(search.chosen is not None for search in searched)
    if search_only:
        return whole
    device = searched[0].plan.starts[0].execution.device
    plan = retraining_plan(tuning, searched, store, device=device, tflops=tflops)
    if plan is None:
        return whole
    say(f"{len(plan.items)} entries: start and best on the whole training split")
    outcome = run_plan(
        plan,
        store,
        say=say,
        address=address,
        weights=tuning.choice.weights,
        cpus=cpus,
        observers=observers(store, dashboard, plan, say),
    )
    for line in outcome.lines():
        say(line)
    return whole and outcome.whole


def retraining_plan(
    tuning: Tuning,
    searched: Sequence[Searched],
    store: Path,
    *,
    device: str,
    tflops: float | None = None,
) -> Plan | None:
    """The runs of start and choice for finished searches; None if nothing was chosen."""
    items: dict[str, Item] = {}
    notes: list[str] = []
    basis = ""
    for search in searched:
        if search.chosen is None:
            continue
        start = make_plan(started(tuning, search.plan), store, device=device, tflops=tflops)
        basis = start.basis
        notes += start.notes
        start_items = of_sources(start, search.plan)
        items |= {item.name: item for item in start_items}
        if search.chosen.trial.number == 0:
            continue
        choice = _changed(started(tuning, search.plan), search.changes)
        best = make_plan(choice, store, device=device, tflops=tflops)
        items |= {
            item.name: item for item in _tuned(of_sources(best, search.plan), start_items, search)
        }
    return Plan(tuple(items.values()), basis, tuple(dict.fromkeys(notes))) if items else None


def _changed(choice: Choice, changes: Mapping[str, Any]) -> Choice:
    """A choice with the settings of a trial, if these differ from those of the start."""
    if not changes:
        return choice
    return replace(
        choice,
        overrides=(),
        bench=USUAL,  # whose default start is the base of the changes
        start="",
        evaluated=choice.evaluated or choice.bench,
        changes=changes,
    )


def _tuned(best: Sequence[Item], start: Sequence[Item], search: Searched) -> list[Item]:
    """Renamed items of the best settings, without those shared with the start."""
    by_name = {item.name: item for item in start}
    named: dict[str, str] = {}
    items = []
    for item in best:
        before, settings = by_name[item.name].settings, item.settings
        named[item.name] = f"{search.plan.name}/{item.name}"
        if not item.step.scores:
            unchanged = (before.encoder, before.pretrain) == (settings.encoder, settings.pretrain)
            if unchanged:  # the search varied only the transfer
                named[item.name] = item.name
                continue
        items.append(
            replace(
                item,
                name=named[item.name],
                after=None if item.after is None else named[item.after],
                settings=replace(settings, execution=before.execution),
            )
        )
    return items


@dataclass(frozen=True)
class Candidate:
    """A trial whose fold models are delivered: the start of a search, or its choice."""

    technique: str
    setting: str
    """One of `tuning.spaces.SETTINGS`."""
    folds: Mapping[str, Sequence[Fold]]
    """Folds of each source, by its name."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the fixed protocol, by group (`Searched.changes`); empty for those
    that its family starts from.
    """


def fold_plan(
    tuning: Tuning,
    search: SearchPlan,
    start: Candidate,
    chosen: Candidate | None,
    store: Path,
    *,
    device: str,
    tflops: float | None = None,
) -> Plan:
    """The fold runs of a search's start and of its choice, with their evaluations.

    Each fold has the seed of its evaluation. What trials share, such as a pretraining on the whole
    training split, is shared here, too.

    Args:
        tuning: The request; its first seed is the search's.
        search: The search, whose name precedes those of the choice's items.
        start: Trial 0.
        chosen: The choice; None if that is the start.
        store: As in `make_plan`, whose estimates are those of runs on all labels.
        device: As in `make_plan`.
        tflops: As in `make_plan`.
    """
    items: dict[str, Item] = {}
    plans: list[Plan] = []
    for candidate in (start, *([] if chosen is None else [chosen])):
        setting = "linear" if candidate.setting == PRETRAIN else candidate.setting
        choice = replace(
            started(tuning, replace(search, technique=candidate.technique)),
            settings=(setting,),
            seeds=tuning.choice.seeds[:1],
        )
        usual = changed = make_plan(choice, store, device=device, tflops=tflops)
        if candidate.changes:
            choice = _changed(choice, candidate.changes)
            changed = make_plan(choice, store, device=device, tflops=tflops)
        both = of_sources(usual, search), of_sources(changed, search)
        prefix = f"{search.name}/" if candidate.changes else ""
        items |= {item.name: item for item in _of_folds(*both, candidate, prefix)}
        plans.append(usual)
    notes = dict.fromkeys(note for plan in plans for note in plan.notes)
    return Plan(tuple(items.values()), plans[0].basis, tuple(notes))


def _of_folds(
    usual: Sequence[Item], changed: Sequence[Item], candidate: Candidate, prefix: str
) -> Iterator[Item]:
    """Items that all folds share, and those of each fold, whose names have the prefix.

    ``usual`` have the settings that the family starts from, ``changed`` those of the candidate.
    """
    yield from (item for item in usual if _is_shared(item, candidate))
    executions = {item.name: item.settings.execution for item in usual}
    for source, folds in candidate.folds.items():
        items = [i for i in changed if i.source == source and not _is_shared(i, candidate)]
        for fold in folds:
            names = {item.name: prefix + _named(item, fold) for item in items}
            for item in items:
                after = None if item.after is None else names.get(item.after, item.after)
                settings = replace(item.settings, execution=executions[item.name])
                named = replace(item, name=names[item.name], after=after, settings=settings)
                yield _of_fold(named, fold)


def _is_shared(item: Item, candidate: Candidate) -> bool:
    """Whether an item is a pretraining that all trials start from."""
    is_within = candidate.setting == PRETRAIN or isinstance(item.step, Fit)
    return not item.step.scores and not is_within


def _named(item: Item, fold: Fold) -> str:
    return item.name.replace(f"/seed-{item.seed}/", f"/fold-{fold.evaluation}/")


def _of_fold(item: Item, fold: Fold) -> Item:
    """An item of the plan of one seed, the search's, for a fold."""
    seed = seed_of(item.seed, fold.evaluation)
    of_run: Fold | None = fold if item.step.makes_run else None
    if not item.step.scores:  # kernels are fitted within seconds
        kept = None if fold.model is None or isinstance(item.step, Fit) else fold.model / PRETRAINED
        of_run = replace(fold, model=kept)
    return replace(item, seed=seed, settings=replace(item.settings, seed=seed), fold=of_run)
