"""The exclusive right to work on a run in a bucket.

A lease is one small object, written by conditional puts only: who sees its ETag may replace it
while nobody else has. It is renewed while work continues and expires `LEASE_SECONDS` later by the
server's clock. A holder counts by its own clock and stops `MARGIN_SECONDS` before that.
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
from benchmd_ray.storage.bucket import Bucket, Content

LEASE_SECONDS = 180.0
"""A lease that was not renewed for this long is free."""
RENEW_SECONDS = 30.0
MARGIN_SECONDS = 45.0
"""A holder stops trusting its lease this long before it expires."""
LOOK_SECONDS = 1.0
LONGEST = 4096
"""Bytes that are read; a lease has some hundred, and a longer one is damaged."""


class LeaseLost(Transient):
    """Another machine has taken over."""


class Lease:
    """The lease of one object, for one session.

    ``record`` is a local file in which this copy of the run notes its sessions: it tells a killed
    session of this copy from those of others, and whether the copy holds all that was published.
    ``what`` names the work in messages.
    """

    def __init__(self, bucket: Bucket, key: str, record: Path, what: str) -> None:
        self._bucket, self._key, self._record, self._what = bucket, key, record, what
        self._session = uuid.uuid4().hex
        self._etag = ""
        self._renewed = 0.0
        self._count = 0
        self._lock = threading.Lock()
        self.lost = False

    @property
    def session(self) -> str:
        return self._session

    @property
    def trusted(self) -> bool:
        """Whether nobody else can hold it now."""
        return not self.lost and clock() - self._renewed < LEASE_SECONDS - MARGIN_SECONDS

    def acquire(self) -> bool:
        """Take the lease, if it is free or was held by a killed session of this copy.

        The caller holds the local lock of this copy, so no other session of it is alive.

        Returns:
            Whether this copy was the last to be worked on, and so holds all that was published.

        Raises:
            Busy: Another machine holds it.
            BenchmdError: The server ignores the conditions of a put.
        """
        content = self._bucket.read(self._key, beginning=LONGEST)
        noted = _content(self._record.read_bytes()) if self._record.is_file() else {}
        session = None if content is None else _content(content.data).get("session")
        ours = session is not None and session in (noted.get("session"), noted.get("next"))
        if content is not None and not ours and _held(content):
            raise _busy(self._what, content.age)
        current = ours and bool(noted.get("current"))
        # Noted before it is written: who is killed in between still knows the session as its own.
        self._note(noted.get("session"), following=self._session, current=current)
        began = clock()
        etag = self._put("held", content)
        if etag is None:
            raise _busy(self._what, 0.0)
        self._etag, self._renewed = etag, began
        self._note(self._session, following=None, current=current)
        self._require_conditions()
        return current

    def note_current(self) -> None:
        """Note that this copy holds all that was published."""
        self._note(self._session, following=None, current=True)

    def renew(self) -> None:
        """Extend the lease by `LEASE_SECONDS`; `LeaseLost` if another machine has taken it."""
        with self._lock:
            self._replace("held")

    def release(self) -> None:
        """Free the lease, if it is held."""
        with self._lock, contextlib.suppress(BucketError, LeaseLost):
            self._replace("free")

    def require(self) -> None:
        """Raise `LeaseLost` if another machine has taken the lease."""
        if not self.trusted:
            self.renew()

    @contextlib.contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew the lease every `RENEW_SECONDS` and free it at the end."""

        def renew() -> None:
            with contextlib.suppress(BucketError, LeaseLost):  # said by who needs it
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
        etag = self._put(state, Content(b"", self._etag, 0.0))
        if etag is None:
            self.lost = True
            raise self._lost()
        self._etag, self._renewed = etag, began

    def _put(self, state: str, over: Content | None) -> str | None:
        self._count += 1  # no two writes are alike, nor their ETags
        content = {"session": self._session, "state": state, "count": self._count}
        data = json.dumps(content).encode()
        replaces = None if over is None else over.etag
        etag = self._bucket.write(self._key, data, replaces=replaces, new=over is None)
        if etag is None:  # perhaps written by an earlier try, whose answer did not arrive
            there = self._bucket.read(self._key, beginning=LONGEST)
            if there is not None and _content(there.data).get("session") == self._session:
                return there.etag
        return etag

    def _require_conditions(self) -> None:
        """Try two puts whose conditions do not hold."""
        content = json.dumps({"session": self._session, "state": "free", "count": 0}).encode()
        new = self._bucket.write(self._key, content, new=True)
        other = self._bucket.write(self._key, content, replaces='"0"')
        if new is not None or other is not None:
            raise BenchmdError(
                f"the server of {self._what} ignores the conditions If-None-Match and If-Match of "
                "a put, without which two machines may work on one run: use one that honours them."
            )

    def _note(self, session: str | None, *, following: str | None, current: bool) -> None:
        write_json(self._record, {"session": session, "next": following, "current": current})

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"another machine has taken over {self._what}, as this one was silent for too long. "
            "Nothing more of this one's work was published; the command resumes from what is "
            "there."
        )


def wait_for(lease: Lease) -> None:
    """Wait until nobody holds a lease, or until it expires."""
    while True:
        try:
            lease.acquire()
        except Busy:
            time.sleep(LOOK_SECONDS)
        else:
            lease.release()
            return


def require_free(bucket: Bucket, key: str, what: str) -> None:
    """Raise `Busy` if somebody holds a lease now."""
    content = bucket.read(key, beginning=LONGEST)
    if content is not None and _held(content):
        raise _busy(what, content.age)


def _held(content: Content) -> bool:
    """Whether somebody holds a lease; a damaged one counts as held until it expires."""
    return _content(content.data).get("state") != "free" and content.age < LEASE_SECONDS


def _content(data: bytes) -> dict[str, Any]:
    try:
        content = parse_json(data)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _busy(what: str, age: float) -> Busy:
    return Busy(
        f"another machine is working on {what}: it said so {age:.0f} s ago. Wait for it to end; if "
        f"it was killed, it is free after {LEASE_SECONDS:.0f} s without a word."
    )


def clock() -> float:
    """Seconds, including those while the machine sleeps where the system counts them."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
