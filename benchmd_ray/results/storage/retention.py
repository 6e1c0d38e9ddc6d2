"""What stays of runs on disk and in a bucket, and what is removed to free space.

Predictions, metrics, settings and histories always stay: every table and figure can be made again.
An unfinished run keeps its checkpoint. What anybody works on or scores with is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmd_ray.errors import BenchmdError, Busy
from benchmd_ray.files import TEMPORARY, locked, remove
from benchmd_ray.results.storage import history, remote
from benchmd_ray.results.storage.mirror import (
    CHECKPOINTS,
    MARKER,
    MODEL,
    PREDICTIONS,
    SYNC,
    Mirror,
    alone,
    changed,
    mirror_of,
    store_bucket,
)
from benchmd_ray.results.store import Keep, Run, read_stores

Kind = Literal["weights", "checkpoints", "leftovers"]
KINDS: tuple[Kind, ...] = ("weights", "checkpoints", "leftovers")


@dataclass(frozen=True)
class Removal:
    """Something of a run that is removed."""

    run: str
    """Name of its folder."""
    kind: Kind
    bytes: int
    names: tuple[str, ...]
    """Files and folders, within the run's."""


@dataclass(frozen=True)
class Pruned:
    """What was removed of a store, or would be."""

    removals: tuple[Removal, ...]
    left: tuple[str, ...]
    """Runs whose weights or files stay although they are not to be kept, each with the reason."""

    def bytes_of(self, kind: Kind) -> int:
        """Bytes freed of one kind."""
        return sum(removal.bytes for removal in self.removals if removal.kind == kind)


def prune(store: Path, keep: Keep, *, dry_run: bool = False) -> Pruned:
    """Remove from a store what need not stay.

    Args:
        store: A store of runs.
        keep: ``models``: checkpoints of finished runs go. ``predictions``: their weights too,
            unless an unfinished run needs them or nothing was made from them yet.
        dry_run: Only say what would be removed.

    Raises:
        BenchmdError: The folder is no store, or its bucket cannot be reached.
    """
    found, left = _runs_of(store)
    if left and keep == "predictions":
        left.append("all weights stay: which of them a damaged run needs is not known")
        keep = "models"
    needed = needed_weights(found) if keep == "predictions" else {}
    removals: list[Removal] = []
    for run in found:
        reason = needed.get(run.folder.name)
        if reason:
            left.append(f"{run.folder.name}: its weights stay: {reason}")
        try:
            removals += _prune_run(run, "models" if reason else keep, dry_run=dry_run)
        except Busy as error:
            left.append(f"{run.folder.name}: {error}")
    return Pruned(tuple(removals), tuple(left))


def release(run: Run, keep: Keep) -> int:
    """Remove what need not stay of a finished run that nothing planned needs any more.

    Returns:
        Bytes freed; 0 while somebody works with it.

    Raises:
        BenchmdError: Its bucket cannot be reached.
    """
    with suppress(Busy):
        return sum(removal.bytes for removal in _prune_run(run, keep, dry_run=False))
    return 0


def with_weights(store: Path) -> set[str]:
    """Names of the runs of a store whose weights are there.

    Raises:
        BenchmdError: The store is on S3 and cannot be reached.
    """
    bucket = store_bucket(store)
    if bucket is None:
        return {path.parent.name for path in store.glob(f"*/{MODEL}")}
    return {key.split("/")[0] for key in bucket.objects() if key.endswith(f"/{MODEL}")}


def drop_copies(store: Path, *, dry_run: bool = False) -> Pruned:
    """Remove this machine's copies of weights that a store on S3 has; they are pulled again.

    Raises:
        BenchmdError: The store is not on S3, or its bucket cannot be reached.
    """
    if not (store / MARKER).is_file():
        raise BenchmdError(f"{store} has no mirror: name a store on S3, s3://BUCKET/PREFIX.")
    removals: list[Removal] = []
    found, left = _runs_of(store)
    for run in found:
        mirror, path = mirror_of(run.folder), run.folder / MODEL
        known = None if mirror is None else mirror.index().get(MODEL)
        if not run.finished or not path.is_file() or known is None or changed(path, known):
            continue
        try:
            with _nobody(run.folder):
                removals.append(Removal(run.folder.name, "weights", _bytes(path), (MODEL,)))
                if not dry_run:
                    remove(path)
        except Busy as error:
            left.append(f"{run.folder.name}: {error}")
    return Pruned(tuple(removals), tuple(left))


