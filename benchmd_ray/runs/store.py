"""A store of runs: one folder per run, named by the hash of its determinants.

A run folder holds ``run.json``, what training and evaluation write, ``history.jsonl`` and
``done.json`` once it is finished. A finished run is never done twice; an unfinished one is resumed.
Files are verified by their hash when they are read, and the folder's name by the determinants.
`runs.backing` is the only interface to a store's storage; a store in a bucket has a local mirror.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from benchmd_ray.data.manifest_form import HeldOutFoldForm
from benchmd_ray.data.provenance import Provenance
from benchmd_ray.errors import BenchmdError
from benchmd_ray.errors import Busy as Busy  # what `working` raises
from benchmd_ray.files.atomic import digest, remove, remove_partial, sha256
from benchmd_ray.files.integrity import (
    Damaged,
    StoredItems,
    made_again,
    read_hashed_json,
    require_sha256,
    write_hashed_json,
)
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.runs import history
from benchmd_ray.runs.files import CHECKPOINTS, DONE, MODEL, RUN, Ended
from benchmd_ray.runs.index import Index, indexed
from benchmd_ray.runs.places import backing_of
from benchmd_ray.runs.places import shown as shown  # names of a store or a run in commands
from benchmd_ray.runs.predictions import CLASSIFIED
from benchmd_ray.runs.pretraining_data import Published
from benchmd_ray.schema.typed import Count, typed
from benchmd_ray.settings.definition import Settings, settings_of

Keep = Literal["checkpoints", "models", "predictions"]
"""Files of a finished run that are kept, see `ExecutionSettings.keep`."""
CONFIG_BYTES = 2**20


class RunDeterminants(TypedDict):
    """Required determinants of a run."""

    catalog: str
    parts: NotRequired[dict[str, Any]]
    fold: NotRequired[str]


class FoldForm(TypedDict):
    """What a fold run is trained on: an inner catalog of its source."""

    evaluation: Count
    """Number of the evaluation of a search."""
    inner: str
    """Digest of the inner catalog."""


class RunForm(TypedDict):
    """Required content of ``run.json``."""

    kind: str
    technique: str
    setting: str
    modality: str
    modality_card: dict[str, Any]
    source: str
    policy: str
    seed: Count
    protocol: str
    raw: Annotated[list[Count], Field(min_length=2, max_length=2)]
    provenance: Provenance
    options: dict[str, Any]
    settings: dict[str, Any]
    determinants: RunDeterminants
    device: NotRequired[str]
    upstream: NotRequired[str | None]
    versions: NotRequired[dict[str, Any]]
    weights: NotRequired[dict[str, Any]]
    published: NotRequired[Published]
    fold: NotRequired[FoldForm]
    held_out_fold: NotRequired[HeldOutFoldForm]


@dataclass(frozen=True)
class Run:
    """One run of a store."""

    folder: Path
    description: dict[str, Any]
    ended: dict[str, Any] = field(default_factory=dict, compare=False)
    """``done.json`` if it was read with the run."""

    def __repr__(self) -> str:
        names = ("kind", "technique", "setting", "source")
        about = ", ".join(str(self.description[n]) for n in names if self.description.get(n))
        return f"<run {self.folder.name}: {about}, {'' if self.finished else 'not '}finished>"

    @property
    def finished(self) -> bool:
        """Whether it has ``done.json``."""
        return (self.folder / DONE).is_file()

    @property
    def done(self) -> dict[str, Any]:
        """``finished`` (ISO time, UTC), ``seconds``, ``model_sha256``; empty until it is finished.

        Raises:
            Damaged: ``done.json`` was changed.
        """
        if self.ended or not self.finished:
            return self.ended
        return read_hashed_json(self.folder / DONE, self.remedy, Ended, of=self.folder)

    @property
    def model_sha256(self) -> str:
        """Hash of its weights, even after they were pruned."""
        stated = self.done.get("model_sha256")
        if stated is None:
            raise BenchmdError(f"{self.folder} has no weights: it is not finished.")
        return str(stated)

    @property
    def remedy(self) -> str:
        """What to do if one of its files is damaged."""
        return made_again(shown(self.folder))

    @functools.cached_property
    def settings(self) -> Settings:
        return settings_of(self.description["settings"])

    @functools.cached_property
    def modality(self) -> Modality:
        """Modality as described in the run."""
        card = self.description["modality_card"]
        try:
            return _modality(json.dumps(card))
        except BenchmdError:
            modality: Modality = typed(Modality, card, f"{self.folder / RUN}")
            return modality

    @property
    def digest(self) -> str:
        """Hash of its determinants."""
        return digest(self.description["determinants"])


@functools.lru_cache
def _modality(card: str) -> Modality:
    """The modality of a card as JSON, which many runs have alike."""
    modality: Modality = typed(Modality, json.loads(card), "")
    return modality


def run_folder(store: Path, name: str, description: dict[str, Any]) -> Path:
    """Folder of the run with these determinants, which may not exist; see `open_run`."""
    return store / f"{name}-{digest(description['determinants'])[:12]}"


def open_run(
    store: Path, name: str, description: dict[str, Any], check: Callable[[], object] | None = None
) -> Run:
    """Open the run with these determinants: the existing one, or a new folder.

    ``check`` is called before a folder is made, so a refused run leaves no folder.
    """
    folder = run_folder(store, name, description)
    backing_of(store).refresh(folder)
    if (folder / RUN).is_file():
        return read_run(folder)
    if check is not None:
        check()
    folder.mkdir(parents=True, exist_ok=True)
    write_hashed_json(folder / RUN, description)
    return Run(folder, description)


@contextmanager
def working(run: Run, device: str | None = None, keep: Keep = "models") -> Iterator[None]:
    """Work on a run; it becomes finished if the work ends without an error.

    ``device`` is recorded in its history. With ``keep`` ``checkpoints`` its last checkpoint is
    kept, otherwise only its weights.

    Raises:
        Busy: Another process works on it, or has just finished it.
        BenchmdError: Its store is in a bucket and cannot be reached when the work begins or ends.
    """
    folder = run.folder
    with backing_of(folder.parent).working(folder) as finish:
        if run.finished:
            raise Busy(f"another process has just finished the run {folder}: check again.")
        remove_partial(folder)
        with _session(run, device):
            yield
        finish(_done(run), keep == "checkpoints")
        if keep != "checkpoints":
            remove(folder / CHECKPOINTS)


@contextmanager
def scoring(run: Run, dataset: str, evaluation: str = CLASSIFIED.evaluation) -> Iterator[None]:
    """Lock an evaluation's predictions for writing; inside, check again whether they exist.

    Raises:
        Busy: Another process scores that dataset with this run.
    """
    with backing_of(run.folder.parent).scoring(run.folder, dataset, evaluation):
        yield


def require_weights(run: Run) -> None:
    """Make sure that a finished run's weights are here; from a store in a bucket they are pulled.

    Raises:
        Damaged: They are not those that the run recorded.
        BenchmdError: They were pruned, or the run is not finished.
    """
    backing_of(run.folder.parent).fetch_weights(run.folder)
    if run.finished and (run.folder / MODEL).is_file():
        require_sha256(run.folder / MODEL, run.model_sha256, run.remedy)
        return
    name, command = shown(run.folder), run.description["kind"]
    if not run.finished:
        raise BenchmdError(f"{name} is not finished: run its `benchmd {command}` again.")
    raise BenchmdError(
        f"{name}: its weights were pruned: its predictions stay, but nothing new can be computed "
        f"from it. To get weights again, remove {name} with all its files, including predictions, "
        f"and run its `benchmd {command}` again, or run it in another store; keep weights with "
        "--set execution.keep=models."
    )


@contextmanager
def _session(run: Run, device: str | None) -> Iterator[None]:
    folder, start = run.folder, time.monotonic()
    history.close_killed(folder)
    device = device or run.description.get("device")
    steps = sorted(path.name for path in (folder / CHECKPOINTS).glob("step_*"))
    done = int(steps[-1].removeprefix("step_")) if steps else 0
    history.append(folder, "started", device=device, **{"from": done})
    try:
        yield
    except BaseException as error:
        seconds = round(time.monotonic() - start, 3)
        history.append(folder, "failed", seconds=seconds, reason=history.reason(error))
        raise
    history.append(folder, "finished", seconds=round(time.monotonic() - start, 3))


def _done(run: Run) -> dict[str, Any]:
    model = run.folder / MODEL
    return {
        "finished": history.now(),
        "seconds": round(history.seconds_worked(run.folder), 3),
        "model_sha256": sha256(model) if model.is_file() else None,
    }


def read_run(folder: Path) -> Run:
    """Read a run's folder; an unfinished run in a store in a bucket is refreshed from the bucket.

    Raises:
        Damaged: A file was changed, or the folder is named for another run.
        BenchmdError: The folder is not a run.
    """
    backing = backing_of(folder.parent)
    if not (folder / DONE).is_file():
        backing.refresh(folder)
    run = _read(folder)
    keep = run.settings.execution.keep
    backing.publish_rest(folder, keep_checkpoint=keep == "checkpoints")
    return run


def _read(folder: Path, index: Index | None = None) -> Run:
    path = folder / RUN
    if not path.is_file():
        remedy = "Name a folder that `benchmd pretrain` or `benchmd transfer` printed."
        if _of_transformers(folder):
            remedy = f"It is a folder of transformers: did you mean hf:{shown(folder)}?"
        raise BenchmdError(f"{shown(folder)} is not a run (no {RUN}). {remedy}")
    if index is None:
        run = Run(folder, _description(folder))
        return Run(folder, run.description, run.done)
    run = Run(folder, index.known(folder, RUN, lambda: _description(folder)))
    if not run.finished:
        return run
    return Run(folder, run.description, index.known(folder, DONE, lambda: run.done))


def _description(folder: Path) -> dict[str, Any]:
    """The content of a run's ``run.json``, validated against its folder."""
    path, remedy = folder / RUN, Run(folder, {}).remedy
    run = Run(folder, read_hashed_json(path, remedy, RunForm))
    if run.description.get("fold", {}).get("inner") != run.description["determinants"].get("fold"):
        raise Damaged(path, "its fold and that of its determinants differ", remedy)
    fold = run.description.get("held_out_fold")
    if fold is not None and fold["number"] >= fold["folds"]:
        why = f"it holds out the fold {fold['number']} of {fold['folds']}, counted from 0"
        raise Damaged(path, why, remedy)
    if not os.path.realpath(folder).endswith(f"-{run.digest[:12]}"):
        why = f"it describes a run whose folder ends in -{run.digest[:12]}"
        raise Damaged(path, why, f"Give the folder its original name. {remedy}")
    try:
        _ = run.settings, run.modality
    except Damaged:
        raise
    except (BenchmdError, ValueError) as error:
        raise Damaged(path, f"it cannot be used: {error}".rstrip("."), remedy) from error
    return run.description


