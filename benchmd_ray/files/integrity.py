"""Files that are verified by their hash when they are read, so that damage is detected.

A JSON file includes its own SHA-256, each line of a log its CRC-32, and any other file has its
SHA-256 in a file next to it, in the format of ``sha256sum``. An unchanged file is hashed once per
process. Files of a run or a search name their owner, so that misplaced files are detected. This
protects against damage, not against forgery.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import shutil
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from benchmd_ray.errors import BenchmdError, count_of, shown, sort_of
from benchmd_ray.files.atomic import digest, parse_json, replacing, sha256, write_json
from benchmd_ray.schema.typed import form_fault

HASH = "sha256"
OF = "of"
"""Key of the run or search that a file belongs to, see `name_of`."""
NAMED = re.compile(r".*-([0-9a-f]{12}(/.*)?)", re.DOTALL)
"""Pattern of a path in a run or search, whose name ends in the hash of its determinants."""
CHECK = "crc32"
SUFFIX = ".sha256"
REPLACED_SECONDS = 0.2
"""Seconds; longer than the replacement of a file's hash takes after that of the file."""
Item = TypeVar("Item")
MAX_JSON_BYTES = 2**24
"""Largest JSON file of a run or a search; they have some kB."""
MAX_LOG_BYTES, MAX_LOG_LINES = 2**28, 2**20
logger = logging.getLogger(__name__)


class Damaged(BenchmdError):
    """A file is damaged; ``remedy`` is a whole sentence."""

    def __init__(self, path: object, why: str, remedy: str) -> None:
        """``remedy`` is a whole sentence that says what to do."""
        super().__init__(f"{path} is damaged: {why.removesuffix('.')}. {remedy}")
        self.why = why
        self._said = (str(path), why, remedy)

    def __reduce__(self) -> tuple[type[Damaged], tuple[str, str, str]]:
        return type(self), self._said


@dataclass(frozen=True)
class StoredItems(Generic[Item]):
    """Runs or searches of some stores."""

    found: list[Item]
    damaged: dict[Path, str]
    """Reasons why others are skipped, by folder."""

    @property
    def notes(self) -> list[str]:
        """One line for each skipped item."""
        return [f"Skipped: {why}" for why in self.damaged.values()]


def made_again(folder: object) -> str:
    """Remedy for a damaged file of a run."""
    return (
        f"Remove the folder {folder} (or move it out of the store) and rerun the command that made "
        "it."
    )


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        Damaged: It is missing, has too many bytes or values, or is not a JSON object.
    """
    if _regular(path, remedy).st_size > MAX_JSON_BYTES:
        raise Damaged(path, f"it has more than {MAX_JSON_BYTES:,} bytes", remedy)
    return parsed_json(path.read_bytes(), path, remedy)


def _regular(path: Path, remedy: str) -> os.stat_result:
    """Status of a file; `Damaged` if it is missing, or a pipe, a device or a folder."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Damaged(path, "it is missing", remedy) from error
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(path, "it is not a regular file", remedy)
    return status


def parsed_json(data: bytes, path: object, remedy: str) -> dict[str, Any]:
    """The JSON object that a file holds; see `read_json`."""
    try:
        content = parse_json(data)
    except (ValueError, RecursionError) as error:  # nested deeper than Python can follow
        raise Damaged(path, f"it is not valid JSON ({error})", remedy) from error
    if not isinstance(content, dict):
        raise Damaged(path, f"it is {sort_of(content)}, expected an object", remedy)
    return content


def name_of(folder: Path) -> str:
    """Name by which files refer to their run, search or trial.

    This is the hash at the end of the folder's name; for a folder within a search, the search's
    hash and the path from there.
    """
    path = os.path.realpath(folder)
    match = NAMED.fullmatch(path)
    return match[1] if match else os.path.basename(path)


def require_of(stated: object, folder: Path, path: object, remedy: str) -> None:
    """Refuse a file (`Damaged`) that names a run or search other than its folder."""
    if stated != name_of(folder):
        other = f"was written for {shown(stated)}" if stated else "does not name its run or search"
        raise Damaged(path, f"it {other}, expected {shown(name_of(folder))}", remedy)


def write_hashed_json(path: Path, content: Mapping[str, Any], *, of: Path | None = None) -> None:
    """Write an object with its hash, atomically.

    ``of``: folder of the run or search that it belongs to.
    """
    write_json(path, hashed(content if of is None else {**content, OF: name_of(of)}))


