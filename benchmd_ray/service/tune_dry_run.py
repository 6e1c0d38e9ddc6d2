"""Output of a dry run of searches: what is varied, the start, and the duration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from benchmd_ray.console.progress import duration
from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import FOLDS, splits_seen
from benchmd_ray.errors import count_of
from benchmd_ray.report.formats import aligned
from benchmd_ray.runs.files import SEARCHES, TRIALS
from benchmd_ray.runs.places import backing_of
from benchmd_ray.service.capacity import Capacity
from benchmd_ray.service.cost import labelled_rows
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.dry_run import DryRun, device_hours, size
from benchmd_ray.service.families import Tuning, family_choice, family_stage
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.service.searches import (
    SearchPlan,
    execution_of,
    labels_of,
    of_sources,
    planned_searches,
    records_seen,
)
from benchmd_ray.service.simulate import Resources, simulate
from benchmd_ray.service.trial_place import longest, place_of
from benchmd_ray.settings.definition import Settings
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.ladder import expected_evaluations, steps_within
from benchmd_ray.tuning.limits import Budget, Place
from benchmd_ray.tuning.records import read_search


def estimate_searches(
    tunings: Sequence[Tuning], store: Path, resources: Resources, *, tflops: float | None = None
) -> list[DryRun]:
    """Estimate each search and the runs after it; the store need not exist."""
    machine = (resources.cpus, resources.gpus)
    capacity = Capacity(*machine, all_cpus=resources.cpus, each=(machine,))
    backing_of(store).refresh_store()
    estimates = []
    for tuning in tunings:
        for plan in planned_searches(tuning, gpu=resources.gpus > 0):
            place = place_of(plan, capacity, tuning.at_once)
            runs = {
                family.name: _runs(tuning, plan, family, store, tflops) for family in plan.families
            }
            estimates.append(_estimate(_Search(tuning, plan, runs, place, resources), store))
    return estimates


def _runs(
    tuning: Tuning, plan: SearchPlan, family: Family, store: Path, tflops: float | None
) -> Plan:
    """Runs of a family's start on all labels, whose times give the duration of an evaluation."""
    choice = replace(
        family_choice(tuning, family.technique, family.setting),
        modalities=tuple(source.modality for source in plan.sources),
        seeds=tuning.choice.seeds[:1],
    )
    runs = make_plan(choice, store, device=execution_of(plan).device, tflops=tflops)
    return replace(runs, items=tuple(of_sources(runs, plan)))


@dataclass(frozen=True)
class _Search:
    tuning: Tuning
    plan: SearchPlan
    runs: dict[str, Plan]
    place: Place
    resources: Resources

    @property
    def has_catalogs(self) -> bool:
        return all(source.catalog for source in self.plan.sources)

    @cached_property
    def shared(self) -> dict[str, float]:
        """Seconds of each pretraining that trials share, by its item's name."""
        return {
            item.name: item.seconds
            for family in self.plan.families
            if not family_stage(family).pretrains
            for item in self.runs[family.name].items
            if not item.step.scores
        }

    @cached_property
    def evaluation(self) -> dict[str, float]:
        """Seconds of an evaluation of each family's start."""
        return {family.name: self._of_family(family) for family in self.plan.families}

    def _of_family(self, family: Family) -> float:
        pairs = zip(self.plan.sources, family.settings, strict=True)
        share = {source.name: _inner_share(source, start) for source, start in pairs}
        return sum(
            item.seconds * share.get(item.source, 1.0)
            for item in self.runs[family.name].items
            if item.step.makes_run and item.name not in self.shared
        )


def _estimate(search: _Search, store: Path) -> DryRun:
    plan, place = search.plan, search.place
    searching, worked, count = _search_seconds(search)
    after, after_hours = _after(search)
    device = "GPU" if place.gpus else "CPU"
    takes = []
    if search.shared:
        pretrainings = count_of(len(search.shared), "pretraining")
        takes.append(
            f"Shared by trials and the runs after them: {pretrainings}, about "
            f"{duration(sum(search.shared.values()))}."
        )
    of_starts = "; ".join(
        f"{name} {duration(seconds)}" for name, seconds in search.evaluation.items()
    )
    takes.append(f"An evaluation of a family's start takes about: {of_starts}.")
    evaluations = ""
    if count:
        evaluations = (
            f" with at most {count_of(count, 'evaluation')}; less where trials are stopped early "
            "or reuse features, more where longer trainings are chosen"
        )
    takes.append(f"The search takes about {duration(searching)}{evaluations}.")
    single = ", and the models on all labels" * search.tuning.single
    takes.append(
        "Afterwards, five to ten fold models of start and choice, most of them kept from the "
        f"search: about {duration(after)} to train the others{single} and to score all."
    )
    budget = search.tuning.budget
    most = max(FOLDS, min(budget.until, budget.evaluations or budget.until))
    disk = _inner_bytes(plan) * most
    if search.has_catalogs:
        takes.append(
            f"Disk: up to {size(disk)} for {most} inner catalogs, each a copy of the search's "
            "records, written when an evaluation needs it."
        )
    folder = store / SEARCHES / plan.name
    if (folder / TRIALS).is_file():
        counts = read_search(folder).trials["state"].value_counts()
        takes.append("So far: " + ", ".join(f"{n} {state}" for state, n in counts.items()) + ".")
    return DryRun(
        work=tuple(_work(search)),
        takes=tuple(takes),
        basis=next(iter(search.runs.values())).basis,
        seconds=searching,
        device_hours=worked * place.devices / 3600 + after_hours,
        device=device,
        resources=search.resources,
        disk_bytes=disk,
        after_seconds=after,
        from_cards=not search.tuning.choice.catalogs,
    )


