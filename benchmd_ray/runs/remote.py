"""A store in a bucket: runs are worked on under a lease, and published during the work.

Each machine mirrors a store in a bucket in a folder (`runs.mirror`); all other code works on that
folder, and accesses the bucket only through a `runs.backing.Backing`. Invariants that hold
whenever a process is killed:

1. Only one session works on a run. It holds the run's lease (`storage.lease`), taken and renewed
   only by conditional puts, and the mirror's local lock. A put or deletion is begun only while the
   lease is certainly held; a session that lost it publishes nothing more. A file that is replaced
   nevertheless, by a put that outlived its lease, is put again before the run is finished.
2. Nothing half-written counts. Objects are put atomically. A checkpoint is in a folder that only
   one session writes, with ``checkpoint.json`` last; the older checkpoint is deleted afterwards.
   ``done.json`` is put last of all, and only if there is none; its hash reveals foreign weights.
3. Metrics are published before the checkpoint that they lead to, and the checkpoint is fixed before
   they are read, so a session that resumes from a checkpoint has every line up to it.
4. The bucket is authoritative. A session first updates its mirror from the bucket, unless this
   mirror's own session was the last to hold the lease. A finished run always equals the bucket's
   version, and so does a search, whose journal is only in the bucket.
5. A run is finished here once it is finished in the bucket. Finished work that could not be
   published stays in the mirror and is published when the run is opened again, unless another
   machine has continued it.
6. An outage during a session delays publishing and is logged once; at its start and at its end it
   is an error.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmd_ray.errors import BucketError, Busy, Transient
from benchmd_ray.files.integrity import SUFFIX, made_again, read_hashed_json
from benchmd_ray.runs.backing import Backing, Finish, lock_of_run
from benchmd_ray.runs.files import CHECKPOINTS, DONE, MODEL, Ended
from benchmd_ray.runs.history import HISTORY
from benchmd_ray.runs.mirror import (
    PENDING,
    Mirror,
    begun,
    changed,
    fetch_weights,
    mirror_of_search,
    pulling,
    refresh,
    refresh_store,
    replace_by_published,
    scores,
)
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.runs.publication import Publication
from benchmd_ray.storage.bucket import Bucket, open_bucket
from benchmd_ray.storage.lease import Lease, require_free, wait_for

KEEPS = "keeps-weights"
"""Folder of a store with the leases of plans and searches that protect weights."""
PRUNES = "pruning.json"


@dataclass(frozen=True)
class Mirrored(Backing):
    """A store in a bucket: a bucket and the local folder that mirrors it."""

    bucket: Bucket
    in_bucket: ClassVar[bool] = True

    def mirror(self, run: Path) -> Mirror:
        """The mirror in a run's folder."""
        return Mirror(run, self.bucket)

    def refresh(self, run: Path) -> None:
        """Pull the small files of a run."""
        mirror = self.mirror(run)
        refresh(mirror, mirror.objects())

    def refresh_store(self) -> dict[Path, str]:
        """Pull the small files of all runs and searches."""
        return refresh_store(self.store, self.bucket)

    def fetch_weights(self, run: Path) -> None:
        """Pull the weights of a finished run, if they are published and missing here."""
        fetch_weights(self.mirror(run))

    def with_weights(self) -> set[str]:
        """Names of the runs whose weights are published."""
        return {key.split("/")[0] for key in self.bucket.objects() if key.endswith(f"/{MODEL}")}

    @contextlib.contextmanager
    def working(self, run: Path) -> Iterator[Finish]:
        """Work on a run under its lease and publish it; nothing is pulled into its folder."""
        with contextlib.ExitStack() as stack:
            with pulling(run):
                stack.enter_context(lock_of_run(run))
            yield stack.enter_context(_published(self.mirror(run))).finish

    @contextlib.contextmanager
    def scoring(self, run: Path, dataset: str, evaluation: str) -> Iterator[None]:
        """Write a dataset's predictions under their lease and publish them at the end."""
        mirror, name = self.mirror(run), f"lease-{evaluation}.{dataset}.json"
        what = f"the predictions of {mirror.address} for {dataset} ({evaluation})"
        with super().scoring(run, dataset, evaluation):
            lease = Lease(self.bucket, mirror.key(name), run / f".{name}", what)
            lease.acquire()
            with lease.renewing():
                self.refresh(run)
                yield
                path = predictions_path(run, dataset, evaluation)
                _publish_predictions(Publication(mirror, lease), run, path, what)

    @contextlib.contextmanager
    def searching(self, search: Path) -> Iterator[Callable[[], None]]:
        """Work on a search under its lease and publish its small files."""
        mirror = mirror_of_search(search, self.bucket)
        refresh(mirror, mirror.objects())  # a search that was removed there is not restored
        with contextlib.ExitStack() as stack:
            with pulling(search):
                stack.enter_context(super().searching(search))
            publication = stack.enter_context(_published(mirror))
            yield publication.require
            publication.stop()
            try:
                publication.push()
            except BucketError as error:
                raise Transient(
                    f"the results of the search could not be published: {error} The same command "
                    "publishes them later."
                ) from error

    def publish_rest(self, run: Path, *, keep_checkpoint: bool) -> None:
        """Publish a finished run and predictions that could not be published earlier."""
        with contextlib.suppress(Busy):  # another process is working on it
            if (run / PENDING).is_file() and not (run / DONE).is_file():
                with self.working(run) as finish:
                    if (run / PENDING).is_file():
                        remedy = made_again(self.mirror(run).address)
                        done = read_hashed_json(run / PENDING, remedy, Ended, of=run)
                        kept = keep_checkpoint and (run / CHECKPOINTS).is_dir()
                        finish(done, kept)
            for path in _unpublished_predictions(self.mirror(run)):
                with self.scoring(run, path.stem, path.parent.name):
                    pass

    @contextlib.contextmanager
    def unused(self, run: Path) -> Iterator[None]:
        """Hold all local locks of a run, including that of pulling."""
        with pulling(run), super().unused(run):
            yield

    @contextlib.contextmanager
    def keeping_weights(self) -> Iterator[None]:
        """Protect all weights of the store, on all machines."""
        name = f"{uuid.uuid4().hex}.json"
        with super().keeping_weights():
            key, record = f"{KEEPS}/{name}", self.store / f".lease-{name}"
            lease = Lease(self.bucket, key, record, f"the store {self.store}")
            lease.acquire()
            try:
                with lease.renewing():
                    # A process that removes weights takes its own lease and then checks for this
                    # one, so one of the two always sees the other.
                    with self._pruning_gate():
                        wait_for(self._pruning_lease())
                    yield
            finally:
                record.unlink(missing_ok=True)
                with contextlib.suppress(BucketError):
                    self.bucket.delete([key])

    @contextlib.contextmanager
    def _pruning_alone(self) -> Iterator[Callable[[], None]]:
        lease = self._pruning_lease()
        lease.acquire()
        with lease.renewing():
            yield lease.require

    def _pruning_lease(self) -> Lease:
        what = f"the removal of weights from the store {self.bucket.address}"
        return Lease(self.bucket, PRUNES, self.store / f".lease-{PRUNES}", what)

    def _keepers(self) -> int:
        """Number of plans and searches that protect weights, on any machine.

        Another machine that has not reached the bucket for `LEASE_SECONDS` is not counted.
        """
        here, count = super()._keepers(), 0
        for key in self.bucket.objects(KEEPS):
            try:
                require_free(self.bucket, key, f"the store {self.store}")
            except Busy:
                count += 1
        return max(here, count)  # a plan of this machine that has no lease yet counts, too

    def sizes(self, run: Path, names: Sequence[str]) -> dict[str, int]:
        """Bytes of the given files and folders of a run that are published."""
        sizes: dict[str, int] = {}
        for key, value in self.mirror(run).objects().items() if names else ():
            name = key.partition("/")[0]
            if name in names:
                sizes[name] = sizes.get(name, 0) + value.size
        return sizes

    @contextlib.contextmanager
    def pruning(self, run: Path, names: Sequence[str]) -> Iterator[None]:
        """Remove published files of a finished run, then publish its history.

        Raises:
            Busy: Another machine works on the run or scores a dataset with it.
        """
        if not names:
            yield
            return
        mirror = self.mirror(run)
        objects = mirror.objects()
        for name in objects:
            if name.startswith("lease-"):
                require_free(self.bucket, mirror.key(name), f"{mirror.address} ({name})")
        lease = _lease(mirror)
        lease.acquire()
        with lease.renewing():
            publication = Publication(mirror, lease)
            publication.delete([name for name in objects if name.partition("/")[0] in names])
            yield
            publication.push_files([(HISTORY, run / HISTORY)])

    def has_copy_of(self, path: Path) -> bool:
        """Whether a file of a run is the published one."""
        noted = self.mirror(path.parent).index().get(path.name)
        return path.is_file() and noted is not None and not changed(path, noted)


