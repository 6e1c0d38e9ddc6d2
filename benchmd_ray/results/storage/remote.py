"""Work on runs of a store on S3: under a lease, published while it goes on.

A store on S3 is mirrored by a folder of each machine (`results.storage.mirror`); all else works on
that folder. What holds, whatever is killed and whenever:

1. One session works on a run. It holds the run's lease (`storage.lease`), taken and renewed by
   conditional puts alone, and the mirror's local lock. Objects are put and deleted only under a
   lease that is certainly held at that moment; a session that lost it publishes nothing more.
2. Nothing half-written counts. An object is put whole. A checkpoint lies in a folder that one
   session alone writes, its ``checkpoint.json`` last; the older one is deleted after. ``done.json``
   is put last of all, and only if there is none; its hash tells foreign weights.
3. Metrics are published before the checkpoint that they lead to, which is held before they are
   read: who goes on from a checkpoint has every line up to it.
4. The bucket is the truth. A session first makes its mirror what the bucket has, unless this
   mirror's own session was the last to hold the lease. A finished run is as the bucket has it.
5. A run is finished here once it is finished there. Work that is done and could not be published
   stays in the mirror and is published when the run is opened again, unless another machine has
   gone on with it.
6. An outage while a session works delays publishing and is said once; at its start and at its end
   it is an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmd_ray.errors import Transient
from benchmd_ray.files import remove
from benchmd_ray.integrity import SUFFIX, write_hashed_json
from benchmd_ray.results.storage.mirror import (
    CHECKPOINT,
    CHECKPOINTS,
    DONE,
    PENDING,
    PREDICTIONS,
    STEP,
    Mirror,
    changed,
    local_files,
    mirror_of,
    refresh,
    replace_by_published,
    scores,
    shown,
    state,
)
from benchmd_ray.storage.bucket import BucketError
from benchmd_ray.storage.lease import Lease, Lost, require_free

PUBLISH_SECONDS = 30.0
SNAPSHOT = ".publishing"
logger = logging.getLogger(__name__)


class Publication:
    """What a session publishes of a run while it works on it."""

    def __init__(self, mirror: Mirror, lease: Lease) -> None:
        self._mirror, self._lease = mirror, lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._regularly, daemon=True)
        self._failing = False
        self.ended = False
        """Whether the work has ended well, whatever became of its publication."""

    def start(self) -> None:
        """Publish what is there, and from now on every `PUBLISH_SECONDS`."""
        self.push()
        self._thread.start()

    def stop(self) -> None:
        """Publish no more by itself."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def push(self, *, checkpoint: bool = True) -> None:
        """Publish what has changed.

        Raises:
            Lost: Another machine has taken over.
            BucketError: The bucket cannot be reached.
        """
        self._lease.require()
        snapshot = self._mirror.folder / SNAPSHOT
        try:
            step = self._snapshot(snapshot) if checkpoint else None
            for name, path in local_files(self._mirror.folder):
                self.push_file(name, path)
            if step is not None:
                self._push_checkpoint(snapshot, step)
        finally:
            remove(snapshot)

    def push_file(self, name: str, path: Path) -> None:
        """Publish a file, if it has changed."""
        mirror = self._mirror
        if not changed(path, mirror.index().get(name)):
            return
        self._lease.require()
        with path.open("rb") as file:  # which stays the same if the path is replaced meanwhile
            stat = os.fstat(file.fileno())
            etag = mirror.bucket.upload(file, stat.st_size, mirror.key(name))
        mirror.note({name: [etag, *state(stat)]})

    def finish(self, done: dict[str, Any], *, keep_checkpoint: bool) -> None:
        """Publish the rest and then ``done.json``, there and here.

        Args:
            done: Content of ``done.json``.
            keep_checkpoint: Publish the last checkpoint too, instead of deleting it.

        Raises:
            Transient: Another machine has taken over, or the bucket cannot be reached: what was
                done stays here, and is published when the run is opened again.
        """
        self.stop()
        self.ended = True
        folder = self._mirror.folder
        write_hashed_json(folder / PENDING, done, of=folder)
        try:
            self._lease.renew()
            self.push(checkpoint=keep_checkpoint)
            self._lease.renew()
            etag = self._put_done(folder / PENDING)
        except BucketError as error:
            raise Transient(
                f"the run is done and could not be published: {error} It is kept in {folder}: the "
                "same command on this machine publishes it, once it can."
            ) from error
        if not keep_checkpoint:
            with contextlib.suppress(BucketError):  # `benchmd prune` finds what stays
                self._delete_checkpoints(but=None)
        (folder / PENDING).replace(folder / DONE)
        self._mirror.note({DONE: [etag, *state((folder / DONE).stat())]})

    def _put_done(self, path: Path) -> str:
        mirror, data = self._mirror, path.read_bytes()
        etag = mirror.bucket.write(mirror.key(DONE), data, new=True)
        if etag is not None:
            return etag
        there = mirror.bucket.read(mirror.key(DONE))
        if there is None or there.data != data:  # else an earlier try wrote it
            raise Lost(f"another machine has finished {shown(mirror.folder)}: look again.")
        return there.etag

    def _regularly(self) -> None:
        while not self._stop.wait(PUBLISH_SECONDS):
            if not self.try_push():
                return

    def try_push(self) -> bool:
        """Publish what has changed, if it can be; whether to go on trying."""
        place = shown(self._mirror.folder)
        try:
            self.push()
        except Lost as error:
            logger.warning("%s", error)
            return False
        except (BucketError, OSError) as error:
            if not self._failing:
                logger.warning("the work goes on and is published later: %s", error)
            self._failing = True
            return True
        if self._failing:
            logger.warning("%s is published again", place)
        self._failing = False
        return True

    def _snapshot(self, folder: Path) -> str | None:
        """Hold the newest checkpoint, if it is not published, while training replaces it."""
        remove(folder)
        found = sorted(self._mirror.folder.glob(f"{CHECKPOINTS}/step_*/{CHECKPOINT}"))
        published = self._mirror.index().get(STEP, [""])[0].partition(".")[0]
        if not found or found[-1].parent.name == published:
            return None
        newest = found[-1].parent
        try:
            shutil.copytree(newest, folder, copy_function=_link)
        except (OSError, shutil.Error):
            if newest.is_dir():
                raise
            return None  # training has just removed it: the next round finds a newer one
        return newest.name

    def _push_checkpoint(self, snapshot: Path, step: str) -> None:
        mirror, name = self._mirror, f"{step}.{self._lease.session}"
        files = [path for path in snapshot.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path == snapshot / CHECKPOINT):
            self._lease.require()
            key = mirror.key(f"{CHECKPOINTS}/{name}/{path.relative_to(snapshot).as_posix()}")
            with path.open("rb") as file:
                mirror.bucket.upload(file, path.stat().st_size, key)
        mirror.note({STEP: [name]})
        self._delete_checkpoints(but=name)

    def _delete_checkpoints(self, but: str | None) -> None:
        start = f"{CHECKPOINTS}/"
        names = [n for n in self._mirror.objects() if n.startswith(start)]
        self.delete([n for n in names if but is None or not n.startswith(f"{start}{but}/")])

    def delete(self, names: list[str]) -> None:
        """Delete published files: what makes a checkpoint whole first.

        Raises:
            Lost: Another machine has taken over.
            BucketError: The bucket cannot be reached.
        """
        for name in sorted(names, key=lambda name: not name.endswith(f"/{CHECKPOINT}")):
            self._lease.require()
            self._mirror.bucket.delete([self._mirror.key(name)])
            if name in self._mirror.index():
                self._mirror.note({name: None})


