"""The inner catalogs of a source: all that a search sees of it (decision D18).

Each evaluation of the same settings uses another inner catalog: it trains on ``train`` and is
scored on ``validation``. Both are cut by patient, with classes in balance, from the source's
training split, and from its validation split where no result is scored on that (MedMNIST). `FOLDS`
evaluations hold every patient once in ``validation``; the next ones cut anew. With too few patients
or classes for all folds, evaluations of another cut fill up.

Patients who are scored later take no part (D21, `barred_patients`); a search of a few-label setting
sees only the records of its labels (D22, `Labelled`).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import MANIFEST, Catalog, open_catalog
from benchmd_ray.data.manifest import manifest_of, origin_in, shard_part
from benchmd_ray.data.manifest_form import SHARDS
from benchmd_ray.data.origins import are_comparable, of_one_origin
from benchmd_ray.data.records import targets_of
from benchmd_ray.data.resident import patients_of, split_table
from benchmd_ray.data.splits import balanced_folds, label_subset, rarest_class
from benchmd_ray.errors import BenchmdError, Busy, count_of
from benchmd_ray.extensions.parts import PARTS
from benchmd_ray.files.atomic import (
    TEMPORARY,
    cache_folder,
    digest,
    locked,
    remove,
    removed_on_failure,
    write_json,
)
from benchmd_ray.storage.address import local_name
from benchmd_ray.storage.location import Address, Location, alone, read, write

FOLDS = 5
"""One fold of so many is the inner validation split: about 20 % of the records."""
PART = "inner splits"
"""Of `parts.PARTS`."""
AGAIN = 1_000_000
"""Added to the seed of a cut for the one that fills up its evaluations."""
WAIT_SECONDS = 1.0
"""How often a machine looks whether another one has written a catalog in a bucket."""
SEED = 18
"""Of the first cut; the same for all searches, so that all are scored on the same patients."""


class Labelled(NamedTuple):
    """The labels of a few-label setting: those that a run with this seed trains on."""

    per_class: int
    seed: int


@dataclass(frozen=True)
class _Cut:
    """What determines an inner catalog."""

    source: Catalog
    evaluation: int
    barred: frozenset[str]
    labelled: Labelled | None

    @property
    def name(self) -> str:
        """Name of its folder, with a digest of the barred patients and the labels, if any."""
        source = self.source
        parts = [source.dataset, source.manifest["policy"], source.digest[:12]]
        if self.barred or self.labelled:
            parts.append(digest(self._limits)[:12])
        return "-".join([*parts, f"v{PARTS[PART].version}", f"{self.evaluation:03d}"])

    @property
    def plan(self) -> str:
        """Digest of what determines its records."""
        version = PARTS[PART].version
        about = ["inner", version, self.source.digest, FOLDS, SEED, self.evaluation]
        return digest([*about, *self._limits])

    @property
    def _limits(self) -> list[Any]:
        return [sorted(self.barred), self.labelled]


def inner_catalog(
    source: Catalog,
    folder: Location,
    evaluation: int = 0,
    check: Callable[[], None] = lambda: None,
    *,
    barred: frozenset[str] = frozenset(),
    labelled: Labelled | None = None,
) -> Catalog:
    """An inner catalog of a source, written unless it exists; reads no split that is scored.

    Any number of processes and machines may ask for the same one at the same time.

    Args:
        source: A catalog of a source.
        folder: That of inner catalogs.
        evaluation: Counts a search's evaluations of the same settings from 0 on.
        check: Called while another machine writes it; raises where waiting is to end.
        barred: Hashed patients who take no part, see `barred_patients`.
        labelled: Labels that a search of a few-label setting uses; None for all.

    Raises:
        BenchmdError: It is not a source, has too few patients or an altered shard, the disk is
            full, or the bucket cannot be reached.
    """
    cut = _Cut(source, evaluation, barred, labelled)
    path = folder / cut.name
    if isinstance(path, Path):
        _write_once(cut, path)
    else:
        _publish_once(cut, path, check)
    catalog = open_catalog(path)
    stated = (catalog.manifest.get("inner_of"), catalog.manifest["plan"])
    if stated != (source.digest, cut.plan):
        raise BenchmdError(
            f"{path} is not an inner catalog of {source.path}: remove that folder and run again."
        )
    return catalog


def barred_patients(source: Catalog, targets: Iterable[Catalog] = ()) -> frozenset[str]:
    """Hashed patients of a source whose records are scored later, so that no search sees them.

    Those that a search would see and that have a record in a scored split of the source, or of a
    target of its origin or patients; the IDs of other datasets cannot be compared. Only IDs are
    read.
    """
    related = [
        target
        for target in targets
        if of_one_origin(target.dataset, source.dataset)
        or are_comparable(target.dataset, source.dataset)
    ]
    scored = (patients_of(catalog, catalog.evaluation_splits) for catalog in (source, *related))
    return frozenset(patients_of(source, seen_splits(source)) & set().union(*scored))


def patients_seen(
    source: Catalog, *, barred: frozenset[str] = frozenset(), labelled: Labelled | None = None
) -> int:
    """Number of patients in the inner catalogs of a search; arguments as in `inner_catalog`."""
    if labelled is None and not barred:
        splits = source.manifest["splits"]
        return sum(int(splits[split]["patients"]) for split in seen_splits(source))
    return len(pc.unique(_records(source, barred, labelled)["group_id"]))


def _write_once(cut: _Cut, path: Path) -> None:
    with locked(path.with_name(f".lock-{path.name}"), f"the inner catalog {path}", wait=True):
        if not (path / MANIFEST).is_file():
            for leftover in path.parent.glob(f"{TEMPORARY}*-{path.name}"):
                remove(leftover)
            _write(cut, path)


def _publish_once(cut: _Cut, path: Address, check: Callable[[], None]) -> None:
    """Write a catalog at its address, unless it exists; one machine does, and others wait."""
    what = f"the inner catalog {path}"
    while read(path / MANIFEST) is None:
        try:
            with alone(path, what, ()) as require:
                if read(path / MANIFEST) is None:
                    _publish(cut, path, require)
        except Busy:
            check()
            time.sleep(WAIT_SECONDS)


def _publish(cut: _Cut, path: Address, require: Callable[[], None]) -> None:
    """Write a catalog here first, and then at its address, its manifest last."""
    local = cache_folder() / "inner" / local_name(path.text)
    try:
        remove(local)
        _write(cut, local)
        for shard in sorted((local / SHARDS).iterdir()):
            require()
            write(path / SHARDS / shard.name, shard.read_bytes())
        require()
        write(path / MANIFEST, (local / MANIFEST).read_bytes())
    finally:
        remove(local)


def _write(cut: _Cut, path: Path) -> None:
    source = cut.source
    if source.card.role != "source":
        raise BenchmdError(
            f"{source.path} is a catalog of the target {source.dataset}: a search never sees a "
            "target. Name the source's catalog."
        )
    splits = _splits(source, cut.labelled)
    for split in splits:
        source.require_split(split)
        source.require_unaltered(split)
    records = _records(source, cut.barred, cut.labelled)
    sides = _sides(records, _validation(cut, records), sum(map(source.rows, splits)))
    partial = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{path.name}")
    with removed_on_failure(partial, path):
        parts: list[dict[str, Any]] = []
        first = 0
        for split in splits:
            for table in source.tables(split):
                rows = slice(first, first + len(table))
                cuts = {side: _of_side(table, side, mask[rows]) for side, mask in sides.items()}
                parts += _written(cuts, len(parts), partial, source.card)
                first += len(table)
        origin = origin_in(source.manifest) | {"quarantined": []}
        origin["plan"] = cut.plan
        manifest = manifest_of(source.card, origin, sorted(parts, key=lambda part: part["name"]))
        del manifest["digest"]  # that of what is written, as verification expects
        manifest["inner_of"] = source.digest
        write_json(partial / MANIFEST, manifest | {"digest": digest(manifest)})
        os.replace(partial, path)


def seen_splits(source: Catalog) -> tuple[str, ...]:
    """Splits of a source that a search sees."""
    rows = {split: source.rows(split) for split in source.manifest["splits"]}
    return splits_seen(rows, source.evaluation_splits)


def splits_seen(rows: Mapping[str, int], scored: Collection[str]) -> tuple[str, ...]:
    """Splits that a search sees: ``train``, and ``validation`` where no result is scored on it.

    `rows` are the records of each split.
    """
    has_validation = rows.get("validation") and "validation" not in scored
    return ("train", "validation") if has_validation else ("train",)


def _splits(source: Catalog, labelled: Labelled | None) -> tuple[str, ...]:
    return seen_splits(source) if labelled is None else ("train",)


def _records(source: Catalog, barred: frozenset[str], labelled: Labelled | None) -> pa.Table:
    """Patient, target and row of the records that a search uses, rows counted over its splits."""
    splits, columns = _splits(source, labelled), ["group_id", "target"]
    records = pa.concat_tables(split_table(source, split, columns) for split in splits)
    records = records.append_column("row", pa.array(np.arange(len(records))))
    if labelled is not None:
        records = records.take(_labelled_rows(source, records, labelled))
    return records.filter(pc.invert(_is_in(records["group_id"], barred)))


def _labelled_rows(source: Catalog, records: pa.Table, labelled: Labelled) -> pa.Array:
    """Rows of the training split that a run of a few-label setting trains on."""
    if source.task.segments:
        raise BenchmdError(
            f"the task of {source.dataset} is a segmentation, and a mask is not a label of one "
            "class: search finetune-full, which uses all masks."
        )
    targets = targets_of(records["target"], source.card.target)
    return pa.array(label_subset(targets, labelled.per_class, source.task.kind, labelled.seed))


def _is_in(column: pa.ChunkedArray, values: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(column, pa.array(sorted(values), pa.string()))


def _sides(
    records: pa.Table, patients: frozenset[str], rows: int
) -> dict[str, npt.NDArray[np.bool_]]:
    """Which of all rows of the splits that are seen are on each side; ``rows`` is their number."""
    inside = _is_in(records["group_id"], patients)
    sides = {}
    for side, mask in (("train", pc.invert(inside)), ("validation", inside)):
        sides[side] = np.zeros(rows, bool)
        sides[side][records["row"].filter(mask).to_numpy()] = True
    return sides


def _of_side(table: pa.Table, side: str, mask: npt.NDArray[np.bool_]) -> pa.Table:
    rows = table.filter(pa.array(mask)).combine_chunks()
    place = table.schema.get_field_index("split")
    split = pa.array([side] * len(rows), pa.string())
    return rows.set_column(place, rows.schema.field(place), split)


def _written(
    sides: Mapping[str, pa.Table], number: int, folder: Path, card: DatasetCard
) -> list[dict[str, Any]]:
    """Write the rows of each side of a shard, and give the manifest's parts."""
    parts = []
    for side, rows in sides.items():
        if len(rows):
            name = f"{side}-{number:05d}"
            about = {"name": name, "split": side, "rows": len(rows)}
            parts.append(about | shard_part(rows, folder / SHARDS / f"{name}.parquet", card))
    return parts


