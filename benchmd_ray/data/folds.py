"""Cross-validation of a small dataset: each fold of patients is scored by a model of the others.

The catalog of such a dataset has all records in the split `FOLDS`, which nothing is trained on. Its
folder `FOLDER` has an ordinary catalog for each fold: the patients of the fold are ``test``, the
others are cut into ``train`` and ``validation``, by patient and with classes in balance.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import MANIFEST, Catalog, open_catalog
from benchmd_ray.data.manifest import manifest_of, origin_in, shard_part
from benchmd_ray.data.manifest_form import SHARD, SHARDS
from benchmd_ray.data.records import targets_of
from benchmd_ray.data.resident import patients_of, split_table
from benchmd_ray.data.splits import FOLDS, balanced_folds, folds_by_patient, rarest_class
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.files.atomic import digest, json_bytes
from benchmd_ray.storage.location import Location, delete, entries, write

VERSION = 1
"""Raised whenever other folds or cuts are made of the same records."""
FOLDER = "folds"
CUTS = 5
"""Of those who are not held out, one patient of so many is in ``validation``."""
SEED = 18
MOST_LEFT_OUT = 100
"""Most patients of a leave-one-out: each has a model and a catalog."""
Sides = dict[str, frozenset[str]]
"""Patients of each split of a fold's catalog."""


def with_folds(
    out: Location, manifest: dict[str, Any], card: DatasetCard, require_alone: Callable[[], None]
) -> dict[str, Any]:
    """Write the catalogs of all folds, and give the manifest of the whole with its folds.

    Args:
        out: Folder of the catalog, whose shards are written.
        manifest: The whole's, without folds.
        card: The card, which asks for folds.
        require_alone: Raises if another process has taken over.

    Raises:
        BenchmdError: There are too few patients, or a fold's training would lack a class.
    """
    assert card.files is not None  # else nothing asks for folds
    whole = Catalog(out, manifest, card)
    records = split_table(whole, FOLDS, ["group_id", "target"]).sort_by("group_id")
    groups = np.array(records["group_id"].to_pylist(), np.str_)
    positive = card.target.present(targets_of(records["target"], card.target))
    folds = _folds(card, groups, positive)
    sides = [_sides(card, groups, positive, held_out) for held_out in folds]
    stated = {"leave_one_out": not card.files.folds, "patients": folds}
    manifest = {key: value for key, value in manifest.items() if key != "digest"}
    manifest |= {"folds": stated}
    manifest |= {"digest": digest(manifest)}
    whole = Catalog(out, manifest, card)
    _clear(out)
    for number, of_fold in enumerate(sides):
        require_alone()
        _write(whole, number, of_fold)
    require_alone()
    return manifest


def _folds(
    card: DatasetCard, groups: npt.NDArray[np.str_], positive: npt.NDArray[np.bool_]
) -> list[list[str]]:
    """Patients of each fold."""
    assert card.files is not None
    patients, asked = sorted(set(groups.tolist())), card.files.folds
    if len(patients) < max(asked or 0, 3):
        raise BenchmdError(
            f"{card.name} has {count_of(len(patients), 'patient')}, too few for "
            f"{asked or len(patients)} folds: expected {max(asked or 0, 3)} or more."
        )
    if not asked and len(patients) > MOST_LEFT_OUT:
        raise BenchmdError(
            f"{card.name} has {len(patients):,} patients, and leave_one_out trains a model and "
            f"stores a catalog for each: expected at most {MOST_LEFT_OUT}. State splits: "
            "{cross_validation: 5} in its card."
        )
    if not asked:
        return [[patient] for patient in patients]
    labels = [[card.classes[at] for at in np.flatnonzero(row)] for row in positive]
    return folds_by_patient(card.name, groups.tolist(), labels, asked)


def _sides(
    card: DatasetCard,
    groups: npt.NDArray[np.str_],
    positive: npt.NDArray[np.bool_],
    held_out: Sequence[str],
) -> Sides:
    """Patients of each split of a fold, with all classes in training.

    Of the cuts of the others the first is taken that leaves training every class, and whose
    validation tells some class from the others.
    """
    others = ~np.isin(groups, held_out)
    classes = rarest_class(positive[others])
    parts = min(CUTS, len(set(groups[others].tolist())))
    cuts = balanced_folds(groups[others], classes, parts, SEED)
    wanted = positive.any(axis=0)
    for cut in cuts:
        inside = np.zeros(len(classes), bool)
        inside[cut] = True
        trained, chosen = positive[others][~inside], positive[others][inside]
        if (trained.any(axis=0) >= wanted).all() and (
            chosen.any(axis=0) & ~chosen.all(axis=0)
        ).any():
            validation = frozenset(groups[others][inside].tolist())
            train = frozenset(groups[others].tolist()) - validation
            return {"train": train, "validation": validation, "test": frozenset(held_out)}
    counts = Counter(
        name for at, name in enumerate(card.classes) for _ in set(groups[positive[:, at]].tolist())
    )
    few = min((name for name in card.classes if counts[name]), key=lambda name: counts[name])
    raise BenchmdError(
        f"without {count_of(len(held_out), 'patient')} of a fold, {card.name} cannot be cut into "
        "training with every class and validation with two: the rarest class, "
        f"{few}, is of {count_of(counts[few], 'patient')}. Expected 3 or more of each class: "
        "add patients, or leave the class out by class_mapping."
    )


