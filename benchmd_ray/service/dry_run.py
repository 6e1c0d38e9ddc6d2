"""What a plan would do, as text: how much there is, how long it takes, what is done already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmd_ray.cluster.connection import connected, embedded, own_cpus
from benchmd_ray.console.progress import duration
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.models.imagenet import FILE, REPOSITORY
from benchmd_ray.report.formats import aligned
from benchmd_ray.service.capacity import cluster_capacity
from benchmd_ray.service.keeping import pruned_and_needed
from benchmd_ray.service.plan import Choice, Item, Plan, make_plan, own_gpus
from benchmd_ray.service.simulate import Resources, simulate
from benchmd_ray.service.status import find_runs
from benchmd_ray.service.steps import counts
from benchmd_ray.ssl import TECHNIQUES


@dataclass(frozen=True)
class Status:
    """What of a plan a store holds already, by names of items."""

    done: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    """Runs that are not finished: they resume from their checkpoints."""
    unknown: frozenset[str] = frozenset()
    """Items that could not be looked up without downloading weights."""
    lacking: str = ""
    """Why it cannot start as things are, and what to do; empty where it can."""


def dry_run(
    choice: Choice,
    store: Path,
    *,
    address: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    tflops: float | None = None,
    items: bool = False,
    as_data: bool = False,
) -> Any:
    """A plan, what of it is done and how long the rest takes, in lines or for programs.

    Args:
        choice: What is chosen.
        store: Folder of all runs; it need not be there.
        address: Ray cluster that would be used; None plans for this machine.
        cpus: CPUs that would be used; None takes all.
        gpus: GPUs that would be used; None takes all.
        tflops: As in `make_plan`.
        items: One line for each item, too.
        as_data: Give `data_of` instead of lines.

    Raises:
        BenchmdError: See `make_plan`; or the cluster cannot be reached.
    """
    resources = resources_of(address, cpus, gpus)
    device = "cuda" if resources.gpus else "cpu"
    plan = make_plan(choice, store, device=device, tflops=tflops)
    state = status(plan, store, weights=choice.weights)
    if as_data:
        return data_of(plan, resources, state)
    return describe(plan, resources, state, items=items)


def resources_of(address: str | None, cpus: float | None, gpus: float | None) -> Resources:
    """What is named; for the rest what a cluster, or else this machine, has."""
    if embedded(address):
        return Resources(cpus or own_cpus(), own_gpus() if gpus is None else gpus)
    with connected(address):
        capacity = cluster_capacity()
    return Resources(cpus or capacity.cpus, capacity.gpus if gpus is None else gpus)


def status(plan: Plan, store: Path, *, weights: Path | None = None) -> Status:
    """What of a plan is done.

    Args:
        plan: The plan.
        store: Folder of all runs; it need not be there.
        weights: File of ImageNet weights. Without it those of an earlier download are taken;
            where there are none, nothing is downloaded just to look.
    """
    weights = weights or _downloaded_weights()
    hidden = frozenset(
        item.name
        for item in plan.items
        if weights is None and item.technique in TECHNIQUES and TECHNIQUES[item.technique].imagenet
    )
    asked = [i for i in plan.items if i.name not in hidden and i.catalog is not None]
    progress = find_runs(asked, store, weights=weights)
    done = {name for name, run in progress.items() if run is not None and run.done}
    begun = {
        item.name
        for item in asked
        if (run := progress[item.name]) is not None
        and item.step.makes_run
        and item.name not in done
        and run.run.folder.is_dir()
    }
    unknown = hidden if store.is_dir() else frozenset()
    return Status(
        frozenset(done), frozenset(begun), unknown, pruned_and_needed(asked, progress, store)
    )


def _downloaded_weights() -> Path | None:
    """The hub's file where it was downloaded before."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    path = try_to_load_from_cache(REPOSITORY, FILE)
    return Path(path) if isinstance(path, str) else None


def describe(
    plan: Plan, resources: Resources, held: Status | None = None, *, items: bool = False
) -> list[str]:
    """The lines of a plan as people read it.

    Args:
        plan: The plan.
        resources: CPUs and GPUs that it would use.
        held: What of it is done already; None where nobody looked.
        items: One line for each item, too.
    """
    held = held or Status()
    left = [item for item in plan.items if item.name not in held.done]
    on_gpu = any(item.gpus > 0 for item in plan.items)
    parts = [_headline(plan), "", *aligned(_table(plan, held, on_gpu)), ""]
    parts += [_wall(left, resources), _disk(left, resources), _done(plan, held)]
    if held.lacking:
        parts.append(f"It would not start: {held.lacking}")
    parts.append(f"Estimates: {plan.basis}")
    if any(item.catalog is None for item in plan.items):
        parts.append(
            "Planned from the datasets' cards, with about the records of complete downloads. To "
            "run it, build catalogs (`benchmd catalog build`) and name them with --catalog."
        )
    if plan.notes:
        parts += ["", "To know:", *(f"- {note}" for note in plan.notes)]
    if items:
        parts += ["", *aligned(_lines(plan, held))]
    return parts