def needed_weights(found: Sequence[Run]) -> dict[str, str]:
    """Finished runs whose weights somebody will want, by name, with the reason.

    A pretraining's are while a transfer from it is not finished, and until there is one; a
    transfer's until anything is scored with them.
    """
    needed: dict[str, str] = {}
    transfers: dict[str, list[Run]] = {}
    for run in found:
        if upstream := run.description.get("upstream"):
            transfers.setdefault(str(upstream), []).append(run)
    for run in found:
        name = run.folder.name
        if run.description.get("kind") == "pretrain":
            after = transfers.get(name, [])
            open_ones = [transfer.folder.name for transfer in after if not transfer.finished]
            if open_ones:
                needed[name] = f"{open_ones[0]} is not finished"
            elif not after:
                needed[name] = "nothing was transferred from it yet"
        elif not any((run.folder / PREDICTIONS).glob("*/*.parquet")):
            needed[name] = "nothing was scored with them yet"
    finished = [run.folder.name for run in found if run.finished]
    return {name: needed[name] for name in finished if name in needed}


def _runs_of(store: Path) -> tuple[list[Run], list[str]]:
    """Runs of a store, and why others cannot be read.

    Raises:
        BenchmdError: It is none; a single run is none either.
    """
    if not (store / MARKER).is_file() and not any(store.glob("*/run.json")):
        raise BenchmdError(
            f"{store} is no store: it has no folder of a run. Name the folder that --store named; "
            "nothing was removed."
        )
    stored = read_stores([store])
    return stored.found, list(stored.damaged.values())


def _prune_run(run: Run, keep: Keep, *, dry_run: bool) -> list[Removal]:
    """Remove what need not stay of one run.

    Raises:
        Busy: Somebody works on it or scores with it.
    """
    folder, mirror = run.folder, mirror_of(run.folder)
    with _nobody(folder):
        leftovers, here = _leftovers(folder), _unkept(run, keep)
        there = [] if mirror is None else _published(run, mirror, keep)
        removed = [*leftovers, *(here if mirror is None else there)]
        if dry_run:
            return removed
        if there:
            _delete_published(folder, there)
        for removal in (*leftovers, *here):
            for name in removal.names:
                remove(folder / name)
        if mirror is None:
            _note(folder, here)
    return removed


def _delete_published(folder: Path, removals: Sequence[Removal]) -> None:
    with remote.pruning(folder) as publication:
        assert publication is not None  # the store is on S3
        for removal in removals:
            publication.delete(list(removal.names))
        _note(folder, removals)
        publication.push_file(history.HISTORY, folder / history.HISTORY)


def _note(folder: Path, removals: Sequence[Removal]) -> None:
    """Write into a run's history what was removed of it."""
    if removals:
        kinds = sorted({removal.kind for removal in removals})
        history.append(folder, "pruned", removed=kinds, bytes=sum(r.bytes for r in removals))


@contextmanager
def _nobody(folder: Path) -> Iterator[None]:
    """Hold all local locks of a run: those of the work, of scoring and of pulling.

    Raises:
        Busy: Another process holds one.
    """
    with ExitStack() as stack:
        stack.enter_context(alone(folder, f"the run {folder}"))
        if (folder.parent / MARKER).is_file():
            stack.enter_context(locked(folder / SYNC, "the mirror", wait=True))
        for path in sorted(folder.glob(".lock-*")):
            evaluation, _, dataset = path.name.removeprefix(".lock-").partition(".")
            what = f"the predictions of {folder} for {dataset} ({evaluation})"
            stack.enter_context(locked(path, what))
        yield


def _leftovers(folder: Path) -> list[Removal]:
    """What killed processes left half-written in a run's folder."""
    found = sorted(folder.rglob(f"{TEMPORARY}*")) + sorted(folder.glob(remote.SNAPSHOT))
    tops = [path for path in found if not any(parent in found for parent in path.parents)]
    names = tuple(path.relative_to(folder).as_posix() for path in tops)
    size = sum(map(_bytes, tops))
    return [Removal(folder.name, "leftovers", size, names)] if names else []


def _unkept(run: Run, keep: Keep) -> list[Removal]:
    """What of a finished run lies here and need not stay."""
    if not run.finished:
        return []
    kinds: list[tuple[Kind, str]] = []
    if keep != "checkpoints":
        kinds.append(("checkpoints", CHECKPOINTS))
    if keep == "predictions":
        kinds.append(("weights", MODEL))
    paths = [(kind, run.folder / name) for kind, name in kinds]
    return [
        Removal(run.folder.name, kind, _bytes(path), (path.name,))
        for kind, path in paths
        if path.exists()
    ]


def _published(run: Run, mirror: Mirror, keep: Keep) -> list[Removal]:
    """What of a finished run lies in the bucket and need not stay."""
    if not run.finished or keep == "checkpoints":
        return []
    objects = mirror.objects()
    states = tuple(name for name in objects if name.startswith(f"{CHECKPOINTS}/"))
    weights = (MODEL,) if keep == "predictions" and MODEL in objects else ()
    kinds: tuple[tuple[Kind, tuple[str, ...]], ...] = (
        ("checkpoints", states),
        ("weights", weights),
    )
    return [
        Removal(run.folder.name, kind, sum(objects[n].size for n in names), names)
        for kind, names in kinds
        if names
    ]


def _bytes(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
