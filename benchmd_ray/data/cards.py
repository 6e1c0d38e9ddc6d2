"""Dataset cards: one YAML file of `data_catalog` per dataset."""

from __future__ import annotations

import csv
import dataclasses
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.modalities import Modality, modality

POLICIES = ("clean", "released")
"""Label-and-split policies: leak-free (the default), and as BenchMD released them."""


def resource_folder(name: str) -> Path:
    """Folder of data that ships with the package: ``data_catalog`` or ``search_spaces``."""
    package = Path(__file__).resolve().parent.parent
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


@dataclass(frozen=True)
class Layout:
    """One raw layout in which a dataset is handed out."""

    description: str
    """Which files must lie where."""
    records: int
    """Raw records of the whole dataset."""
    pattern: str
    """Glob of the record files below the raw folder."""


@dataclass(frozen=True)
class DatasetCard:
    """What a dataset is, where to get it and what a complete catalog of it holds."""

    name: str
    title: str
    modality: str
    role: Literal["source", "target"]
    version: int
    """Raised whenever labels, splits or what is stored change."""
    homepage: str
    access: str
    licence: str
    citation: str
    code_table: str
    """CSV of `data_catalog/tables` that maps the dataset's codes to classes."""
    layouts: dict[str, Layout]
    split_table: str
    """Name of the file with the splits and labels that BenchMD released."""
    evaluation_splits: dict[str, tuple[str, ...]]
    """Per policy, the splits that are scored and never trained on."""
    expected: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """Published counts: policy → split → class → records."""
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> Modality:
        """The modality itself."""
        return modality(self.modality)


def _card(path: Path) -> DatasetCard:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    known = {f.name for f in dataclasses.fields(DatasetCard)}
    for key in content:
        if key not in known:
            raise unknown_name(f"key in {path.name}:", key, known)
    try:
        content["layouts"] = {k: Layout(**v) for k, v in content["layouts"].items()}
        splits = content["evaluation_splits"]
        content["evaluation_splits"] = {k: tuple(v) for k, v in splits.items()}
        content["notes"] = tuple(content.get("notes", ()))
        card = DatasetCard(**content)
    except (KeyError, TypeError) as error:
        raise BenchmdError(f"the card {path.name} is incomplete: {error}") from error
    for policy, splits in card.expected.items():
        for split, counts in splits.items():
            for name in counts:
                if name not in card.kind.classes:
                    where = f"class in {path.name}, {policy}, {split}:"
                    raise unknown_name(where, name, card.kind.classes)
    return card


@functools.cache
def cards() -> dict[str, DatasetCard]:
    """All cards by name, in alphabetical order."""
    found = [_card(path) for path in sorted(resource_folder("data_catalog").glob("*.yaml"))]
    return {card.name: card for card in found}


def dataset_card(name: str) -> DatasetCard:
    """The card of that name.

    Raises:
        BenchmdError: There is none; the message lists the valid names and the nearest.
    """
    if name not in cards():
        raise unknown_name("dataset", name, cards())
    return cards()[name]


@functools.cache
def code_classes(table: str, dataset: str | None = None) -> dict[str, str]:
    """Class of each code in a table of `data_catalog/tables`, empty where a code has none.

    Args:
        table: The table's file name.
        dataset: Rows of that dataset alone, for a table with a ``dataset`` column.
    """
    path = resource_folder("data_catalog") / "tables" / table
    with path.open(encoding="utf-8", newline="") as file:
        rows = [r for r in csv.DictReader(file) if dataset is None or r["dataset"] == dataset]
    return {r["code"]: r["class"] for r in rows}
