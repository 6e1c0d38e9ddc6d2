"""Files of jobs, each one evaluation of one trial, and the models that are kept of them.

In a folder, a job leaves its files in the search's folder for the next process. In a bucket, every
machine works in its own folder, which is uploaded now and then as one archive, from which a
process on another machine resumes. No lock is needed: a late upload by an abandoned process is
still valid, only older.
"""

from __future__ import annotations

import logging
import shutil
import tarfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Self

from benchmd_ray.errors import BucketError, Busy, Gone
from benchmd_ray.files.atomic import (
    TEMPORARY,
    cache_folder,
    flush,
    is_disk_full,
    locked,
    remove,
    removed_on_failure,
)
from benchmd_ray.files.integrity import hash_path
from benchmd_ray.runs.files import CHECKPOINTS, MODEL
from benchmd_ray.storage.address import local_name
from benchmd_ray.storage.location import Address, Location, delete, entries, get_file, put_file
from benchmd_ray.storage.patience import patiently
from benchmd_ray.training.checkpoints import checkpoints
from benchmd_ray.training.jobs import PRETRAINED, RESULT
from benchmd_ray.training.weights import DESCRIPTION, START
from benchmd_ray.tuning.trial_log import Job

TRIALS, MODELS = "trials", "models"
"""Below a search's folder or address: files of running jobs, and kept models."""
KEPT = 3
"""Best trials whose models are kept, next to the start's."""
TRANSFER = "transfer"
"""Folder of a job's transfer; that of a pretraining within the trial is `PRETRAINED`."""
PUT_SECONDS = 30.0
SHARE, LONGEST_PAUSE = 0.05, 600.0
"""Share of a trial's time that uploads may take, and the longest interval for that."""
IDLE_SECONDS = 3600.0
"""Seconds without a process after which a job is assumed to run elsewhere; before, it may be
waiting.
"""
SECONDS = "seconds"
"""File in a job's folder with the working time of all processes."""
LONGEST_NUMBER, MOST_SECONDS = 64, 10 * 365 * 86400.0
"""Limits of that file: length in bytes, and seconds (ten years)."""
MOST_PARTS = 10
MOST_FILES = 10_000
logger = logging.getLogger(__name__)


def local_folder(search: Location) -> Path:
    """Folder of a search on this machine; for an address, a folder in the cache."""
    if isinstance(search, Path):
        return search
    # Ends like the search's name, which its files refer to.
    name = f"{local_name(search.text)}-{search.name.rpartition('-')[2]}"
    return cache_folder().resolve() / "searches" / name


def job_name(number: int, evaluation: int) -> str:
    """Name of the folder, of the archive and of the models of a job."""
    return f"{number:05d}-{evaluation:03d}"


class Archive:
    """A job's files at its search's address; does nothing for a search in a folder."""

    def __init__(self, search: Location, name: str) -> None:
        self._folder = local_folder(search) / TRIALS / name
        self._at = search / TRIALS / f"{name}.tar" if isinstance(search, Address) else None
        self._next = time.monotonic() + PUT_SECONDS
        self._lock = Lock()

    def restore(self) -> None:
        """Unpack another machine's archive if it is further advanced than the folder here."""
        if (at := self._at) is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        packed = self._folder.with_name(f"{TEMPORARY}{at.name}")
        unpacked = packed.with_suffix(".files")
        try:
            size = patiently(lambda: entries(at.parent)[0].get(at.name))
            if size is None:
                return
            if 2 * size > shutil.disk_usage(self._folder).free:
                logger.warning("there is no room for the %s bytes of %s", f"{size:,}", at)
            elif get_file(at, packed, size):
                _unpack(packed, unpacked)
                if worked_seconds(unpacked) > worked_seconds(self._folder):
                    remove(self._folder)
                    unpacked.rename(self._folder)
        except (tarfile.TarError, OSError) as error:
            if isinstance(error, OSError) and is_disk_full(error, self._folder.parent):
                raise
            logger.warning("%s is damaged (%s): the trial starts over", at, error)
        finally:
            remove(packed)
            remove(unpacked)

    def tick(self) -> None:
        """Upload the job's files if due; if that fails the job continues."""
        if self._at is None or not self._lock.acquire(blocking=False):
            return
        try:
            if time.monotonic() >= self._next:
                self._put(self._at)
        finally:
            self._lock.release()

    def _put(self, at: Address) -> None:
        start = time.monotonic()
        packed = self._folder.with_name(f"{TEMPORARY}{at.name}")
        try:
            _pack(self._folder, packed)
            put_file(packed, at)
        except FileNotFoundError:
            pass  # training has just replaced a checkpoint: retried next time
        except (BucketError, OSError) as error:
            logger.warning("the trial continues and is uploaded later: %s", error)
        finally:
            remove(packed)
        now = time.monotonic()
        self._next = now + max(PUT_SECONDS, min(LONGEST_PAUSE, (now - start) / SHARE))