def _link(source: str, target: str) -> None:
    """Hold a file under another name: its content is never changed, only its name removed."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # no hard links on this file system
        shutil.copy2(source, target)


@contextlib.contextmanager
def published(run: Path) -> Iterator[Publication | None]:
    """Work on a run of a store on S3; the caller holds the local lock of its folder.

    Yields:
        What publishes it; None where the store is a folder of its own.

    Raises:
        Busy: Another machine works on it.
        BucketError: The bucket cannot be reached.
    """
    mirror = mirror_of(run)
    if mirror is None:
        yield None
        return
    lease = _lease(mirror)
    current = lease.acquire()
    with lease.renewing():
        if not current:
            replace_by_published(mirror)
            lease.note_current()
        publication = Publication(mirror, lease)
        if (run / DONE).is_file():
            yield publication
            return
        publication.start()
        try:
            yield publication
        except BaseException:
            publication.stop()
            if not publication.ended:
                publication.try_push()
            raise
        finally:
            publication.stop()


@contextlib.contextmanager
def pruning(run: Path) -> Iterator[Publication | None]:
    """Remove published files of a finished run; the caller holds the local lock of its folder.

    Yields:
        What deletes them; None where the store is a folder of its own.

    Raises:
        Busy: Another machine works on the run or scores a dataset with it.
        BucketError: The bucket cannot be reached.
    """
    mirror = mirror_of(run)
    if mirror is None:
        yield None
        return
    for name in mirror.objects():
        if name.startswith("lease-"):
            require_free(mirror.bucket, mirror.key(name), f"{shown(run)} ({name})")
    lease = _lease(mirror)
    lease.acquire()
    with lease.renewing():
        yield Publication(mirror, lease)


def _lease(mirror: Mirror) -> Lease:
    what = f"the run {shown(mirror.folder)}"
    return Lease(mirror.bucket, mirror.key("lease.json"), mirror.folder / ".lease.json", what)


@contextlib.contextmanager
def scored(run: Path, dataset: str, evaluation: str) -> Iterator[None]:
    """Write an evaluation's predictions of a finished run; they are published at the end.

    Raises:
        Busy: Another machine is at it.
        Transient: The bucket cannot be reached; at the end, the predictions stay here.
    """
    mirror = mirror_of(run)
    if mirror is None:
        yield
        return
    name = f"lease-{evaluation}.{dataset}.json"
    what = f"the predictions of {shown(run)} for {dataset} ({evaluation})"
    lease = Lease(mirror.bucket, mirror.key(name), run / f".{name}", what)
    lease.acquire()
    with lease.renewing():
        refresh(run)
        yield
        path = run / PREDICTIONS / evaluation / f"{dataset}.parquet"
        try:
            for file in (path.with_name(f"{path.name}{SUFFIX}"), path):
                Publication(mirror, lease).push_file(file.relative_to(run).as_posix(), file)
        except BucketError as error:
            raise Transient(
                f"{what} are written and could not be published: {error} They are kept in {path}: "
                "the same command on this machine publishes them, once it can."
            ) from error


def unpublished_predictions(run: Path) -> list[tuple[str, str]]:
    """Datasets and evaluations whose predictions are here and not in the bucket."""
    mirror = mirror_of(run)
    if mirror is None or not (run / DONE).is_file():
        return []
    index = mirror.index()
    files = [f for f in scores(run) if changed(f, index.get(f.relative_to(run).as_posix()))]
    names = [(f.name.removesuffix(SUFFIX).removesuffix(".parquet"), f.parent.name) for f in files]
    return list(dict.fromkeys(names))
