"""An append-only log on S3: numbered objects, written by conditional puts.

The newest object is replaced by a longer one until it has `FULL` bytes; then the next is begun.
An append names the ETag of the newest object, or that there is none of the next number: a writer
that has not seen another's append is refused.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

from benchmd_ray.storage.bucket import Bucket, Content
from benchmd_ray.storage.lease import LeaseLost
from benchmd_ray.storage.patience import patiently

FULL = 2**16
"""Bytes of an object after which the next one is begun."""
FETCHED = 8
TRIES, PAUSE_SECONDS = 10, 0.5
"""For a write that is refused although nothing else was written."""
NAME = re.compile(r"[0-9]{6}\.log")


class JournalSegments:
    """A log in a bucket with one writer; at most ``most`` bytes are read."""

    def __init__(self, bucket: Bucket, most: int) -> None:
        self._bucket, self._most = bucket, most
        self._number, self._newest = 0, Content(b"", "", 0.0)

    def read(self) -> bytes:
        """All that was appended.

        Raises:
            ValueError: An object is missing, or there is more than is read.
        """
        objects = patiently(self._bucket.objects)
        names = sorted(name for name in objects if NAME.fullmatch(name))
        if names != [_name(number) for number in range(len(names))]:
            raise ValueError(f"one of its {len(names) + 1} objects is missing")
        if sum(objects[name].size for name in names) > self._most:
            raise ValueError(f"it has more than {self._most:,} bytes")
        with ThreadPoolExecutor(FETCHED) as pool:
            contents = [*pool.map(self._read, names)]
        self._number = max(0, len(names) - 1)
        self._newest = contents[-1] if contents else Content(b"", "", 0.0)
        return b"".join(content.data for content in contents)

    def _read(self, name: str) -> Content:
        content = patiently(lambda: self._bucket.read(name))
        if content is None:
            raise ValueError(f"its object {name} has gone")
        return content

    def append(self, data: bytes) -> None:
        """Append to what was read and appended, whole or not at all.

        Raises:
            LeaseLost: Another process has written since.
        """
        number, before = self._number, self._newest
        if len(before.data) >= FULL:
            number, before = number + 1, Content(b"", "", 0.0)
        name, whole = _name(number), before.data + data

        def put() -> str | None:
            if before.etag:
                return self._bucket.write(name, whole, replaces=before.etag)
            return self._bucket.write(name, whole, new=True)

        for _ in range(TRIES):
            etag = patiently(put)
            if etag is not None:
                break
            there = patiently(lambda: self._bucket.read(name))
            if there is not None and there.data == whole:  # by a try whose answer did not arrive
                etag = there.etag
                break
            if (there.etag if there else "") != before.etag:
                raise LeaseLost(
                    f"another process has written to {self._bucket.address} meanwhile. The same "
                    "command resumes from what is there."
                )
            time.sleep(PAUSE_SECONDS)  # such a try is still at work
        else:
            raise LeaseLost(
                f"{self._bucket.address} refuses what is written to it: try again later."
            )
        self._number, self._newest = number, Content(whole, etag, 0.0)


def _name(number: int) -> str:
    return f"{number:06d}.log"