def _of_transformers(folder: Path) -> bool:
    path = folder / "config.json"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"model_type"' in file.read(CONFIG_BYTES)


def read_stores(paths: list[Path], index: Index | None = None) -> StoredItems[Run]:
    """Runs in these folders, each a run or a store of runs.

    ``index`` is that of a caller that reads more of the runs' files; else one is used for this.

    Raises:
        BenchmdError: A folder has no run, or a run that was named directly cannot be read.
    """
    runs: dict[Path, Run] = {}
    damaged: dict[Path, str] = {}
    with nullcontext(index) if index else indexed() as known:
        for path in paths:
            backing_of(path.parent).refresh(path)
            skipped = backing_of(path).refresh_store()
            damaged |= {folder.resolve(): why for folder, why in skipped.items()}
            if (path / RUN).is_file():
                runs[path.resolve()] = _read(path, known)
                continue
            folders = _folders(path)
            if not folders and not skipped:
                raise _no_run(path)
            for folder, place in folders:
                if folder in skipped:
                    continue  # local files may be older
                try:
                    runs[place] = _read(folder, known)
                except (BenchmdError, OSError) as error:
                    damaged[place] = str(error)
    return StoredItems(list(runs.values()), damaged)


def _folders(store: Path) -> list[tuple[Path, Path]]:
    """Folders of a store's runs in order, and where they are, links resolved."""
    place, folders = store.resolve(), []
    with suppress(OSError), os.scandir(store) as entries:
        for entry in sorted(entries, key=attrgetter("name")):
            if os.path.exists(f"{entry.path}/{RUN}"):
                folder = store / entry.name
                is_link = entry.is_symlink()
                folders.append((folder, folder.resolve() if is_link else place / entry.name))
    return folders


def _no_run(path: Path) -> BenchmdError:
    stores = sorted({run.parent.parent for run in path.glob(f"*/*/{RUN}")})
    below = f" Did you mean {shown(stores[0])}?" if stores else ""
    return BenchmdError(f"{shown(path)} has no run: name a run's folder or a store of runs.{below}")
