"""What searches would do, as text: what is varied, where it starts, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.inner import FOLDS, has_validation
from benchmd_ray.errors import count_of
from benchmd_ray.progress import duration
from benchmd_ray.results.written import text
from benchmd_ray.service.capacity import Capacity
from benchmd_ray.service.datasets import Dataset
from benchmd_ray.service.plan import Plan, make_plan
from benchmd_ray.service.retrain import of_sources, started
from benchmd_ray.service.searches import SearchPlan, Tuning
from benchmd_ray.service.simulate import Resources, simulate
from benchmd_ray.service.trial_place import longest, place_of
from benchmd_ray.ssl import SCRATCH
from benchmd_ray.tuning.limits import CONFIRMING_AT_ONCE, Budget
from benchmd_ray.tuning.racing import expected_evaluations, rungs, steps_within
from benchmd_ray.tuning.records import SEARCHES, TRIALS, read_search


def tuning_dry_run(
    tuning: Tuning,
    plans: Sequence[SearchPlan],
    store: Path,
    capacity: Capacity,
    *,
    tflops: float | None = None,
) -> str:
    """Searches as people read them.

    Args:
        tuning: What was asked for.
        plans: The searches.
        store: Folder of all runs; it need not be there.
        capacity: What there is to work on.
        tflops: As in `make_plan`.

    Raises:
        BenchmdError: See `make_plan`; or not even one trial fits.
    """
    parts = []
    for plan in plans:
        whole = make_plan(
            started(tuning, plan),
            store,
            device=plan.starts[0].execution.device,
            tflops=tflops,
        )
        parts.append("\n".join(_described(tuning, plan, whole, store, capacity)))
    return "\n\n".join(parts)


def _described(
    tuning: Tuning, plan: SearchPlan, whole: Plan, store: Path, capacity: Capacity
) -> list[str]:
    place = place_of(plan, capacity, tuning.at_once)
    sources = ", ".join(f"{s.name} ({s.modality})" for s in plan.sources)
    lines = [
        f"{plan.name}: {plan.technique}, {plan.setting}, on {sources}",
        f"Scored by {_objective(plan)} on {'; '.join(map(_validation, plan.sources))}.",
        f"{_budget(tuning.budget)}, {place.at_once} at once, sampler {plan.method.sampler}, "
        f"{_stopping(plan)}.",
        "",
        text(_space(plan)),
        "",
        *_times(plan, whole, tuning, place.at_once, capacity),
        f"Disk: about {_inner_bytes(plan) * len(plan.evaluations) / 1e9:.2g} GB for "
        f"{len(plan.evaluations)} inner catalogs, each a copy of what the search sees.",
        f"Estimates: {whole.basis}",
    ]
    folder = store / SEARCHES / plan.name
    if (folder / TRIALS).is_file():
        counts = read_search(folder).trials["state"].value_counts()
        lines.append("So far: " + ", ".join(f"{n} {state}" for state, n in counts.items()) + ".")
    return lines


def _inner_bytes(plan: SearchPlan) -> int:
    """Size of the shards that an inner catalog is a copy of."""
    return sum(
        int(shard["bytes"])
        for source in plan.sources
        if source.catalog
        for shard in open_catalog(source.catalog).manifest["shards"]
        if shard["split"] in _seen(source)
    )


def _seen(source: Dataset) -> tuple[str, ...]:
    """Splits of a source that a search sees, see `data.inner`."""
    own = has_validation(source.rows, source.scored)
    return ("train", "validation") if own else ("train",)


def _inner_share(source: Dataset) -> float:
    """Of as many records as the training split has, what an evaluation trains on."""
    rows = sum(source.rows[split] for split in _seen(source))
    return (1 - 1 / FOLDS) * rows / source.rows["train"]


def _validation(source: Dataset) -> str:
    """What an evaluation is scored on, in words."""
    rows = sum(source.rows[split] for split in _seen(source))
    splits = " and ".join(_seen(source))
    return f"1 / {FOLDS} of the {rows:,} {splits} records of {source.name}, by patient"


def _objective(plan: SearchPlan) -> str:
    name = plan.metric.upper()
    across = {None: name, "mean-score": f"the mean {name}", "mean-rank": f"the mean rank of {name}"}
    scored = across[plan.method.across] + (" over modalities" if plan.method.across else "")
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
    plan: SearchPlan, whole: Plan, tuning: Tuning, at_once: int, capacity: Capacity
) -> list[str]:
    """Estimated times of what trials share, of the search and of the runs after it."""
    items = of_sources(whole, plan)
    own = [item for item in items if item.seed == tuning.choice.seeds[0]]
    share = {source.name: _inner_share(source) for source in plan.sources}
    pretrained, transferred = (
        sum(
            i.seconds * share[i.source] for i in own if i.step.makes_run and i.step.scores is scores
        )
        for scores in (False, True)
    )
    lines = []
    each, method = transferred, plan.method
    if plan.stage.pretrains:
        each += pretrained
    elif plan.technique != SCRATCH:
        whole_split = sum(i.seconds for i in own if i.step.makes_run and not i.step.scores)
        lines.append(
            "Shared by all trials and the runs after them: one pretraining, about "
            f"{duration(whole_split)}."
        )
    said = f"An evaluation like the start's takes about {duration(each)}"
    if tuning.budget.trials:
        race = method.evaluations * tuning.budget.trials
        if method.stopping == "racing":
            race = expected_evaluations(tuning.budget.trials, method.evaluations)
        waves = -(-race // at_once) - (-method.confirming // min(at_once, CONFIRMING_AT_ONCE))
        said += (
            f", {race} of the trials and {method.confirming} of finalists about "
            f"{duration(each * waves)}; less where trials are stopped early or reuse features, "
            "more where longer trainings are chosen"
        )
    lines.append(said + ".")
    if not plan.stage.pretrains:  # what trials start from, start and choice start from, too
        items = [item for item in items if item.step.scores or not item.step.makes_run]
    after = simulate(items, Resources(capacity.cpus, capacity.gpus)).seconds
    lines.append(
        f"Afterwards, start and choice on the whole training split: {2 * len(items)} entries or "
        f"fewer, about {duration(2 * after)}."
    )
    return lines
