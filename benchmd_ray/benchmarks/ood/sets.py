"""Which records are in and out of distribution, and which of them calibrate and which are scored.

A patient either calibrates or is scored, whatever the seed and whatever else is scored: it follows
from the split, or where there is only one from a hash of the patient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.benchmarks.ood.cards import UseCase, use_case_of, use_cases
from benchmd_ray.benchmarks.ood.conform import require_conformable
from benchmd_ray.benchmarks.ood.faults import Fault, faults_of
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import HELD_OUT, SEPARATOR, decode_targets
from benchmd_ray.data.resident import split_table
from benchmd_ray.data.splits import stable_fraction
from benchmd_ray.errors import BenchmdError
from benchmd_ray.tasks import UNKNOWN

COLUMNS = ("record_id", "unit_id", "group_id", "target", "held_out", "scale", "valid_size")
MOST = 2000
"""Records of a split that calibrate or are scored, chosen by a hash: more would say little more."""


@dataclass(frozen=True)
class Records:
    """Some records of a split of a catalog."""

    catalog: Catalog
    split: str
    rows: npt.NDArray[np.int64]
    """Ascending."""
    table: pa.Table
    """Of these rows, with `COLUMNS`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> list[str]:
        """Their ids, which with the dataset name them."""
        return [f"{self.catalog.dataset}/{name}" for name in self.table["record_id"].to_pylist()]

    @property
    def patients(self) -> list[str]:
        """Patients with their dataset: of two datasets, they are not the same."""
        return [f"{self.catalog.dataset}/{name}" for name in self.table["group_id"].to_pylist()]

    @property
    def targets(self) -> npt.NDArray[np.int8]:
        """(records, classes)."""
        return decode_targets(self.table["target"])

    def at(self, chosen: npt.NDArray[np.bool_]) -> Records:
        """Some of them."""
        places = np.flatnonzero(chosen)
        return replace(self, rows=self.rows[places], table=self.table.take(places))


@dataclass(frozen=True)
class OutSet:
    """Records that are scored against those that are in distribution."""

    name: str
    use_case: UseCase
    records: tuple[Records, ...]
    calibrates: npt.NDArray[np.bool_]
    """(all records,): whether one may calibrate; the others are scored."""
    fault: Fault | None = None
    """What is made wrong with them first."""
    severity: int = 0

    @property
    def control(self) -> bool:
        """Whether nothing can be detected."""
        return self.fault is not None and self.fault.control

    @property
    def kind(self) -> str:
        """The name without the severity: sets of one kind never calibrate each other."""
        return self.name if self.fault is None else self.fault.name


@dataclass(frozen=True)
class Inside:
    """The in-distribution records."""

    trained: Records
    """That the network learned from."""
    calibrating: tuple[Records, ...]
    scored: tuple[Records, ...]

    def abnormal(self, normal: Sequence[str]) -> npt.NDArray[np.bool_]:
        """(scored records,): whether one has a class that is not normal.

        Args:
            normal: Classes that are; of none a record without a positive label is.
        """
        parts = []
        for records in self.scored:
            classes = records.catalog.card.classes
            counted = np.array([name not in normal for name in classes])
            parts.append((records.targets == 1)[:, counted].any(axis=1))
        return np.concatenate(parts)


def records_of(catalog: Catalog, split: str) -> Records:
    """All records of a split.

    Raises:
        BenchmdError: It has none, or a shard is missing.
    """
    table = split_table(catalog, split, list(COLUMNS))
    return Records(catalog, split, np.arange(len(table)), table)


def calibrates(patient: str) -> bool:
    """Whether a patient calibrates, where no split says so: of a half of them."""
    return stable_fraction(f"ood/{patient}") < 0.5


def _few(records: Records) -> Records:
    """At most `MOST`, by a hash of their names."""
    if len(records) <= MOST:
        return records
    order = np.argsort([stable_fraction(f"ood/{name}") for name in records.names])
    chosen = np.zeros(len(records), bool)
    chosen[order[:MOST]] = True
    return records.at(chosen)


