"""Locations: a path of a file system or an address on S3, and what can be done at either.

A location can be handed to any process on any machine: an address stays one, whatever that machine
keeps of it. Files are small enough for memory, and whole or not there. Reading and writing them on
S3 outlasts two minutes without a server; what comes first in a piece of work, opening, listing
and locking, says soon that there is none. The client of S3 and its leases are imported
for an address only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import (
    MAX_BYTES,
    cache_folder,
    locked,
    remove,
    remove_partial,
    replacing,
)
from benchmd_ray.storage.address import SCHEME, local_name, normal
from benchmd_ray.storage.patience import patiently

if TYPE_CHECKING:
    from benchmd_ray.storage.bucket import Bucket, Content
    from benchmd_ray.storage.segments import JournalSegments

LEASE = "lease.json"
"""Object in addition to what is worked on in a bucket."""


@dataclass(frozen=True)
class Address:
    """An address on S3, ``s3://bucket/prefix``, which stands where a path may stand."""

    text: str
    """In its `normal` form."""

    def __str__(self) -> str:
        """The address."""
        return self.text

    def __truediv__(self, name: str) -> Address:
        """What lies below it under that name."""
        return Address(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        """Its last part."""
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> Address:
        """Where it lies."""
        return Address(self.text.rpartition("/")[0])

    def resolve(self) -> Address:
        """The address itself: it is the same from everywhere."""
        return self


Location = Path | Address
"""Where a file or a folder lies."""


def location(text: str) -> Location:
    """The location that a text names.

    Raises:
        BenchmdError: It begins like an address but is not valid.
    """
    return Address(normal(text)) if text.startswith(SCHEME) else Path(text)


def read(file: Location) -> bytes | None:
    """Content of a file; None if it does not exist.

    Raises:
        BucketError: The bucket cannot be reached.
        BenchmdError: The file has more than `MAX_BYTES`.
    """
    if isinstance(file, Address):
        bucket, name = _bucket(file.parent), file.name
        content = patiently(lambda: bucket.read(name))
        return None if content is None else content.data
    if not file.is_file():
        return None
    if file.stat().st_size > MAX_BYTES:
        raise BenchmdError(f"{file} has more than {MAX_BYTES:,} bytes, expected a file of ours.")
    return file.read_bytes()


_held: dict[Address, Content] = {}
"""Objects that this process has read by `read_again`."""


def read_again(file: Location) -> bytes | None:
    """Like `read`, for what is read often: on S3 it is fetched where it has changed since.

    Raises:
        BucketError: The bucket cannot be reached.
        BenchmdError: The file has more than `MAX_BYTES`.
    """
    if isinstance(file, Path):
        return read(file)
    found = _bucket(file.parent).read(file.name, _held.get(file))
    if found is None:
        return None
    _held[file] = found
    return found.data


def write(file: Location, data: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        BenchmdError: The disk is full, or the bucket cannot be reached.
    """
    if isinstance(file, Address):
        bucket, name = _bucket(file.parent), file.name
        patiently(lambda: bucket.write(name, data))
        return
    with replacing(file) as partial:
        partial.write_bytes(data)


def delete(files: Iterable[Location]) -> None:
    """Delete files, if they are there.

    Raises:
        BucketError: The bucket cannot be reached.
    """
    for file in files:
        if isinstance(file, Address):
            patiently(partial(_bucket(file.parent).delete, [file.name]))
        else:
            remove(file)


def put_file(path: Path, to: Address) -> None:
    """Copy a file, which does not change meanwhile, to an address.

    Raises:
        BucketError: The bucket cannot be reached, which is not tried again.
    """
    with path.open("rb") as file:
        _bucket(to.parent).upload(file, path.stat().st_size, to.name)


def get_file(file: Address, path: Path, size: int = MAX_BYTES) -> bool:
    """Copy what is at an address, of the listed size, into a file; whether there is something.

    Raises:
        BenchmdError: The disk is full, the bucket cannot be reached, or the object is longer.
    """
    bucket, name = _bucket(file.parent), file.name
    return patiently(lambda: bucket.download(name, path, size))


def log_at(address: Address, most: int) -> JournalSegments:
    """The log whose objects lie at an address, of which so many bytes are read at most."""
    from benchmd_ray.storage.segments import JournalSegments

    return JournalSegments(_bucket(address), most)


def entries(folder: Location) -> tuple[dict[str, int], list[str]]:
    """What lies directly in a folder: bytes of its files by name, and names of folders.

    Both are empty where there is no such folder.

    Raises:
        BucketError: The bucket cannot be reached.
    """
    if isinstance(folder, Address):
        return _bucket(folder).entries()
    sizes: dict[str, int] = {}
    folders: list[str] = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            folders.append(path.name)
        elif path.is_file():  # and is still there
            sizes[path.name] = path.stat().st_size
    return sizes, folders


@contextmanager
def alone(folder: Location, what: str, inside: Iterable[str]) -> Iterator[Callable[[], None]]:
    """Work on a folder, alone among all machines that see it.

    Args:
        folder: The folder.
        what: For messages: what is worked on.
        inside: Its folders; what an interrupted process left half-written there is removed.

    Yields:
        Makes sure that nobody else has taken over, and raises `LeaseLost` otherwise.

    Raises:
        Busy: Somebody else is at it.
        BenchmdError: The file system has no locks, or the bucket cannot be reached.
    """
    if isinstance(folder, Path):
        with locked(folder / ".lock", what):
            for own in (folder, *(folder / name for name in inside)):
                remove_partial(own)
            yield lambda: None
        return
    from benchmd_ray.storage.lease import Lease

    kept = cache_folder() / "leases" / local_name(folder.text)
    with locked(kept.with_suffix(".lock"), what):
        lease = Lease(_bucket(folder), LEASE, kept.with_suffix(".json"), what)
        lease.acquire()
        with lease.renewing():
            yield lease.require


def _bucket(folder: Address) -> Bucket:
    from benchmd_ray.storage.bucket import open_bucket

    return open_bucket(folder.text)