def data_of(plan: Plan, resources: Resources, held: Status) -> dict[str, Any]:
    """A plan for programs: times in seconds, sizes in bytes, each item.

    ``seconds`` is by the clock of what is left, None where it cannot run on these resources.
    """
    left = [item for item in plan.items if item.name not in held.done]
    try:
        seconds: float | None = simulate(left, resources).seconds
    except BenchmdError:
        seconds = None
    texts = ("name", "kind", "modality", "source", "dataset", "policy", "technique", "setting")
    numbers = ("seed", "seconds", "cpus", "gpus", "disk_bytes", "after")
    return {
        "seconds": seconds,
        "cpus": resources.cpus,
        "gpus": resources.gpus,
        "disk_bytes": sum(item.disk_bytes for item in left),
        "basis": plan.basis,
        "notes": [*plan.notes, *([held.lacking] if held.lacking else [])],
        "items": [
            {
                **{name: getattr(item, name) for name in (*texts, *numbers)},
                "state": _state(item, held),
            }
            for item in plan.items
        ],
    }


def _state(item: Item, held: Status) -> str:
    states = (("done", held.done), ("begun", held.begun))
    return next((word for word, names in states if item.name in names), "")


def _headline(plan: Plan) -> str:
    def number(names: set[Any], one: str, many: str) -> str:
        return f"{len(names)} {one if len(names) == 1 else many}"

    every = plan.items
    transfers = {i.setting for i in every if i.step.scores}
    parts = [
        number({i.modality for i in every}, "modality", "modalities"),
        number({i.technique for i in every}, "technique", "techniques"),
        number(transfers, "transfer setting", "transfer settings"),
        number({i.seed for i in every}, "seed", "seeds"),
    ]
    return f"{count_of(len(every), 'entry')}: {', '.join(parts)}."


def _table(plan: Plan, held: Status, on_gpu: bool) -> pd.DataFrame:
    """One row for each source, and one for all; times and bytes of what is left."""
    rows = [
        _row((modality, source, policy), [i for i in plan.items if _source(i) == key], held, on_gpu)
        for key in dict.fromkeys(_source(i) for i in plan.items)
        for modality, source, policy in [key]
    ]
    if len(rows) > 1:
        rows.append(_row(("all", "", ""), plan.items, held, on_gpu))
    return pd.DataFrame(rows)


def _source(item: Item) -> tuple[str, str, str]:
    return item.modality, item.source, item.policy


def _row(
    names: tuple[str, str, str], items: Sequence[Item], held: Status, on_gpu: bool
) -> dict[str, Any]:
    left = [item for item in items if item.name not in held.done]
    hours = sum(i.seconds * (i.gpus if on_gpu else i.cpus) for i in left) / 3600
    return {
        **dict(zip(("modality", "trained on", "policy"), names, strict=True)),
        **counts(item.step for item in items),
        "done": len(items) - len(left),
        f"{'GPU' if on_gpu else 'CPU'}-hours left": figure(hours),
        "disk": size(sum(i.disk_bytes for i in left)),
    }


def _wall(left: Sequence[Item], resources: Resources) -> str:
    if not left:
        return "Nothing is left to do."
    used = f"{resources.cpus:g} CPU{'s' * (resources.cpus != 1)}"
    if resources.gpus:
        used += f" and {resources.gpus:g} GPU{'s' * (resources.gpus != 1)}"
    try:
        seconds = simulate(left, resources).seconds
    except BenchmdError as error:
        return f"It cannot run on {used}: {error}"
    return f"Time: about {duration(seconds)} on {used}."


def _disk(left: Sequence[Item], resources: Resources) -> str:
    kept = sum(item.disk_bytes for item in left)
    line = f"Disk: {size(kept)} more when all is done"
    try:
        return f"{line}, at most {size(simulate(left, resources).peak_bytes)} on the way."
    except BenchmdError:
        return f"{line}."


def _done(plan: Plan, held: Status) -> str:
    line = f"Done already: {len(held.done)} of {len(plan.items):,}"
    if held.begun:
        line += f"; begun, to resume from checkpoints: {len(held.begun)}"
    if held.unknown:
        line += f"; not looked up, without --weights: {len(held.unknown)}"
    return f"{line}."


def _lines(plan: Plan, held: Status) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "entry": item.name,
            "kind": item.kind,
            "state": _state(item, held),
            "time": duration(item.seconds),
            "CPUs": f"{item.cpus:g}",
            "GPUs": f"{item.gpus:g}",
            "disk": size(item.disk_bytes),
        }
        for item in plan.items
    )


def size(count: float) -> str:
    """Bytes to read: ``950 kB``, ``38.6 MB``, ``10.4 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def figure(value: float) -> str:
    """A number to read: two figures below 10, thousands apart above."""
    return f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"
