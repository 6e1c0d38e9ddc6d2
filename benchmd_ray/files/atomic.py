"""Atomic files, locks and hashes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import resource
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from benchmd_ray.errors import BenchmdError, Busy, DiskFull

TEMPORARY = ".partial-"
"""Prefix of files and folders that are being written; they are renamed at the end."""
MAX_BYTES = 2**33
"""Most bytes of a file that is read whole; a shard has less than 100 MB."""
MAX_VALUES = 2**20
"""Most values in a JSON text; the manifest of a catalog of 10,000 shards has a tenth of that."""
LOOK_SECONDS = 0.1
"""Seconds; longer than another process needs to test whether a lock is free."""
FULL = {
    errno.ENOSPC: ("no space left", "free some space"),
    errno.EDQUOT: (
        "no space left within the disk quota",
        "free some space, or have the quota raised",
    ),
    errno.EFBIG: ("no space left within the largest size of a file", "raise it (`ulimit -f`)"),
}
"""What is full and the remedy, by error number of a failed write."""
CUT_OFF = re.compile(r"\d+ requested and \d+ written")
"""NumPy's message on a full disk, which has no error number."""


def cache_folder() -> Path:
    """Folder of data that can be recomputed: ``BENCHMD_CACHE`` or ~/.cache/benchmd."""
    return Path(os.environ.get("BENCHMD_CACHE") or Path.home() / ".cache" / "benchmd")


def resource_folder(name: str) -> Path:
    """Folder of data that ships with the package: ``data_catalog`` or ``search_spaces``."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def without_home(text: str) -> str:
    """The text with ``~`` for the user's home folder."""
    home = str(Path.home())
    if home == "/":  # as in some containers
        return text
    return re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w-])", "~", text)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path next to the file ``path``, renamed to it on success.

    Raises:
        DiskFull: There is no space left; no partial file remains.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{path.name}")
    with removed_on_failure(partial, path):
        yield partial
        flush(partial)
        os.replace(partial, path)


@contextmanager
def removed_on_failure(partial: Path, path: Path) -> Iterator[None]:
    """Remove ``partial``, which is to become ``path``, if writing it fails.

    Raises:
        DiskFull: The disk, its quota or the largest size of a file is exhausted.
    """
    try:
        yield
    except DiskFull:
        remove(partial)
        raise
    except BaseException as error:
        number = 0
        if isinstance(error, Exception):
            number = errno.EFBIG * _at_limit(partial) or full_number(error)
            number = number or errno.ENOSPC * _is_full(path.parent)
        remove(partial)
        if not number:
            raise
        raise disk_full(number, path) from error


def disk_full(number: int, path: Path) -> DiskFull:
    """The error for a file that could not be written, by its number in `FULL`."""
    what, remedy = FULL[number]
    return DiskFull(
        f"{what} while writing {path} ({shutil.disk_usage(path.parent).free:,} bytes free). "
        f"Nothing half-written was kept: {remedy} and run the command again."
    )


def full_remedy(error: BaseException) -> str:
    """What to do after an error of a full disk."""
    _, remedy = FULL[full_number(error) or errno.ENOSPC]
    return f"{remedy} and run the command again"


def full_number(error: BaseException | None) -> int:
    """The number in `FULL` of an error or one of its causes; 0 for another error.

    Libraries raise their own errors, some with the number only in their text.
    """
    while isinstance(error, Exception) and not isinstance(error, BenchmdError):
        text = str(error)
        for number in FULL:
            if getattr(error, "errno", None) == number or os.strerror(number) in text:
                return number
        if CUT_OFF.search(text):
            return errno.ENOSPC
        error = error.__cause__ or error.__context__
    return 0


def is_disk_full(error: BaseException, folder: Path) -> bool:
    """Whether an error in a folder means a full disk, quota or file.

    Any other error counts if the disk has less than a mebibyte left.
    """
    return bool(full_number(error)) or (isinstance(error, Exception) and _is_full(folder))


def _is_full(folder: Path) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free < 2**20


def _at_limit(partial: Path) -> bool:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    files = [partial] if partial.is_file() else partial.rglob("*")
    return limit != resource.RLIM_INFINITY and any(
        file.is_file() and file.stat().st_size >= limit for file in files
    )


def flush(path: Path) -> None:
    """Force files to the disk, so that a rename never precedes their content."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Remove partial files of an interrupted process in ``folder``."""
    for path in folder.glob(f"{TEMPORARY}*"):
        remove(path)


def json_bytes(content: Any) -> bytes:
    """A JSON file's content."""
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: It is not JSON, or may have more than `MAX_VALUES` values: an empty list takes
            three characters of text and twenty times as much memory.
        RecursionError: It is nested deeper than Python can follow.
    """
    if len(data) > MAX_VALUES:
        marks = ",[{" if isinstance(data, str) else (b",", b"[", b"{")
        values = sum(map(data.count, marks))  # type: ignore[arg-type]
        if values > MAX_VALUES:
            raise ValueError(f"about {values:,} values, expected at most {MAX_VALUES:,}")
    try:
        return from_json(data)
    except ValueError:  # json is slower, but accepts more encodings and names the fault better
        return json.loads(data)


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically."""
    with replacing(path) as partial:
        partial.write_bytes(json_bytes(content))


def append_text(path: Path, text: str) -> None:
    """Append a text to a file, all or nothing; the file is created if missing.

    Raises:
        BenchmdError: It is a link or not a regular file.
        DiskFull: There is no space left.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(open_regular(path, flags), "ab", buffering=0) as file:
        append(file, text.encode(), path)


def append(file: io.FileIO, data: bytes, path: Path) -> None:
    """Append data to an open file with one writer, all or nothing (`DiskFull`)."""
    before, left = file.seek(0, os.SEEK_END), memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except BaseException as error:
        file.truncate(before)
        if number := full_number(error):
            raise disk_full(number, path) from error
        raise


def open_regular(path: Path, flags: int) -> int:
    """Open a file to change it; a link is refused, since in a store it could name any file.

    Raises:
        BenchmdError: It is a link or not a regular file.
    """
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise _not_regular(path)
    return opened


def _not_regular(path: Path) -> BenchmdError:
    return BenchmdError(f"{path} is a link or not a regular file, expected a file: remove it.")


def slug(*parts: object) -> str:
    """Words as a name of lower-case letters, digits and hyphens."""
    return re.sub("[^a-z0-9]+", "-", "-".join(map(str, parts)).lower()).strip("-")


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5(path: Path) -> str:
    """MD5 of a file, hexadecimal: owners publish it to verify downloads."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def digest(content: Any) -> str:
    """SHA-256 of a JSON-serialisable value, hexadecimal; equal values have equal digests."""
    text = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def locked(path: Path, what: str, *, wait: bool = False, shared: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``; the lock is freed when the process ends, however it ends.

    ``what`` names the protected work in the error. With ``wait``, wait for another holder. A
    ``shared`` lock only tests whether another process is working; the file must exist.

    Raises:
        Busy: Another process holds it.
        BenchmdError: The file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    with os.fdopen(open_regular(path, os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT)) as file:
        try:
            try:
                fcntl.flock(file, kind)
            except BlockingIOError:
                if shared:
                    raise
                time.sleep(LOOK_SECONDS)  # another process may only have tested the lock
                fcntl.flock(file, kind)
        except BlockingIOError:
            raise Busy(
                f"another process is working on {what} ({path}). Wait for it to end."
            ) from None
        except OSError as error:
            raise BenchmdError(
                f"the file system of {path} cannot lock files ({error}): choose a folder on one "
                "that can, or mount it with locks."
            ) from error
        yield