def inside(catalog: Catalog) -> Inside:
    """The in-distribution records of a catalog.

    Raises:
        BenchmdError: It has no training or no evaluation split, or no record to calibrate with.
    """
    splits = catalog.evaluation_splits
    if not splits or not catalog.rows("train"):
        raise BenchmdError(
            f"{catalog.path} has no training or no evaluation split: what is in distribution is "
            "not known. Build it with both."
        )
    trained = records_of(catalog, "train")
    if len(splits) > 1:
        first, second = _few(records_of(catalog, splits[0])), _few(records_of(catalog, splits[1]))
    else:
        whole = _few(records_of(catalog, splits[0]))
        chosen = np.array([calibrates(patient) for patient in whole.patients])
        first, second = whole.at(chosen), whole.at(~chosen)
    for what, records in (("calibrate with", first), ("score", second)):
        if not len(records):
            raise BenchmdError(
                f"{catalog.path} has no in-distribution record to {what}: its evaluation splits "
                "have too few patients."
            )
    return Inside(trained, (first,), (second,))


def out_sets(catalog: Catalog, own: Inside, also: Sequence[Catalog]) -> Iterator[OutSet]:
    """All sets that are scored against the in-distribution records of a catalog.

    Args:
        catalog: Of the source.
        own: Its in-distribution records.
        also: Other catalogs.

    Raises:
        BenchmdError: One of them is of the same origin or of a kind of signal that cannot be shown
            to the network, or shares patients with the source.
    """
    kept = (*own.calibrating, *own.scored)
    halves = np.concatenate(
        [
            *(np.ones(len(records), bool) for records in own.calibrating),
            *(np.zeros(len(records), bool) for records in own.scored),
        ]
    )
    for fault in faults_of(catalog.signal).values():
        for severity in fault.severities:
            name = fault.name if len(fault.severities) == 1 else f"{fault.name} {severity}"
            case: UseCase = fault.use_case
            yield OutSet(name, case, kept, halves, fault, severity)
    if catalog.rows(HELD_OUT):
        yield from _held_out(catalog)
    patients = {patient for records in (own.trained, *kept) for patient in records.patients}
    for other in also:
        yield _of_catalog(catalog, other, {name.partition("/")[2] for name in patients})


def _held_out(catalog: Catalog) -> Iterator[OutSet]:
    """A set for each condition, and for each use-case one of all that have one of its own."""
    records, cases = records_of(catalog, HELD_OUT), use_cases(catalog.card.name).conditions
    stated = [text.split(SEPARATOR) for text in records.table["held_out"].to_pylist()]
    if not (records.targets == UNKNOWN).all():
        raise BenchmdError(f"{catalog.path} knows classes of held-out records: build it again.")
    for name in catalog.held_out:
        chosen = records.at(np.array([name in names for names in stated]))
        half = np.array([calibrates(patient) for patient in chosen.patients], bool)
        yield OutSet(name, cases.get(name, "unseen"), (chosen,), half)


def _of_catalog(catalog: Catalog, other: Catalog, patients: set[str]) -> OutSet:
    case = use_case_of(catalog.dataset, catalog.card.modality, other.dataset, other.card.modality)
    require_conformable(other.signal, catalog.signal)
    # Nothing is trained on it, so that all its splits may be scored.
    splits = sorted(set(other.manifest["splits"]) - {HELD_OUT})
    parts = tuple(_few(records_of(other, split)) for split in splits)
    if not parts:
        raise BenchmdError(f"{other.path} has no record: leave it out.")
    shared = patients & {name for part in parts for name in part.table["group_id"].to_pylist()}
    if shared:
        raise BenchmdError(
            f"{other.dataset} has {len(shared):,} patients of {catalog.dataset}, so it cannot be "
            "told from it: build it without them, or leave it out."
        )
    half = np.array([calibrates(name) for part in parts for name in part.patients], bool)
    return OutSet(other.dataset, case, parts, half)
