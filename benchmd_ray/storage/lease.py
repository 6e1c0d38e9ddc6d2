"""The exclusive right to work on a run in a bucket.

A lease is one small object, written only by conditional puts: it can be replaced only by a client
that knows its current version. It is renewed during the work and expires `LEASE_SECONDS` later by
the server's clock. A holder uses its own clock and stops `MARGIN_SECONDS` earlier.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmd_ray.console.repeating import repeating
from benchmd_ray.errors import BenchmdError, BucketError, Busy, Transient
from benchmd_ray.files.atomic import parse_json, write_json
from benchmd_ray.storage.bucket import NO_VERSION, Bucket, Content, Version

LEASE_SECONDS = 180.0
"""Seconds after which a lease that was not renewed is free."""
RENEW_SECONDS = 30.0
MARGIN_SECONDS = 45.0
"""Seconds before the expiry at which a holder stops trusting its lease."""
LOOK_SECONDS = 5.0
"""Seconds between looks at a lease that is waited for, each some requests."""
LONGEST = 4096
"""Most bytes of a lease; it usually has some hundred, and a longer one is damaged."""


class LeaseLost(Transient):
    """Another machine has taken over."""


class Lease:
    """The lease of one object, for one session.

    ``record`` is a local file in which this copy of the run notes its sessions. It distinguishes a
    killed session of this copy from those of others, and records whether the copy has everything
    that was published. ``what`` names the work in messages.
    """

    def __init__(self, bucket: Bucket, key: str, record: Path, what: str) -> None:
        self._bucket, self._key, self._record, self._what = bucket, key, record, what
        self._session = uuid.uuid4().hex
        self._version = NO_VERSION
        self._renewed = 0.0
        self._count = 0
        self._lock = threading.Lock()
        self.lost = False

    @property
    def session(self) -> str:
        return self._session

    @property
    def trusted(self) -> bool:
        """Whether it is certain that no other machine holds it now."""
        return not self.lost and clock() - self._renewed < LEASE_SECONDS - MARGIN_SECONDS

    def acquire(self) -> bool:
        """Take the lease, if it is free or was held by a killed session of this copy.

        The caller holds the local lock of this copy, so no other session of it is alive.

        Returns:
            Whether this copy was the last one worked on, and so has everything that was published.

        Raises:
            Busy: Another machine holds it.
            BenchmdError: The server ignores the conditions of a put.
        """
        content = self._bucket.read(self._key, beginning=LONGEST)
        noted = _content(self._record.read_bytes()) if self._record.is_file() else {}
        session = None if content is None else _content(content.data).get("session")
        ours = session is not None and session in (noted.get("session"), noted.get("next"))
        if content is not None and not ours:
            _require_free(self._bucket, self._key, content, self._what)
        current = ours and bool(noted.get("current"))
        # Noted before it is written, so that a process killed in between still recognises its
        # session.
        self._note(noted.get("session"), following=self._session, current=current)
        began = clock()
        version = self._put("held", None if content is None else content.version)
        if version is None:
            raise _busy(self._what, 0.0)
        self._version, self._renewed = version, began
        self._note(self._session, following=None, current=current)
        self._require_conditions()
        return current

    def note_current(self) -> None:
        """Record that this copy has everything that was published."""
        self._note(self._session, following=None, current=True)

    def renew(self) -> None:
        """Extend the lease by `LEASE_SECONDS`, or raise `LeaseLost` if another machine has it."""
        with self._lock:
            self._replace("held")

    def release(self) -> None:
        """Free the lease, if it is held."""
        with self._lock, contextlib.suppress(BucketError, LeaseLost):
            self._replace("free")

    def require(self) -> None:
        """Raise `LeaseLost` if another machine has taken the lease."""
        if not self.trusted:
            with self._lock:
                if not self.trusted:  # no other thread has renewed it meanwhile
                    self._replace("held")

    @contextlib.contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew the lease every `RENEW_SECONDS` and free it at the end."""

        def renew() -> None:
            with contextlib.suppress(BucketError, LeaseLost):  # reported by `require`
                self.renew()

        try:
            with repeating(renew, RENEW_SECONDS):
                yield
        finally:
            self.release()

    def _replace(self, state: str) -> None:
        if self.lost:
            raise self._lost()
        began = clock()
        version = self._put(state, self._version)
        if version is None:
            self.lost = True
            raise self._lost()
        self._version, self._renewed = version, began

    def _put(self, state: str, over: Version | None) -> Version | None:
        self._count += 1  # makes every write and its ETag unique
        content = {"session": self._session, "state": state, "count": self._count}
        data = json.dumps(content).encode()
        version = self._bucket.write(self._key, data, replaces=over, new=over is None)
        if version is not None:
            return version
        there = self._bucket.read(self._key, beginning=LONGEST)
        if there is None or _content(there.data).get("session") != self._session:
            return None
        if there.data == data:  # written by a try whose response was lost
            return there.version
        # An earlier write whose response was lost: without this one the lease would expire earlier.
        return self._bucket.write(self._key, data, replaces=there.version)

    def _require_conditions(self) -> None:
        """Verify that the server refuses two puts whose conditions do not hold."""
        content = json.dumps({"session": self._session, "state": "free", "count": 0}).encode()
        new = self._bucket.write(self._key, content, new=True)
        other = self._bucket.write(self._key, content, replaces=NO_VERSION)
        if new is not None or other is not None:
            raise BenchmdError(
                f"the server of {self._what} ignores the conditions If-None-Match and If-Match of "
                "a put (Google: x-goog-if-generation-match), without which two machines could work "
                "on the same run: use a server that supports them."
            )

    def _note(self, session: str | None, *, following: str | None, current: bool) -> None:
        write_json(self._record, {"session": session, "next": following, "current": current})

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"another machine has taken over {self._what}, because this one was silent for too "
            "long. The later work of this machine was not published; the command resumes from the "
            "published state."
        )


def wait_for(lease: Lease) -> None:
    """Wait until a lease is free or expires."""
    while True:
        try:
            lease.acquire()
        except Busy:
            time.sleep(LOOK_SECONDS)
        else:
            lease.release()
            return


def require_free(bucket: Bucket, key: str, what: str) -> None:
    """Raise `Busy` if a lease is held now."""
    content = bucket.read(key, beginning=LONGEST)
    if content is not None:
        _require_free(bucket, key, content, what)


def _require_free(bucket: Bucket, key: str, content: Content, what: str) -> None:
    """Raise `Busy` if a lease is held; a damaged one counts as held until it expires."""
    if _content(content.data).get("state") != "free":
        age = bucket.now(key) - content.modified
        if age < LEASE_SECONDS:
            raise _busy(what, age)


def _content(data: bytes) -> dict[str, Any]:
    try:
        content = parse_json(data)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _busy(what: str, age: float) -> Busy:
    return Busy(
        f"another machine is working on {what}: its last sign of life was {age:.0f} s ago. Wait "
        f"for it to end; if it was killed, the work is free after {LEASE_SECONDS:.0f} s of silence."
    )


def clock() -> float:
    """Monotonic seconds, including sleep of the machine if the system counts it."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