def mirrored(store: Path, address: str) -> Mirrored:
    """The store in a bucket at an address; the bucket is not accessed yet."""
    return Mirrored(store, open_bucket(address))


@contextlib.contextmanager
def _published(mirror: Mirror) -> Iterator[Publication]:
    """Hold the lease and the local lock of a run or a search, and publish the work."""
    lease = _lease(mirror)
    current = lease.acquire()
    with lease.renewing():
        if not current:
            replace_by_published(mirror)
            lease.note_current()
        publication = Publication(mirror, lease)
        if (mirror.folder / DONE).is_file():
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


def _lease(mirror: Mirror) -> Lease:
    what = f"the {mirror.what} {mirror.address}"
    return Lease(mirror.bucket, mirror.key("lease.json"), mirror.folder / ".lease.json", what)


def _publish_predictions(publication: Publication, run: Path, path: Path, what: str) -> None:
    """Publish a file of predictions after its hash and the files that it refers to, such as masks.

    Mirrors do not pull these other files. Raises `Transient` if the bucket cannot be reached.
    """
    try:
        folders = (path.stem, f"{path.stem}.*")  # of a separate method, such as a baseline
        named = sorted(file for name in folders for file in path.parent.glob(f"{name}/[!.]*"))
        for files in (named, [path.with_name(f"{path.name}{SUFFIX}")], [path]):
            publication.push_files((file.relative_to(run).as_posix(), file) for file in files)
    except BucketError as error:
        raise Transient(
            f"{what} are written but could not be published: {error} They are kept in {path}: the "
            "same command on this machine publishes them later."
        ) from error


def _unpublished_predictions(mirror: Mirror) -> list[Path]:
    if not (mirror.folder / DONE).is_file():
        return []
    index, run = mirror.index(), mirror.folder
    noted = {file: index.get(file.relative_to(run).as_posix()) for file in scores(run)}
    files = [file for file, state in noted.items() if changed(file, state) and not begun(state)]
    return list(dict.fromkeys(f.with_name(f.name.removesuffix(SUFFIX)) for f in files))
