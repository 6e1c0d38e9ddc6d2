"""Verification of a catalog: its shards against its manifest, its counts against the card."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmd_ray.data.catalog import MANIFEST, REBUILD, REMEDY, Catalog, Shard
from benchmd_ray.data.folds import fold_catalogs
from benchmd_ray.data.holding_out import by_record
from benchmd_ray.data.manifest_form import SHARDS
from benchmd_ray.data.records import HELD_OUT, SEPARATOR, positives_per_unit, targets_of
from benchmd_ray.data.resident import patients_of
from benchmd_ray.data.splits import FOLDS
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.modality.tasks import Target
from benchmd_ray.storage.location import entries

FEW_PATIENTS = 10
"""Patients of a split below which there is a caution."""


@dataclass(frozen=True)
class Verification:
    """What `verify` found."""

    faults: tuple[str, ...]
    """What makes the catalog unusable."""
    notes: tuple[str, ...]
    """Departures from the published counts, and what else a reader of results should know; none
    where there are faults."""


def verify(catalog: Catalog) -> Verification:
    """Check the shards against the manifest, and the counts against the card."""
    faults: list[str] = []
    named = {shard["file"] for shard in catalog.manifest["shards"]}
    present = {f"{SHARDS}/{name}" for name in entries(catalog.path / SHARDS)[0]}
    faults += [f"{file}: not named in {MANIFEST}; remove it" for file in sorted(present - named)]
    groups: dict[str, set[str]] = {}
    leaving: set[str] = set()
    counts: dict[str, np.ndarray[Any, Any]] = {}
    for split in catalog.manifest["splits"]:
        for shard in catalog.shards(split):
            if fault := _shard_fault(shard, split, catalog.card.target, groups, counts):
                faults.append(f"{SHARDS}/{shard.path.name}: {fault}. {REMEDY}")
            elif split == HELD_OUT:
                leaving |= _leaving(shard, catalog)
    if not faults:
        faults += _count_faults(catalog, groups, counts)
    shared = _shared_patients(groups, leaving)
    if catalog.manifest["policy"] == "clean":
        faults += [f"{both}. {REBUILD}" for both in shared]
    if "folds" in catalog.manifest and not faults:
        faults += _fold_faults(catalog, groups)
    return Verification(tuple(faults), tuple(_notes(catalog) + shared if not faults else ()))


def _fold_faults(whole: Catalog, groups: dict[str, set[str]]) -> list[str]:
    """What is wrong with the catalogs of the folds, and with the patients that they hold out."""
    folds = whole.manifest["folds"]["patients"]
    patients = [patient for fold in folds for patient in fold]
    if sorted(patients) != sorted(groups[FOLDS]):
        return [f"its folds are not each of its patients once. {REBUILD}"]
    try:
        catalogs = fold_catalogs(whole)
    except BenchmdError as error:
        return [str(error)]
    faults = []
    for number, (catalog, held_out) in enumerate(zip(catalogs, folds, strict=True)):
        faults += [f"fold {number}: {fault}" for fault in verify(catalog).faults]
        rows = sum(map(catalog.rows, catalog.manifest["splits"]))
        if not faults and (
            rows != whole.rows(FOLDS) or patients_of(catalog, ["test"]) != {*held_out}
        ):
            faults.append(f"fold {number} does not hold out its patients. {REBUILD}")
    return faults


def _shard_fault(
    shard: Shard,
    split: str,
    target: Target,
    groups: dict[str, set[str]],
    counts: dict[str, np.ndarray[Any, Any]],
) -> str | None:
    """What is wrong with a shard; adds its patients and class counts."""
    try:
        table = shard.table(["group_id", "unit_id", "split", "target", "held_out"])
    except Damaged as error:
        return error.why
    if len(table) != shard.rows or set(table["split"].to_pylist()) != {split}:
        return f"holds {len(table)} rows, the manifest says {shard.rows} of split {split}"
    if split != HELD_OUT and table["held_out"].null_count != len(table):
        return f"holds records that are held out in the split {split}"
    groups.setdefault(split, set()).update(table["group_id"].to_pylist())
    values = targets_of(table["target"], target)
    if target.is_mask and (fault := target.fault(values)):
        return fault
    positive = target.present(values)
    units = positives_per_unit(table, positive)
    counts[split] = counts.get(split, 0) + np.stack([positive.sum(axis=0), units])
    return None


def _leaving(shard: Shard, catalog: Catalog) -> set[str]:
    """Patients of held-out records who may be in no other split; see `data.holding_out`."""
    rows = shard.table(["group_id", "held_out"]).to_pydict()
    states = by_record(catalog.card, catalog.held_out)
    return {
        group
        for group, text in zip(rows["group_id"], rows["held_out"], strict=True)
        if not text or {*text.split(SEPARATOR)} - states
    }


def _count_faults(
    catalog: Catalog, groups: dict[str, set[str]], counts: dict[str, np.ndarray[Any, Any]]
) -> list[str]:
    faults = []
    for split, stated in catalog.manifest["splits"].items():
        records, units = (
            dict(zip(catalog.card.classes, row, strict=True)) for row in counts[split].tolist()
        )
        rows = sum(shard.rows for shard in catalog.shards(split))
        stated_sizes = (stated["records"], stated["patients"])
        sizes = (rows, len(groups[split]))
        stated_units = stated.get("unit_classes", units)
        if (records, units, sizes) != (stated["classes"], stated_units, stated_sizes):
            faults.append(
                f"split {split}: the shards' counts are not those of {MANIFEST}. {REBUILD}"
            )
    return faults


def _shared_patients(groups: dict[str, set[str]], leaving: set[str]) -> list[str]:
    """Pairs of splits that share patients.

    Only held-out patients in `leaving` may be in no other split; others just not in training.
    """
    names = sorted(groups)
    shared = []
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            both = groups[first] & groups[second]
            if HELD_OUT in (first, second) and "train" not in (first, second):
                both &= leaving
            if both:
                shared.append(f"{first} and {second} share {count_of(len(both), 'patient')}")
    return shared


def cautions(catalog: Catalog) -> list[str]:
    """What training on a source, or scoring a catalog, will meet: few patients, empty classes.

    A class without records in a target's published counts is not named.
    """
    card, splits = catalog.card, catalog.manifest["splits"]
    needed = ["train", "validation"] if card.role == "source" else []
    needed += [name for name in card.evaluation_splits[catalog.manifest["policy"]] if not needed]
    needed = [] if "folds" in catalog.manifest else needed
    cautions = [
        f"no record is in {split}, without which {card.name} cannot be "
        f"{'trained on' if card.role == 'source' else 'scored'}: more patients, or a card that "
        "states the splits, would give it some"
        for split in needed
        if split not in splits
    ]
    cautions += [
        f"only {count_of(count, 'patient')} in {split}, fewer than {FEW_PATIENTS}: what is scored "
        "on so few is largely chance, and its intervals are too narrow"
        for split in (FOLDS, "train", "validation", "test")
        if 0 < (count := splits.get(split, {}).get("patients", 0)) < FEW_PATIENTS
    ]
    counts = splits.get(HELD_OUT, {}).get("conditions", {})
    cautions += [
        f"no record with {name} is held out: all are of patients who train, or excluded"
        for name in catalog.manifest.get("held_out", ())
        if name not in counts
    ]
    present = {
        name for content in splits.values() for name, count in content["classes"].items() if count
    }
    published = card.expected.get(catalog.manifest["policy"], {}).values()
    stated = {name for counts in published for name, count in counts.items() if count}
    cautions += [
        f"no record of {name} is in any split: check how its labels are written"
        for name in card.classes
        if name not in present and (card.role == "source" or not stated or name in stated)
    ]
    return cautions + [
        f"no record of {name} is in {split}, so its AUROC there is not known"
        for split in ("validation", "test")
        if split in splits
        for name, count in splits[split]["classes"].items()
        if not count and name in present
    ]


def _notes(catalog: Catalog) -> list[str]:
    manifest, card = catalog.manifest, catalog.card
    raw = manifest["raw"]
    what = card.task.scored.removesuffix("s")
    notes = []
    if raw["records"] != raw["expected"]:
        notes.append(
            f"{count_of(raw['records'], 'raw record')}, the card expects {raw['expected']:,}"
        )
    layout = card.layouts.get(manifest["layout"])
    notes += [
        f"{split}: {count_of(catalog.rows(split), what)}, the card expects {count:,}"
        for split, count in (layout.splits if layout else {}).items()
        if catalog.rows(split) != count
    ]
    if raw["missing"]:
        notes.append(f"{count_of(raw['missing'], 'file')} named in its tables but missing")
    if raw["grouped_by"] != "patient":
        notes.append(f"no patient IDs: every {raw['grouped_by']} is treated as a separate patient")
    notes += [
        f"{count_of(count, what)}: {warning}" for warning, count in manifest["warnings"].items()
    ]
    notes += [
        f"{split} holds no record of {name}"
        for split, counts in manifest["splits"].items()
        for name, count in counts["classes"].items()
        if not count and split != HELD_OUT
    ]
    for split, expected in card.expected.get(manifest["policy"], {}).items():
        counts = _counts(manifest["splits"], split)
        notes += [
            f"{split}, {name}: {count_of(counts[name], what)}, published {count:,} "
            f"({counts[name] - count:+,}{f', {counts[name] / count - 1:+.1%}' if count else ''})"
            for name, count in expected.items()
            if counts[name] != count
        ]
    return notes


def _counts(splits: dict[str, Any], split: str) -> Counter[str]:
    """Records (scans of CT) per class of a split, or of all when it is ``total``."""
    counts: Counter[str] = Counter()
    for name, content in splits.items():
        if split in (name, "total"):
            counts.update(content.get("unit_classes", content["classes"]))
    return counts
