"""What a card says of its files: how a dataset without code is listed and read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, get_args

from benchmd_ray.data.name_patterns import is_patient, pattern_of
from benchmd_ray.errors import FieldError, shown, unknown_name
from benchmd_ray.modality.signals import LOWEST_RATE
from benchmd_ray.schema.typed import checked

Split = Literal["train", "validation", "test"]
CROSS_VALIDATION, LEAVE_ONE_OUT = "cross_validation", "leave_one_out"
MOST_FOLDS = 20
SPLITS = (
    "train, validation or test for each value, or only {cross_validation: 5} with 2 to "
    f"{MOST_FOLDS} folds, or only {{leave_one_out: patient}}"
)
PATIENT = "the name of a column, or {pattern: …} with a regular expression that has (?P<patient>…)"


def _is_splits(value: Any) -> bool:
    """Whether a value translates splits, or asks for folds instead."""
    if not isinstance(value, dict):
        return False
    if _asks_folds(value):
        ((key, asked),) = value.items()
        if key == LEAVE_ONE_OUT:
            return bool(asked == "patient")
        return type(asked) is int and 2 <= asked <= MOST_FOLDS
    return all(isinstance(split, str) for split in value.values())


def _asks_folds(splits: Mapping[str, Any]) -> bool:
    """Whether splits ask for folds; an owner's split of that name is translated to a split."""
    return (
        len(splits) == 1
        and next(iter(splits)) in (CROSS_VALIDATION, LEAVE_ONE_OUT)
        and next(iter(splits.values())) not in get_args(Split)
    )


@dataclass(frozen=True)
class Files:
    """How a dataset without code of its own is found and read (`datasets.listed`)."""

    table: str = ""
    """CSV, TSV (also .gz) or Parquet file with a row for each record, relative to the raw folder;
    empty where `levels` of folders say all."""
    folder: str = ""
    """Where the files are, relative to the raw folder."""
    path: str = "path"
    """The table's column with the files' paths, relative to `folder`."""
    suffix: str = ""
    """What is added to the paths of that column: ``.jpg``."""
    label: str = "label"
    """Column with the class of each record, or a label of ``class_mapping``."""
    labels: tuple[str, ...] = ()
    """Multi-label: columns of 1, 0 or nothing; empty for those that the classes name."""
    patient: Annotated[Any, checked(is_patient, PATIENT)] = ""
    """Column with the patient, or ``{pattern: …}`` that finds it in the file's path within
    `folder`; empty where each file stands for one. A record without its patient is excluded."""
    split: str = ""
    """Column with the split; empty where lists or folders give it, or splits are drawn."""
    splits: Annotated[Any, checked(_is_splits, SPLITS)] = field(default_factory=dict)
    """train, validation or test for each value of the split's column or folder; or
    ``{cross_validation: 5}`` or ``{leave_one_out: patient}`` for a small dataset, of which each
    fold of patients is scored by a model that is trained on the others."""
    lists: dict[Split, str] = field(default_factory=dict)
    """Of train, validation and test, text files with a path or a file's name on each line."""
    drawn: dict[Split, float] = field(
        default_factory=lambda: {"train": 0.7, "validation": 0.15, "test": 0.15}
    )
    """Shares of the patients in each split that is drawn."""
    metadata: dict[Literal["age", "sex", "site", "device", "view"], str] = field(
        default_factory=dict
    )
    """Columns with age, sex, site, device and view."""
    levels: tuple[Literal["split", "class", "patient"], ...] = ("class",)
    """Without a table: what the folders say, the outermost first."""
    rows: Literal["", "label first", "label last"] = ""
    """Where each row of a file is a record: which column has its class. Splits are drawn."""
    samples: int | None = None
    """Values of each row without its class, by which new files without classes are understood."""
    suffixes: tuple[str, ...] = ()
    """Files that are looked at, by their suffixes; empty for all of the signal's formats. A folder
    of ``.dcm`` files is one volume."""
    rate: float | None = None
    """Sampling rate in Hz of files that state none."""
    key: str = ""
    """Array of NPZ, or dataset of HDF5 files; empty for the only one."""
    channels: dict[str, str] = field(default_factory=dict)
    """Names of the signal's channels in the files, where they are others."""
    cut: Literal["segments", "first", "centre"] = "segments"
    """What becomes of longer signals over time: all whole segments, or one of them; and of volumes:
    windows with all slices, or one."""

    @property
    def patient_pattern(self) -> str:
        """Regular expression that finds the patient in a file's path; empty without one."""
        return pattern_of(self.patient)

    @property
    def patient_column(self) -> str:
        """The table's column with the patient; empty without one."""
        return "" if self.patient_pattern else self.patient

    @property
    def folds(self) -> int | None:
        """Folds of a cross-validation; 0 for one of each patient, None where splits are fixed."""
        if not _asks_folds(self.splits):
            return None
        return int(self.splits.get(CROSS_VALIDATION, 0))

    def __post_init__(self) -> None:
        """Refuse what no build could follow."""
        for key, fault in self._faults():
            raise FieldError(key, f"{fault}.")

    def _faults(self) -> Iterator[tuple[str, str]]:
        for split, share in self.drawn.items():
            if share <= 0:
                yield "drawn", f"the share of {split} is {share:g}, expected a positive number"
        if "train" not in self.drawn:
            yield "drawn", "train has no share, expected one"
        if not math.isclose(total := sum(self.drawn.values()), 1, abs_tol=1e-6):
            yield "drawn", f"the shares add up to {total:g}, expected 1"
        if self.rate is not None and self.rate < LOWEST_RATE:
            yield "rate", f"it is {self.rate:g} Hz, expected {LOWEST_RATE:g} Hz or more"
        for split in self.splits.values() if self.folds is None else ():
            if split not in get_args(Split):
                yield "splits", str(unknown_name("value", split, get_args(Split))).rstrip(".")
        paths = [("lists", name) for name in self.lists.values()]
        if self.samples is not None and (not self.rows or self.samples < 1):
            yield "samples", "expected the number of values in a row, and rows"
        if self.rows and (self.table or self.lists or self.split or self.splits):
            yield "rows", "records in rows have no table, split or lists: remove these"
        if self.folds is not None and (self.lists or self.split or "split" in self.levels):
            yield "splits", "the owner's splits or lists are named, too: remove these, or the folds"
        for key, name in (("table", self.table), ("folder", self.folder), *paths):
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                yield key, f"{shown(name)} is not a path within the raw folder"
        if not self.table and "class" not in self.levels:
            yield "levels", "expected class among them, or a table that says the classes"
        if len(set(self.levels)) < len(self.levels):
            yield "levels", "one appears twice, expected each once"
        columns = ("labels", *(() if self.patient_pattern else ("patient",)), "split", "metadata")
        for key in columns:
            if not self.table and getattr(self, key):
                yield key, "it names columns: add the table that has them"
        stated = bool(self.split) if self.table else "split" in self.levels
        if self.patient_pattern and "patient" in self.levels and not self.table:
            yield "patient", "a level of folders says the patient, too: remove one of them"
        if self.splits and self.folds is None and not stated:
            yield "splits", "add split, the column or the level of folders that has these values"
        if self.lists and stated:
            yield "lists", "split says the splits, too: remove one of them"
