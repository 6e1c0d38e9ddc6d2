"""Folders of cards: the package's, the user's, and those of installed packages.

A folder has one YAML file per dataset, and ``modalities`` with one per modality. Users name their
folders on the command line or in `CARDS`; without either ``./cards`` is read. An installed package
has an entry point of the group `GROUP` that names a package with the card files as data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from benchmd_ray.errors import BenchmdError, shown, unknown_name
from benchmd_ray.extensions.plugins import find_module
from benchmd_ray.files.atomic import resource_folder
from benchmd_ray.schema.typed import line_of

CARDS = "BENCHMD_CARDS"
"""Variable with folders of cards, separated as in ``PATH``; child processes inherit it."""
GROUP = "benchmd_ray.cards"
"""Entry point group of packages with cards: ``name = package.with.cards``."""

DEFAULT_FOLDER = Path("cards")
"""Folder of the user's cards where no other is named."""

T = TypeVar("T")


def add_card_folders(folders: Iterable[Path]) -> None:
    """Let this process and its child processes find the cards in these folders."""
    chosen = [folder.absolute() for folder in folders]
    _require_folders(chosen)
    os.environ[CARDS] = os.pathsep.join(dict.fromkeys([*_named(), *map(str, chosen)]))
    card_folders()


def card_folders() -> tuple[Path, ...]:
    """The package's, the user's and installed packages' folders of cards."""
    chosen = [Path(name) for name in _named() or _default()]
    _require_folders(chosen)
    return (resource_folder("data_catalog"), *chosen, *_installed().values())


def _require_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise BenchmdError(f"{folder} is not a folder of cards: check --cards and {CARDS}.")


def broken_packages() -> dict[str, str]:
    """Faults of entry points that do not name a folder of cards, by name."""
    return {
        entry.name: f"the entry point {entry.name} of {GROUP} names {entry.value}, which is not an "
        "installed package: expected a package with cards."
        for entry in _entries(tuple(sys.path))
        if entry.name not in _installed()
    }


def _named() -> list[str]:
    return [name for name in os.environ.get(CARDS, "").split(os.pathsep) if name]


def _default() -> list[str]:
    """./cards, if it has any; the processes of a cluster need not see it."""
    return [str(DEFAULT_FOLDER.absolute())] if any(DEFAULT_FOLDER.glob("*.yaml")) else []


@lru_cache(maxsize=4)
def _entries(_: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Entry points that name folders of cards, cached for a module search path."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda entry: entry.name))


def _installed() -> dict[str, Path]:
    folders = {}
    for entry in _entries(tuple(sys.path)):
        spec = find_module(entry.module)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if places:
            folders[entry.name] = Path(places[0])
    return folders


@dataclass(frozen=True)
class Cards(Generic[T]):
    """The cards of some folders."""

    kind: str
    sound: dict[str, T] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """Faults by name of the file, or by its path if the name is not unique."""
    taken: dict[str, str] = field(default_factory=dict)
    """Names that a second card claims, with the fault."""

    def __getitem__(self, name: str) -> T:
        """The card of a name; otherwise raises an error that lists the valid names."""
        if name in self.sound:
            return self.sound[name]
        if name in self.broken:
            raise BenchmdError(self.broken[name])
        raise unknown_name(self.kind, name, self.sound)


def read_cards(kind: str, paths: Iterable[Path], read: Callable[[Path], dict[str, T]]) -> Cards[T]:
    """Read card files; a broken one does not affect others.

    ``paths`` start with the package's own: a later card whose name is taken is broken. ``read``
    returns the cards of a file by name.
    """
    cards: Cards[T] = Cards(kind)
    places: dict[str, Path] = {}
    for path in _once(paths):
        try:
            content = read(path)
        except BenchmdError as error:
            again = path.stem in places or path.stem in cards.broken
            cards.broken[str(path) if again else path.stem] = str(error)
            continue
        taken = [name for name in content if name in places]
        if taken:
            why = (
                f"the card {path} has the name {taken[0]}, which is that of {places[taken[0]]}: "
                "choose another."
            )
            cards.broken[str(path)] = why
            cards.taken.update(dict.fromkeys(taken, why))
            continue
        cards.sound.update(content)
        places |= dict.fromkeys(content, path)
    return cards


def require_own_name(path: Path, content: Mapping[str, Any], where: str) -> None:
    """Refuse a card whose name differs from its file's; the error states the line."""
    if content.get("name") != path.stem:
        raise BenchmdError(
            f"{where}{line_of(content, 'name')}, has the name {shown(content.get('name'))}: "
            "expected the file's name."
        )


def _once(paths: Iterable[Path]) -> list[Path]:
    first: dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())