def validation_patients(
    source: Catalog,
    evaluation: int = 0,
    *,
    barred: frozenset[str] = frozenset(),
    labelled: Labelled | None = None,
) -> frozenset[str]:
    """Patients of an inner validation split, classes in balance; arguments as in `inner_catalog`.

    Raises:
        BenchmdError: There are too few patients to cut.
    """
    cut = _Cut(source, evaluation, barred, labelled)
    return _validation(cut, _records(source, barred, labelled))


def _validation(cut: _Cut, records: pa.Table) -> frozenset[str]:
    groups = np.array(records["group_id"].to_pylist(), np.str_)
    target = cut.source.card.target
    targets = targets_of(records["target"], target)
    positive = target.present(targets)
    classes = rarest_class(positive)
    patients = len(np.unique(groups))
    most = min(FOLDS, patients, int(np.bincount(classes, minlength=1).max()))
    if most < 2:
        raise _too_few(cut, len(groups), patients)
    repeat, place = divmod(cut.evaluation, FOLDS)
    for parts in (*range(most, 1, -1), most):
        again, fold = divmod(place, parts)  # where there are fewer folds they are cut anew
        folds = balanced_folds(groups, classes, parts, SEED + repeat + AGAIN * again)
        if cut.source.task.segments or all(_can_be_ranked(targets[rows]) for rows in folds):
            break
    return frozenset(groups[folds[fold]].tolist())


def _can_be_ranked(targets: npt.NDArray[np.int8]) -> bool:
    """Whether some class has a positive and a negative record, (records, classes)."""
    return bool(((targets == 1).any(axis=0) & (targets == 0).any(axis=0)).any())


def _too_few(cut: _Cut, records: int, patients: int) -> BenchmdError:
    of, remedies = "", ["use a source with more patients"]
    if cut.labelled is not None:
        labels = count_of(cut.labelled.per_class, "label")
        of += f", with {labels} per class by seed {cut.labelled.seed},"
        remedies.append("search a setting with more labels")
    if cut.barred:
        of += f" without the {count_of(len(cut.barred), 'patient')} scored later"
        remedies.append("build the catalogs with --policy clean")
    return BenchmdError(
        f"the training split of {cut.source.path}{of} has {count_of(records, 'record')} of "
        f"{count_of(patients, 'patient')}, too few to cut an inner validation split from: expected "
        f"two patients or more with a class in common. To search, {', or '.join(remedies)}."
    )
