"""Which records are in and out of distribution, and which of them calibrate and which are scored.

A patient either calibrates or is scored, whatever the seed: by the split, or a hash of the patient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.benchmarks.ood.cards import UseCase, use_case_of, use_cases
from benchmd_ray.benchmarks.ood.conform import coarser, require_conformable
from benchmd_ray.benchmarks.ood.faults import Fault, faults_of
from benchmd_ray.benchmarks.ood.table import RESERVED
from benchmd_ray.data.binary import NORMAL, normal_names
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.origins import of_one_origin
from benchmd_ray.data.records import (
    CONTENT,
    HELD_OUT,
    SEPARATOR,
    content_hashes,
    decode_targets,
)
from benchmd_ray.data.resident import contents_of, patients_of, split_table
from benchmd_ray.data.splits import stable_fraction
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.modality.tasks import UNKNOWN
from benchmd_ray.runs.pretraining_data import Records

COLUMNS = ("record_id", "unit_id", "group_id", "target", "held_out", "scale", "valid_size")
ALL_TOGETHER = "all together"
"""Name of the set of all conditions of a use-case, where each by itself is too small."""
FEWEST = 20
"""Records of a kind that calibration takes, and that a set has that counts in a mean."""
MOST = 2000
"""Records of a split that calibrate or are scored, chosen by a hash: more would say little more."""


@dataclass(frozen=True)
class SplitRecords:
    """Some records of a split of a catalog."""

    catalog: Catalog
    split: str
    rows: npt.NDArray[np.int64]
    table: pa.Table

    def __len__(self) -> int:
        return len(self.rows)

    def ids(self, column: str) -> list[str]:
        """A column of ids with the dataset: those of two datasets are not the same."""
        return [f"{self.catalog.dataset}/{name}" for name in self.table[column].to_pylist()]

    @property
    def patients(self) -> list[str]:
        return self.ids("group_id")

    @property
    def targets(self) -> npt.NDArray[np.int8]:
        """(records, classes)."""
        return decode_targets(self.table["target"])

    def at(self, chosen: npt.NDArray[np.bool_]) -> SplitRecords:
        places = np.flatnonzero(chosen)
        return replace(self, rows=self.rows[places], table=self.table.take(places))

    def halves(self, stated: Mapping[str, bool] | None = None) -> tuple[SplitRecords, SplitRecords]:
        """Those that calibrate and those that are scored, by a hash of the patient.

        ``stated`` overrides this for the patients that it names: True calibrates.
        """
        of = stated or {}
        chosen = [of.get(patient, calibrates(patient)) for patient in self.patients]
        chosen_rows = np.array(chosen, bool)
        return self.at(chosen_rows), self.at(~chosen_rows)


@dataclass(frozen=True)
class OutSet:
    """Records that are scored against those that are in distribution."""

    name: str
    use_case: UseCase
    calibrating: tuple[SplitRecords, ...]
    """Those that detectors may learn from; of other patients than those that are scored."""
    scored: tuple[SplitRecords, ...]
    fault: Fault | None = None
    severity: int = 0
    excluded: int = 0
    """Records that are not among them, for they or their patients are in distribution."""
    extent: tuple[int, ...] = ()
    """Extent of its signals where that is below the network's: the fit made them coarse."""
    family: str = ""
    """Name of another set with records of the same origin; empty where there is none."""

    @property
    def control(self) -> bool:
        """Whether nothing can be detected."""
        return self.fault is not None and self.fault.control

    @property
    def kind(self) -> str:
        """The name without the severity."""
        return self.name if self.fault is None else self.fault.name

    @property
    def origin(self) -> str:
        """What its records are from: sets of one origin never calibrate each other."""
        return self.family or self.kind

    @property
    def is_most_severe(self) -> bool:
        """Of its fault; true of a set without one."""
        return self.fault is None or self.severity == self.fault.severities[-1]

    @property
    def learnable(self) -> bool:
        """Whether enough records calibrate for a detector to learn from."""
        return sum(map(len, self.calibrating)) >= FEWEST and not self.control


