"""Output of a dry run of searches: what is varied, the start, and the duration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from benchmd_ray.service.dry_run import DryRun, size
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.service.searches import (
    SearchPlan,
    Tuning,
    labels_of,
    of_sources,
    planned_searches,
    records_seen,
    started,
)
from benchmd_ray.service.simulate import Resources, simulate
from benchmd_ray.service.trial_place import longest, place_of
from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl import SCRATCH
from benchmd_ray.tuning.limits import CONFIRMING_AT_ONCE, Budget, Place
from benchmd_ray.tuning.racing import expected_evaluations, rungs, steps_within
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
            device = plan.starts[0].execution.device
            runs = make_plan(started(tuning, plan), store, device=device, tflops=tflops)
            place = place_of(plan, capacity, tuning.at_once)
            estimates.append(_estimate(_Search(tuning, plan, runs, place, resources), store))
    return estimates


@dataclass(frozen=True)
class _Search:
    tuning: Tuning
    plan: SearchPlan
    runs: Plan
    """Items of the start, whose times give the duration of a trial."""
    place: Place
    resources: Resources

    @property
    def items(self) -> list[Item]:
        """Runs of the start on the search's sources."""
        return of_sources(self.runs, self.plan)

    @property
    def has_catalogs(self) -> bool:
        return all(source.catalog for source in self.plan.sources)


def _estimate(search: _Search, store: Path) -> DryRun:
    plan, place = search.plan, search.place
    evaluation, shared = _evaluation_seconds(search)
    searching, worked, trials = _search_seconds(search, evaluation, shared)
    after, after_hours = _after(search)
    device = "GPU" if place.gpus else "CPU"
    takes = []
    if shared:
        takes.append(
            "Shared by all trials and the runs after them: one pretraining, about "
            f"{duration(shared)}."
        )
    takes.append(
        f"An evaluation with the start's settings takes about {duration(evaluation)}{trials}."
    )
    takes.append(
        f"Afterwards, start and choice on the whole training split: {2 * len(_runs_after(search))} "
        f"entries or fewer, about {duration(after)}."
    )
    disk = _inner_bytes(plan) * len(plan.evaluations)
    if search.has_catalogs:
        copies = f"{len(plan.evaluations)} inner catalogs, each a copy of the search's records."
        takes.append(f"Disk: about {size(disk)} for {copies}")
    folder = store / SEARCHES / plan.name
    if (folder / TRIALS).is_file():
        counts = read_search(folder).trials["state"].value_counts()
        takes.append("So far: " + ", ".join(f"{n} {state}" for state, n in counts.items()) + ".")
    return DryRun(
        work=tuple(_work(search)),
        takes=tuple(takes),
        basis=search.runs.basis,
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
    sources = ", ".join(f"{s.name} ({s.modality})" for s in plan.sources)
    title = plan.name if search.has_catalogs else "A search"
    lines = [
        f"{title}: {plan.technique}, {plan.setting}, on {sources}",
        f"Scored by {_objective(plan)} on "
        f"{'; '.join(map(_validation, plan.sources, plan.starts))}.",
        f"{_budget(tuning.budget)}, {search.place.at_once} at once, sampler {plan.method.sampler}, "
        f"{_stopping(plan)}.",
    ]
    if plan.portfolio:
        learned = sorted({name for tried in plan.portfolio for name in tried.datasets})
        tried = count_of(len(plan.portfolio), "setting")
        lines.append(f"First, after the start: {tried} learned on {', '.join(learned)}.")
    return [*lines, "", *aligned(_space(plan))]


def _inner_bytes(plan: SearchPlan) -> int:
    """Bytes of the records that an inner catalog copies."""
    total = 0.0
    for source, start in zip(plan.sources, plan.starts, strict=True):
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


def _objective(plan: SearchPlan) -> str:
    name = plan.metric.upper()
    scored = f"the mean {name} over modalities" if plan.method.universal else name
    return scored + plan.stage.scored_by + (" and device hours" if plan.method.cost else "")


def _budget(budget: Budget) -> str:
    parts = []
    if budget.trials:
        parts.append(count_of(budget.trials, "trial"))
    if budget.hours:
        parts.append(f"{budget.hours:g} h wall-clock time")
    if budget.device_hours:
        parts.append(count_of(budget.device_hours, "device hour"))
    return "At most " + " or ".join(parts)


def _stopping(plan: SearchPlan) -> str:
    method, unit = plan.method, plan.stage.unit
    evaluations = f"{count_of(method.evaluations, 'evaluation')} of a trial"
    earned = rungs(method.evaluations)[:-1]
    if method.stopping == "racing" and earned:
        at = ", ".join(map(str, earned))
        evaluations = f"up to {evaluations}, which a third of the trials earn at {at}"
    steps: Sequence[int] = steps_within(longest(plan))
    if len(plan.sources) > 1:
        unit, steps = "modalities", range(1, len(plan.sources))
    if plan.starts[0].execution.workers > 1:  # no intermediate scores within an evaluation
        steps = ()
    if method.stopping == "none" or not steps:
        return f"{evaluations}, no early stopping"
    at = ", ".join(f"{step:,}" for step in steps)
    return f"{evaluations}, early stopping by {method.stopping} (looks at {at} {unit} of the first)"


def _space(plan: SearchPlan) -> pd.DataFrame:
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
        for parameter in plan.space.parameters
    ]
    frame = pd.DataFrame(rows).astype(str)
    return frame if frame["only when"].any() else frame.drop(columns="only when")


