"""Use-cases as data: for each in-distribution dataset, what is out of distribution and how.

Folders of cards have a folder ``ood``; each of its files maps datasets to their use-cases.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from benchmd_ray.data.cards import broken_cards, cards
from benchmd_ray.data.origins import family, named, of_one_origin
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.files.atomic import digest
from benchmd_ray.modality.card_folders import card_folders
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.schema.plain_yaml import read_yaml_file
from benchmd_ray.schema.typed import typed

FOLDER = "ood"
UseCase = Literal["unrelated", "faulty", "unseen", "shifted"]
USE_CASES: tuple[UseCase, ...] = get_args(UseCase)
"""Another domain; acquired wrongly; of a condition that training did not contain; and correct
records of another hospital, device or population, which are not out of distribution."""


@dataclass(frozen=True)
class UseCases:
    """What is out of distribution for a dataset."""

    normal: tuple[str, ...] = ()
    """Classes of records that are not abnormal: those that are, are compared apart with unseen
    conditions. None: a record without any label is normal."""
    two_classes: tuple[str, ...] = ()
    """Conditions of normal records for a task of two classes, normal and abnormal; none: `normal`.
    See `data.binary`."""
    hold_out: dict[UseCase, tuple[str, ...]] = field(default_factory=dict)
    """Conditions of its own records that are kept out of all training; see `data.holding_out`."""
    unrelated: tuple[str, ...] = ()
    """Datasets of another domain; others that are given and not named here are that, too."""
    faulty: tuple[str, ...] = ()
    """Datasets of the right domain that are acquired otherwise."""
    unseen: tuple[str, ...] = ()
    shifted: tuple[str, ...] = ()

    @property
    def conditions(self) -> dict[str, UseCase]:
        """Use-case of each condition that is held out."""
        return {name: case for case, names in self.hold_out.items() for name in names}


def use_cases(name: str) -> UseCases:
    """Those of a dataset, or none.

    Raises:
        BenchmdError: A card is broken, or two are of one dataset.
    """
    return _all(card_folders()).get(family(name), UseCases())


def in_distribution() -> tuple[str, ...]:
    """Datasets with a card of use-cases."""
    return tuple(_all(card_folders()))


def digest_of_use_cases(source: str, also: Sequence[str]) -> str:
    """Digest of what the cards say of a source and of other datasets."""
    origins = {name: of_one_origin(source, name) for name in sorted(also)}
    return digest([asdict(use_cases(source)), origins])


def use_case_of(source: str, kind: Modality, name: str, other: Modality) -> UseCase:
    """The use-case of a dataset for a source.

    Raises:
        BenchmdError: Both are of one origin, and the source's card does not say that it is shifted.
    """
    cases, wanted = use_cases(source), family(name)
    for case in USE_CASES:
        if wanted in getattr(cases, case) or name in getattr(cases, case):
            if of_one_origin(source, name) and case != "shifted":
                break
            return case
    if of_one_origin(source, name):
        raise BenchmdError(
            f"{name} and {source} have records of one origin, so neither is out of distribution "
            f"for the other: exclude {name} from --catalog and --also, or name it as shifted in "
            f"the card of {source}."
        )
    return "shifted" if other.fits(kind) else "unrelated"


@functools.cache
def _all(folders: tuple[Path, ...]) -> dict[str, UseCases]:
    cases: dict[str, UseCases] = {}
    datasets = {*cards(), *broken_cards(), *map(family, cards()), *named()}
    for path in (path for folder in folders for path in sorted((folder / FOLDER).glob("*.yaml"))):
        where = f"the card {path}"
        content = read_yaml_file(path, where)
        if content is None:
            raise BenchmdError(f"{where} is empty: remove it, or see those of the package.")
        for name, use_cases in typed(dict[str, UseCases], content, where).items():
            if name in cases:
                raise BenchmdError(f"{where}: there are use-cases of {name} already: keep one.")
            _require_sound(where, name, use_cases, datasets)
            cases[name] = use_cases
    return cases


def _require_sound(where: str, name: str, cases: UseCases, datasets: Set[str]) -> None:
    """Refuse use-cases of what is not there, or that contradict each other."""
    if name not in cards():
        raise unknown_name(f"dataset in {where}:", name, cards())
    if name != family(name):
        raise BenchmdError(f"{where}: use-cases are those of all sizes: name {family(name)}.")
    others = [other for case in USE_CASES for other in getattr(cases, case)]
    for other in others:
        if other not in datasets:
            raise unknown_name(f"dataset in {where}:", other, datasets)
    if name in map(family, others):
        raise BenchmdError(f"{where} names {name} as a use-case of itself: remove it there.")
    conditions = [other for names in cases.hold_out.values() for other in names]
    for kind, names in (("dataset", others), ("condition", conditions)):
        if twice := sorted({other for other in names if names.count(other) > 1}):
            raise BenchmdError(
                f"{where} names the {kind} {twice[0]} twice for {name}: keep it in one use-case."
            )
