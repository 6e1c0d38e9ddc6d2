"""The inner catalogs of a source: all that a search sees of it (decision D18).

Each evaluation of the same settings uses another inner catalog: it trains on ``train`` and is
scored on ``validation``. Both are cut by patient, with classes in balance, from the source's
training split, and from its validation split where no result is scored on that (MedMNIST). `FOLDS`
evaluations hold every patient once in ``validation``; the next ones cut anew. With too few patients
or classes for all folds, evaluations of another cut fill up.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import MANIFEST, Catalog, open_catalog
from benchmd_ray.data.manifest import ORIGIN, manifest_of, shard_part
from benchmd_ray.data.manifest_form import SHARDS
from benchmd_ray.data.records import targets_of
from benchmd_ray.data.resident import split_table
from benchmd_ray.data.splits import balanced_folds, rarest_class
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
"""How often a machine looks whether another one has written a catalog on S3."""
SEED = 18
"""Of the first cut; the same for all searches, so that all are scored on the same patients."""


def inner_catalog(
    source: Catalog,
    folder: Location,
    evaluation: int = 0,
    check: Callable[[], None] = lambda: None,
) -> Catalog:
    """An inner catalog of a source, written unless it exists; reads no split that is scored.

    ``folder`` is that of inner catalogs; ``evaluation`` counts a search's evaluations of the same
    settings from 0 on. ``check`` is called while another machine writes it; raises where waiting
    is to end.

    Raises:
        BenchmdError: It is not a source, has too few patients or an altered shard, the disk is
            full, or the bucket cannot be reached.
    """
    of = f"{source.dataset}-{source.manifest['policy']}-{source.digest[:12]}"
    path = folder / f"{of}-v{PARTS[PART].version}-{evaluation:03d}"
    if isinstance(path, Path):
        _write_once(source, path, evaluation)
    else:
        _publish_once(source, path, evaluation, check)
    catalog = open_catalog(path)
    stated = (catalog.manifest.get("inner_of"), catalog.manifest["plan"])
    if stated != (source.digest, _plan(source, evaluation)):
        raise BenchmdError(
            f"{path} is not an inner catalog of {source.path}: remove that folder and run again."
        )
    return catalog


def _write_once(source: Catalog, path: Path, evaluation: int) -> None:
    with locked(path.with_name(f".lock-{path.name}"), f"the inner catalog {path}", wait=True):
        if not (path / MANIFEST).is_file():
            for leftover in path.parent.glob(f"{TEMPORARY}*-{path.name}"):
                remove(leftover)
            _write(source, path, evaluation)


def _publish_once(
    source: Catalog, path: Address, evaluation: int, check: Callable[[], None]
) -> None:
    """Write a catalog at its address, unless it exists; one machine does, and others wait."""
    what = f"the inner catalog {path}"
    while read(path / MANIFEST) is None:
        try:
            with alone(path, what, ()) as require:
                if read(path / MANIFEST) is None:
                    _publish(source, path, evaluation, require)
        except Busy:
            check()
            time.sleep(WAIT_SECONDS)


def _publish(source: Catalog, path: Address, evaluation: int, require: Callable[[], None]) -> None:
    """Write a catalog here first, and then at its address, its manifest last."""
    local = cache_folder() / "inner" / local_name(path.text)
    try:
        remove(local)
        _write(source, local, evaluation)
        for shard in sorted((local / SHARDS).iterdir()):
            require()
            write(path / SHARDS / shard.name, shard.read_bytes())
        require()
        write(path / MANIFEST, (local / MANIFEST).read_bytes())
    finally:
        remove(local)


def _write(source: Catalog, path: Path, evaluation: int) -> None:
    if source.card.role != "source":
        raise BenchmdError(
            f"{source.path} is a catalog of the target {source.dataset}: a search never sees a "
            "target. Name the source's catalog."
        )
    splits = seen_splits(source)
    for split in splits:
        source.require_split(split)
        source.require_unaltered(split)
    patients = validation_patients(source, evaluation)
    partial = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{path.name}")
    with removed_on_failure(partial, path):
        parts: list[dict[str, Any]] = []
        for split in splits:
            for table in source.tables(split):
                parts += _written(_cut(table, patients), len(parts), partial, source.card)
        origin = {key: source.manifest[key] for key in ORIGIN} | {"quarantined": []}
        origin["plan"] = _plan(source, evaluation)
        manifest = manifest_of(source.card, origin, sorted(parts, key=lambda part: part["name"]))
        del manifest["digest"]  # that of what is written, as verification expects
        manifest["inner_of"] = source.digest
        write_json(partial / MANIFEST, manifest | {"digest": digest(manifest)})
        os.replace(partial, path)


def _plan(source: Catalog, evaluation: int) -> str:
    """Digest of what determines an inner catalog's records."""
    return digest(["inner", PARTS[PART].version, source.digest, FOLDS, SEED, evaluation])


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


def _cut(table: pa.Table, patients: frozenset[str]) -> dict[str, pa.Table]:
    """Training records of both sides; those of `patients` are ``validation``."""
    inside = pc.is_in(table["group_id"], pa.array(sorted(patients), pa.string()))
    place = table.schema.get_field_index("split")
    sides = {}
    for side, mask in (("train", pc.invert(inside)), ("validation", inside)):
        rows = table.filter(mask).combine_chunks()
        split = pa.array([side] * len(rows), pa.string())
        sides[side] = rows.set_column(place, rows.schema.field(place), split)
    return sides


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


def validation_patients(source: Catalog, evaluation: int = 0) -> frozenset[str]:
    """Patients of an inner validation split, classes in balance; arguments as in `inner_catalog`.

    Raises:
        BenchmdError: There are too few patients to cut.
    """
    seen = pa.concat_tables(
        split_table(source, split, ["group_id", "target"]) for split in seen_splits(source)
    )
    groups = np.array(seen["group_id"].to_pylist(), np.str_)
    target = source.card.target
    classes = rarest_class(target.present(targets_of(seen["target"], target)))
    patients = len(np.unique(groups))
    parts = min(FOLDS, patients, int(np.bincount(classes).max()))
    if parts < 2:
        raise BenchmdError(
            f"the training split of {source.path} has {count_of(len(groups), 'record')} of "
            f"{count_of(patients, 'patient')}, too few to cut an inner validation split from: "
            "expected two patients or more with a class in common."
        )
    repeat, fold = divmod(evaluation, FOLDS)
    again, fold = divmod(fold, parts)  # where there are fewer folds they are cut anew
    rows = balanced_folds(groups, classes, parts, SEED + repeat + AGAIN * again)[fold]
    return frozenset(groups[rows].tolist())
