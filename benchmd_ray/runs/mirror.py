"""The local mirror of a store in a bucket: a folder like that of any store, filled from the bucket.

Small files are pulled when a run is opened; weights and checkpoints when they are needed. A hidden
index in each run's folder has the bucket's ETag of each file (see `runs.remote`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError, BucketError, Busy, DiskFull
from benchmd_ray.files.atomic import (
    MAX_BYTES,
    TEMPORARY,
    flush,
    full_remedy,
    is_disk_full,
    locked,
    remove,
)
from benchmd_ray.files.integrity import (
    SUFFIX,
    Damaged,
    made_again,
    read_hashed_json,
    require_sha256,
    write_hashed_json,
)
from benchmd_ray.runs.files import (
    CHECKPOINT,
    CHECKPOINTS,
    DONE,
    INNER,
    LOCK,
    MODEL,
    PREDICTIONS,
    RESULT,
    RUN,
    SEARCH,
    SEARCHES,
)
from benchmd_ray.storage.bucket import Bucket, Object, Unlistable, together

PENDING = ".done.json"
"""``done.json`` of a finished run that could not be published."""
TRANSIENT = ("error.json", "failure.txt", "start.safetensors", f"start.safetensors{SUFFIX}")
LAST = (MODEL, RESULT)
"""Files that are published last: they refer to the others."""
INDEX = ".published.json"
STEP = ".checkpoint"
"""Key in the index of the checkpoint that was pulled or published."""
SYNC = ".sync"
LONGEST_NAME = 200
"""Most bytes of a file's name: file systems allow 255, including the temporary prefix."""
PULLING = 8
MOST_FILES = 10_000


class NotPulled(BenchmdError):
    """A run or a search in a bucket that cannot be pulled."""


@dataclass(frozen=True)
class Mirror:
    """The mirror of one run, or of one search."""

    folder: Path
    bucket: Bucket
    what: str = "run"
    first: str = RUN

    @property
    def address(self) -> str:
        return f"{self.bucket.address}/{self.folder.name}"

    def key(self, name: str) -> str:
        return f"{self.folder.name}/{name}"

    def objects(self) -> dict[str, Object]:
        """Published objects of the run, by name within it."""
        start = self.key("")
        objects = self.bucket.objects(start)
        return {key.removeprefix(start): value for key, value in objects.items()}

    def index(self) -> dict[str, list[Any]]:
        """ETag and local state of each file that was pulled or published; no state during a pull.

        A damaged index is empty: finished files are then pulled once more.
        """
        try:
            content = read_hashed_json(self.folder / INDEX, "")
        except Damaged:
            return {}
        return {name: value for name, value in content.items() if isinstance(value, list)}

    def note(self, changes: Mapping[str, list[Any] | None]) -> None:
        """Change the index; None removes a file from it."""
        if not changes:
            return
        with locked(self.folder / f"{INDEX}.lock", "the index", wait=True):
            kept = {**self.index(), **changes}
            content = {name: value for name, value in kept.items() if value is not None}
            write_hashed_json(self.folder / INDEX, content)


def state(stat: os.stat_result) -> list[int]:
    """Size, time and inode of a file, which reveal changes."""
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def is_light(name: str) -> bool:
    """Whether a file of a run is pulled whenever the run is opened."""
    *above, last = name.split("/")
    file = not above and last not in (PREDICTIONS, CHECKPOINTS)  # checkpoints are folders
    fits = file or (above[:1] == [PREDICTIONS] and len(above) == 2)
    return fits and _harmless(name) and last != MODEL and not last.startswith("lease")


def _harmless(name: str) -> bool:
    """Whether a name stays within the run's folder and is not hidden."""
    parts = name.split("/")
    short = all(len(part.encode("utf-8", "replace")) <= LONGEST_NAME for part in parts)
    return (
        short and not {"\\", "\0"} & set(name) and all(part[:1] not in ("", ".") for part in parts)
    )


def local_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files of a run or a search that are published, except ``done.json`` and checkpoints."""
    paths = [path for path in folder.iterdir() if path.name not in (DONE, *TRANSIENT)]
    for path in sorted([*paths, *scores(folder)], key=lambda path: (path.name in LAST, path)):
        if path.is_file() and not path.name.startswith("."):
            yield path.relative_to(folder).as_posix(), path


def scores(folder: Path) -> list[Path]:
    """Files of a run's predictions and their hashes."""
    paths = sorted((folder / PREDICTIONS).glob("*/*.parquet*"))
    return [path for path in paths if not path.name.startswith(".")]


