"""What the chest X-ray datasets share: labels by column name, files that are there, readings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.images import image_record
from benchmd_ray.data.raw import Choices, RawItem, Reading
from benchmd_ray.data.readers.image import read_image
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import UNKNOWN

NO_FINDING = "No Finding"
"""Column that says whether the report names no finding at all."""
UNLABELLED = "none of its labels is known"
"""Why an image is left out that neither trains nor scores anything."""
UNLISTED = "it is not in the table of labels"
"""Why a file without a row is left out."""

UNCERTAIN = {"masked": UNKNOWN, "negative": 0, "positive": 1}
"""Target value of a finding that a report leaves open, by the card's option ``uncertain``."""
UNMENTIONED = {"negative": 0, "masked": UNKNOWN}
"""Target value of a finding that a report does not mention, by the option ``unmentioned``."""


def option(card: DatasetCard, choices: Choices, name: str) -> str:
    """The chosen value of an option of the card, or its default."""
    return choices.options.get(name, card.options[name].default)


def finding_columns(card: DatasetCard) -> dict[str, str]:
    """Class of each of the owner's columns that has one, in the table's own spelling."""
    return {column: name for column, name in card.class_mapping.items() if name}


def labels(
    row: Mapping[str, str], card: DatasetCard, choices: Choices, where: str
) -> dict[str, int]:
    """Labels of a table's row, looked up by column name (decision D11).

    Args:
        row: Values by column: 1, 0, -1 where a report leaves the finding open, nothing where it
            does not mention it.
        card: Its class mapping names the columns; its options say what -1 and nothing become.
        choices: The chosen options.
        where: Table and row, for messages.

    Returns:
        1, 0 or `UNKNOWN` for each class.

    Raises:
        BenchmdError: A value is none of these.
    """
    clear = row.get(NO_FINDING, "").strip() in ("1", "1.0")
    return {
        name: _value(row[column].strip(), clear, card, choices, f"{where}: {column}")
        for column, name in finding_columns(card).items()
    }


def _value(text: str, clear: bool, card: DatasetCard, choices: Choices, where: str) -> int:
    whole = text.removesuffix(".0")
    if whole in ("0", "1"):
        return int(whole)
    if whole == "-1" and "uncertain" in card.options:
        return UNCERTAIN[option(card, choices, "uncertain")]
    if not whole and "unmentioned" in card.options:
        return 0 if clear else UNMENTIONED[option(card, choices, "unmentioned")]
    open_ones = ", -1 or nothing" if "uncertain" in card.options else ""
    raise BenchmdError(f"{where} is {text!r}, expected 1, 0{open_ones}. Fetch the table again.")


def is_labelled(found: Mapping[str, int]) -> bool:
    """Whether at least one label is known."""
    return any(value != UNKNOWN for value in found.values())


def files_there(root: Path, paths: Iterable[str]) -> set[str]:
    """Those of the paths below ``root`` that exist; each folder is listed once."""
    folders: dict[str, set[str]] = {}
    there: set[str] = set()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder not in folders:
            folders[folder] = _names(root / folder)
        if name in folders[folder]:
            there.add(path)
    return there


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def read(root: Path, item: RawItem, card: DatasetCard) -> Reading:
    """The record of one JPEG or PNG file, in grey levels.

    Raises:
        RecordError: It cannot be read as an image.
    """
    return image_record(read_image(root / item.path, 1), item, card)
