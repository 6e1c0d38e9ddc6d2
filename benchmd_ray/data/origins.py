"""Datasets whose records have one origin, as the folder ``origins`` of cards lists them.

What was learned on one dataset never counts as new on another of the same origin.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

from benchmd_ray.data.cards import broken_cards, cards
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.modality.card_folders import card_folders
from benchmd_ray.schema.plain_yaml import read_yaml_file
from benchmd_ray.schema.typed import typed

FOLDER = "origins"
_SIZE_AND_FILE = re.compile(r"(-[0-9]+)?(-unofficial|-v2)?$")


def family(name: str) -> str:
    """The dataset without its size or file: ``breastmnist-64`` and ``breastmnist-unofficial``."""
    first = _SIZE_AND_FILE.sub("", name)
    return first if first in cards() else name


def of_one_origin(first: str, second: str) -> bool:
    """Whether two datasets have records of one origin."""
    pair = {family(first), family(second)}
    return len(pair) == 1 or any(pair <= group for group in _groups(card_folders()))


def are_comparable(first: str, second: str) -> bool:
    """Whether equal hashes of two datasets are one patient, and other hashes other patients."""
    return _namespace(first) == _namespace(second)


def _namespace(dataset: str) -> str:
    """What the patients of a dataset are keyed by; of one without a card its own name."""
    card = cards().get(dataset)
    return card.namespace if card else dataset


def named() -> frozenset[str]:
    """All datasets that the package's own files name, some of which have no card."""
    folder = card_folders()[0]
    return frozenset(name for path in _files(folder) for group in _stated(path) for name in group)


def require_datasets(names: Iterable[str], where: str) -> None:
    """Refuse names of datasets that have no card and no origin, which could be misspelt."""
    for name in names:
        if not is_named(name):
            raise unknown_name(f"dataset in {where}:", name, _names())


def is_named(dataset: str) -> bool:
    """Whether a dataset has a card, or a card of origins names it."""
    return family(dataset) in _names() or any(dataset in g for g in _groups(card_folders()))


def _names() -> set[str]:
    return {*cards(), *broken_cards(), *map(family, cards()), *named()}


def _files(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob("*.yaml"))


def _stated(path: Path) -> tuple[tuple[str, ...], ...]:
    where = f"the card {path}"
    content = read_yaml_file(path, where)
    if content is None:
        raise BenchmdError(f"{where} is empty: remove it, or see those of the package.")
    groups: tuple[tuple[str, ...], ...] = typed(tuple[tuple[str, ...], ...], content, where)
    return groups


@functools.cache
def _groups(folders: tuple[Path, ...]) -> tuple[frozenset[str], ...]:
    names, groups = _names(), []
    for path in (path for folder in folders for path in _files(folder)):
        for group in _stated(path):
            for name in group:
                if name not in names:
                    raise unknown_name(f"dataset in the card {path}:", name, names)
            groups.append(frozenset(map(family, group)))
    return tuple(groups)
