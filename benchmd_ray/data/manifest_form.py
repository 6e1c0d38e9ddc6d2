"""What a manifest looks like: it is checked whenever one is read, whoever wrote it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from benchmd_ray.data.cards import POLICIES, DatasetCard, card_of
from benchmd_ray.data.provenance import PROVENANCES
from benchmd_ray.data.raw import GroupedBy
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.files.integrity import Kinds, kinds_fault

SHARDS = "shards"
SHARD = r"[a-z]{1,20}-\d{5,9}\.parquet"
"""What a shard's file is named like."""
SPLIT = r"[a-z]{1,20}"
"""What a split is named like."""
KINDS: Kinds = {
    "card": dict,
    "policy": str,
    "plan": str,
    "digest": str,
    "options": dict,
    "held_out": list,
    "layout": str,
    "raw": dict,
    "excluded": dict,
    "warnings": dict,
    "quarantined": list,
    "splits": dict,
    "shards": list,
    "statistics": (dict, type(None)),
}
"""What a manifest holds at least, and its types."""
_RAW: Kinds = {
    "records": int,
    "expected": int,
    "missing": int,
    "grouped_by": str,
    "provenance": str,
}
_QUARANTINED: Kinds = {"record": str, "file": (str, type(None)), "reason": str}
_SPLIT: Kinds = {"records": int, "units": int, "patients": int, "classes": dict}
_SHARD: Kinds = {"file": str, "split": str, "rows": int, "bytes": int, "sha256": str}


def described(manifest: Mapping[str, Any]) -> tuple[DatasetCard | None, str]:
    """The card that a manifest holds, and what in it is not as a build writes it.

    Args:
        manifest: A JSON object.

    Returns:
        None where there is no card to be read; an empty text where all is as a build writes it.
    """
    if fault := kinds_fault(manifest, KINDS):
        return None, fault
    try:
        card = card_of(manifest["card"], "its card")
    except BenchmdError as error:
        return None, str(error).rstrip(".")
    return card, _fault(manifest, card)


def _fault(manifest: Mapping[str, Any], card: DatasetCard) -> str:
    return (
        _origin_fault(manifest, card)
        or _splits_fault(manifest, card)
        or _shards_fault(manifest)
        or _statistics_fault(manifest["statistics"], card.signal.stored_shape[0])
    )


def _origin_fault(manifest: Mapping[str, Any], card: DatasetCard) -> str:
    """What is wrong with what a manifest says of its dataset and of how it was built."""
    if not re.fullmatch(r"[0-9a-f]{64}", manifest["digest"]):
        return "its digest is not a SHA-256"
    if manifest["policy"] not in POLICIES:
        return f"its policy {shown(manifest['policy'])} is unknown"
    if card.layouts and manifest["layout"] not in card.layouts:
        return f"its layout {shown(manifest['layout'])} is not one of {card.name}"
    for name, value in manifest["options"].items():
        if name not in card.options or not isinstance(value, str):
            return f"its option {shown(name)} is not one of {card.name}, or not text"
    if not all(isinstance(name, str) for name in manifest["held_out"]):
        return "a condition that it holds out is not text"
    if fault := kinds_fault(manifest["raw"], _RAW, "raw"):
        return fault
    if manifest["raw"]["grouped_by"] not in get_args(GroupedBy):
        return f"its records are grouped by {shown(manifest['raw']['grouped_by'])}"
    if manifest["raw"]["provenance"] not in PROVENANCES:
        return f"its provenance is {shown(manifest['raw']['provenance'])}"
    for entry in manifest["quarantined"]:
        if fault := kinds_fault(entry, _QUARANTINED, "quarantined"):
            return fault
    for name in ("excluded", "warnings"):
        if not _are_counts(manifest[name]):
            return f"its {name} have a count that is not an integer"
    return ""


def _splits_fault(manifest: Mapping[str, Any], card: DatasetCard) -> str:
    for name, split in manifest["splits"].items():
        if not re.fullmatch(SPLIT, name):
            return f"it names an odd split, {shown(name)}"
        if fault := kinds_fault(split, _SPLIT, f"the split {name}"):
            return fault
        if not _are_counts(split.get("conditions", {})):
            return f"the conditions of its split {name} are not counts"
        for key in ("classes", "unit_classes"):
            counts = split.get(key, dict.fromkeys(card.classes, 0))
            if not _are_counts(counts) or tuple(counts) != card.classes:
                return f"the {key} of its split {name} are not counts of those of {card.name}"
    return ""


def _are_counts(counts: object) -> bool:
    """Whether each value of a mapping is a whole number."""
    return isinstance(counts, dict) and all(type(count) is int for count in counts.values())


def _shards_fault(manifest: Mapping[str, Any]) -> str:
    """Odd shards; and shards whose rows are not those of the splits."""
    rows = dict.fromkeys(manifest["splits"], 0)
    names = set()
    for shard in manifest["shards"]:
        if fault := kinds_fault(shard, _SHARD, "a shard"):
            return fault
        file, split = shard["file"], shard["split"]
        if not re.fullmatch(rf"{SHARDS}/{SHARD}", file):
            return f"it names an odd shard, {shown(file)}"
        if split not in rows or not file.startswith(f"{SHARDS}/{split}-"):
            return f"its shard {file} is of an odd split, {shown(split)}"
        if min(shard["rows"], shard["bytes"]) <= 0:
            return f"its shard {file} has {shard['rows']} rows"
        rows[split] += shard["rows"]
        names.add(file)
    stated = {name: split["records"] for name, split in manifest["splits"].items()}
    if rows != stated or len(names) != len(manifest["shards"]):
        return "the rows of its shards are not those of its splits"
    return ""


def _statistics_fault(statistics: Mapping[str, Any] | None, channels: int) -> str:
    for key in ("mean", "std") if statistics is not None else ():
        values = statistics.get(key)  # type: ignore[union-attr]
        numbers = values if isinstance(values, list) else []
        finite = [v for v in numbers if isinstance(v, int | float) and abs(v) < 2**63]
        if len(finite) != channels or finite != values:
            return f"its statistics have no {key} of {channels} finite numbers"
    return ""
