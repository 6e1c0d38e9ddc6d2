"""Output of a dry run: what would run, what is done, and how long the rest takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmd_ray.cluster.connection import connected, embedded, own_cpus
from benchmd_ray.console.progress import duration
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.models.imagenet import FILE, REPOSITORY
from benchmd_ray.report.formats import aligned
from benchmd_ray.service.capacity import cluster_capacity
from benchmd_ray.service.keeping import pruned_and_needed
from benchmd_ray.service.plan import Choice, Item, Plan, make_plan, own_gpus
from benchmd_ray.service.simulate import Resources, Schedule, simulate
from benchmd_ray.service.status import find_runs
from benchmd_ray.service.steps import counts
from benchmd_ray.ssl import TECHNIQUES


@dataclass(frozen=True)
class DryRun:
    """Work, time and disk of a plan, or of a search with the runs after it."""

    work: tuple[str, ...]
    """Lines that say what would run."""
    takes: tuple[str, ...]
    """Sentences about time, disk and what is done already."""
    basis: str
    seconds: float | None
    """Wall-clock seconds of what is left; None if it cannot run on these resources."""
    device_hours: float
    device: str
    """Device of the hours: ``GPU`` or ``CPU``."""
    resources: Resources
    disk_bytes: int
    after_seconds: float = 0.0
    """Wall-clock seconds of the runs after a search."""
    warnings: tuple[str, ...] = ()
    items: tuple[dict[str, Any], ...] = ()
    """Entries of a plan: times in seconds, sizes in bytes."""
    from_cards: bool = False
    """Whether it was planned from cards, without catalogs."""

    def lines(self, *, items: bool = False) -> list[str]:
        """Text for the user; on request with a line for each entry."""
        lines = [*self.work, "", *self.takes, f"Estimates: {self.basis}"]
        if self.warnings:
            lines += ["", "Notes:", *(f"- {warning}" for warning in self.warnings)]
        return [*lines, "", *aligned(_item_table(self.items))] if items else lines

    @property
    def data(self) -> dict[str, Any]:
        """The same as data for programs."""
        names = ("seconds", "device_hours", "disk_bytes", "basis", "items")
        return {
            **vars(self.resources),
            **{name: getattr(self, name) for name in names},
            "notes": self.warnings,
        }


def print_estimates(estimates: Sequence[DryRun], to_run: str, *, items: bool = False) -> None:
    """Print the estimates and, for several searches, their total.

    `to_run` says what to do if they are planned from cards; `items` adds a line for each entry.
    """
    blocks = [estimate.lines(items=items) for estimate in estimates]
    if len(estimates) > 1:
        blocks.append([_total(estimates)])
    if any(estimate.from_cards for estimate in estimates):
        about = "Planned from the datasets' cards, with about the records of complete downloads."
        blocks.append([f"{about} {to_run}"])
    for number, block in enumerate(blocks):
        for line in ([""] if number else []) + block:
            echo(line)


def _total(searches: Sequence[DryRun]) -> str:
    hours = sum(search.device_hours for search in searches)
    return (
        f"In total: {len(searches)} searches one after the other, about "
        f"{duration(sum(search.seconds or 0.0 for search in searches))}, and the runs after them, "
        f"about {duration(sum(search.after_seconds for search in searches))}; about "
        f"{figure(hours)} {searches[0].device} hours."
    )


@dataclass(frozen=True)
class Status:
    """State of a plan's items in a store, by name."""

    done: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    """Unfinished runs, which resume from their checkpoints."""
    unknown: frozenset[str] = frozenset()
    """Items that could not be looked up without downloading weights."""
    lacking: str = ""
    """Why the plan cannot start, and what to do; empty if it can."""

    def left(self, items: Iterable[Item]) -> list[Item]:
        return [item for item in items if item.name not in self.done]

    def of(self, item: Item) -> str:
        """State of an item: ``done``, ``begun`` or empty."""
        if item.name in self.done:
            return "done"
        return "begun" if item.name in self.begun else ""


def estimate_run(
    choice: Choice, store: Path, resources: Resources, *, tflops: float | None = None
) -> DryRun:
    """Estimate the runs of a choice that are missing in the store, which need not exist."""
    plan = make_plan(choice, store, device="cuda" if resources.gpus else "cpu", tflops=tflops)
    return estimate_plan(plan, resources, status(plan, store, weights=choice.weights))


def resources_of(address: str | None, cpus: float | None, gpus: float | None) -> Resources:
    """The resources given by the user; otherwise those of the cluster or this machine."""
    if embedded(address):
        return Resources(cpus or own_cpus(), own_gpus() if gpus is None else gpus)
    with connected(address):
        capacity = cluster_capacity()
    return Resources(cpus or capacity.cpus, capacity.gpus if gpus is None else gpus)


def status(plan: Plan, store: Path, *, weights: Path | None = None) -> Status:
    """State of a plan in a store.

    Without a file of ImageNet weights, an earlier download is used; nothing is downloaded.
    """
    weights = weights or _downloaded_weights()
    hidden = frozenset(
        item.name
        for item in plan.items
        if weights is None and item.technique in TECHNIQUES and TECHNIQUES[item.technique].imagenet
    )
    items = [i for i in plan.items if i.name not in hidden and i.catalog is not None]
    progress = find_runs(items, store, weights=weights)
    done = {name for name, run in progress.items() if run is not None and run.done}
    begun = {
        item.name
        for item in items
        if (run := progress[item.name]) is not None
        and item.step.makes_run
        and item.name not in done
        and run.run.folder.is_dir()
    }
    unknown = hidden if store.is_dir() else frozenset()
    lacking = pruned_and_needed(items, progress, store)
    return Status(frozenset(done), frozenset(begun), unknown, lacking)