def refresh_store(store: Path, bucket: Bucket) -> dict[Path, str]:
    """Pull the small files of all runs and searches; returns skipped folders with reasons."""
    searches = store / SEARCHES
    local = [*store.glob(f"*/{RUN}"), *searches.glob(f"*/{SEARCH}")]
    objects: dict[Path, dict[str, Object]] = {path.parent: {} for path in local}
    published, unlistable = _published(bucket)
    for key, value in published.items():
        *above, name = key.split("/", 2) if key.startswith(f"{SEARCHES}/") else key.split("/", 1)
        other = above in ([], [INNER], [SEARCHES])
        if name and not other and all(map(_harmless, above)):
            objects.setdefault(store.joinpath(*above), {})[name] = value

    skipped = {store / name: why for name, why in unlistable.items()}
    for folder in skipped:
        objects.pop(folder, None)

    def fault(folder: Path) -> str:
        mirror = mirror_of_search if folder.parent == searches else Mirror
        try:
            refresh(mirror(folder, bucket), objects[folder])
        except NotPulled as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(PULLING) as pool:
        faults = zip(objects, pool.map(fault, objects), strict=True)
        return skipped | {folder: why for folder, why in faults if why}


def _published(bucket: Bucket) -> tuple[dict[str, Object], dict[str, str]]:
    """All objects of a store by key, and why some folders cannot be listed, by name."""
    try:
        return bucket.objects(), {}
    except Unlistable:
        objects: dict[str, Object] = {}
        faults: dict[str, str] = {}
        for name in bucket.entries()[1]:
            try:
                objects |= bucket.objects(name)
            except Unlistable as error:
                faults[name] = str(error)
        return objects, faults


def mirror_of_search(folder: Path, bucket: Bucket) -> Mirror:
    """The mirror of a search; ``bucket`` is that of the store."""
    below = replace(bucket, address=f"{bucket.address}/{SEARCHES}")
    return Mirror(folder, below, "search", SEARCH)


def refresh(mirror: Mirror, objects: Mapping[str, Object]) -> None:
    """Pull the small files of a run or a search whose published objects are ``objects``.

    Raises:
        NotPulled: The objects are not those of a run or search, or cannot be written here.
    """
    with _explained(mirror):
        if mirror.first not in objects and not mirror.folder.is_dir():
            return
        with pulling(mirror.folder):
            if not _idle(mirror.folder):
                return  # this machine works on it, so the local state is the newest
            if mirror.first in objects:
                _pull(mirror, objects)
            elif mirror.first in mirror.index() and mirror.first not in mirror.objects():
                remove(mirror.folder)  # removed from the bucket: a mirror must not restore it


def pulling(run: Path) -> AbstractContextManager[None]:
    """Hold the local lock of pulling into a run's or a search's folder."""
    return locked(run / SYNC, "the mirror", wait=True)


def _idle(folder: Path) -> bool:
    try:
        with locked(folder / LOCK, "the run"):
            return True
    except Busy:
        return False


@contextmanager
def _explained(mirror: Mirror) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = f"{mirror.address} cannot be copied to {mirror.folder}: {error}"
        if is_disk_full(error, mirror.folder):
            raise DiskFull(f"{place}. To continue, {full_remedy(error)}.") from error
        remedy = "Check the permissions."
        if isinstance(error, FileExistsError | IsADirectoryError | NotADirectoryError):
            remedy = (
                "A file and a folder have the same name: remove the one that does not belong to a "
                f"{mirror.what}, there or here."
            )
        raise NotPulled(f"{place}. {remedy}") from error


def _light(mirror: Mirror, objects: Mapping[str, Object]) -> list[str]:
    """Names of a run's small files, ``done.json`` last."""
    light = sorted(filter(is_light, objects), key=lambda name: name in (DONE, RESULT))
    size = sum(objects[name].size for name in light)
    if len(light) > MOST_FILES or size > MAX_BYTES:
        raise NotPulled(
            f"{mirror.address} has {len(light):,} small files of {size:,} bytes in all, expected "
            f"at most {MOST_FILES:,} and {MAX_BYTES:,} bytes: remove those that do not belong to a "
            f"{mirror.what}."
        )
    return light


def _pull(mirror: Mirror, objects: Mapping[str, Object]) -> None:
    """Bring the small files of a run up to date.

    Unpublished local changes of an unfinished run stay. A finished run is replaced by the bucket's
    version, and so is a search, whose content follows from its journal.
    """
    light = _light(mirror, objects)
    search = mirror.first == SEARCH
    done, index = DONE in objects or search, mirror.index()
    for path in list(mirror.folder.iterdir()) if search else ():
        if path.is_file() and path.name not in objects and not path.name.startswith("."):
            remove(path)
    wanted, gone = [], []
    for name in light:
        path, noted = mirror.folder / name, index.get(name)
        is_changed = changed(path, noted)
        replaced = noted is not None and noted[0] != objects[name].etag and not is_changed
        if not path.is_file() or begun(noted) or replaced or (done and is_changed):
            wanted.append(name)
    download(mirror, wanted, objects)
    for name, noted in index.items():
        path = mirror.folder / name
        other = name == MODEL and name in objects and objects[name].etag != noted[0]
        if name != STEP and (name not in objects or other) and (done or not changed(path, noted)):
            remove(path)
            gone.append(name)
    mirror.note(dict.fromkeys(gone))
    if done:
        noted = mirror.index().get(MODEL)
        if noted is None or begun(noted):
            remove(mirror.folder / MODEL)  # of a session that did not finish the run
        remove(mirror.folder / CHECKPOINTS)
        remove(mirror.folder / PENDING)


