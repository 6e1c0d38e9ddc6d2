"""The digests of official catalogs: which records a board scores, of which patients, their labels.

An organiser makes the file with the board's key and keeps it: labels and patients of a board come
from it and never from a bundle. Names of records, units and patients are hashed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from benchmd_ray.board.detection import MOST_CASES, MOST_SETS, AboutSet, Detected
from benchmd_ray.board.keys import HASHES, BoardKey
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.provenance import Provenance
from benchmd_ray.data.records import decode_targets
from benchmd_ray.data.resident import split_table
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.evaluation.evaluation import DetectedRecords
from benchmd_ray.files.atomic import parse_json, replacing
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.files.parquet import opened, read_table
from benchmd_ray.modality.tasks import Task
from benchmd_ray.report.frames import SPLITS, rank_of
from benchmd_ray.report.subgroup_frames import labels_of
from benchmd_ray.schema.typed import Count, Name, typed
from benchmd_ray.scores.support import Basis, support
from benchmd_ray.scores.units import Units

FORMAT = 1
METADATA = b"official"
NAMES = {"record": "record_id", "unit": "unit_id", "patient": "group_id"}
"""Columns that are hashed, by the kind of name."""
REMEDY = "Make it again with `benchmd board digest`."
SUBGROUPS = ("age", "sex")
SCHEMA = pa.schema(
    [
        ("dataset", pa.int32()),
        ("set", pa.int32()),
        *((name, HASHES) for name in NAMES),
        ("target", pa.string()),
        *((name, pa.string()) for name in SUBGROUPS),
    ]
)
"""``target`` has a letter of `LABELS` for each class. ``set`` is the place of a record's set in
`AboutDataset.sets`; null of records that are classified. Values are stored one by one, so that the
file decodes to little more than it takes (`_require_plain`): a site's is not to be believed."""
LEAST_ROW, MOST_TIMES = 4 + 16 * len(NAMES), 4
"""Bytes of a row's dataset and hashes, and decoded bytes for each byte of the file."""
LABELS = b"?01"
"""An unknown label, -1, then 0 and 1."""


@dataclass(frozen=True)
class AboutDataset:
    """What a board says of a dataset."""

    name: Name
    split: Name
    title: Name
    modality: Name
    role: Name
    policy: Name
    catalog: Name
    """Digest of the official catalog."""
    provenance: Provenance
    licence: Name
    access: Name
    homepage: Name
    notes: Annotated[list[Name], Field(max_length=100)]
    task: Task
    detection: Name = ""
    """Evaluation of detection; empty where the digests were made without."""
    also: Annotated[list[Name], Field(max_length=MOST_SETS)] = field(default_factory=list)
    """Datasets whose catalogs detection reads, too."""
    sets: Annotated[list[AboutSet], Field(max_length=MOST_SETS)] = field(default_factory=list)
    """Of detection."""


@dataclass(frozen=True)
class AboutBoard:
    format: Count
    board: Name
    """Digest of the board's key (`BoardKey.check`)."""
    datasets: Annotated[list[AboutDataset], Field(min_length=1, max_length=1000)]


@dataclass(frozen=True, eq=False)
class OfficialDataset:
    """The scored split of a dataset; records are sorted by their hash."""

    about: AboutDataset
    records: Sequence[bytes]
    """Hashes."""
    targets: npt.NDArray[np.int8]
    """(records, classes)."""
    unit_names: Sequence[str]
    patient_names: Sequence[str]
    subgroups: Mapping[str, Sequence[str | None]]
    """By variable: the group of each record; empty where the digests were made without."""
    detected: Detected | None
    """None where the digests were made without."""

    @cached_property
    def units(self) -> Units:
        """What is scored, see `scores.units`."""
        return Units(np.array(self.unit_names))

    @cached_property
    def unit_targets(self) -> npt.NDArray[np.int8]:
        """(units, classes)."""
        return self.units.targets(self.targets)

    @cached_property
    def groups(self) -> npt.NDArray[np.intp]:
        """(units,): the patient of each unit."""
        patients = np.array(self.patient_names)[self.units.first]
        return np.unique(patients, return_inverse=True)[1]

    @cached_property
    def basis(self) -> Basis:
        """What the mean AUROC rests on."""
        return support(self.unit_targets, self.groups).basis("auroc")

    @property
    def patients(self) -> int:
        return int(self.groups.max(initial=-1)) + 1


@dataclass(frozen=True)
class Official:
    """The digests of a board's official catalogs."""

    board: str
    sha256: str
    """Of the file."""
    datasets: Mapping[str, OfficialDataset]

    @property
    def has_subgroups(self) -> bool:
        return any(dataset.subgroups for dataset in self.datasets.values())


