"""Locations: a path or an address in an object store, with common operations.

A location can be sent to any process on any machine. Files fit in memory and are written
atomically; those in folders by `files.atomic`, with `fsync` and locks, which obstore's local store
lacks. Reading and writing at an address waits up to two minutes for a server; opening, listing and
locking, which start a piece of work, fail at once. All raise `BucketError` if the bucket cannot be
reached, and writing a file may raise `DiskFull`. The client of object
stores is only imported for an address.
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
from benchmd_ray.storage.address import is_address, local_name, normal
from benchmd_ray.storage.patience import patiently

if TYPE_CHECKING:
    from benchmd_ray.storage.bucket import Bucket, Content
    from benchmd_ray.storage.segments import JournalSegments

LEASE = "lease.json"
"""Name of the lease of a folder in a bucket."""


@dataclass(frozen=True)
class Address:
    """An address in an object store, ``s3://bucket/prefix``, in place of a path."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        """Its last part."""
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> Address:
        return Address(self.text.rpartition("/")[0])

    def resolve(self) -> Address:
        """The address itself, like `Path.resolve`."""
        return self


Location = Path | Address


def location(text: str) -> Location:
    """The location named by a text; raises `BenchmdError` for an invalid address."""
    return Address(normal(text)) if is_address(text) else Path(text)


def read(file: Location) -> bytes | None:
    """Content of a file of at most `MAX_BYTES`; None if it does not exist."""
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


def read_again(file: Location) -> bytes | None:
    """Like `read`, for repeated reads: an object is fetched only if it has changed."""
    if isinstance(file, Path):
        return read(file)
    content = _bucket(file.parent).read(file.name, _held.get(file))
    if content is None:
        return None
    _held[file] = content
    return content.data


def write(file: Location, data: bytes) -> None:
    """Write a file atomically."""
    if isinstance(file, Address):
        bucket, name = _bucket(file.parent), file.name
        patiently(lambda: bucket.write(name, data))
        return
    with replacing(file) as partial:
        partial.write_bytes(data)


def delete(files: Iterable[Location]) -> None:
    """Delete files that exist."""
    for file in files:
        if isinstance(file, Address):
            patiently(partial(_bucket(file.parent).delete, [file.name]))
        else:
            remove(file)


def put_file(path: Path, to: Address) -> None:
    """Copy a file, which must not change meanwhile, to an address, without retries."""
    with path.open("rb") as file:
        _bucket(to.parent).upload(file, path.stat().st_size, to.name)


def get_file(file: Address, path: Path, size: int = MAX_BYTES) -> bool:
    """Copy an object to a file; returns False if there is none.

    Raises:
        BenchmdError: The object is longer than ``size``, its size in the listing.
    """
    bucket, name = _bucket(file.parent), file.name
    return patiently(lambda: bucket.download(name, path, size))


def log_at(address: Address, most: int) -> JournalSegments:
    """The log at an address; at most ``most`` bytes are read."""
    from benchmd_ray.storage.segments import JournalSegments

    return JournalSegments(_bucket(address), most)


def entries(folder: Location) -> tuple[dict[str, int], list[str]]:
    """Content of a folder: bytes of its files by name, and names of folders; empty if missing."""
    if isinstance(folder, Address):
        return _bucket(folder).entries()
    sizes: dict[str, int] = {}
    folders: list[str] = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            folders.append(path.name)
        elif path.is_file():  # and still exists
            sizes[path.name] = path.stat().st_size
    return sizes, folders


@contextmanager
def alone(folder: Location, what: str, inside: Iterable[str]) -> Iterator[Callable[[], None]]:
    """Work on a folder, exclusively among all machines that share it.

    Partial files are removed from it and from the folders ``inside``. Yields a function that raises
    `LeaseLost` if another machine has taken over.

    Raises:
        Busy: Another process is working on it.
        BenchmdError: The file system has no locks.
    """
    if isinstance(folder, Path):
        with locked(folder / ".lock", what):
            for place in (folder, *(folder / name for name in inside)):
                remove_partial(place)
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
