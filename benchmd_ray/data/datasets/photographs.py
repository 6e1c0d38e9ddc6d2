"""What the datasets of colour photographs share: tables that name images, one file each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.images import class_of, image_record
from benchmd_ray.data.raw import (
    DUPLICATE,
    NO_ROW,
    Choices,
    Discovery,
    GroupedBy,
    RawItem,
    Reading,
    by_key,
)
from benchmd_ray.data.readers.image import read_image
from benchmd_ray.data.records import hashed_patient
from benchmd_ray.data.splits import hashed_split, stable_fraction

VERSION = 1
TRAIN_SHARE = 0.8


@dataclass(frozen=True)
class Photograph:
    """What a dataset's tables say of one image."""

    path: str
    """Where its file is expected, relative to the raw folder; only the name is relied on."""
    label: str
    """Its label in the owner's words, empty without one."""
    group: str = ""
    """The patient, or the lesion where no patient is named; empty where each stands alone."""
    split: str = ""
    excluded: str = ""
    """Why it is excluded, whatever its label."""
    condition: str = ""
    """The condition that excludes it: it can be held out."""
    metadata: dict[str, float | str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its file without folder and suffix."""
        return Path(self.path).stem


def one_hot_label(row: Mapping[str, str], columns: Sequence[str]) -> str:
    """The columns that are 1, joined; empty where none is, ``?`` where a value is not 0 or 1."""
    values = {column: row[column].removesuffix(".0") for column in columns}
    if not set(values.values()) <= {"0", "1"}:
        return "?"
    return "+".join(column for column, value in values.items() if value == "1")


def by_class(
    card: DatasetCard, photographs: Sequence[Photograph], rounding: Callable[[float], int]
) -> dict[str, str]:
    """Split of each image by the paper's rule: 80 % of each class train, drawn by image.

    The released code draws without a fixed seed; here a stable hash decides, over all rows of the
    tables, whether their files are there or not. ``rounding`` makes the 80 % a number of images.
    """
    members: dict[str, set[str]] = {}
    for photograph in photographs:
        name, _ = class_of(card, photograph.label)
        members.setdefault(name, set()).add(photograph.name)
    splits: dict[str, str] = {}
    for names in members.values():
        order = sorted(names, key=lambda name: (stable_fraction(f"{card.name}/{name}"), name))
        bound = rounding(TRAIN_SHARE * len(order))
        splits |= {n: "train" if i < bound else "validation" for i, n in enumerate(order)}
    return splits


def listing(
    root: Path,
    card: DatasetCard,
    choices: Choices,
    layout: str,
    photographs: Sequence[Photograph],
    paths: Iterable[Path],
    *,
    rounding: Callable[[float], int],
    grouped_by: GroupedBy,
) -> Discovery:
    """Match what tables say with the files that are there, by name without suffix, in any case."""
    released = by_class(card, photographs, rounding) if choices.policy == "released" else {}
    by_name, duplicates = by_key(paths, lambda path: path.stem.lower())
    items, missing, excluded = [], [], Counter({DUPLICATE: duplicates})
    only_held_out = {}
    for photograph in photographs:
        name = photograph.name
        label, reason = class_of(card, photograph.label)
        reason = photograph.excluded or reason
        path = by_name.get(name.lower())
        record_id = hashed_patient(card.name, name) if card.hides_names else name
        if reason and photograph.condition and path and choices.hold_out:
            only_held_out[record_id] = reason
            reason = ""
        if reason:
            excluded[reason] += 1
        elif path is None:
            where = f"the image of record {record_id}" if card.hides_names else photograph.path
            missing.append(where)
        else:
            item = RawItem(
                path=path.relative_to(root).as_posix(),
                record_id=record_id,
                group_id=hashed_patient(card.namespace, photograph.group)
                if photograph.group
                else hashed_patient(card.name, name),
                split=released.get(name, _clean_split(card, photograph)),
                label=label,
                metadata=photograph.metadata,
                conditions=choices.conditions(_conditions(card, photograph)),
            )
            items.append(item)
    named = {photograph.name.lower() for photograph in photographs}
    excluded[NO_ROW] = len(by_name.keys() - named)
    return Discovery(layout, items, missing, dict(+excluded), grouped_by, only_held_out)


def _conditions(card: DatasetCard, photograph: Photograph) -> set[str]:
    """The condition that excludes it, and its label where a class has several."""
    label, mapping = photograph.label, card.class_mapping
    several = list(mapping.values()).count(mapping.get(label, "")) > 1
    return {photograph.condition, label if several else ""} - {""}


def _clean_split(card: DatasetCard, photograph: Photograph) -> str:
    if card.role == "target":
        return "test"
    return photograph.split or hashed_split(card.name, photograph.group or photograph.name)


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The one record of an image, three channels."""
    return image_record(read_image(root / item.path, 3), item, card)
