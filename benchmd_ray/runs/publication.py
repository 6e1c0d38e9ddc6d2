"""Publishing of a run in a store in a bucket, during and at the end of a session.

All writes need the run's lease; `runs.remote` states the invariants.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from benchmd_ray.errors import BucketError, Transient
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.runs.files import CHECKPOINT, CHECKPOINTS, DONE
from benchmd_ray.runs.mirror import LAST, PENDING, STEP, Mirror, changed, local_files, state
from benchmd_ray.storage.bucket import together
from benchmd_ray.storage.lease import Lease, LeaseLost

PUBLISH_SECONDS = 30.0
logger = logging.getLogger(__name__)


class Publication:
    """Publishes a run while a session works on it."""

    def __init__(self, mirror: Mirror, lease: Lease) -> None:
        self._mirror, self._lease = mirror, lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._regularly, daemon=True)
        self._failing = False
        self.ended = False
        """Whether the work has ended well, whatever became of its publication."""

    def start(self) -> None:
        """Publish the existing files, and then changes every `PUBLISH_SECONDS`."""
        self.push()
        self._thread.start()

    def stop(self) -> None:
        """End the regular publishing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def require(self) -> None:
        """Make sure that no other machine has taken over.

        Raises:
            LeaseLost: One has.
        """
        self._lease.require()

    def push(self, *, checkpoint: bool = True) -> None:
        """Publish what has changed.

        Raises:
            LeaseLost: Another machine has taken over.
        """
        self._lease.require()
        with contextlib.ExitStack() as opened:
            step, parts = self._newest_checkpoint(opened) if checkpoint else ("", {})
            files = [*local_files(self._mirror.folder)]
            for _ in range(2):  # a pair replaced between the two uploads is published again
                self.push_files(files)
            if step:
                self._push_checkpoint(step, parts)

    def push_files(self, files: Iterable[tuple[str, Path]]) -> None:
        """Publish files that have changed, several at once; those that refer to others last."""
        mirror, index = self._mirror, self._mirror.index()
        due = {name: path for name, path in files if changed(path, index.get(name))}
        pushed: dict[str, list[Any] | None] = {}

        def push(name: str) -> None:
            self._lease.require()
            # An open file stays the same if the path is replaced meanwhile.
            with due[name].open("rb") as file:
                stat = os.fstat(file.fileno())
                etag = mirror.bucket.upload(file, stat.st_size, mirror.key(name))
            pushed[name] = [etag, *state(stat)]

        try:
            together(push, [name for name in due if name not in LAST])
            together(push, [name for name in LAST if name in due], threads=1)
        finally:
            mirror.note(pushed)

    def finish(self, done: dict[str, Any], keep_checkpoint: bool) -> None:
        """Publish the rest and then ``done.json``, there and here.

        Raises:
            Transient: Another machine has taken over, or the bucket cannot be reached: the work
                stays here and is published when the run is opened again.
        """
        self.stop()
        self.ended = True
        folder = self._mirror.folder
        write_hashed_json(folder / PENDING, done, of=folder)
        try:
            self._lease.renew()
            self._forget_what_others_put()
            self.push(checkpoint=keep_checkpoint)
            self._lease.renew()
            etag = self._put_done(folder / PENDING)
        except BucketError as error:
            raise Transient(
                f"the run is finished but could not be published: {error} It is kept in {folder}: "
                "the same command on this machine publishes it later."
            ) from error
        if not keep_checkpoint:
            with contextlib.suppress(BucketError):  # `benchmd prune` finds leftovers
                self._delete_checkpoints(but=None)
        (folder / PENDING).replace(folder / DONE)
        self._mirror.note({DONE: [etag, *state((folder / DONE).stat())]})

    def _forget_what_others_put(self) -> None:
        """Have files published again whose objects are not those that this session put.

        An earlier session may have begun a put while it held the lease that ended only later.
        """
        there, index = self._mirror.objects(), self._mirror.index()
        known = {name: there[name].etag if name in there else None for name in index}
        other = [name for name, etag in known.items() if name != STEP and etag != index[name][0]]
        self._mirror.note(dict.fromkeys(other))

    def _put_done(self, path: Path) -> str:
        mirror, data = self._mirror, path.read_bytes()
        version = mirror.bucket.write(mirror.key(DONE), data, new=True)
        if version is not None:
            return version.etag
        there = mirror.bucket.read(mirror.key(DONE))
        if there is None or there.data != data:  # otherwise an earlier try wrote it
            raise LeaseLost(f"another machine has finished {mirror.address}: check again.")
        return there.version.etag

    def _regularly(self) -> None:
        while not self._stop.wait(PUBLISH_SECONDS):
            if not self.try_push():
                return

    def try_push(self) -> bool:
        """Publish changes; an outage is logged once. Returns whether to keep trying."""
        place = self._mirror.address
        try:
            self.push()
        except LeaseLost as error:
            logger.warning("%s", error)
            return False
        except (BucketError, OSError) as error:
            if not self._failing:
                logger.warning("the work continues and is published later: %s", error)
            self._failing = True
            return True
        if self._failing:
            logger.warning("%s can be published again", place)
        self._failing = False
        return True

    def _newest_checkpoint(self, opened: contextlib.ExitStack) -> tuple[str, dict[str, BinaryIO]]:
        """Name of the newest unpublished checkpoint, and its files, open as training removes it."""
        paths = sorted(self._mirror.folder.glob(f"{CHECKPOINTS}/step_*/{CHECKPOINT}"))
        published = self._mirror.index().get(STEP, [""])[0].partition(".")[0]
        if not paths or paths[-1].parent.name == published:
            return "", {}
        newest, parts = paths[-1].parent, dict[str, BinaryIO]()
        with contextlib.suppress(FileNotFoundError):
            inode = newest.stat().st_ino
            for path in newest.rglob("*"):
                if path.is_file():
                    parts[path.relative_to(newest).as_posix()] = opened.enter_context(
                        path.open("rb")
                    )
            if newest.stat().st_ino == inode:  # neither removed nor replaced meanwhile
                return newest.name, parts
        return "", {}  # the next round finds a newer one

    def _push_checkpoint(self, step: str, parts: Mapping[str, BinaryIO]) -> None:
        mirror, name = self._mirror, f"{step}.{self._lease.session}"

        def push(part: str) -> None:
            self._lease.require()
            size = os.fstat(parts[part].fileno()).st_size
            mirror.bucket.upload(parts[part], size, mirror.key(f"{CHECKPOINTS}/{name}/{part}"))

        together(push, [part for part in parts if part != CHECKPOINT])
        push(CHECKPOINT)
        mirror.note({STEP: [name]})
        self._delete_checkpoints(but=name)

    def _delete_checkpoints(self, but: str | None) -> None:
        start = f"{CHECKPOINTS}/"
        names = [n for n in self._mirror.objects() if n.startswith(start)]
        self.delete([n for n in names if but is None or not n.startswith(f"{start}{but}/")])

    def delete(self, names: list[str]) -> None:
        """Delete published files; for a checkpoint, first the file that marks it as complete.

        Raises:
            LeaseLost: Another machine has taken over.
        """
        for name in sorted(names, key=lambda name: not name.endswith(f"/{CHECKPOINT}")):
            self._lease.require()
            self._mirror.bucket.delete([self._mirror.key(name)])
            if name in self._mirror.index():
                self._mirror.note({name: None})
