"""How far a plan is: which runs its items name, and what of each is done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.imagenet import ImageNetWeights, imagenet_weights
from benchmd_ray.results.storage.mirror import RUN, refresh_store
from benchmd_ray.results.store import Run, read_run, run_folder
from benchmd_ray.service.execute import is_scored
from benchmd_ray.service.naming import finished_upstream, pretraining, settled, transferring
from benchmd_ray.service.plan import Item
from benchmd_ray.signals import Signal
from benchmd_ray.ssl import technique_named


@dataclass(frozen=True)
class Found:
    """The run that an item names, and how far it is."""

    run: Run
    """Its folder need not be there."""
    done: bool
    """Whether nothing is left to do: the run is finished and, for a transfer, its own source
    scored; for an evaluation, the target is."""


def find_run(
    item: Item,
    store: Path,
    upstream: Run | None = None,
    *,
    gpu: bool = False,
    weights: Path | None = None,
) -> Found | None:
    """The run of an item in a store.

    Args:
        item: An item of a plan, with a catalog.
        store: Folder of all runs.
        upstream: Run of the item that it comes after; it need not be finished.
        gpu: Whether there is a GPU, where the item's settings leave device or precision open.
        weights: File of ImageNet weights; None takes the hub's, which are downloaded once.

    Returns:
        None while it comes after a run that is not finished: its weights name this one.

    Raises:
        BenchmdError: The catalog or the weights cannot be read, or do not fit.
    """
    if item.after is not None and (upstream is None or not upstream.finished):
        return None
    if item.catalog is None:
        raise BenchmdError(
            f"{item.name} was planned from its card: build a catalog of {item.dataset} first."
        )
    catalog = open_catalog(item.catalog.resolve())
    if item.kind == "evaluate":
        assert upstream is not None  # an evaluation always comes after a transfer
        return Found(upstream, is_scored(upstream, catalog))
    settings, store = settled(item.settings, gpu=gpu), store.resolve()
    if item.kind == "pretrain":
        start = _weights(item.technique, catalog.signal, weights)
        _, name, description = pretraining(item.technique, catalog, store, settings, start)
    else:
        held = None if upstream is None else finished_upstream(upstream.folder, catalog)
        _, name, description = transferring(catalog, store, settings, held)
    folder = run_folder(store, name, description)
    run = read_run(folder) if (folder / RUN).is_file() else Run(folder, description)
    scored = item.kind == "pretrain" or is_scored(run, catalog)
    return Found(run, run.finished and scored)


def find_runs(
    items: Iterable[Item], store: Path, *, gpu: bool = False, weights: Path | None = None
) -> dict[str, Found | None]:
    """The runs of a plan's items by name of the item; see `find_run`.

    An item whose run cannot be named, as its catalog is damaged or its weights are missing, has
    None: executing it will tell.

    Raises:
        BenchmdError: The store is on S3 and cannot be reached.
    """
    refresh_store(store)
    found: dict[str, Found | None] = {}
    for item in items:
        before = found.get(item.after) if item.after else None
        try:
            run = before.run if before else None
            found[item.name] = find_run(item, store, run, gpu=gpu, weights=weights)
        except BenchmdError:
            found[item.name] = None
    return found


@lru_cache(maxsize=64)
def _weights(technique: str, signal: Signal, path: Path | None) -> ImageNetWeights | None:
    """What a technique starts from, if it is ImageNet weights; only what names them."""
    if not technique_named(technique).imagenet:
        return None
    return replace(imagenet_weights(path, signal), tensors={})
