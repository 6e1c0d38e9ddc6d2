"""Plug-ins: methods, encoders and datasets found by entry point or import path.

An installed package names them in its metadata (`GROUPS`); your own module is named by its import
path, ``package.module:name``. An import path is imported only if the user allowed it: on the
command line, in a settings file, or in `ALLOWED`. Stores, catalogs and searches cannot allow any.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError, first_line, unknown_name
from benchmd_ray.files.atomic import sha256

GROUPS = {
    "pretraining technique": "benchmd_ray.methods",
    "encoder network": "benchmd_ray.encoders",
    "dataset": "benchmd_ray.datasets",
    "detector": "benchmd_ray.detectors",
}
"""Group of entry points for each kind of plug-in."""
ALLOWED = "BENCHMD_ALLOW_PLUGINS"
"""Variable with import paths that may be imported, separated by commas; child processes inherit
it.
"""
NAMED = "BENCHMD_BENCHMARKS"
"""Variable with import paths of the user's benchmarks, separated by commas."""
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def allow(*names: str) -> None:
    """Allow this process and its child processes to import these plug-ins.

    Names of entry points need no permission.
    """
    chosen = [name for name in names if IMPORT_PATH.fullmatch(name)]
    os.environ[ALLOWED] = ",".join(dict.fromkeys([*allowed(), *chosen]))


def allowed() -> tuple[str, ...]:
    """Import paths that may be imported."""
    return tuple(filter(None, map(str.strip, os.environ.get(ALLOWED, "").split(","))))


def plugin(
    kind: str, name: str, known: Iterable[str] = (), *, recorded: str | None = None
) -> Callable[..., Any]:
    """Load a plug-in by name of its entry point, or ``package.module:name``.

    ``kind`` is a key of `GROUPS`, ``known`` built-in names for the message, ``recorded`` the
    SHA-256 of the source that a run was made with.

    Raises:
        BenchmdError: The name is unknown, the user did not allow it, its source is not the recorded
            one, or it cannot be imported.
    """
    entry = _entry(kind, name, known)
    source = _source(kind, entry)
    if recorded is not None and (digest := sha256(source)) != recorded:
        raise BenchmdError(
            f"the source of the {kind} {name} ({source}) is not the one that the run was made "
            f"with: its SHA-256 is {digest[:16]}…, recorded is {recorded[:16]}…. Restore that "
            "source, or train again with the new one."
        )
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise _not_importable(kind, name, error) from error
    except Exception as error:  # a custom module may raise anything
        raise BenchmdError(
            f"the {kind} {name} cannot be imported: {source} fails with {type(error).__name__}: "
            f"{first_line(error)}. Correct it and run again."
        ) from error
    if not callable(loaded):
        raise BenchmdError(f"the {kind} {name} is {loaded!r}, expected a class or a function.")
    _require_defined_in(source, loaded, kind, name)
    return loaded  # type: ignore[no-any-return]


def plugin_source(kind: str, name: str, known: Iterable[str] = ()) -> str:
    """SHA-256 of the file that defines a plug-in, part of a run's determinants.

    The plug-in is imported, so that a failing one is refused before a run is named by it.
    """
    plugin(kind, name, known)
    return sha256(_source(kind, _entry(kind, name, known)))


def _entry(kind: str, name: str, known: Iterable[str]) -> EntryPoint:
    installed = entry_points(group=GROUPS[kind])
    if name in installed.names:
        return installed[name]
    if not IMPORT_PATH.fullmatch(name):
        raise unknown_name(kind, name, [*known, *sorted(installed.names)])
    if name not in allowed():
        raise BenchmdError(
            f"the {kind} {name} is code that you did not name yourself but that a run, a search or "
            "a catalog names; nothing was imported. If you trust it, allow it with "
            f"--allow-plugin {name} (or {ALLOWED}; in Python benchmd_ray.allow)."
        )
    return EntryPoint(name, name, GROUPS[kind])


def _source(kind: str, entry: EntryPoint) -> Path:
    spec = find_module(entry.module)
    if spec is None:
        raise _not_importable(kind, entry.name, f"No module named {entry.module!r}")
    origin = Path(spec.origin) if spec.origin else None
    if origin is None or origin.suffix != ".py" or not origin.is_file():
        raise BenchmdError(
            f"the {kind} {entry.name} has no Python source file, by which its runs are "
            "distinguished: define the class or function in a module."
        )
    return origin


def find_module(name: str) -> ModuleSpec | None:
    """Find a module without importing anything."""
    spec, path, module = None, None, ""
    for part in name.split("."):
        module = f"{module}.{part}".lstrip(".")
        spec = _spec(module, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _spec(module: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """`importlib.util.find_spec` without importing the parent packages."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(module, path)
        except KeyError:  # a folder without __init__.py in a package that is not imported
            spec = ModuleSpec(module, None, is_package=True)
            within = [Path(place, module.rpartition(".")[2]) for place in path or ()]
            spec.submodule_search_locations = [str(place) for place in within if place.is_dir()]
        if spec is not None:
            return spec
    return None


def _not_importable(kind: str, name: str, why: object) -> BenchmdError:
    return BenchmdError(
        f"cannot import the {kind} {name} ({why}). Name it package.module:name; the module must be "
        "installed or in a folder of PYTHONPATH, on every node that works "
        '(export PYTHONPATH="$PWD").'
    )


def _require_defined_in(source: Path, loaded: Callable[..., Any], kind: str, name: str) -> None:
    """Refuse an object that another file defines: its source would not be compared."""
    try:
        defined = inspect.getsourcefile(loaded)
    except TypeError:
        defined = None
    if defined is None or not Path(defined).samefile(source):
        where = f"is defined in {defined}" if defined else "has no Python source file"
        raise BenchmdError(
            f"the {kind} {name} {where}, and runs are distinguished by the source of {source}: "
            "name the module that defines the class or function."
        )
