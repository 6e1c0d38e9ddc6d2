"""A store of runs: one folder each, named by the hash of what determines it.

A run folder holds ``run.json`` (what it is), what training and evaluation write, and ``done.json``
once it is finished. A finished run is never done twice; an unfinished one goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files import digest, locked, remove, remove_partial, write_json
from benchmd_ray.settings import Settings, updated

RUN = "run.json"
DONE = "done.json"


@dataclass(frozen=True)
class Run:
    """One run of a store."""

    folder: Path
    description: dict[str, Any]
    """kind, technique, setting, modality, source with its raw records and options, policy, seed,
    fixed, settings, determinants."""

    @property
    def finished(self) -> bool:
        """Whether its work is done."""
        return (self.folder / DONE).is_file()

    @property
    def settings(self) -> Settings:
        """Its settings."""
        return updated(Settings(), self.description["settings"])

    @property
    def digest(self) -> str:
        """Hash of what determines it."""
        return digest(self.description["determinants"])


def open_run(
    store: Path, name: str, description: dict[str, Any], check: Callable[[], object] | None = None
) -> Run:
    """The run with these determinants: the one there is, or a new folder.

    Args:
        store: Folder of all runs.
        name: Human-readable beginning of the folder's name.
        description: What ``run.json`` says; its ``determinants`` are hashed.
        check: Called before a folder is made: a run that it refuses leaves none.
    """
    folder = store / f"{name}-{digest(description['determinants'])[:12]}"
    if (folder / RUN).is_file():
        return read_run(folder)
    if check is not None:
        check()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RUN, description)
    return Run(folder, description)


@contextmanager
def working(run: Run) -> Iterator[None]:
    """Work on a run, alone; it is marked finished when the work ends without an error.

    The checkpoints of a finished run are removed: its weights are exported.

    Raises:
        BenchmdError: Another process works on it.
    """
    with locked(run.folder / ".lock", f"the run {run.folder}"):
        remove_partial(run.folder)
        yield
        write_json(run.folder / DONE, {"finished": True})
        remove(run.folder / "checkpoints")


def read_run(folder: Path) -> Run:
    """Read a run's folder.

    Raises:
        BenchmdError: It is none.
    """
    path = folder / RUN
    if not path.is_file():
        raise BenchmdError(
            f"{folder} is no run (no {RUN}). Name a folder that `benchmd pretrain` or "
            "`benchmd transfer` printed."
        )
    return Run(folder, json.loads(path.read_text("utf-8")))


def runs(paths: list[Path]) -> list[Run]:
    """Runs in these folders, each a run or a store of runs, in order of name.

    Raises:
        BenchmdError: A folder holds no run.
    """
    found: dict[Path, Run] = {}
    for path in paths:
        folders = (
            [path] if (path / RUN).is_file() else sorted(p.parent for p in path.glob(f"*/{RUN}"))
        )
        if not folders:
            raise BenchmdError(f"{path} holds no run: name a run's folder or a store of runs.")
        found |= {folder.resolve(): read_run(folder) for folder in folders}
    return list(found.values())
