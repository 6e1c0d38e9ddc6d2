"""Plug-ins that a command line allows: those named in it or in the user's own files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

NAMES = ("technique", "techniques", "assignments", "upstream")
"""Parameters whose values name plug-ins."""
FILES = ("settings_file", "space")
"""Parameters that name YAML files, which may name plug-ins."""


def _allow(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> None:
    from benchmd_ray.extensions.plugins import IMPORT_PATH, allow

    for name in names:
        if not IMPORT_PATH.fullmatch(name):
            raise click.BadParameter(f"{name!r} is not of the form package.module:name.")
    allow(*names)


ALLOW = click.option(
    "--allow-plugin",
    multiple=True,
    metavar="MODULE:NAME",
    expose_value=False,
    callback=_allow,
    help="Allow the import of this method or network when a run or search names it (repeatable).",
)


def named_plugins(params: Mapping[str, Any]) -> Iterator[str]:
    """Possible import paths among the values of parameters."""
    from benchmd_ray.ssl import HUB, OWN

    for key in NAMES:
        value = params.get(key) or ()
        for text in value if isinstance(value, tuple) else (str(value),):
            name = text.rpartition("=")[2].strip()
            if ":" in name and not name.startswith(HUB):  # folders are not
                yield name.removeprefix(OWN)
    for key in FILES:
        path = params.get(key)
        if path is None:
            continue
        names = [text for text in _strings(path) if ":" in text]
        if names and not _read_back(path):
            yield from names


def _read_back(path: Path) -> bool:
    """Whether a file, or a link to it, is in a store, run, search or catalog."""
    folders = {*Path(os.path.abspath(path)).parents, *path.resolve().parents}
    return any(_written(folder) for folder in folders)


def _written(folder: Path) -> bool:
    from benchmd_ray.data.catalog import MANIFEST
    from benchmd_ray.data.manifest_form import SHARDS
    from benchmd_ray.runs.files import RUN, SEARCH, SEARCHES

    if (folder / MANIFEST).exists() and (folder / SHARDS).exists():
        return True
    patterns = (RUN, SEARCH, f"*/{RUN}", f"{SEARCHES}/*/{SEARCH}")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def _strings(path: Path) -> Iterator[str]:
    """All texts of a YAML file; none if it cannot be read, which the command reports later."""
    from benchmd_ray.errors import BenchmdError
    from benchmd_ray.schema.plain_yaml import read_yaml_file

    try:
        waiting = [read_yaml_file(path, str(path))]
    except BenchmdError:
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
