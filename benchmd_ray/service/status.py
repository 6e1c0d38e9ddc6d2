"""Progress of a plan: the runs of its items, and what is done."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmd_ray.errors import BenchmdError
from benchmd_ray.runs.places import backing_of
from benchmd_ray.runs.store import Run
from benchmd_ray.service.plan import Item
from benchmd_ray.service.steps import Progress, Request


def find_run(
    item: Item,
    store: Path,
    upstream: Run | None = None,
    *,
    weights: Path | None = None,
) -> Progress | None:
    """The run of an item in a store; None while its upstream, which names it, is unfinished.

    Raises:
        BenchmdError: The catalog or the weights cannot be read, or do not fit.
    """
    if item.after is not None and (upstream is None or not upstream.finished):
        return None
    if item.catalog is None:
        raise BenchmdError(
            f"{item.name} was planned from its card: build a catalog of {item.dataset} first."
        )
    place = (item.catalog, store, item.settings, upstream, weights, item.also)
    return item.step.find(Request(item.technique, *place, fold=item.fold))


def find_runs(
    items: Iterable[Item], store: Path, *, weights: Path | None = None
) -> dict[str, Progress | None]:
    """Runs of a plan's items by name; None if a run cannot be named (executing it tells why)."""
    backing_of(store).refresh_store()
    progress: dict[str, Progress | None] = {}
    for item in items:
        before = progress.get(item.after) if item.after else None
        try:
            run = before.run if before else None
            progress[item.name] = find_run(item, store, run, weights=weights)
        except BenchmdError:
            progress[item.name] = None
    return progress