def foreign_to(out: Location) -> list[Location]:
    """What no build wrote in the folders of folds; links lead to other people's files."""
    places = [out / FOLDER / name for name in entries(out / FOLDER)[1]]
    links = [place for place in (out / FOLDER, *places) if _is_link(place)]
    found: list[Location] = list(links)
    for place in places if not links else ():
        files, folders = entries(place)
        found += [place / name for name in (*files, *folders) if name not in (MANIFEST, SHARDS)]
        shards, below = entries(place / SHARDS)
        found += [place / SHARDS / name for name in shards if not re.fullmatch(SHARD, name)]
        found += [place / SHARDS / name for name in below]
        found += [place / SHARDS] if _is_link(place / SHARDS) else []
    return found


def _is_link(place: Location) -> bool:
    return isinstance(place, Path) and place.is_symlink()


def _clear(out: Location) -> None:
    """Delete what an earlier build wrote of folds."""
    for name in entries(out / FOLDER)[1]:
        for place in (out / FOLDER / name, out / FOLDER / name / SHARDS):
            delete(place / file for file in entries(place)[0])


def _write(whole: Catalog, number: int, sides: Sides) -> None:
    """Write the catalog of a fold, its manifest last."""
    path, card = whole.path / FOLDER / str(number), whole.card
    parts: list[dict[str, Any]] = []
    for table in whole.tables(FOLDS):
        for side, patients in sides.items():
            rows = table.filter(_is_in(table["group_id"], patients)).combine_chunks()
            if not len(rows):
                continue
            place = rows.schema.get_field_index("split")
            split = pa.array([side] * len(rows), pa.string())
            rows = rows.set_column(place, rows.schema.field(place), split)
            before = sum(part["split"] == side for part in parts)
            name = f"{side}-{before:05d}"
            about = {"name": name, "split": side, "rows": len(rows)}
            parts.append(about | shard_part(rows, path / SHARDS / f"{name}.parquet", card))
    origin = origin_in(whole.manifest) | {"quarantined": []}
    origin["plan"] = digest(["fold", VERSION, whole.digest, number])
    origin["held_out_fold"] = _held_out(whole, number)
    manifest = manifest_of(card, origin, sorted(parts, key=lambda part: part["name"]))
    write(path / MANIFEST, json_bytes(manifest))


def _is_in(column: pa.ChunkedArray, values: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(column, pa.array(sorted(values), pa.string()))


def fold_catalogs(whole: Catalog) -> list[Catalog]:
    """The catalogs of all folds, in order.

    Raises:
        BenchmdError: One is missing, damaged or of another catalog.
    """
    catalogs = []
    for number in range(len(whole.manifest["folds"]["patients"])):
        catalog = open_catalog(whole.path / FOLDER / str(number))
        if not _is_fold_of(whole, catalog, number):
            raise BenchmdError(
                f"{catalog.path} is not the fold {number} of {whole.path}: run its "
                "`benchmd catalog build` again."
            )
        catalogs.append(catalog)
    return catalogs


def _is_fold_of(whole: Catalog, catalog: Catalog, number: int) -> bool:
    """Whether a catalog is that of a fold, by its card, its policy and its test patients."""
    if catalog.held_out_fold != _held_out(whole, number):
        return False
    alike = (catalog.card, catalog.manifest["policy"]) == (whole.card, whole.manifest["policy"])
    held_out = set(whole.manifest["folds"]["patients"][number])
    return alike and patients_of(catalog, ["test"]) == held_out


def _held_out(whole: Catalog, number: int) -> dict[str, Any]:
    """What the catalog of a fold states of it."""
    stated = whole.manifest["folds"]
    return {
        "number": number,
        "folds": len(stated["patients"]),
        "leave_one_out": stated["leave_one_out"],
        "catalog": whole.digest,
    }


def are_whole(whole: Catalog) -> bool:
    """Whether the catalogs of all folds are there, with their shards."""
    try:
        return not any(catalog.altered_shards() for catalog in fold_catalogs(whole))
    except BenchmdError:
        return False


def sentence(whole: Catalog) -> str:
    """``5-fold cross-validation by patient: 780 records of 780 patients, 156 a fold``."""
    stated, counts = whole.manifest["folds"], whole.manifest["splits"][FOLDS]
    sizes = sorted(map(len, stated["patients"]))
    whole_text = f"{count_of(counts['records'], 'record')} of {counts['patients']:,} patients"
    if stated["leave_one_out"]:
        return f"leave-one-out by patient: {whole_text}, {len(sizes)} folds"
    each = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} or {sizes[-1]:,}"
    return f"{len(sizes)}-fold cross-validation by patient: {whole_text}, {each} a fold"
