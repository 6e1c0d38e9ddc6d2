"""What searches would do, as text: what is varied, where it starts, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
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
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.dry_run import figure, resources_of
from benchmd_ray.service.plan import Plan, make_plan
from benchmd_ray.service.retrain import of_sources, started
from benchmd_ray.service.searches import SearchPlan, Tuning, planned_searches
from benchmd_ray.service.simulate import Resources, simulate
from benchmd_ray.service.trial_place import longest, place_of
from benchmd_ray.ssl import SCRATCH
from benchmd_ray.tuning.limits import CONFIRMING_AT_ONCE, Budget, Place
from benchmd_ray.tuning.racing import expected_evaluations, rungs, steps_within
from benchmd_ray.tuning.records import limits_of, read_search


@dataclass(frozen=True)
class _Cost:
    """What searches take, estimated."""

    searching: float
    """Seconds by the clock: what trials share, and the trials."""
    after: float
    """Seconds by the clock of the runs after them."""
    device_hours: float
    """Of all of it."""
    device: str

    def __add__(self, other: _Cost) -> _Cost:
        times = (self.searching + other.searching, self.after + other.after)
        return _Cost(*times, self.device_hours + other.device_hours, self.device)


def tuning_dry_run(
    tunings: Sequence[Tuning],
    store: Path,
    *,
    address: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    tflops: float | None = None,
) -> list[str]:
    """The lines of searches as people read them.

    Args:
        tunings: What was asked for; without catalogs it is planned from the cards of datasets.
        store: Folder of all runs; it need not be there.
        address: Ray cluster that would be used; None plans for this machine.
        cpus: CPUs that would be used; None takes all.
        gpus: GPUs that would be used; None takes all.
        tflops: As in `make_plan`.

    Raises:
        BenchmdError: See `make_plan`; or not even one trial fits, or the cluster cannot be reached.
    """
    resources = resources_of(address, cpus, gpus)
    machine = (resources.cpus, resources.gpus)
    capacity = Capacity(*machine, all_cpus=resources.cpus, each=(machine,))
    backing_of(store).refresh_store()
    parts, costs = [], []
    for tuning in tunings:
        for plan in planned_searches(tuning, gpu=resources.gpus > 0):
            device = plan.starts[0].execution.device
            whole = make_plan(started(tuning, plan), store, device=device, tflops=tflops)
            lines, cost = _described(tuning, plan, whole, store, capacity)
            parts += [*lines, ""]
            costs.append(cost)
    if len(costs) > 1:
        parts += [_total(costs), ""]
    if not all(tuning.choice.catalogs for tuning in tunings):
        parts += [
            "Planned from the datasets' cards, with about the records of complete downloads.",
            "",
        ]
    return parts[:-1]


def _total(costs: Sequence[_Cost]) -> str:
    whole = reduce(add, costs)
    return (
        f"In all: {len(costs)} searches one after the other, about {duration(whole.searching)}, "
        f"and the runs after them, about {duration(whole.after)}; about "
        f"{figure(whole.device_hours)} {whole.device} hours."
    )


def _described(
    tuning: Tuning, plan: SearchPlan, whole: Plan, store: Path, capacity: Capacity
) -> tuple[list[str], _Cost]:
    place = place_of(plan, capacity, tuning.at_once)
    sources = ", ".join(f"{s.name} ({s.modality})" for s in plan.sources)
    has_catalogs = all(source.catalog for source in plan.sources)
    times, cost = _times(plan, whole, tuning, place, capacity)
    title = plan.name if has_catalogs else "A search"
    lines = [
        f"{title}: {plan.technique}, {plan.setting}, on {sources}",
        f"Scored by {_objective(plan)} on {'; '.join(map(_validation, plan.sources))}.",
        *limits_of([source.policy for source in plan.sources], [plan.setting]),
        f"{_budget(tuning.budget)}, {place.at_once} at once, sampler {plan.method.sampler}, "
        f"{_stopping(plan)}.",
        "",
        *aligned(_space(plan)),
        "",
        *times,
        f"Estimates: {whole.basis}",
    ]
    if plan.portfolio:
        learned = sorted({name for given in plan.portfolio for name in given.datasets})
        tried = count_of(len(plan.portfolio), "setting")
        lines.insert(3, f"First, after the start: {tried} learned on {', '.join(learned)}.")
    if has_catalogs:
        size = _inner_bytes(plan) * len(plan.evaluations) / 1e9
        copies = f"{len(plan.evaluations)} inner catalogs, each a copy of what the search sees."
        lines.insert(-1, f"Disk: about {size:.2g} GB for {copies}")
    folder = store / SEARCHES / plan.name
    if (folder / TRIALS).is_file():
        counts = read_search(folder).trials["state"].value_counts()
        lines.append("So far: " + ", ".join(f"{n} {state}" for state, n in counts.items()) + ".")
    return lines, cost


def _inner_bytes(plan: SearchPlan) -> int:
    """Size of the shards that an inner catalog is a copy of."""
    return sum(
        int(shard["bytes"])
        for source in plan.sources
        if source.catalog
        for shard in open_catalog(source.catalog).manifest["shards"]
        if shard["split"] in _seen(source)
    )


def _seen(source: PlannedDataset) -> tuple[str, ...]:
    """Splits of a source that a search sees, see `data.inner`."""
    return splits_seen(source.rows, source.scored)


def _inner_share(source: PlannedDataset) -> float:
    """Of as many records as the training split has, what an evaluation trains on."""
    rows = sum(source.rows[split] for split in _seen(source))
    return (1 - 1 / FOLDS) * rows / source.rows["train"]


def _validation(source: PlannedDataset) -> str:
    """What an evaluation is scored on, in words."""
    rows = sum(source.rows[split] for split in _seen(source))
    splits = " and ".join(_seen(source))
    return f"1 / {FOLDS} of the {rows:,} {splits} records of {source.name}, by patient"


def _objective(plan: SearchPlan) -> str:
    name = plan.metric.upper()
    scored = f"the mean {name} over modalities" if plan.method.universal else name
    return scored + plan.stage.scored_by + (" and device hours" if plan.method.cost else "")


def _budget(budget: Budget) -> str:
    parts = []
    if budget.trials:
        parts.append(count_of(budget.trials, "trial"))
    if budget.hours:
        parts.append(f"{budget.hours:g} h by the clock")
    if budget.device_hours:
        parts.append(count_of(budget.device_hours, "device hour"))
    return "At most " + " or ".join(parts)


def _stopping(plan: SearchPlan) -> str:
    method, unit = plan.method, plan.stage.unit
    each = f"{count_of(method.evaluations, 'evaluation')} of a trial"
    earned = rungs(method.evaluations)[:-1]
    if method.stopping == "racing" and earned:
        at = ", ".join(map(str, earned))
        each = f"up to {each}, which a third of the trials earn at {at}"
    steps: Sequence[int] = steps_within(longest(plan))
    if len(plan.sources) > 1:
        unit, steps = "modalities", range(1, len(plan.sources))
    if plan.starts[0].execution.workers > 1:  # nothing is reported within an evaluation
        steps = ()
    if method.stopping == "none" or not steps:
        return f"{each}, no early stopping"
    at = ", ".join(f"{step:,}" for step in steps)
    return f"{each}, early stopping by {method.stopping} (looks at {at} {unit} of the first)"


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


def _times(
    plan: SearchPlan, whole: Plan, tuning: Tuning, place: Place, capacity: Capacity
) -> tuple[list[str], _Cost]:
    """Estimated times of what trials share, of the search and of the runs after it."""
    items = of_sources(whole, plan)
    first_seed = [item for item in items if item.seed == tuning.choice.seeds[0]]
    share = {source.name: _inner_share(source) for source in plan.sources}
    pretrained, transferred = (
        sum(
            i.seconds * share[i.source]
            for i in first_seed
            if i.step.makes_run and i.step.scores is scores
        )
        for scores in (False, True)
    )
    lines = []
    each, method, shared = transferred, plan.method, 0.0
    if plan.stage.pretrains:
        each += pretrained
    elif plan.technique != SCRATCH:
        shared = sum(i.seconds for i in first_seed if i.step.makes_run and not i.step.scores)
        lines.append(
            "Shared by all trials and the runs after them: one pretraining, about "
            f"{duration(shared)}."
        )
    line = f"An evaluation like the start's takes about {duration(each)}"
    searching, worked = shared, shared
    if tuning.budget.trials:
        race = method.evaluations * tuning.budget.trials
        if method.stopping == "racing":
            race = expected_evaluations(tuning.budget.trials, method.evaluations)
        confirming = 0 if method.choosing == "highest" else method.confirming
        at_once = min(place.at_once, CONFIRMING_AT_ONCE)
        waves = -(-race // place.at_once) - (-confirming // at_once)
        searching, worked = shared + each * waves, shared + each * (race + confirming)
        finalists = f" and {confirming} of finalists" if confirming else ""
        line += (
            f", {race} of the trials{finalists} about "
            f"{duration(each * waves)}; less where trials are stopped early or reuse features, "
            "more where longer trainings are chosen"
        )
    lines.append(line + ".")
    budget = tuning.budget
    by_the_clock = [budget.hours] if budget.hours else []
    if budget.device_hours:
        by_the_clock.append(budget.device_hours / (place.devices * place.at_once))
    if by_the_clock:
        most = 3600 * min(by_the_clock)
        most_worked = shared + most * place.at_once
        searching = min(searching, shared + most) if budget.trials else shared + most
        worked = min(worked, most_worked) if budget.trials else most_worked
    hours = worked * place.devices / 3600
    if not plan.stage.pretrains:  # what trials start from, start and choice start from, too
        items = [item for item in items if item.step.scores or not item.step.makes_run]
    after = simulate(items, Resources(capacity.cpus, capacity.gpus)).seconds
    lines.append(
        f"Afterwards, start and choice on the whole training split: {2 * len(items)} entries or "
        f"fewer, about {duration(2 * after)}."
    )
    runs = sum(item.seconds * (item.gpus or item.cpus) for item in items)
    device = "GPU" if place.gpus else "CPU"
    return lines, _Cost(searching, 2 * after, hours + 2 * runs / 3600, device)
