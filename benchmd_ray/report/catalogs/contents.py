"""Contents of a catalog for its figures: classes, patients and examples, read column by column."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import OLDEST_AGE, decode_signals, targets_of
from benchmd_ray.data.resident import split_table
from benchmd_ray.modality.signals import valid_area
from benchmd_ray.modality.tasks import UNKNOWN

SPLITS = ("train", "validation", "test")
"""The order in which splits are shown."""
SEXES = ("female", "male", "unknown")
AGE_BIN = 10
"""Width of an age bin in years; the last bin is `OLDEST_AGE` and above."""
AGE_BINS = int(OLDEST_AGE) // AGE_BIN + 1
NO_CLASS = "none of these"
"""Name for multi-label records that are known to have no positive label."""
ROWS_AT_ONCE = 1 << 16
"""Rows that are read at a time, of all columns but the signal."""


@dataclass
class Balance:
    """Records of a split by class."""

    records: int = 0
    positive: dict[str, int] = field(default_factory=dict)
    """Records by class."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Records by class whose label for this class is unknown."""


@dataclass
class People:
    """Patients of a split."""

    patients: int = 0
    ages: dict[str, list[int]] = field(default_factory=lambda: {s: [0] * AGE_BINS for s in SEXES})
    """By sex: patients of each bin of `AGE_BIN` years."""
    age_unknown: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SEXES, 0))
    """By sex: patients without an age."""

    def of_sex(self, sex: str) -> int:
        """Patients of a sex, of any age."""
        return sum(self.ages[sex]) + self.age_unknown[sex]


@dataclass(frozen=True)
class Example:
    """A record to draw."""

    record_id: str
    """Not to be written into a picture."""
    group_id: str
    """Not to be written into a picture."""
    split: str
    classes: tuple[str, ...]
    """Classes of the record."""
    signal: npt.NDArray[np.float32]
    """The signal without padding, channels first, in the modality's unit."""
    mask: npt.NDArray[np.uint8] | None = None
    """Class index of each pixel of this area, if the record has a mask."""


def splits(catalog: Catalog) -> list[str]:
    """Splits with records, in the order of `SPLITS`."""
    names = [split for split in catalog.manifest["splits"] if catalog.rows(split)]
    return sorted(names, key=lambda split: (*SPLITS, split).index(split))


def class_balance(catalog: Catalog) -> dict[str, Balance]:
    """Records by class of each split.

    Raises:
        BenchmdError: A shard is missing or of another size than the manifest states.
    """
    balances = {}
    for split in splits(catalog):
        records = 0
        positive, unknown = np.zeros((2, len(catalog.card.classes)), np.int64)
        for _, table in _tables(catalog, split, ["target"]):
            targets = targets_of(table["target"], catalog.card.target)
            records += len(targets)
            positive += catalog.card.target.present(targets).sum(axis=0)
            if not catalog.card.target.is_mask:
                unknown += (targets == UNKNOWN).sum(axis=0)
        names = catalog.card.classes
        balances[split] = Balance(
            records,
            dict(zip(names, positive.tolist(), strict=True)),
            dict(zip(names, unknown.tolist(), strict=True)),
        )
    return balances


def people(catalog: Catalog) -> dict[str, People]:
    """Patients of each split by age and sex, as stated first in their records.

    Raises:
        BenchmdError: A shard is missing or of another size than the manifest states.
    """
    return {
        split: _people(
            table.to_pandas() for _, table in _tables(catalog, split, ["group_id", "age", "sex"])
        )
        for split in splits(catalog)
    }