def _work(search: _Search) -> list[str]:
    """Lines on what is searched, how trials are scored, and what is varied."""
    plan, tuning = search.plan, search.tuning
    sources = ", ".join(f"{s.name} ({s.modality}{s.without})" for s in plan.sources)
    title = plan.name if search.has_catalogs else "A search"
    start, *others = plan.families
    scored = "; ".join(map(_validation, plan.sources, start.settings))
    lines = [
        f"{title}: on {sources}",
        f"Starts at {start.name}" + (f"; also {', '.join(f.name for f in others)}." * bool(others)),
        *(f"Not searched: {note}" for note in plan.notes),
        f"Scored by {plan.metric.upper()}{family_stage(start).scored_by} on {scored}.",
        f"{_budget(tuning.budget)}, {search.place.at_once} at once, sampler {plan.method.sampler}.",
    ]
    if plan.portfolio:
        learned = sorted({name for tried in plan.portfolio for name in tried.datasets})
        tried = count_of(len(plan.portfolio), "setting")
        lines.append(f"First, after the starts: {tried} learned on {', '.join(learned)}.")
    for family in plan.families:
        lines += ["", f"{family.name}{_looks(family)}:", *aligned(_space(family))]
    return lines


def _inner_bytes(plan: SearchPlan) -> int:
    """Bytes of the records that an inner catalog copies."""
    total = 0.0
    for source, start in zip(plan.sources, plan.families[0].settings, strict=True):
        shards = open_catalog(source.catalog).manifest["shards"] if source.catalog else ()
        size = sum(int(shard["bytes"]) for shard in shards if shard["split"] in _seen(source))
        whole = sum(source.rows[split] for split in _seen(source))
        total += size * records_seen(source, start) / max(1, whole)
    return round(total)


def _seen(source: PlannedDataset) -> tuple[str, ...]:
    """Splits of a source that a search sees, see `data.inner`."""
    return splits_seen(source.rows, source.scored)


def _inner_share(source: PlannedDataset, start: Settings) -> float:
    """Records that an evaluation trains on, as a fraction of those of a run."""
    return (1 - 1 / FOLDS) * records_seen(source, start) / labelled_rows(start.transfer, source)


def _validation(source: PlannedDataset, start: Settings) -> str:
    """What an evaluation is scored on, in words."""
    rows, few = records_seen(source, start), labels_of(start) is not None
    which = "labelled train" if few else " and ".join(_seen(source))
    return f"1 / {FOLDS} of the {rows:,} {which} records of {source.name}, by patient"


def _budget(budget: Budget) -> str:
    parts = []
    if budget.trials:
        parts.append(count_of(budget.trials, "trial"))
    if budget.evaluations:
        parts.append(count_of(budget.evaluations, "evaluation"))
    if budget.hours:
        parts.append(f"{budget.hours:g} h wall-clock time")
    if budget.device_hours:
        parts.append(count_of(budget.device_hours, "device hour"))
    return "At most " + " or ".join(parts)


def _looks(family: Family) -> str:
    """Where trials may be stopped within their first evaluation."""
    stage, steps = family_stage(family), steps_within(longest(family))
    if len(family.settings) > 1 or family.settings[0].execution.workers > 1 or not steps:
        return ""
    at = ", ".join(f"{step:,}" for step in steps)
    return f" (the worst third stops at {at} {stage.unit})"


def _space(family: Family) -> pd.DataFrame:
    rows = [
        {
            "setting": parameter.name,
            "kind": parameter.kind,
            "range": parameter.range,
            "start": parameter.default,
            "only when": "; ".join(
                f"{name} is {' or '.join(map(str, values))}"
                for name, values in parameter.when.items()
            ),
        }
        for parameter in family.space.parameters
    ]
    frame = pd.DataFrame(rows).astype(str)
    return frame if frame["only when"].any() else frame.drop(columns="only when")


def _search_seconds(search: _Search) -> tuple[float, float, int | None]:
    """Wall-clock seconds, device seconds, and the most evaluations if they are limited."""
    budget, place = search.tuning.budget, search.place
    shared = sum(search.shared.values())
    mean = sum(search.evaluation.values()) / len(search.evaluation)
    limits, count = [], budget.evaluations
    if budget.trials and not (budget.hours or budget.device_hours or count):
        count = expected_evaluations(budget.trials, len(search.evaluation), budget.until)
    if count:
        limits.append(mean * -(-count // place.at_once))
    if budget.hours:
        limits.append(3600 * budget.hours)
    if budget.device_hours:
        limits.append(3600 * budget.device_hours / (place.devices * place.at_once))
    seconds = min(limits)
    worked = mean * count if count and seconds == limits[0] else seconds * place.at_once
    return shared + seconds, shared + worked, count


def _after(search: _Search) -> tuple[float, float]:
    """Wall-clock seconds and hours of the search's device of the runs of start and choice.

    One fold model of each is trained again, and all are scored; the choice is assumed to be of the
    cheapest other family. With ``single``, they are also trained on all labels with each seed.
    """
    items: list[Item] = []
    on_all_labels = len(search.tuning.choice.seeds) if search.tuning.single else 0
    for family in (search.plan.families * 2)[:2]:
        runs = [i for i in search.runs[family.name].items if i.name not in search.shared]
        scoring = [i for i in runs if not i.step.makes_run]
        items += [*(runs * (1 + on_all_labels)), *(scoring * (FOLDS - 1))]
    named = [replace(item, name=f"{n}", after=None) for n, item in enumerate(items)]
    device = "GPU" if search.place.gpus else "CPU"
    return simulate(named, search.resources).seconds, device_hours(named, device)
