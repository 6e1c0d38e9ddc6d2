"""After a search: its start and its choice, trained on the whole training split.

Both are ordinary runs of the store, scored on the source's own splits and on the targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmd_ray.evaluation.registry import USUAL
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.service.search_session import Searched
from benchmd_ray.service.searches import SearchPlan, Tuning
from benchmd_ray.tuning.spaces import PRETRAIN


def retraining_plan(
    tuning: Tuning,
    searched: Sequence[Searched],
    store: Path,
    *,
    device: str,
    tflops: float | None = None,
) -> Plan | None:
    """The runs of start and choice of searches that have ended; None where nothing is chosen."""
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
            bench=USUAL,  # whose usual start is what the changes are from
            start="",
            evaluated=start_choice.bench,
            changes=search.changes,
        )
        best = make_plan(choice, store, device=device, tflops=tflops)
        items |= {
            item.name: item for item in _tuned(of_sources(best, search.plan), start_items, search)
        }
    return Plan(tuple(items.values()), basis, tuple(dict.fromkeys(notes))) if items else None


def started(tuning: Tuning, plan: SearchPlan) -> Choice:
    """What a search started from, as a choice of runs."""
    setting = "linear" if plan.setting == PRETRAIN else plan.setting
    modalities = tuple(source.modality for source in plan.sources)
    return replace(
        tuning.choice, modalities=modalities, techniques=(plan.technique,), settings=(setting,)
    )


def of_sources(plan: Plan, search: SearchPlan) -> list[Item]:
    """Items of a plan that belong to a search's sources."""
    names = {source.name for source in search.sources}
    return [item for item in plan.items if item.source in names]


def _tuned(best: Sequence[Item], start: Sequence[Item], search: Searched) -> list[Item]:
    """Items of the best settings, under other names, without those that the start has."""
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
