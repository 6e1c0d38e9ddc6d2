"""Weights that a plan no longer needs are removed while it continues (``execution.keep``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmd_ray.runs.places import backing_of
from benchmd_ray.runs.retention import release
from benchmd_ray.runs.store import read_run
from benchmd_ray.service.plan import Item


def release_unneeded(ended: Item, items: Iterable[Item], folders: Mapping[str, Path]) -> int:
    """Remove what need not stay of an item's run and of the one it comes after.

    A run's weights are needed until all items that come after it are done: a transfer's
    evaluations, a pretraining's transfers. What failed or was not run keeps them.

    Args:
        ended: The item that was just done.
        items: All items of the plan.
        folders: Folder of the run of each item that is done, by the item's name.

    Returns:
        Bytes freed.
    """
    return _release(items, (ended.name, ended.after), folders)


def release_rest(items: Iterable[Item], folders: Mapping[str, Path], store: Path) -> int:
    """The same for all items of a plan at its end, of which some were done before it.

    Raises:
        BenchmdError: The store is on S3 and cannot be reached.
    """
    chosen = list(items)
    if all(item.settings.execution.keep != "predictions" for item in chosen):
        return 0
    held = backing_of(store).with_weights()
    return _release(chosen, [n for n, folder in folders.items() if folder.name in held], folders)


def _release(
    items: Iterable[Item], names: Iterable[str | None], folders: Mapping[str, Path]
) -> int:
    """Release the runs of the items that have these names, where nothing after them is left."""
    chosen: dict[str, Item] = {}
    needed: set[str | None] = set()
    for item in items:
        chosen[item.name] = item
        if item.name not in folders:
            needed.add(item.after)
    freed = 0
    for item in (chosen[name] for name in names if name in chosen):
        keep = item.settings.execution.keep
        if item.step.makes_run and keep == "predictions" and item.name not in needed:
            freed += release(read_run(folders[item.name]), keep)
    return freed
