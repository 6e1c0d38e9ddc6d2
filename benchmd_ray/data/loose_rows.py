"""Files with a record in each row as new data: with or without columns of labels and of IDs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.record_rows import (
    first_row,
    label_place,
    plain_label,
    read_record_rows,
)
from benchmd_ray.data.loose import NAME, Loose, read_items
from benchmd_ray.data.plain_numbers import number_of
from benchmd_ray.data.raw import RawItem
from benchmd_ray.data.records import RecordError
from benchmd_ray.data.tables import MISSING, is_sample
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task

IDS = ("", "id", "ids", "index", "name", "record", "recordid", "row", "rowid", "key", "file")
"""Names of a first column of IDs, without what is neither letter nor digit, in lower case."""
UNSTATED = ". If records of {0} have N values, write `samples: N` below files in its card"
AT_ONCE = 256
"""Rows that are read in one call."""


class _Columns(NamedTuple):
    """Which columns of a file are not samples."""

    id: int | None
    label: int | None

    @property
    def texts(self) -> list[int]:
        return [place for place in self if place is not None]


def read_loose_rows(
    path: Path, name: str, signal: Signal, task: Task, card: DatasetCard
) -> Iterator[Loose]:
    """Read a file with a record in each row, as its card says; see `loose.read_loose`.

    Columns are matched by their number: the samples of the card, the label where the card has it
    (it may be missing), and an ID in the first column (optional). A file with another number of
    values in a row, or that is no such table, gives one `Loose` with the reason.
    """
    files = card.files
    assert files is not None
    usual = replace(files, rate=files.rate or signal.rate)
    reader = DatasetCard(NAME, Modality(NAME, signal, task, 1), files=usual)
    root = path.parent if path.is_file() else path
    try:
        yield from _rows(root, name, card, reader)
    except RecordError as error:
        yield Loose(name, None, str(error))


def _rows(root: Path, name: str, card: DatasetCard, reader: DatasetCard) -> Iterator[Loose]:
    columns = _columns(root / name, card)
    content = read_record_rows(root / name, columns.texts)
    ids = content.texts[0] if columns.id is not None else [""] * len(content.samples)
    items = [
        RawItem(
            name, f"{name}/{row:06}", f"{name}/{row:06}", "heldout",
            metadata={"held_out": NAME}, details={"row": row, "texts": columns.texts},
        )
        for row in range(len(ids))
    ]  # fmt: skip
    for start in range(0, len(items), AT_ONCE):
        for part in read_items(root, items[start : start + AT_ONCE], reader):
            yield replace(part, row_id=ids[part.row or 0].strip())


def _columns(path: Path, card: DatasetCard) -> _Columns:
    """Which columns are ID and label, by the number of values in a row."""
    files = card.files
    assert files is not None
    cells, samples, place = first_row(path), _samples(card), label_place(files.rows)
    others = len(cells) - samples
    if others == 0:
        return _Columns(None, None)
    if others == 2:
        return _Columns(0, 1 if place == 0 else -1)
    if others == 1:
        if _is_id(cells):
            return _Columns(0, None)
        ends = read_record_rows(path, [0, -1]).texts
        if all(_is_label(text, card) for text in ends[place]):
            return _Columns(None, place)
        ids = ends[0]
        if len({*ids}) == len(ids) and all(map(_may_be_id, ids)):
            return _Columns(0, None)
        raise RecordError(
            f"its rows have {len(cells):,} values, one more than the {samples:,} samples of a "
            f"record, and the {'first' if place == 0 else 'last'} column has values that are no "
            f"class of {card.name}: expected samples only, or classes there, or a first column of "
            "IDs (name it id in a header)"
        )
    raise RecordError(
        f"its rows have {len(cells):,} values, expected the {samples:,} samples of a record, "
        f"optionally with its class in the {'first' if place == 0 else 'last'} column and an ID in "
        "the first" + ("" if files.samples else UNSTATED.format(card.name))
    )


def _samples(card: DatasetCard) -> int:
    """Values of a record: as the card says, or as many as fill its signal."""
    files, signal = card.files, card.signal
    assert files is not None
    if files.samples:
        return files.samples
    ratio = 1.0 if not (files.rate and signal.rate) else files.rate / signal.rate
    return round(signal.stored_shape[-1] * ratio)


def _is_id(header: Sequence[str]) -> bool:
    """Whether it is a header, and calls its first column an ID."""
    if all(map(is_sample, header[1:])):
        return False
    return "".join(filter(str.isalnum, header[0].lower())) in IDS


def _may_be_id(text: str) -> bool:
    number = number_of(text.strip())
    return bool(text.strip()) and (number is None or number.is_integer())


def _is_label(text: str, card: DatasetCard) -> bool:
    """Whether it is a class, a label that the card translates, or stands for none."""
    label = plain_label(text)
    return label in card.class_mapping or label in card.classes or label.lower() in MISSING