@dataclass(frozen=True)
class Inside:
    """The in-distribution records."""

    trained: SplitRecords
    calibrating: tuple[SplitRecords, ...]
    scored: tuple[SplitRecords, ...]

    def abnormal(self, normal: Sequence[str]) -> npt.NDArray[np.bool_]:
        """(scored records,): whether one has a class that is not one of the normal ones."""
        parts = []
        for records in self.scored:
            classes = records.catalog.card.classes
            counted = np.array([name not in normal for name in classes])
            parts.append((records.targets == 1)[:, counted].any(axis=1))
        return np.concatenate(parts)


def normal_classes(card: DatasetCard) -> tuple[str, ...]:
    """Classes of records that are not abnormal; see `UseCases.normal`."""
    return (NORMAL,) if normal_names(card) else use_cases(card.name).normal


def records_of(catalog: Catalog, split: str) -> SplitRecords:
    table = split_table(catalog, split, list(COLUMNS))
    return SplitRecords(catalog, split, np.arange(len(table)), table)


def calibrates(patient: str) -> bool:
    """Whether a patient calibrates if no split decides; true for half of them."""
    return stable_fraction(f"ood/{patient}") < 0.5


def _few(records: SplitRecords) -> SplitRecords:
    """At most `MOST` records, of whole units, by a hash of the units' names."""
    if len(records) <= MOST:
        return records
    fractions = np.array([stable_fraction(f"ood/{name}") for name in records.ids("unit_id")])
    least = np.sort(fractions)[MOST]  # of the first unit that is not whole
    chosen = fractions < least
    return records.at(chosen if chosen.any() else fractions == least)


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
        first, second = _few(records_of(catalog, splits[0])).halves()
    for what, records in (("calibrate with", first), ("score", second)):
        if not len(records):
            raise BenchmdError(
                f"{catalog.path} has no in-distribution record to {what}: its evaluation splits "
                "have too few patients."
            )
    return Inside(trained, (first,), (second,))


def out_sets(catalog: Catalog, inside_records: Inside, also: Sequence[Catalog]) -> list[OutSet]:
    """All sets that are scored against the in-distribution records of a catalog.

    Raises:
        BenchmdError: One is of the same origin, or of a signal that cannot be shown to the network,
            or has no other patients than the source, or the name of another set, or has records
            of the source though its card refuses them.
    """
    sets = [*_faulty(catalog, inside_records)]
    if catalog.rows(HELD_OUT):
        sets += _held_out(catalog, inside_records)
    kept = (inside_records.trained, *inside_records.calibrating, *inside_records.scored)
    patients = {patient for records in kept for patient in records.patients}
    names = {name.partition("/")[2] for name in patients}
    splits = {"train", "validation", *catalog.evaluation_splits}
    filled = [split for split in sorted(splits) if catalog.rows(split)]
    source = Records(names | patients_of(catalog, filled), contents_of(catalog, filled))
    for place, other in enumerate(also):
        alike = [
            catalog_before.dataset
            for catalog_before in also[:place]
            if of_one_origin(catalog_before.dataset, other.dataset)
        ]
        sets.append(replace(_of_catalog(catalog, other, source), family=(alike or [""])[0]))
    _require_distinct(sets)
    return sets


def _require_distinct(sets: Sequence[OutSet]) -> None:
    """Refuse sets with ambiguous names."""
    taken = {*RESERVED, *(out_set.kind for out_set in sets if out_set.fault is not None)}
    for candidate in sets:
        if candidate.fault is None and candidate.name != ALL_TOGETHER:  # one of each use-case
            if candidate.name in taken:
                raise BenchmdError(
                    f"two sets that are out of distribution would be named {candidate.name}: "
                    "exclude the dataset or condition of that name, or name it differently in "
                    "its card."
                )
            taken.add(candidate.name)


def _faulty(catalog: Catalog, inside_records: Inside) -> Iterator[OutSet]:
    """In-distribution records with a fault, and other content in their place."""
    for fault in faults_of(catalog.signal).values():
        for severity in fault.severities:
            name = fault.name if len(fault.severities) == 1 else f"{fault.name} {severity}"
            yield OutSet(
                name,
                fault.use_case,
                inside_records.calibrating,
                inside_records.scored,
                fault,
                severity,
            )


