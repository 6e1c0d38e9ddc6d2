"""Where cards are found: those of the package, of the user's folders, and of installed packages.

A folder of cards has one YAML file for each dataset, and ``modalities`` with one for each modality.
Users name theirs on the command line or in `CARDS`; an installed package names its own, a package
with the files as data, by an entry point of the group `GROUP`.
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
"""Folders of cards, separated as in ``PATH``: processes that a command starts find them there."""
GROUP = "benchmd_ray.cards"
"""Entry points of packages that hold cards: ``name = package.with.cards``."""

T = TypeVar("T")


def add_card_folders(folders: Iterable[Path]) -> None:
    """Let this process, and those that it starts, find the cards of these folders.

    Raises:
        BenchmdError: One is not a folder.
    """
    chosen = [folder.absolute() for folder in folders]
    _require_folders(chosen)
    os.environ[CARDS] = os.pathsep.join(dict.fromkeys([*_named(), *map(str, chosen)]))
    card_folders()


def card_folders() -> tuple[Path, ...]:
    """Folders of cards: the package's own, the user's, and those of installed packages.

    Raises:
        BenchmdError: A folder that the user names does not exist.
    """
    chosen = [Path(name) for name in _named()]
    _require_folders(chosen)
    return (resource_folder("data_catalog"), *chosen, *_installed().values())


def _require_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise BenchmdError(f"{folder} is not a folder of cards: check --cards and {CARDS}.")


def broken_packages() -> dict[str, str]:
    """What is wrong with entry points that name no folder of cards, by their names."""
    return {
        entry.name: f"the entry point {entry.name} of {GROUP} names {entry.value}, which is not an "
        "installed package: expected one that holds cards."
        for entry in _entries(tuple(sys.path))
        if entry.name not in _installed()
    }


def _named() -> list[str]:
    return [name for name in os.environ.get(CARDS, "").split(os.pathsep) if name]


@lru_cache(maxsize=4)
def _entries(_: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Entry points that name folders of cards; all that is installed is read for them.

    Args:
        _: Folders in which packages are looked for.
    """
    return tuple(sorted(entry_points(group=GROUP), key=lambda entry: entry.name))


def _installed() -> dict[str, Path]:
    """Folders of cards by the entry points that name them."""
    folders = {}
    for entry in _entries(tuple(sys.path)):
        spec = find_module(entry.module)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if places:
            folders[entry.name] = Path(places[0])
    return folders


@dataclass(frozen=True)
class Cards(Generic[T]):
    """What the cards of some folders say."""

    kind: str
    """What they are of, for messages: ``dataset``."""
    sound: dict[str, T] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """What is wrong with the others, by the names of their files; by the path of a file whose name
    another has."""
    taken: dict[str, str] = field(default_factory=dict)
    """Names that a second card has, and what is wrong with that."""

    def __getitem__(self, name: str) -> T:
        """What the card of that name says.

        Raises:
            BenchmdError: It is broken, or there is none; the message lists the valid names.
        """
        if name in self.sound:
            return self.sound[name]
        if name in self.broken:
            raise BenchmdError(self.broken[name])
        raise unknown_name(self.kind, name, self.sound)


def read_cards(
    kind: str,
    paths: Iterable[Path],
    read: Callable[[Path], dict[str, T]],
) -> Cards[T]:
    """Read card files; a broken one affects no other.

    Args:
        kind: What they are of, for messages.
        paths: The files, the package's own first: what has a name that is taken is broken.
        read: What a file says, by name.
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
    """Refuse a card whose name is not its file's.

    Raises:
        BenchmdError: The message names the line.
    """
    if content.get("name") != path.stem:
        raise BenchmdError(
            f"{where}{line_of(content, 'name')}, has the name {shown(content.get('name'))}: "
            "expected the file's own."
        )


def _once(paths: Iterable[Path]) -> list[Path]:
    """The files without duplicates, such as links or those of a folder that is named twice."""
    first: dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())
