"""What the chest X-ray datasets share: labels by column name, readings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.images import image_record
from benchmd_ray.data.raw import Choices, Key, RawItem, Reading
from benchmd_ray.data.readers.image import read_image
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.modality.tasks import UNKNOWN

VERSION = 1

Row = TypeVar("Row")

NO_FINDING = "No Finding"
"""Column that says whether the report names no finding at all."""
UNLABELLED = "none of its labels is known"
"""Why an image is excluded that neither trains nor scores anything."""
LATERAL = "lateral"
"""The view, and the condition of an image of that view."""

UNCERTAIN = {"masked": UNKNOWN, "negative": 0, "positive": 1}
"""Target value of a finding that a report leaves open, by the card's option ``uncertain``."""
UNMENTIONED = {"negative": 0, "masked": UNKNOWN}
"""Target value of a finding that a report does not mention, by the option ``unmentioned``."""


def finding_columns(card: DatasetCard) -> dict[str, str]:
    """Class of each of the owner's columns that has one, in the table's own spelling."""
    return {column: name for column, name in card.class_mapping.items() if name}


def labels(
    row: Mapping[str, str], card: DatasetCard, choices: Choices, where: str
) -> dict[str, int]:
    """1, 0 or `UNKNOWN` for each class of a table's row, looked up by column name (decision D11).

    A row has 1, 0, -1 where a report leaves the finding open, and nothing where it does not mention
    it; the card's options say what the latter two become. ``where`` is table and row, for messages.
    """
    clear = row.get(NO_FINDING, "") in ("1", "1.0")
    return {
        name: _value(row[column], clear, card, choices, f"{where}: {column}")
        for column, name in finding_columns(card).items()
    }


def findings_without_class(row: Mapping[str, str], card: DatasetCard) -> list[str]:
    """Columns without a class that are 1 in a table's row, `NO_FINDING` among them."""
    mapping = card.class_mapping.items()
    return [column for column, name in mapping if not name and row.get(column) in ("1", "1.0")]


def _value(text: str, clear: bool, card: DatasetCard, choices: Choices, where: str) -> int:
    whole = text.removesuffix(".0")
    if whole in ("0", "1"):
        return int(whole)
    if whole == "-1" and "uncertain" in card.options:
        return UNCERTAIN[choices.options["uncertain"]]
    if not whole and "unmentioned" in card.options:
        return 0 if clear else UNMENTIONED[choices.options["unmentioned"]]
    open_ones = ", -1 or nothing" if "uncertain" in card.options else ""
    raise BenchmdError(
        f"{where} is {shown(text)}, expected 1, 0{open_ones}. Fetch the table again."
    )


def is_labelled(labels: Mapping[str, int]) -> bool:
    """Whether at least one label is known."""
    return any(value != UNKNOWN for value in labels.values())


def add_row(rows: dict[Key, Row], key: Key, row: Row, where: str) -> int:
    """Add a row of a table; returns 1 if an earlier row of the same key says the same, else 0."""
    earlier = rows.setdefault(key, row)
    if earlier != row:
        raise BenchmdError(
            f"{where} contradicts an earlier one of the same image or study. Fetch the table again."
        )
    return int(earlier is not row)


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The record of one JPEG or PNG file, in grey levels."""
    return image_record(read_image(root / item.path, 1), item, card)