def _held_out(catalog: Catalog, inside_records: Inside) -> Iterator[OutSet]:
    """A set for each condition of which there are records.

    Patients with held-out views or states are also in distribution, and calibrate or not as there.
    Where no condition of a use-case has records enough to learn from a half of them, all are
    scored; where none has enough to count in a mean, there is also one set of all together.
    """
    records, cases = records_of(catalog, HELD_OUT), use_cases(catalog.card.name).conditions
    stated = [text.split(SEPARATOR) for text in records.table["held_out"].to_pylist()]
    if not (records.targets == UNKNOWN).all():
        raise BenchmdError(f"{catalog.path} knows classes of held-out records: build it again.")
    kept = {patient: False for part in inside_records.scored for patient in part.patients}
    kept |= {patient: True for part in inside_records.calibrating for patient in part.patients}
    by_case: dict[UseCase, dict[str, npt.NDArray[np.bool_]]] = {}
    for name in catalog.held_out:
        chosen = np.array([name in names for names in stated])
        if chosen.any():
            by_case.setdefault(cases.get(name, "unseen"), {})[name] = chosen
    for case, conditions in by_case.items():
        # What has two conditions calibrates for neither: it would tell of one to find the other.
        once = np.sum([*conditions.values()], axis=0) == 1
        largest = max(int(chosen.sum()) for chosen in conditions.values())
        if largest < FEWEST and len(conditions) > 1:
            conditions[ALL_TOGETHER] = np.any([*conditions.values()], axis=0)
        apart = not kept.keys() & set(records.at(np.any([*conditions.values()], axis=0)).patients)
        for name, chosen in conditions.items():
            some = records.at(chosen)
            if largest < 2 * FEWEST and apart:
                yield OutSet(name, case, (), (some,))
                continue
            first, second = records.at(chosen & once).halves(kept)[0], some.halves(kept)[1]
            yield OutSet(name, case, () if name == ALL_TOGETHER else (first,), (second,))


def _of_catalog(catalog: Catalog, other: Catalog, source: Records) -> OutSet:
    """Records of another catalog, but those of patients who are in distribution.

    All splits may be scored, as nothing is trained on it.
    """
    case = use_case_of(catalog.dataset, catalog.card.modality, other.dataset, other.card.modality)
    require_conformable(other.signal, catalog.signal)
    splits = sorted(set(other.manifest["splits"]) - {HELD_OUT})
    parts = tuple(_few(records_of(other, split)) for split in splits)
    if not parts:
        raise BenchmdError(f"{other.path} has no record: exclude it from --also.")
    shared = _shared_patients(other, splits, source)
    # Without their dataset: of two datasets of one origin patients may be the same.
    groups = [map(str, part.table["group_id"].to_pylist()) for part in parts]
    masks = [np.array([name not in shared for name in names], bool) for names in groups]
    kept = [part.at(chosen) for part, chosen in zip(parts, masks, strict=True)]
    excluded = sum(int((~chosen).sum()) for chosen in masks)
    _require_distinguishable(catalog, other, excluded, sum(map(len, kept)))
    halves = [part.halves() for part in kept]
    first, second = (tuple(half[place] for half in halves) for place in (0, 1))
    return OutSet(
        other.dataset,
        case,
        first,
        second,
        extent=coarser(other.signal, catalog.signal),
        excluded=excluded,
    )


def _require_distinguishable(catalog: Catalog, other: Catalog, excluded: int, left: int) -> None:
    if excluded and other.card.duplicates == "refuse":
        raise BenchmdError(
            f"{count_of(excluded, 'record')} of {other.path} {'is' if excluded == 1 else 'are'} in "
            f"distribution in {catalog.dataset}, by content or patient, and the card of "
            f"{other.dataset} has duplicates: refuse. Exclude it from --also, or build it with "
            "another card."
        )
    if not left:
        raise BenchmdError(
            f"all patients of {other.dataset} are patients of {catalog.dataset}, or have records "
            "of it, so the two cannot be distinguished: exclude it from --also."
        )


def _shared_patients(other: Catalog, splits: Sequence[str], source: Records) -> set[str]:
    """Patients of a catalog who are in distribution, or have a record whose content is."""
    shared = patients_of(other, splits) & {*source.patients}
    for split in splits:
        table = split_table(other, split, ["group_id", CONTENT])
        is_copy = np.isin(content_hashes(table[CONTENT]), source.contents)
        shared |= set(table["group_id"].filter(pa.array(is_copy)).to_pylist())
    return shared
