"""Conditions that a catalog keeps out of all training: records for out-of-distribution detection.

A condition is what the source states of a record: a class, a finding without a class, a code, a
view, a noise flag. All records of a patient with a held-out condition leave every other split, so
that neither pretraining nor normalisation nor validation meets them. Those with the condition are
the split `HELD_OUT`, the patient's others are excluded; held-out classes are no longer classes of
the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.raw import Discovery, RawItem
from benchmd_ray.data.records import HELD_OUT, SEPARATOR
from benchmd_ray.errors import BenchmdError, FieldError, unknown_name

VERSION = 1
"""Raised whenever the same names hold out other records."""
OTHERS = "another record of its patient is held out"


def conditions_of(item: RawItem) -> set[str]:
    """What the source states of a record, before it is read."""
    positive = {name for name, value in item.labels.items() if value == 1}
    return positive | set(item.conditions) | ({item.label} if item.label else set())


def held_out(
    found: Discovery, card: DatasetCard, names: Sequence[str]
) -> tuple[Discovery, DatasetCard]:
    """A raw folder's records with these conditions held out, and the card without their classes.

    Raises:
        BenchmdError: No record has one of the conditions; the message lists those that there are.
            Or too few classes or no record are left to train on.
    """
    if not names:
        return found, card
    stated = Counter(name for item in found.items for name in conditions_of(item))
    for name in names:
        if name not in stated:
            raise unknown_name(f"condition of {card.name}", name, sorted(stated))
    chosen = {*names}
    patients = {item.group_id for item in found.items if conditions_of(item) & chosen}
    items, others = [], 0
    for item in found.items:
        own = conditions_of(item) & chosen
        if own:
            items.append(_held(item, own))
        elif item.group_id in patients:
            others += 1
        else:
            kept = {name: value for name, value in item.labels.items() if name not in chosen}
            items.append(replace(item, labels=kept))
    if not any(item.split == "train" for item in items):
        raise BenchmdError(
            f"with {', '.join(names)} held out, no record of {card.name} is left to train on: hold "
            "out fewer conditions."
        )
    excluded = Counter(found.excluded) + Counter({OTHERS: others})
    return replace(found, items=items, excluded=dict(excluded)), _without(card, chosen)


def _held(item: RawItem, conditions: set[str]) -> RawItem:
    metadata = {**item.metadata, "held_out": SEPARATOR.join(sorted(conditions))}
    return replace(item, split=HELD_OUT, metadata=metadata)


def _without(card: DatasetCard, names: set[str]) -> DatasetCard:
    """The card whose task lacks these classes; published counts are of another choice of records.

    Raises:
        BenchmdError: Too few classes are left.
    """
    left = tuple(name for name in card.task.classes if name not in names)
    if left == card.task.classes:
        return replace(card, expected={})
    if card.merged_classes:
        raise BenchmdError(
            f"{card.name} merges classes of its modality, so none of them can be held out: hold "
            "out other conditions."
        )
    try:
        task = replace(card.task, classes=left)
    except FieldError as error:
        raise BenchmdError(
            f"with {', '.join(sorted(names))} held out, {card.name} has {len(left)} of its "
            f"{len(card.task.classes)} classes left: hold out fewer."
        ) from error
    mapping = {label: "" if name in names else name for label, name in card.class_mapping.items()}
    modality = replace(card.modality, task=task)
    return replace(card, modality=modality, class_mapping=mapping, expected={})