def _evaluation_seconds(search: _Search) -> tuple[float, float]:
    """Seconds of one evaluation with the start's settings, and of the shared runs."""
    plan = search.plan
    items = [
        i for i in search.items if i.seed == search.tuning.choice.seeds[0] and i.step.makes_run
    ]
    pairs = zip(plan.sources, plan.starts, strict=True)
    share = {source.name: _inner_share(source, start) for source, start in pairs}
    pretrained, transferred = (
        sum(i.seconds * share.get(i.source, 1.0) for i in items if i.step.scores is scores)
        for scores in (False, True)
    )
    if plan.stage.pretrains:
        return transferred + pretrained, 0.0
    if plan.technique == SCRATCH:
        return transferred, 0.0
    return transferred, sum(i.seconds for i in items if not i.step.scores)


def _search_seconds(search: _Search, evaluation: float, shared: float) -> tuple[float, float, str]:
    """Wall-clock seconds, device seconds of trials, and the number of trials in words."""
    method, budget, place = search.plan.method, search.tuning.budget, search.place
    searching, worked, words = shared, shared, ""
    if budget.trials:
        race = method.evaluations * budget.trials
        if method.stopping == "racing":
            race = expected_evaluations(budget.trials, method.evaluations)
        confirming = 0 if method.choosing == "highest" else method.confirming
        at_once = min(place.at_once, CONFIRMING_AT_ONCE)
        waves = -(-race // place.at_once) - (-confirming // at_once)
        searching, worked = shared + evaluation * waves, shared + evaluation * (race + confirming)
        finalists = f" and {confirming} of finalists" if confirming else ""
        words = (
            f", {race} of the trials{finalists} about "
            f"{duration(evaluation * waves)}; less where trials are stopped early or reuse "
            "features, more where longer trainings are chosen"
        )
    hours = [budget.hours] if budget.hours else []
    if budget.device_hours:
        hours.append(budget.device_hours / (place.devices * place.at_once))
    if hours:
        most = 3600 * min(hours)
        limit = (shared + most, shared + most * place.at_once)
        searching = min(searching, limit[0]) if budget.trials else limit[0]
        worked = min(worked, limit[1]) if budget.trials else limit[1]
    return searching, worked, words


def _runs_after(search: _Search) -> list[Item]:
    """Runs of the start after a search; those of the choice take the same time."""
    if search.plan.stage.pretrains:
        return search.items
    # The pretraining of the trials is used by start and choice too.
    return [item for item in search.items if item.step.scores or not item.step.makes_run]


def _after(search: _Search) -> tuple[float, float]:
    """Wall-clock seconds and device hours of the runs of start and choice."""
    items = _runs_after(search)
    busy = sum(item.seconds * (item.gpus or item.cpus) for item in items)
    return 2 * simulate(items, search.resources).seconds, 2 * busy / 3600