def _people(frames: Iterable[pd.DataFrame]) -> People:
    firsts: pd.DataFrame | None = None
    for frame in frames:
        both = [frame] if firsts is None else [firsts, frame]
        firsts = pd.concat(both).groupby("group_id", sort=False, as_index=False).first()
    people = People()
    if firsts is None:
        return people
    people.patients = len(firsts)
    sexes = firsts["sex"].where(firsts["sex"].isin(SEXES), "unknown")
    for sex, ages in firsts.groupby(sexes)["age"]:
        stated = ages.dropna()
        bins = (stated.clip(0, OLDEST_AGE) // AGE_BIN).astype(int)
        people.ages[str(sex)] = np.bincount(bins, minlength=AGE_BINS).tolist()
        people.age_unknown[str(sex)] = len(ages) - len(stated)
    return people


def examples(catalog: Catalog, per_class: int) -> dict[str, list[Example]]:
    """At most ``per_class`` records of each class, always the same ones for the same catalog.

    They are chosen by a hash, from different patients and without repetition where a class has
    enough. Multi-label tasks have `NO_CLASS` too. Classes without records are absent.

    Raises:
        BenchmdError: A shard is missing or of another size than the manifest states.
    """
    taken: set[tuple[str, int]] = set()
    chosen = {}
    for name, rows in _candidates(catalog, per_class).items():
        rows.sort(key=taken.__contains__)
        chosen[name] = [_example(catalog, split, row) for split, row in rows[:per_class]]
        taken |= set(rows[:per_class])
    return {name: records for name, records in chosen.items() if records}


def _candidates(catalog: Catalog, per_class: int) -> dict[str, list[tuple[str, int]]]:
    """Split and row of candidates for each class, the preferred ones first."""
    names = [*_shown_classes(catalog)]
    columns = [catalog.card.classes.index(name) for name in names]
    if catalog.task.kind == "multi-label":
        names.append(NO_CLASS)
    best = {name: pd.DataFrame() for name in names}
    for split in splits(catalog):
        for start, table in _tables(catalog, split, ["record_id", "group_id", "target"]):
            targets = targets_of(table["target"], catalog.card.target)
            present = catalog.card.target.present(targets)
            none = (targets == 0).reshape(len(targets), -1).all(axis=1)
            of_class = np.column_stack([present[:, columns], none])
            ids, groups = (table[name].to_numpy() for name in ("record_id", "group_id"))
            for column, name in enumerate(names):
                rows = np.flatnonzero(of_class[:, column])
                key = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
                candidates = pd.DataFrame(
                    {
                        "patient": pd.util.hash_array(groups[rows], hash_key=key),
                        "record": pd.util.hash_array(ids[rows], hash_key=key),
                        "row": start + rows,
                        "split": split,
                    }
                )
                best[name] = _lowest(pd.concat([best[name], candidates]), per_class * len(names))
    return {
        name: [(str(split), int(row)) for split, row in zip(f["split"], f["row"], strict=True)]
        for name, f in best.items()
    }


def _shown_classes(catalog: Catalog) -> tuple[str, ...]:
    """Classes of the card; for masks without the background."""
    return catalog.task.foreground if catalog.task.segments else catalog.card.classes


def _lowest(rows: pd.DataFrame, wanted: int) -> pd.DataFrame:
    """Rows of the ``wanted`` patients with the lowest hashes, one of each first."""
    rows = rows.sort_values(["patient", "record"])
    rows = rows[rows["patient"].isin(rows["patient"].unique()[:wanted])]
    rows["turn"] = rows.groupby("patient").cumcount()
    rows = rows[rows["turn"] < wanted]
    return rows.sort_values(["turn", "patient"])


def _example(catalog: Catalog, split: str, row: int) -> Example:
    """Read one row of a split; only its row group is read of the signals."""
    columns = ["record_id", "group_id", "split", "signal", "scale", "valid_size", "target"]
    shards = iter(catalog.shards(split))
    shard = next(shards)
    while row >= shard.rows:
        row -= shard.rows
        shard = next(shards)
    with shard.opened() as file:
        number = 0
        while row >= (rows := file.metadata.row_group(number).num_rows):
            number, row = number + 1, row - rows
        table = file.read_row_group(number, columns=columns).slice(row, 1)
    signal = decode_signals(table["signal"], catalog.signal)[0]
    targets = targets_of(table["target"], catalog.card.target)
    (present,) = catalog.card.target.present(targets)
    values = table.drop_columns(["signal", "target"]).to_pylist()[0]
    names, inside = catalog.card.classes, valid_area(signal.shape[1:], values["valid_size"])
    physical = signal[:, *inside].astype(np.float32) * values["scale"]
    return Example(
        record_id=values["record_id"],
        group_id=values["group_id"],
        split=values["split"],
        classes=tuple(
            name
            for name, is_there in zip(names, present, strict=True)
            if is_there and name in _shown_classes(catalog)
        ),
        signal=physical.astype(np.float32),
        mask=targets[0][inside] if catalog.task.segments else None,
    )


def _tables(catalog: Catalog, split: str, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yield up to `ROWS_AT_ONCE` rows of the columns, with the index of their first row."""
    table = split_table(catalog, split, columns)
    for start in range(0, len(table), ROWS_AT_ONCE):
        yield start, table.slice(start, ROWS_AT_ONCE)