def scored_split(splits: Iterable[str]) -> str:
    """The split of a dataset that is scored: the test split, or the last one in their order."""
    return max(splits, key=lambda split: rank_of(SPLITS, split))


def write_digests(
    catalogs: Sequence[Catalog],
    key: BoardKey,
    path: Path,
    *,
    subgroups: bool = False,
    detections: Mapping[str, DetectedRecords] = MappingProxyType({}),
) -> list[AboutDataset]:
    """Write the file of digests of official catalogs, with ``subgroups`` also ages and sexes.

    Raises:
        BenchmdError: Two are of one dataset, or one has no evaluation split or masks for labels.
    """
    datasets = [_about(catalog) for catalog in catalogs]
    names = [about.name for about in datasets]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BenchmdError(f"several catalogs are of {min(twice)}: name one of each dataset.")
    columns = [*NAMES.values(), "target", *(SUBGROUPS if subgroups else ())]
    tables = [
        split_table(catalog, about.split, columns)
        for catalog, about in zip(catalogs, datasets, strict=True)
    ]
    return write_rows(datasets, tables, key, path, detections)


def write_rows(
    datasets: Sequence[AboutDataset],
    tables: Sequence[pa.Table],
    key: BoardKey,
    path: Path,
    detections: Mapping[str, DetectedRecords] = MappingProxyType({}),
) -> list[AboutDataset]:
    """Write a file of digests of tables with `NAMES`, target and, if at all, `SUBGROUPS`."""
    parts, abouts = [], []
    for number, (table, about) in enumerate(zip(tables, datasets, strict=True)):
        parts.append(_rows(table, about.name, number, key))
        of = detections.get(about.name)
        sets = [] if of is None else list(dict.fromkeys(_sets(of.records)))
        if of and any(each.use_case for each in sets):  # none where all are too small
            parts.append(_detected(of.records, sets, about.name, number, key))
            about = replace(about, detection=of.evaluation, also=[*of.also], sets=sets)
        abouts.append(about)
    stated = json.dumps(asdict(AboutBoard(FORMAT, key.check, abouts)))
    table = pa.concat_tables(parts).replace_schema_metadata({METADATA: stated})
    with replacing(path) as partial:
        pq.write_table(table, partial, compression="none", use_dictionary=False)
        partial.chmod(0o600)  # it has labels of every record
    return abouts


def _about(catalog: Catalog) -> AboutDataset:
    if catalog.task.segments or not catalog.evaluation_splits:
        what = "masks for labels" if catalog.task.segments else "no record in an evaluation split"
        raise BenchmdError(f"{catalog.path} has {what}: a board scores classifications.")
    card, raw = catalog.card, catalog.manifest["raw"]
    notes = []
    if raw["grouped_by"] != "patient":
        notes.append(
            f"Its patients are unknown: each {raw['grouped_by']} counts as one, exact copies as "
            "the same one, and intervals may be too narrow."
        )
    split = scored_split(catalog.evaluation_splits)
    if split == "validation":
        notes.append("Its validation split, which also chose the epoch of models trained on it.")
    return AboutDataset(
        name=catalog.dataset,
        split=split,
        title=card.title,
        modality=catalog.modality,
        role=card.role,
        policy=str(catalog.manifest["policy"]),
        catalog=catalog.digest,
        provenance=raw["provenance"],
        licence=card.licence,
        access=card.access,
        homepage=card.homepage,
        notes=notes,
        task=replace(catalog.task, classes=card.classes),
    )


def _rows(table: pa.Table, dataset: str, number: int, key: BoardKey) -> pa.Table:
    letters = np.frombuffer(LABELS, np.uint8)[decode_targets(table["target"]) + 1]
    targets = [row.tobytes().decode() for row in letters]
    people = table.select([n for n in SUBGROUPS if n in table.column_names]).to_pandas()
    groups = {name: labels_of(people, name) for name in people}
    return _hashed(table, dataset, number, key, target=targets, **groups)


def _detected(
    table: pa.Table, sets: Sequence[AboutSet], dataset: str, number: int, key: BoardKey
) -> pa.Table:
    places = {about: place for place, about in enumerate(sets)}
    of = [places[about] for about in _sets(table)]
    records = detected_hashes(table, dataset, key)
    return _hashed(table, dataset, number, key, record=records, set=of, target=[""] * len(table))


def _sets(table: pa.Table) -> Iterator[AboutSet]:
    columns = (table[name].to_pylist() for name in ("set", "use_case"))
    return map(AboutSet, *columns)


def detected_hashes(table: pa.Table, dataset: str, key: BoardKey) -> list[bytes]:
    """Keyed hashes of rows of `evaluation.Detection`, each of which is a record in a set."""
    columns = (table[name].to_pylist() for name in ("use_case", "set", "record_id"))
    names = ("\0".join(row) for row in zip(*columns, strict=True))
    return key.hashes("detection", dataset, names)


