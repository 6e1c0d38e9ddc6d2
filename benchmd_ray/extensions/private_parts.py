"""Private APIs of other packages; if one is missing, the error names the versions that have it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from benchmd_ray.errors import BenchmdError


def private_part(module: str, name: str) -> Any:
    """A private attribute of a module; if missing, the error names the versions that have it."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        package = module.partition(".")[0]
        raise BenchmdError(
            f"{package} {_version(package)} has no {module}.{name}, which is needed here: install "
            f"{_required(package)}."
        ) from error


@contextmanager
def replaced(module: str, name: str, instead: Any) -> Iterator[None]:
    """Context in which a private attribute is replaced."""
    before = private_part(module, name)
    place = importlib.import_module(module)
    setattr(place, name, instead)
    try:
        yield
    finally:
        setattr(place, name, before)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of an unknown version"


def _required(package: str) -> str:
    stated = (text.split(";")[0].strip() for text in requires("benchmd-ray") or ())
    requirements = (text for text in stated if text.startswith(package))
    return next(requirements, f"another version of {package}")