def _downloaded_weights() -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    path = try_to_load_from_cache(REPOSITORY, FILE)
    return Path(path) if isinstance(path, str) else None


def estimate_plan(plan: Plan, resources: Resources, status: Status | None = None) -> DryRun:
    """Estimate what is left of a plan; without a status, all of it."""
    status = status or Status()
    left = status.left(plan.items)
    device = "GPU" if any(item.gpus > 0 for item in plan.items) else "CPU"
    schedule, time = _scheduled(left, resources)
    warnings = [f"It would not start: {status.lacking}"] if status.lacking else []
    return DryRun(
        work=(_headline(plan), "", *aligned(_table(plan, status, device))),
        takes=(time, _disk(left, schedule), _done(plan, status)),
        basis=plan.basis,
        seconds=None if schedule is None else schedule.seconds,
        device_hours=device_hours(left, device),
        device=device,
        resources=resources,
        disk_bytes=sum(item.disk_bytes for item in left),
        warnings=(*warnings, *plan.notes),
        items=tuple(_data(item, status) for item in plan.items),
        from_cards=any(item.catalog is None for item in plan.items),
    )


def device_hours(items: Iterable[Item], device: str) -> float:
    """GPU or CPU hours of items."""
    return sum(i.seconds * (i.gpus if device == "GPU" else i.cpus) for i in items) / 3600


def _data(item: Item, status: Status) -> dict[str, Any]:
    texts = ("name", "kind", "modality", "source", "dataset", "policy", "technique", "setting")
    numbers = ("seed", "seconds", "cpus", "gpus", "disk_bytes", "after")
    return {name: getattr(item, name) for name in (*texts, *numbers)} | {"state": status.of(item)}


def _headline(plan: Plan) -> str:
    items = plan.items
    parts = [
        count_of(len({i.modality for i in items}), "modality"),
        count_of(len({i.technique for i in items}), "technique"),
        count_of(len({i.setting for i in items if i.step.scores}), "transfer setting"),
        count_of(len({i.seed for i in items}), "seed"),
    ]
    return f"{count_of(len(items), 'entry')}: {', '.join(parts)}."


def _table(plan: Plan, status: Status, device: str) -> pd.DataFrame:
    """One row for each source and one for all, with time and bytes of what is left."""
    sources: dict[tuple[str, str, str], list[Item]] = {}
    for item in plan.items:
        sources.setdefault((item.modality, item.source, item.policy), []).append(item)
    if len(sources) > 1:
        sources["all", "", ""] = list(plan.items)
    rows = []
    for names, items in sources.items():
        left = status.left(items)
        rows.append(
            {
                **dict(zip(("modality", "trained on", "policy"), names, strict=True)),
                **counts(item.step for item in items),
                "done": len(items) - len(left),
                f"{device}-hours left": figure(device_hours(left, device)),
                "disk": size(sum(i.disk_bytes for i in left)),
            }
        )
    return pd.DataFrame(rows)


def _scheduled(left: Sequence[Item], resources: Resources) -> tuple[Schedule | None, str]:
    """The simulated schedule, and a sentence with its time or why there is none."""
    machine = count_of(resources.cpus, "CPU")
    if resources.gpus:
        machine += f" and {count_of(resources.gpus, 'GPU')}"
    try:
        schedule = simulate(left, resources)
    except BenchmdError as error:
        return None, f"It cannot run on {machine}: {error}"
    if not left:
        return schedule, "Nothing is left to do."
    shares = [item.gpus for item in left if 0 < item.gpus < 1]
    packed = f", up to {int(1 / min(shares))} runs on a GPU at once" if shares else ""
    return schedule, f"Time: about {duration(schedule.seconds)} on {machine}{packed}."


def _disk(left: Sequence[Item], schedule: Schedule | None) -> str:
    line = f"Disk: {size(sum(item.disk_bytes for item in left))} more when all is done"
    return f"{line}{f', at most {size(schedule.peak_bytes)} on the way' if schedule else ''}."


def _done(plan: Plan, status: Status) -> str:
    line = f"Done already: {len(status.done)} of {len(plan.items):,}"
    if status.begun:
        line += f"; unfinished, to resume from checkpoints: {len(status.begun)}"
    if status.unknown:
        line += f"; not looked up, without --weights: {len(status.unknown)}"
    return f"{line}."


def _item_table(items: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "entry": item["name"],
            "kind": item["kind"],
            "state": item["state"],
            "time": duration(item["seconds"]),
            "CPUs": f"{item['cpus']:g}",
            "GPUs": f"{item['gpus']:g}",
            "disk": size(item["disk_bytes"]),
        }
        for item in items
    )


def size(count: float) -> str:
    """Format bytes: ``950 kB``, ``38.6 MB``, ``10.4 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def figure(value: float) -> str:
    """Format a number: two digits below 10, thousands separators above."""
    return f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"
