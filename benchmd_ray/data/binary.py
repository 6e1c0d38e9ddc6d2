"""A task of two classes, normal and abnormal, in place of a dataset's own.

The released protocol of Cao et al. (arXiv 2007.04250) tells normal records from all others. Which
are normal is what the source states, by the names of `data.holding_out`: a class, or a finding
without one, such as "No Finding".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.holding_out import conditions_in
from benchmd_ray.data.raw import Discovery, RawItem
from benchmd_ray.data.records import HELD_OUT
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.modality.tasks import UNKNOWN, Task

VERSION = 1
"""Raised whenever the same names give other classes."""
NORMAL, ABNORMAL = "normal", "abnormal"
UNLABELLED = "none of its labels is known, so that it is neither normal nor abnormal"


def in_two_classes(
    discovery: Discovery, card: DatasetCard, names: Sequence[str]
) -> tuple[Discovery, DatasetCard]:
    """A raw folder's records as normal or abnormal, and the card of that task.

    Records that are held out stay as they are: nothing is known of their class.

    Conditions were held out before. A record with one of the ``names``, which are classes or
    conditions without one, is normal, another with a known label abnormal. Without names everything
    stays as it is.

    Raises:
        BenchmdError: No record has one of the conditions; the message lists those that exist.
            Or no record is normal, or none abnormal; or labels are known only by reading.
    """
    if not names:
        return discovery, card
    kept = [item for item in discovery.items if item.split != HELD_OUT]
    if not any(item.label or item.labels for item in kept):
        raise BenchmdError(
            f"labels of {card.name} are known only when its files are read, so its records cannot "
            "be told apart as normal and abnormal: build it with its own classes."
        )
    stated = conditions_in(kept)
    for name in names:
        if name not in stated:
            raise unknown_name(f"condition of {card.name}", name, sorted(stated))
    items, counts = [], Counter[str]()
    for item in discovery.items:
        label = "" if item.split == HELD_OUT else _class_of(item, card, {*names})
        counts[label or UNLABELLED] += item.split != HELD_OUT
        if label:
            items.append(replace(item, label=label, labels={}))
        elif item.split == HELD_OUT:
            items.append(item)
    for name in (NORMAL, ABNORMAL):
        if not counts[name]:
            raise BenchmdError(
                f"no record of {card.name} is {name} where normal are those with "
                f"{', '.join(names)}: expected records of both classes. Name other conditions of "
                "normal records, or hold out fewer."
            )
    excluded = Counter(discovery.excluded) + Counter({UNLABELLED: counts[UNLABELLED]})
    return replace(discovery, items=items, excluded=dict(excluded)), _of_two_classes(card, names)


def normal_names(card: DatasetCard) -> tuple[str, ...]:
    """Conditions of normal records, of a card that `in_two_classes` made; none of another."""
    is_two_classes = card.task.classes == (NORMAL, ABNORMAL)
    is_two_classes = is_two_classes and {*card.class_mapping.values()} == {NORMAL}
    return tuple(card.class_mapping) if is_two_classes else ()


def _class_of(item: RawItem, card: DatasetCard, names: set[str]) -> str:
    """Normal, abnormal, or empty where no label is known.

    Of a class its label decides: a code of that class may be stated next to one that counts more,
    as sinus rhythm next to an infarction.
    """
    classes = names & {*card.classes}
    labels = {item.label, *(name for name, value in item.labels.items() if value == 1)}
    if labels & classes or {*item.conditions} & (names - classes):
        return NORMAL
    is_labelled = item.label or any(value != UNKNOWN for value in item.labels.values())
    return ABNORMAL if is_labelled else ""


def _of_two_classes(card: DatasetCard, names: Sequence[str]) -> DatasetCard:
    """The card with that task; published counts are of its own classes."""
    task = Task("single-label", (NORMAL, ABNORMAL), card.task.scored)
    return replace(
        card,
        modality=replace(card.modality, task=task),
        class_mapping=dict.fromkeys(names, NORMAL),
        merged_classes={},
        expected={},
    )
