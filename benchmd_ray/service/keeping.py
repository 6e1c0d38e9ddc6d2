"""Removal of weights that a running plan no longer needs (``execution.keep``).

If needed weights were pruned earlier, they are reported before anything starts instead of being
trained again: on another machine they might differ, and old and new results would be from different
models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmd_ray.runs.places import backing_of
from benchmd_ray.runs.retention import release
from benchmd_ray.runs.store import read_run, shown
from benchmd_ray.service.plan import Item
from benchmd_ray.service.steps import Progress


def release_unneeded(ended: Item, items: Mapping[str, Item], folders: Mapping[str, Path]) -> int:
    """Remove weights of an item's run and of its predecessor if no item needs them; bytes freed."""
    return _release(items, (ended.name, ended.after), folders)


def release_rest(items: Iterable[Item], folders: Mapping[str, Path], store: Path) -> int:
    """At the end of a plan, do the same for all items, including those done before it."""
    chosen = {item.name: item for item in items}
    if not any(map(_is_released, chosen.values())):
        return 0
    stored = backing_of(store).with_weights()
    return _release(chosen, [n for n, folder in folders.items() if folder.name in stored], folders)


def pruned_and_needed(
    items: Sequence[Item], progress: Mapping[str, Progress | None], store: Path
) -> str:
    """Message on pruned weights that items need; empty if none are missing.

    `progress` is that of `status.find_runs`.
    """
    if all(state is None or state.done for state in progress.values()):
        return ""
    stored = backing_of(store).with_weights()
    needed: dict[str, str] = {}
    again: set[str] = set()
    """Items whose run has to be made again."""
    for item in reversed(items):
        name = _source_of_weights(item, progress, again=item.name in again)
        run = None if name is None else progress.get(name)
        if name is None or run is None or not run.run.finished or run.run.folder.name in stored:
            continue
        needed.setdefault(shown(run.run.folder), item.name)
        again.add(name)
    if not needed:
        return ""
    which = "; ".join(f"{folder} (needed by {name})" for folder, name in needed.items())
    return (
        f"weights that the rest of this plan needs were pruned: {which}. Remove the folders named "
        "here and run the same command again: it makes them again. A transfer's folder includes "
        "its predictions: copy it first if it has some that this plan does not make. To keep "
        "weights, use --set execution.keep=models."
    )


def _source_of_weights(
    item: Item, progress: Mapping[str, Progress | None], *, again: bool
) -> str | None:
    """The item whose weights this item still needs, if any."""
    state = progress.get(item.name)
    if again:
        return item.after
    if state is None or state.done:
        return None
    return item.name if item.step.makes_run and state.run.finished else item.after


def _release(
    items: Mapping[str, Item], names: Iterable[str | None], folders: Mapping[str, Path]
) -> int:
    """Remove weights of the named items' runs if all items that depend on them are finished."""
    chosen = [n for n in names if n and n in items and _is_released(items[n])]
    if not chosen:
        return 0
    needed = {item.after for item in items.values() if item.name not in folders}
    return sum(
        release(read_run(folders[name]), items[name].settings.execution.keep)
        for name in chosen
        if name not in needed
    )


def _is_released(item: Item) -> bool:
    return item.step.makes_run and item.settings.execution.keep == "predictions"
