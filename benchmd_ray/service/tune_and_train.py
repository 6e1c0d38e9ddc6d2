"""A search, followed by runs of its start and its choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmd_ray.evaluation.registry import USUAL
from benchmd_ray.service.capacity import cluster_capacity
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.search_session import Searched
from benchmd_ray.service.searches import Tuning, of_sources, planned_searches, started
from benchmd_ray.service.tracked import TrackedSearch, observers
from benchmd_ray.service.tune import run_searches, tuning_cluster
from benchmd_ray.tracking.dashboard import Dashboard


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
        start_choice = started(tuning, search.plan)
        choice = replace(
            start_choice,
            overrides=(),
            bench=USUAL,  # whose default start is the base of the changes
            start="",
            evaluated=start_choice.bench,
            changes=search.changes,
        )
        best = make_plan(choice, store, device=device, tflops=tflops)
        items |= {
            item.name: item for item in _tuned(of_sources(best, search.plan), start_items, search)
        }
    return Plan(tuple(items.values()), basis, tuple(dict.fromkeys(notes))) if items else None


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
