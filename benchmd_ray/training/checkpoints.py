"""Checkpoints of a run, written atomically.

``checkpoints/step_000000100`` has a training state and ``checkpoint.json`` with the SHA-256 of its
files, verified before loading. Two checkpoints are kept: if the newer is damaged, training resumes
from the older one.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from typing_extensions import TypedDict

from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.parts import package_versions
from benchmd_ray.files.atomic import TEMPORARY, flush, remove, removed_on_failure, sha256
from benchmd_ray.files.integrity import (
    Damaged,
    read_hashed_json,
    require_sha256,
    write_hashed_json,
)
from benchmd_ray.runs.files import CHECKPOINT, CHECKPOINTS
from benchmd_ray.schema.typed import Count
from benchmd_ray.training.engine import Engine, TorchEngine, barrier, gather

KEPT = 2
STEP = f"step_{'[0-9]' * 9}"
ASIDE = f"{TEMPORARY}old-"
"""Prefix of a checkpoint that is being replaced."""
logger = logging.getLogger(__name__)


class State(TypedDict):
    """Required content of `CHECKPOINT`."""

    step: Count
    position: dict[str, Any]
    files: dict[str, Any]


def save_checkpoint(
    run: Path,
    step: int,
    engine: Engine,
    position: dict[str, Any],
    files: Mapping[str, Callable[[Path], None]] | None = None,
    save: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint under a temporary name and rename it; the newest `KEPT` stay.

    Every worker calls it, on shared storage. Random states need no saving, as random numbers are a
    function of seed, step and worker. ``position`` is the loop's own state as JSON; ``files`` maps
    further files to functions that write them, on the first worker. ``save`` writes a snapshot of
    the engine instead of its current state.
    """
    folder = run / CHECKPOINTS
    final = folder / f"step_{step:09d}"
    partial = folder / f"{TEMPORARY}{final.name}"
    if engine.worker.rank == 0:
        remove(partial)
        partial.mkdir(parents=True)
    barrier()
    with removed_on_failure(partial, final):
        (save or engine.save)(partial)
    barrier()
    if engine.worker.rank == 0:
        with removed_on_failure(partial, final):
            for name, write in (files or {}).items():
                write(partial / name)
            description = {
                "step": step,
                "position": position,
                "workers": engine.worker.world,
                "versions": package_versions(),
                "files": {path.name: sha256(path) for path in sorted(partial.iterdir())},
            }
            write_hashed_json(partial / CHECKPOINT, description, of=run)
            flush(partial)
        _replace_oldest(partial, final)
    barrier()


@contextmanager
def saving(
    run: Path, engine: Engine, *, later: bool | None = None
) -> Iterator[Callable[[int, dict[str, Any]], None]]:
    """Context in which checkpoints of a run are saved, see `save_checkpoint`.

    With one worker on a GPU (``later``), a checkpoint is written in the background until the next
    one or the end.
    """
    if later is None:
        later = engine.worker.device.type == "cuda"
    pending: list[Future[None]] = []

    def finish() -> None:
        while pending:
            pending.pop().result()

    def save(step: int, position: dict[str, Any]) -> None:
        finish()
        if later and isinstance(engine, TorchEngine):
            copy = engine.snapshot()
            pending.append(pool.submit(save_checkpoint, run, step, engine, position, None, copy))
        else:
            save_checkpoint(run, step, engine, position)

    with ThreadPoolExecutor(1) as pool:
        try:
            yield save
        except BaseException:
            with suppress(BenchmdError):  # another error is already raised
                finish()
            raise
        finish()


def _replace_oldest(partial: Path, final: Path) -> None:
    """Move a new checkpoint into place and remove all but the last one; one is always complete."""
    if final.exists():  # of the same step, such as in a repeated epoch
        _aside(final)
    partial.rename(final)
    before = sorted(p for p in final.parent.glob(STEP) if p.name < final.name)
    kept = [final, *before[1 - KEPT :]]
    for other in final.parent.iterdir():
        if other not in kept:
            # A half-removed checkpoint must not look complete.
            _remove_unless_open(_aside(other) if other.name.startswith("step_") else other)


def _remove_unless_open(path: Path) -> None:
    """Remove a file or a folder; on NFS a folder stays while its files are open to be published."""
    try:
        remove(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
            raise


def _aside(checkpoint: Path) -> Path:
    aside = checkpoint.with_name(f"{ASIDE}{checkpoint.name}")
    remove(aside)
    return checkpoint.rename(aside)


def checkpoints(run: Path) -> list[Path]:
    """Complete checkpoints of a run, newest first; hashes are not verified.

    A checkpoint that was put aside counts if no other has its step: a process died between two
    renames.
    """
    folders: dict[int, Path] = {}
    for prefix in (ASIDE, ""):
        for path in (run / CHECKPOINTS).glob(f"{prefix}{STEP}/{CHECKPOINT}"):
            folders[_step_of(path.parent)] = path.parent
    return [folders[step] for step in sorted(folders, reverse=True)]


def latest_checkpoint(run: Path) -> Path | None:
    return next(iter(checkpoints(run)), None)


def checkpoint_step(folder: Path) -> int:
    """Steps or epochs done at a run's newest checkpoint; 0 if there is none."""
    checkpoint = latest_checkpoint(folder)
    return 0 if checkpoint is None else _step_of(checkpoint)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("_")[2])


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    step: int
    position: Mapping[str, Any]
    """What the loop saved to resume."""


def load_checkpoint(run: Path, engine: Engine) -> Checkpoint | None:
    """Load the newest undamaged checkpoint into an engine, if any; every worker calls it."""
    step = _undamaged_step(run) if engine.worker.rank == 0 else -1
    # The first worker verifies the shared files for all workers.
    step = int(gather(torch.tensor([step], device=engine.worker.device))[0])
    for folder in checkpoints(run):
        if _step_of(folder) == step:
            description = _description(folder)
            engine.load(folder)
            return Checkpoint(folder, step, description["position"])
    return None


def _undamaged_step(run: Path) -> int:
    """Step of the newest undamaged checkpoint, -1 if there is none; logs damaged ones."""
    folders = checkpoints(run)
    for number, folder in enumerate(folders, 1):
        try:
            for name, stated in _description(folder)["files"].items():
                require_sha256(folder / Path(name).name, str(stated), "")
        except Damaged as error:
            start = "the start" if number == len(folders) else "the checkpoint before it"
            message = "the checkpoint %s is damaged (%s): training resumes from %s"
            logger.warning(message, folder, error.why, start)
        else:
            return _step_of(folder)
    return -1


def _description(checkpoint: Path) -> dict[str, Any]:
    file = checkpoint / CHECKPOINT
    description = read_hashed_json(file, "", State, of=checkpoint.parent.parent)
    if description["step"] != _step_of(checkpoint):
        raise Damaged(file, f"it is of step {description['step']}", "")
    return description
