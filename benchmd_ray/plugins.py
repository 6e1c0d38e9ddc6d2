"""Methods and encoders of users: found by entry point or by import path, without a change here.

An installed package names them in its metadata (`GROUPS`); a module of one's own is named by its
import path, ``package.module:name``. Only what a user installed or named is imported.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.files import sha256

GROUPS = {
    "pretraining technique": "benchmd_ray.methods",
    "encoder network": "benchmd_ray.encoders",
}
"""What can be plugged in, and the group of entry points that names it."""


def plugin(kind: str, name: str, known: Iterable[str] = ()) -> Callable[..., Any]:
    """A user's method or encoder.

    Args:
        kind: A key of `GROUPS`.
        name: Name of an entry point, or ``package.module:name``.
        known: Names of what is built in, for the message.

    Raises:
        BenchmdError: There is none of that name, or it cannot be imported.
    """
    installed = entry_points(group=GROUPS[kind])
    if name in installed.names:
        entry = installed[name]
    elif ":" in name:
        entry = EntryPoint(name, name, GROUPS[kind])
    else:
        raise unknown_name(kind, name, [*known, *sorted(installed.names)])
    try:
        found = _loaded(entry)
    except (ImportError, AttributeError) as error:
        raise BenchmdError(
            f"cannot import the {kind} {name} ({error}). Name it package.module:name; the module "
            "must be installed or lie in a folder of PYTHONPATH, on every node that works "
            '(export PYTHONPATH="$PWD").'
        ) from error
    if not callable(found):
        raise BenchmdError(f"the {kind} {name} is {found!r}, expected a class or a function.")
    return found  # type: ignore[no-any-return]


def _loaded(entry: EntryPoint) -> Any:
    module, _, attribute = entry.value.partition(":")
    found: Any = importlib.import_module(module.strip())
    for part in filter(None, attribute.strip().split(".")):
        found = getattr(found, part)
    return found


def source_sha256(found: Callable[..., Any]) -> str:
    """SHA-256 of the file that defines a plug-in: another source makes another run.

    Raises:
        BenchmdError: It has no source file.
    """
    try:
        path = inspect.getsourcefile(found)
    except TypeError:
        path = None
    if path is None or not Path(path).is_file():
        raise BenchmdError(
            f"{found!r} has no Python source file, by which its runs are told apart: define the "
            "class or function in a module."
        )
    return sha256(Path(path))
