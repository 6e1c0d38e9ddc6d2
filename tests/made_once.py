"""Expensive fixtures as folders, kept between test runs while the code stays the same.

They are in ``.pytest_cache/d/made``; ``pytest --cache-clear`` removes them.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from itertools import count
from pathlib import Path

from parts import PACKAGE, source_of

from benchmd_ray.extensions.parts import package_versions
from benchmd_ray.files.atomic import digest, locked, remove, write_json
from benchmd_ray.files.atomic import sha256 as hash_of
from benchmd_ray.files.integrity import Damaged, read_hashed_json, write_hashed_json

TESTS = Path(__file__).parent
HELPERS = ("conftest.py", "in_process.py", "made_catalogs.py", "small_runs.py", "untrusted.py")
"""Test modules that determine what the folders contain."""

UNUSED_SECONDS = 86_400.0
"""A folder is removed when it was not used for so long; other test runs may use it until then."""

INDEX = "index.json"
"""Hashes of a folder's files, written last: a folder without it is incomplete."""


class MadeOnce:
    """Makes each folder once per state of the code."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    def folder(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder, after making it if it is missing, damaged or made by other code.

        Args:
            name: Its name; one for each ``make``.
            make: Fills an empty folder. Tests must not change its files.
        """
        self._parent.mkdir(parents=True, exist_ok=True)
        with locked(self._parent / ".lock", "the state of the code", wait=True):
            state = state_of_the_code(self._parent)[:12]
        with locked(self._parent / f"{name}.lock", name, wait=True):
            for number in count():
                folder = self._parent / f"{name}-{state}-{number}"
                content = folder / "content"
                if _is_whole(folder):
                    os.utime(folder)
                    return content
                if not folder.exists():  # a damaged one stays, as another process may be using it
                    break
            for old in self._parent.glob(f"{name}-{'?' * 12}-*"):
                if old.lstat().st_mtime < time.time() - UNUSED_SECONDS:
                    remove(old)
            content.mkdir(parents=True)
            make(content)
            write_json(folder / INDEX, _hashes(content))
        return content


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_of(path) for path in files}


def _is_whole(folder: Path) -> bool:
    try:
        index = json.loads((folder / INDEX).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return bool(index == _hashes(folder / "content"))


@cache
def state_of_the_code(folder: Path) -> str:
    """Hash of everything that determines the folders' contents.

    Comments, docstrings and error messages do not count. Hashing the package's syntax trees takes
    seconds, so ``folder`` keeps the result for the hash of its bytes.
    """
    sources = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    others = [PACKAGE.parent / "constraints.txt", *(TESTS / name for name in HELPERS)]
    for name in ("data_catalog", "search_spaces"):
        others += [path for path in sorted((PACKAGE.parent / name).rglob("*")) if path.is_file()]
    kept = folder / f"code-{_bytes_of(PACKAGE / name for name in sources)[:16]}"
    try:
        source = read_hashed_json(kept, "")["source"]
    except (Damaged, KeyError):
        for old in folder.glob("code-*"):
            remove(old)
        source = source_of(PACKAGE, sources)
        write_hashed_json(kept, {"source": source})
    versions = {**package_versions(), "python": platform.python_version()}
    return digest([source, _bytes_of(others), versions])


def _bytes_of(paths: Iterable[Path]) -> str:
    hashed = sha256()
    for path in paths:
        hashed.update(path.name.encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()