def worked_seconds(folder: Path) -> float:
    """Working time of a job in seconds, from its folder; -1 if unknown."""
    try:
        with (folder / SECONDS).open("rb") as file:
            seconds = float(file.read(LONGEST_NUMBER))
    except (OSError, ValueError):
        return -1.0
    return seconds if 0 <= seconds <= MOST_SECONDS else -1.0


def _pack(folder: Path, packed: Path) -> None:
    """Archive the files needed to resume a job, with only the newest checkpoint."""
    needed = [*_needed(folder)]  # files that are removed meanwhile are uploaded later
    with tarfile.open(packed, "w:", format=tarfile.GNU_FORMAT) as archive:
        for path in needed:
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False)


def _needed(folder: Path) -> Iterator[Path]:
    newest = {run.parent: checkpoints(run.parent)[:1] for run in folder.rglob(CHECKPOINTS)}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if not path.is_file() or any(part.startswith(".") for part in inside):
            continue
        if path.name in (START, hash_path(Path(START)).name):  # each machine has it already
            continue
        run = next((run for run in newest if (run / CHECKPOINTS) in path.parents), None)
        if run is None or path.parent in newest[run]:
            yield path


class _Plain(tarfile.TarInfo):
    """A member of an archive of `_pack`: a file with a short name.

    Others are refused as soon as their header is read, as tarfile loads extended ones whole.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf == bytes(tarfile.BLOCKSIZE):
                raise  # the end
            raise tarfile.ReadError(str(error)) from None
        parts = PurePosixPath(member.name).parts
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.size < 0:
            raise tarfile.ReadError("it has an entry that is not a file")
        if not parts or any(p in ("/", "..") or p.startswith(".") for p in parts):
            raise tarfile.ReadError("a name leads out of it")
        if len(parts) > MOST_PARTS:
            raise tarfile.ReadError(f"a name has more than {MOST_PARTS} parts")
        return member


def _unpack(packed: Path, folder: Path) -> None:
    """Write an archive's files below a folder; raises `tarfile.TarError` if it is not `_pack`'s."""
    remove(folder)
    with tarfile.open(packed, "r:", tarinfo=_Plain) as archive:
        for count, member in enumerate(archive):
            if count == MOST_FILES:
                raise tarfile.ReadError(f"it has more than {MOST_FILES:,} files")
            content = archive.extractfile(member)
            assert content is not None  # as it is a file
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)


def keep_models(search: Location, name: str, jobs: Sequence[Path]) -> None:
    """Keep the models of a job, one of each modality, whole or not at all.

    ``jobs``: folders in which the modalities were trained. The model of a single one is kept in the
    folder ``name`` itself, others in subfolders by place. In a bucket `RESULT` is written last.
    """
    files: dict[str, Path] = {}
    for place, job in enumerate(jobs, 1):
        inside = f"{place}/" if len(jobs) > 1 else ""
        if (job / PRETRAINED / DESCRIPTION).is_file():
            names = [f"{PRETRAINED}/{file}" for file in (MODEL, DESCRIPTION)]
            files |= {inside + file: job / file for file in names}
        files |= {inside + file: job / TRANSFER / file for file in (MODEL, DESCRIPTION, RESULT)}
    folder = search / MODELS / name
    if isinstance(folder, Address):
        for file, path in files.items():
            patiently(partial(put_file, path, folder / file))
        return
    copies = folder.with_name(f"{TEMPORARY}{name}")
    remove(copies)
    with removed_on_failure(copies, folder):
        for file, path in files.items():
            (copies / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copies / file)
        flush(copies)
        remove(folder)
        copies.rename(folder)


def keep_best(search: Location, numbers: Collection[int]) -> None:
    """Remove the kept models of all other trials."""
    place, best = search / MODELS, {f"{number:05d}" for number in numbers}
    for name in entries(place)[1]:
        if name.startswith(TEMPORARY) or name.partition("-")[0] in best:
            continue
        if isinstance(place, Path):
            remove(place / name)
        else:
            delete([*_files(place / name)])


def _files(folder: Location) -> Iterator[Location]:
    names, folders = entries(folder)
    yield from (folder / name for name in names)
    for name in folders:
        yield from _files(folder / name)


def weights_here(run: Location | None, search: Location) -> Path | None:
    """Folder with the weights of a run that trials start from; raises `Gone` if they are missing.

    Weights at an address are downloaded once for all trials on this machine.
    """
    if run is None:
        return None
    return _here(run, local_folder(search) / "upstream" / run.name, (MODEL, DESCRIPTION))


def start_here(file: Location | None, search: Location) -> Path | None:
    """The weights that pretraining starts from, with their hash; see `weights_here`."""
    if file is None:
        return None
    names = (hash_path(Path(file.name)).name, file.name)
    return _here(file.parent, local_folder(search) / "start", names) / file.name


def _here(place: Location, folder: Path, names: Collection[str]) -> Path:
    """A folder with these files: their own, or that of the download."""
    if isinstance(place, Path):
        missing = [name for name in names if not (place / name).is_file()]
        folder = place
    else:
        lock = folder.with_name(f".lock-{folder.name}")
        with locked(lock, f"the files of {place}", wait=True):
            absent = [name for name in names if not (folder / name).is_file()]
            missing = [name for name in absent if not get_file(place / name, folder / name)]
    if missing:
        raise Gone(f"{place} no longer has {missing[0]}, which trials start from")
    return folder


def leave_only(search: Location, jobs: Collection[Job]) -> None:
    """Remove the files of all other jobs, here and at the search's address."""
    folder, names = (
        local_folder(search) / TRIALS,
        {job_name(job.number, job.evaluation) for job in jobs},
    )
    for path in folder.glob("*"):
        if path.name.removeprefix(TEMPORARY).partition(".")[0] not in names:  # or is being packed
            remove(path)
    if isinstance(search, Address):
        place = search / TRIALS
        archives = entries(place)[0]
        delete(place / name for name in archives if name.removesuffix(".tar") not in names)


def remove_idle(search: Location, name: str, unfinished: Collection[str]) -> None:
    """Remove local files of other jobs of a search in a bucket that are not needed.

    An unfinished job that was not worked on here for long is assumed to run elsewhere.
    """
    if isinstance(search, Path):
        return
    folder, now = local_folder(search), time.time()
    for path in (folder / TRIALS).glob("*"):
        other = path.name != name and not path.name.startswith(".")
        noted = path / SECONDS
        worked_at = noted.stat().st_mtime if noted.is_file() else 0.0
        if other and (path.name not in unfinished or now - worked_at > IDLE_SECONDS):
            with suppress(Busy), locked(folder / "locks" / path.name, "a trial"):
                remove(path)
