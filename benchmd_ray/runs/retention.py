"""Pruning: which files of runs may be removed to free space.

Predictions, metrics, settings and histories always stay, so every table and figure can be made
again. An unfinished run keeps its checkpoint. Runs in use are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmd_ray.errors import BenchmdError, Busy
from benchmd_ray.files.atomic import TEMPORARY, remove
from benchmd_ray.runs import history
from benchmd_ray.runs.backing import bytes_of
from benchmd_ray.runs.files import CHECKPOINTS, MODEL, RUN, predictions_of
from benchmd_ray.runs.places import backing_of
from benchmd_ray.runs.store import Keep, Run, read_stores

Kind = Literal["weights", "checkpoints", "leftovers"]
KINDS: tuple[Kind, ...] = ("weights", "checkpoints", "leftovers")


@dataclass(frozen=True)
class Removal:
    """Removed files of a run."""

    run: str
    kind: Kind
    bytes: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Pruned:
    """What was removed from a store, or would be."""

    removals: tuple[Removal, ...]
    left: tuple[str, ...]
    """Reasons why some runs keep unneeded weights or files."""

    def bytes_of(self, kind: Kind) -> int:
        return sum(removal.bytes for removal in self.removals if removal.kind == kind)


def prune(store: Path, keep: Keep, *, dry_run: bool = False) -> Pruned:
    """Remove unneeded files from a store.

    With ``keep`` ``models`` the checkpoints of finished runs are removed; with ``predictions`` also
    their weights, unless an unfinished run needs them or they were not used yet. ``dry_run`` only
    reports.

    Raises:
        BenchmdError: The folder is not a store, its bucket cannot be reached, or another machine
            has taken over because this one was silent for too long.
    """
    _require_store(store)
    with ExitStack() as stack:
        reason, backing = "", backing_of(store)
        require: Callable[[], None] = lambda: None  # noqa: E731
        if keep == "predictions":
            try:
                if dry_run:
                    backing.require_unneeded(of_own=False)
                else:
                    require = stack.enter_context(backing.removing_weights(of_own=False))
            except Busy as error:
                reason = str(error)
        runs, left = _runs_of(store)
        if left and keep == "predictions" and not reason:
            reason = "which of them a damaged run needs is not known"
        if reason:
            left.append(f"all weights stay: {reason}")
            keep = "models"
        return _prune(runs, left, keep, require, dry_run=dry_run)


def _prune(
    runs: Sequence[Run], left: list[str], keep: Keep, require: Callable[[], None], *, dry_run: bool
) -> Pruned:
    needed = needed_weights(runs) if keep == "predictions" else {}
    removals: list[Removal] = []
    for run in runs:
        reason = needed.get(run.folder.name)
        if reason:
            left.append(f"{run.folder.name}: its weights stay: {reason}")
        require()
        try:
            removals += _prune_run(run, "models" if reason else keep, dry_run=dry_run)
        except Busy as error:
            left.append(f"{run.folder.name}: {error}")
    return Pruned(tuple(removals), tuple(left))


def release(run: Run, keep: Keep) -> int:
    """Remove files of a finished run that its plan no longer needs; bytes freed.

    Nothing is removed while another process uses the run, or another plan or search works in its
    store.
    """
    with suppress(Busy), backing_of(run.folder.parent).removing_weights(of_own=True):
        return sum(removal.bytes for removal in _prune_run(run, keep, dry_run=False))
    return 0


def drop_copies(store: Path, *, dry_run: bool = False) -> Pruned:
    """Remove this machine's copies of weights of a store in a bucket; they are pulled when needed.

    Raises:
        BenchmdError: The store is not in a bucket.
    """
    backing = backing_of(store)
    if not backing.in_bucket:
        raise BenchmdError(f"{store} has no mirror: name a store in a bucket, s3://BUCKET/PREFIX.")
    removals: list[Removal] = []
    runs, left = _runs_of(store)
    for run in runs:
        path = run.folder / MODEL
        if not run.finished or not backing.has_copy_of(path):
            continue
        try:
            with backing.unused(run.folder):
                removals.append(Removal(run.folder.name, "weights", bytes_of(path), (MODEL,)))
                if not dry_run:
                    remove(path)
        except Busy as error:
            left.append(f"{run.folder.name}: {error}")
    return Pruned(tuple(removals), tuple(left))


def needed_weights(runs: Sequence[Run]) -> dict[str, str]:
    """Reasons why weights of finished runs are still needed, by name of the run.

    A pretraining's weights are needed until there is a transfer from it and all are finished; a
    transfer's until it was scored.
    """
    needed: dict[str, str] = {}
    transfers: dict[str, list[Run]] = {}
    for run in runs:
        if upstream := run.description.get("upstream"):
            transfers.setdefault(str(upstream), []).append(run)
    for run in runs:
        name = run.folder.name
        if run.description.get("kind") == "pretrain":
            after = transfers.get(name, [])
            open_ones = [transfer.folder.name for transfer in after if not transfer.finished]
            if open_ones:
                needed[name] = f"{open_ones[0]} is not finished"
            elif not after:
                needed[name] = "there is no transfer from it yet"
        elif not predictions_of(run.folder):
            needed[name] = "they were not used for scoring yet"
    finished = [run.folder.name for run in runs if run.finished]
    return {name: needed[name] for name in finished if name in needed}


def _runs_of(store: Path) -> tuple[list[Run], list[str]]:
    _require_store(store)
    stored = read_stores([store])
    return stored.found, list(stored.damaged.values())


def _require_store(store: Path) -> None:
    if not backing_of(store).in_bucket and not any(store.glob(f"*/{RUN}")):
        raise BenchmdError(
            f"{store} is not a store: it has no folder of a run. Name the folder given to --store; "
            "nothing was removed."
        )


def _prune_run(run: Run, keep: Keep, *, dry_run: bool) -> list[Removal]:
    folder, backing = run.folder, backing_of(run.folder.parent)
    with backing.unused(folder):
        leftovers, unkept = _leftovers(folder), _unkept(run, keep)
        sizes = backing.sizes(folder, tuple(unkept))
        removals = [
            Removal(folder.name, kind, sizes[name], (name,))
            for name, kind in unkept.items()
            if name in sizes
        ]
        if not dry_run:
            with backing.pruning(folder, tuple(sizes)):
                for name in (*unkept, *(name for rest in leftovers for name in rest.names)):
                    remove(folder / name)
                if removals:
                    kinds, size = {r.kind for r in removals}, sum(r.bytes for r in removals)
                    history.append(folder, "pruned", removed=sorted(kinds), bytes=size)
    return [*leftovers, *removals]


def _leftovers(folder: Path) -> list[Removal]:
    """Files of a run's folder that killed processes left half-written."""
    paths = sorted(folder.rglob(f"{TEMPORARY}*"))
    tops = [path for path in paths if not any(parent in paths for parent in path.parents)]
    names = tuple(path.relative_to(folder).as_posix() for path in tops)
    size = sum(map(bytes_of, tops))
    return [Removal(folder.name, "leftovers", size, names)] if names else []


def _unkept(run: Run, keep: Keep) -> dict[str, Kind]:
    """Files and folders of a run that are not kept, whether they exist or not."""
    if not run.finished or keep == "checkpoints":
        return {}
    weights: dict[str, Kind] = {MODEL: "weights"} if keep == "predictions" else {}
    return {CHECKPOINTS: "checkpoints", **weights}
