"""An append-only log in an object store: numbered objects, written by conditional puts.

The newest object is replaced by a longer one until it has `FULL` bytes; then the next one is
started. An append is conditional on the version of the newest object, or on the absence of the next
one, so a writer that has missed another's append is refused.
"""

from __future__ import annotations

import re
import time

from benchmd_ray.storage.bucket import Bucket, Content, Version
from benchmd_ray.storage.lease import LeaseLost
from benchmd_ray.storage.patience import patiently

FULL = 2**16
"""Bytes of an object after which the next one is started."""
TRIES, PAUSE_SECONDS = 10, 0.5
"""Retries of a write that is refused although nothing else was written."""
NAME = re.compile(r"[0-9]{6}\.log")


class JournalSegments:
    """A log in a bucket with one writer; at most ``most`` bytes are read."""

    def __init__(self, bucket: Bucket, most: int) -> None:
        self._bucket, self._most = bucket, most
        self._number, self._data = 0, b""
        self._version: Version | None = None

    def read(self) -> bytes:
        """Read the whole log.

        Raises:
            ValueError: An object is missing, or the log is too long.
        """
        objects = patiently(self._bucket.objects)
        names = sorted(name for name in objects if NAME.fullmatch(name))
        if names != [_name(number) for number in range(len(names))]:
            raise ValueError(f"one of its {len(names) + 1} objects is missing")
        if sum(objects[name].size for name in names) > self._most:
            raise ValueError(f"it has more than {self._most:,} bytes")
        contents = [self._read(name) for name in names]
        self._number = max(0, len(names) - 1)
        if contents:
            self._data, self._version = contents[-1].data, contents[-1].version
        return b"".join(content.data for content in contents)

    def _read(self, name: str) -> Content:
        content = patiently(lambda: self._bucket.read(name))
        if content is None:
            raise ValueError(f"its object {name} has gone")
        return content

    def append(self, data: bytes) -> None:
        """Append to the log as known to this process, all or nothing.

        Raises:
            LeaseLost: Another process has written meanwhile.
        """
        number, before, version = self._number, self._data, self._version
        if len(before) >= FULL:
            number, before, version = number + 1, b"", None
        name, whole = _name(number), before + data

        def put() -> Version | None:
            return self._bucket.write(name, whole, replaces=version, new=version is None)

        for _ in range(TRIES):
            written = patiently(put)
            if written is not None:
                break
            there = patiently(lambda: self._bucket.read(name))
            if there is not None and there.data == whole:  # by a try whose response was lost
                written = there.version
                break
            if (there.version.etag if there else None) != (version.etag if version else None):
                raise LeaseLost(
                    f"another process has written to {self._bucket.address} meanwhile. The same "
                    "command resumes from the stored state."
                )
            time.sleep(PAUSE_SECONDS)  # such a try may still be running
        else:
            raise LeaseLost(f"{self._bucket.address} refuses writes: try again later.")
        self._number, self._data, self._version = number, whole, written


def _name(number: int) -> str:
    return f"{number:06d}.log"
