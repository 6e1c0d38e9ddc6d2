"""Conditions that a catalog keeps out of all training: records for out-of-distribution detection.

A condition is what the source states of a record: a class, a finding without a class, a code, a
view, a noise flag, a sleep stage. Patients with a held-out condition leave all other splits, so
that neither pretraining nor normalisation nor validation meets them: their records with the
condition are the split `HELD_OUT`, the others are excluded. Held-out classes leave the task.

Every patient has all views and states (`BY_RECORD`), so here records leave and not patients: those
of training patients are excluded, those of others held out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.raw import Discovery, RawItem
from benchmd_ray.data.records import HELD_OUT, SEPARATOR
from benchmd_ray.errors import BenchmdError, FieldError, unknown_name

VERSION = 2
"""Raised whenever the same names hold out other records."""
OTHERS = "another record of its patient is held out"
TRAINS = "its view or state is held out, and its patient is in the training split"
BY_RECORD = {
    "cxr": frozenset({"lateral"}),
    "eeg": frozenset({"wake", "n1", "n2", "n3", "rem", "movement", "unscored", "flat"}),
    "mammo": frozenset({"CC", "MLO"}),
}
"""By modality, the views and states of which records are held out and not patients."""


def conditions_of(item: RawItem) -> set[str]:
    """What the source states of a record, before it is read."""
    positive = {name for name, value in item.labels.items() if value == 1}
    return positive | set(item.conditions) | ({item.label} if item.label else set())


def conditions_in(items: Iterable[RawItem]) -> set[str]:
    """All conditions of some records."""
    return {name for item in items for name in conditions_of(item)}


def by_record(card: DatasetCard, names: Iterable[str]) -> set[str]:
    """The conditions whose records are held out rather than their patients."""
    return {*names} & BY_RECORD.get(card.modality.name, frozenset())


def held_out(
    discovery: Discovery, card: DatasetCard, names: Sequence[str]
) -> tuple[Discovery, DatasetCard]:
    """A raw folder's records with these conditions held out, and the card without their classes.

    Readers get the held-out states of parts of files by code, in ``details``. A file whose patient
    does not train is listed once more, in the split `HELD_OUT`, for these parts.

    Raises:
        BenchmdError: No record has one of the conditions (the message lists those that exist), or
            too few classes or no record are left to train on.
    """
    if not names:
        return discovery, card
    stated = conditions_in(discovery.items) | {*discovery.states.values()}
    for name in names:
        if name not in stated:
            raise unknown_name(f"condition of {card.name}", name, sorted(stated))
    chosen = {*names}
    items, excluded = _divided(discovery, chosen, chosen - by_record(card, chosen))
    splits = {item.split for item in discovery.items}
    left = {item.split for item in items} - {HELD_OUT}
    if not left or "train" in splits - left:
        what = "left to train on" if "train" in splits else "left"
        raise BenchmdError(
            f"with {', '.join(names)} held out, no record of {card.name} is {what}: hold out fewer "
            "conditions."
        )
    twice = len(items) - len({item.record_id for item in items})
    discovery = replace(discovery, items=items, excluded=dict(+excluded), twice=twice)
    return discovery, _without(card, chosen)


def _divided(
    discovery: Discovery, chosen: set[str], by_patient: set[str]
) -> tuple[list[RawItem], Counter[str]]:
    """Records in their splits or held out, and why the others are excluded.

    Patients with a condition of `by_patient` leave all other splits.
    """
    leaving = {item.group_id for item in discovery.items if conditions_of(item) & by_patient}
    training = {item.group_id for item in discovery.items if item.split == "train"} - leaving
    states = {code: name for code, name in discovery.states.items() if name in chosen}
    items: list[RawItem] = []
    excluded = Counter(discovery.excluded)
    for item in discovery.items:
        conditions, trains = conditions_of(item) & chosen, item.group_id in training
        if states:
            item = replace(item, details=item.details | {"states": states})
        if conditions and not trains:
            items.append(_held(item, conditions))
        elif item.record_id in discovery.only_held_out:
            excluded[discovery.only_held_out[item.record_id]] += 1
        elif conditions:
            excluded[TRAINS] += 1
        elif item.group_id in leaving:
            excluded[OTHERS] += 1
        else:
            kept = {name: value for name, value in item.labels.items() if name not in chosen}
            items.append(replace(item, labels=kept))
            if states and not trains:
                items.append(replace(item, split=HELD_OUT))
    return items, excluded


def _held(item: RawItem, conditions: set[str]) -> RawItem:
    metadata = {**item.metadata, "held_out": SEPARATOR.join(sorted(conditions))}
    return replace(item, split=HELD_OUT, metadata=metadata)


def _without(card: DatasetCard, names: set[str]) -> DatasetCard:
    """The card whose task lacks these classes, without its published counts."""
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