def begun(noted: list[Any] | None) -> bool:
    """Whether the pull of a file was started and not completed."""
    return noted is not None and len(noted) == 1


def changed(path: Path, noted: list[Any] | None) -> bool:
    """Whether a file differs from the one that was pulled or published."""
    return path.is_file() and (noted is None or noted[1:] != state(path.stat()))


def download(mirror: Mirror, names: Sequence[str], objects: Mapping[str, Object]) -> None:
    """Pull files; a file that is gone from the bucket is removed here, too."""
    # Noted before they are written, so that they are pulled again if the process is killed.
    mirror.note({name: [objects[name].etag] for name in names})
    pulled: dict[str, list[Any] | None] = {}

    def pull(name: str) -> None:
        path, there = mirror.folder / name, objects[name]
        if mirror.bucket.download(mirror.key(name), path, there.size):
            os.utime(path, (there.modified, there.modified))  # when a session last wrote it
            pulled[name] = [there.etag, *state(path.stat())]
        else:
            remove(path)
            pulled[name] = None

    try:
        together(pull, [name for name in names if name not in (DONE, RESULT)])
        together(pull, [name for name in names if name in (DONE, RESULT)])
    finally:
        mirror.note(pulled)


def replace_by_published(mirror: Mirror) -> None:
    """Replace a run's folder by the bucket's version, as another machine has worked on it since.

    Raises:
        NotPulled: The objects are not those of a run or search, or cannot be written here.
    """
    objects = mirror.objects()
    _light(mirror, objects)
    with _explained(mirror):
        mirror.note(dict.fromkeys(mirror.index()))
        if mirror.first not in objects:
            return  # nothing is published yet: the local files are the run
        remove(mirror.folder / PENDING)
        for path in mirror.folder.iterdir():
            if path.name != mirror.first and not path.name.startswith("."):
                remove(path)
        _pull(mirror, objects)
        name = newest_checkpoint(objects)
        if name is not None and DONE not in objects:
            _pull_checkpoint(mirror, name, objects)


def newest_checkpoint(names: Iterable[str]) -> str | None:
    """Name of the newest complete checkpoint: ``step_<step>.<session>``."""
    pattern = re.compile(rf"{CHECKPOINTS}/(step_\d+\.\w+)/{CHECKPOINT}")
    checkpoints = sorted(match[1] for name in names if (match := pattern.fullmatch(name)))
    return checkpoints[-1] if checkpoints else None


def _pull_checkpoint(mirror: Mirror, name: str, objects: Mapping[str, Object]) -> None:
    step = name.partition(".")[0]
    partial = mirror.folder / CHECKPOINTS / f"{TEMPORARY}{step}"
    remove(partial)
    start = f"{CHECKPOINTS}/{name}/"

    def pull(key: str) -> None:
        path, size = partial / key.removeprefix(start), objects[key].size
        if not mirror.bucket.download(mirror.key(key), path, size):
            raise BucketError(f"{mirror.key(key)} vanished while it was read: try again.")

    files = [key for key in objects if key.startswith(start)]
    together(pull, [key for key in files if _harmless(key.removeprefix(start))])
    flush(partial)
    partial.rename(partial.with_name(step))
    mirror.note({STEP: [name]})


def fetch_weights(mirror: Mirror) -> None:
    """Pull the weights of a finished run, if they are published and missing here.

    Raises:
        Damaged: They differ from those that the run recorded.
    """
    run = mirror.folder
    if not (run / DONE).is_file():
        return
    with _explained(mirror), pulling(run):
        if (run / MODEL).is_file():
            return
        remedy = made_again(mirror.address)
        expected = read_hashed_json(run / DONE, remedy, of=run).get("model_sha256")
        objects = mirror.objects()
        if MODEL not in objects:
            return
        download(mirror, [MODEL], objects)
        if not (run / MODEL).is_file():
            return
        if expected:
            try:
                require_sha256(run / MODEL, str(expected), remedy)
            except Damaged:
                remove(run / MODEL)
                raise