def hashed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON-serialisable object with its hash."""
    plain = json.loads(json.dumps(content))  # in the form in which it is read again
    return {**plain, HASH: digest(plain)}


def read_hashed_json(
    path: Path, remedy: str, form: Any = None, *, of: Path | None = None
) -> dict[str, Any]:
    """Read an object that `write_hashed_json` wrote; ``form`` is a TypedDict that it must fit.

    Raises:
        Damaged: It is missing, changed, of another form, or of another run or search than ``of``.
    """
    content = without_hash(read_json(path, remedy), path, remedy)
    if of is not None:
        require_of(content.pop(OF, None), of, path, remedy)
    if form is not None and (fault := form_fault(form, content, "it")):
        raise Damaged(path, fault, remedy)
    return content


def without_hash(content: Mapping[str, Any], path: object, remedy: str) -> dict[str, Any]:
    """The object without its hash; raises `Damaged` if it was changed."""
    plain = {name: value for name, value in content.items() if name != HASH}
    if not has_digest(plain, content.get(HASH)):
        why = "its content was changed: its SHA-256 differs"
        raise Damaged(path, why if content.get(HASH) else f"it has no {HASH}", remedy)
    return plain


def has_digest(content: Mapping[str, Any], stated: object) -> bool:
    """Whether an object has this digest; objects that JSON cannot represent have none."""
    try:
        return digest(content) == stated
    except (UnicodeEncodeError, RecursionError):  # half a surrogate pair; nested too deep
        return False


def line(values: Mapping[str, Any]) -> str:
    """A line of a log with its checksum."""
    return json.dumps(checked(values), ensure_ascii=False) + "\n"


def checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the checksum to JSON-serialisable values."""
    plain = json.loads(json.dumps(values))
    return {**plain, CHECK: _checksum(plain)}


def read_line(text: str) -> dict[str, Any] | None:
    """The values of a `line`; None if it is damaged."""
    try:
        return unchecked(parse_json(text))
    except (ValueError, RecursionError):
        return None


def unchecked(values: Any) -> dict[str, Any] | None:
    """The values without their checksum; None if they were damaged."""
    if not isinstance(values, dict):
        return None
    plain = {name: value for name, value in values.items() if name != CHECK}
    try:
        return plain if values.get(CHECK) == _checksum(plain) else None
    except (UnicodeEncodeError, RecursionError):
        return None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Complete lines of a log; none without a file.

    Damaged lines and oversized logs are skipped with a warning. A last line that a killed process
    cut off is skipped silently.
    """
    if not path.is_file():
        return []
    text = path.read_text("utf-8", "replace") if path.stat().st_size <= MAX_LOG_BYTES else None
    if text is None or text.count("\n") > MAX_LOG_LINES:
        _warn(path, "it is skipped, as it is too large for a log")
        return []
    texts = text.split("\n")
    cut_off = texts.pop()
    values = [*map(read_line, texts), *filter(None, [read_line(cut_off)])]
    whole = [value for value in values if value is not None]
    if damaged := len(values) - len(whole):
        _warn(path, f"{count_of(damaged, 'damaged line')} skipped")
    return whole


@functools.cache
def _warn(path: Path, what: str) -> None:
    logger.warning("%s: %s", path, what)


def _checksum(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return f"{zlib.crc32(text.encode()):08x}"


@contextmanager
def replacing_hashed(path: Path) -> Iterator[Path]:
    """Write a file and its hash next to it, each atomically; see `atomic.replacing`."""
    with replacing(path) as partial:
        yield partial
        stated = sha256(partial)
    write_hash(path, stated)


def write_hash(path: Path, stated: str | None = None) -> None:
    """Write the hash of an existing file next to it, computed unless stated."""
    with replacing(hash_path(path)) as partial:
        partial.write_text(f"{stated or sha256(path)}  {path.name}\n", "utf-8")


def require_hash(path: Path, remedy: str) -> None:
    """Verify a file by the hash next to it; twice, as another process may be replacing both.

    Raises:
        Damaged: It has a different hash, or the hash is missing.
    """
    try:
        require_sha256(path, stated_sha256(path, remedy), remedy)
    except Damaged:
        if not path.is_file():
            raise
        time.sleep(REPLACED_SECONDS)
        require_sha256(path, stated_sha256(path, remedy), remedy)


def is_whole(path: Path) -> bool:
    """Whether a file exists and has the hash that is next to it."""
    try:
        require_hash(path, "")
    except Damaged:
        return False
    return True


def stated_sha256(path: Path, remedy: str) -> str:
    """The hash next to a file; the file itself is not read.

    Raises:
        Damaged: It is missing, or is that of a file with another name.
    """
    beside = hash_path(path)
    if not beside.is_file():
        raise Damaged(path, f"{beside.name} is missing", remedy)
    with beside.open("rb") as file:
        stated, _, name = file.read(4096).decode("utf-8", "replace").partition("  ")
    if name != f"{path.name}\n":
        raise Damaged(path, f"{beside.name} is not of this file", remedy)
    return stated


def require_sha256(path: Path, stated: str, remedy: str) -> None:
    """Refuse a file (`Damaged`) that is missing or has a different SHA-256."""
    _regular(path, remedy)
    if sha256_once(path) != stated:
        raise Damaged(path, "its SHA-256 is not the one that was recorded", remedy)


def remove_hashed(path: Path) -> None:
    """Remove a file and its hash, if they are there."""
    hash_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def sha256_once(path: Path) -> str:
    """SHA-256 of a file, computed once per process unless the file changes."""
    status = os.stat(path)
    return _sha256(path, status.st_size, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=100_000)
def _sha256(path: Path, *stamp: int) -> str:
    return sha256(path)


def hash_path(path: Path) -> Path:
    """The file with the hash of a file, next to it."""
    return path.with_name(f"{path.name}{SUFFIX}")


def copy_hashed(source: Path, target: Path) -> None:
    """Copy a file with its hash."""
    shutil.copyfile(hash_path(source), hash_path(target))
    shutil.copyfile(source, target)