def _hashed(
    table: pa.Table, dataset: str, number: int, key: BoardKey, **columns: Sequence[object]
) -> pa.Table:
    """Rows of `SCHEMA` by the hash of the record; columns that are not given are null."""
    hashed = {
        kind: key.hashes(kind, dataset, table[name].to_pylist()) for kind, name in NAMES.items()
    }
    usual = {name: [None] * len(table) for name in ("set", *SUBGROUPS)}
    whole = usual | hashed | columns | {"dataset": [number] * len(table)}
    rows = pa.table({n: pa.array(whole[n], SCHEMA.field(n).type) for n in SCHEMA.names})
    return rows.take(pc.sort_indices(rows["record"]))


def read_official(path: Path) -> Official:
    """Read a file of digests.

    Raises:
        Damaged: It has another form.
    """
    with opened(path, path, REMEDY) as file:
        about = _stated(file.schema_arrow, path)
        _require_plain(LEAST_ROW * file.metadata.num_rows, 1, path)
    table = read_table(path, path, REMEDY)
    _require_plain(table.nbytes, MOST_TIMES, path)
    datasets = {}
    for number, dataset in enumerate(about.datasets):
        rows = table.filter(pc.equal(table["dataset"], number))
        datasets[dataset.name] = _dataset(dataset, rows, path)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Official(about.board, sha256, datasets)


def _require_plain(decoded: int, times: int, path: Path) -> None:
    if decoded > times * path.stat().st_size:
        raise Damaged(path, "it is compressed, or repeats values by number", REMEDY)


def _stated(schema: pa.Schema, path: Path) -> AboutBoard:
    metadata: dict[bytes, bytes] = schema.metadata or {}
    if not schema.equals(SCHEMA) or METADATA not in metadata:
        raise Damaged(path, "it is not a file of digests of official catalogs", REMEDY)
    try:
        content: Any = parse_json(metadata[METADATA])
        about: AboutBoard = typed(AboutBoard, content, "its metadata")
    except (ValueError, RecursionError, BenchmdError) as error:
        raise Damaged(path, str(error), REMEDY) from error
    names = [dataset.name for dataset in about.datasets]
    if about.format != FORMAT or len(set(names)) < len(names):
        raise Damaged(path, "it is of another format, or names a dataset twice", REMEDY)
    return about


def _dataset(about: AboutDataset, rows: pa.Table, path: Path) -> OfficialDataset:
    if any(rows[n].null_count for n in SCHEMA.names if n not in ("set", *SUBGROUPS)):
        raise Damaged(path, f"records of {shown(about.name)} lack a hash or labels", REMEDY)
    columns, classes = _columns(rows, pc.is_null(rows["set"]), about, path), len(about.task.classes)
    letters = "".join(columns["target"]).encode("ascii", "replace")
    if {len(target) for target in columns["target"]} != {classes} or {*letters} - {*LABELS}:
        raise Damaged(path, f"its labels of {shown(about.name)} are not of its classes", REMEDY)
    targets = np.array([LABELS.index(letter) - 1 for letter in letters], np.int8)
    return OfficialDataset(
        about,
        records=columns["record"],
        targets=targets.reshape(-1, classes),
        unit_names=columns["unit"],
        patient_names=columns["patient"],
        subgroups={name: columns[name] for name in SUBGROUPS if any(columns[name])},
        detected=_detected_of(about, rows, path),
    )


def _detected_of(about: AboutDataset, rows: pa.Table, path: Path) -> Detected | None:
    columns = _columns(rows, pc.is_valid(rows["set"]), about, path)
    if not (about.detection or about.sets or columns["set"]):
        return None
    cases = [each.use_case for each in about.sets]
    named = {*columns["set"]} == {*range(len(cases))} and len({*about.sets}) == len(cases)
    if not (about.detection and named and cases.count("") == 1 < len({*cases}) <= MOST_CASES + 1):
        raise Damaged(path, f"detection of {shown(about.name)} has other sets than named", REMEDY)
    numbers, names = np.array(columns["set"], np.int32), (columns["unit"], columns["patient"])
    return Detected(about.sets, columns["record"], numbers, *names)


def _columns(
    rows: pa.Table, chosen: pa.ChunkedArray, about: AboutDataset, path: Path
) -> dict[str, list[Any]]:
    """Columns of some rows, whose records are each once and sorted; names as text."""
    columns = {name: rows.filter(chosen)[name].to_pylist() for name in SCHEMA.names}
    if columns["record"] != sorted(set(columns["record"])):
        raise Damaged(path, f"records of {shown(about.name)} are doubled or not sorted", REMEDY)
    return columns | {kind: [n.hex() for n in columns[kind]] for kind in ("unit", "patient")}
