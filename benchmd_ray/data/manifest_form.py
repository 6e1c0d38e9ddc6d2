"""What a manifest looks like: it is checked whenever one is read, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from benchmd_ray.data.cards import DatasetCard, card_of
from benchmd_ray.data.provenance import Provenance
from benchmd_ray.data.raw import GroupedBy
from benchmd_ray.data.splits import FOLDS
from benchmd_ray.errors import BenchmdError, count_of, shown
from benchmd_ray.schema.typed import Count, Finite, form_fault

SHARDS = "shards"
SHARD = r"[a-z]{1,20}-\d{5,9}\.parquet"
"""What a shard's file is named like."""
SPLIT = r"[a-z]{1,20}"
"""What a split is named like."""
Counts = dict[str, Count]


class RawForm(TypedDict):
    """The raw files that a catalog was built from."""

    records: Count
    expected: Count
    missing: Count
    grouped_by: GroupedBy
    provenance: Provenance


class QuarantinedForm(TypedDict):
    """A record that could not be read."""

    record: str
    file: str | None
    reason: str


class SplitForm(TypedDict):
    """A split, with the records and units of each class and condition."""

    records: Count
    units: Count
    patients: Count
    classes: Counts
    unit_classes: NotRequired[Counts]
    conditions: NotRequired[Counts]


class ShardForm(TypedDict):
    """A file of rows of one split."""

    file: Annotated[str, Field(pattern=rf"^{SHARDS}/{SHARD}$")]
    split: str
    rows: Annotated[int, Field(gt=0)]
    bytes: Annotated[int, Field(gt=0, lt=2**53)]
    sha256: str


class StatisticsForm(TypedDict):
    """Of each channel over the training records."""

    mean: list[Finite]
    std: list[Finite]


class FoldsForm(TypedDict):
    """The folds of a catalog that is cross-validated."""

    leave_one_out: bool
    patients: Annotated[list[Annotated[list[str], Field(min_length=1)]], Field(min_length=2)]
    """Hashed patients of each fold."""


class HeldOutFoldForm(TypedDict):
    """Which fold of which catalog is the test split of a fold's catalog."""

    number: Annotated[int, Field(ge=0, lt=1000)]
    folds: Annotated[int, Field(ge=2, le=1000)]
    leave_one_out: bool
    catalog: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Digest of the catalog that was cut into folds."""


ID_KEY_DIGEST = "id_key_digest"
"""Of a manifest whose patients are hashed by a secret: `records.id_key_digest`."""


class ManifestForm(TypedDict):
    """What a manifest holds at least."""

    card: dict[str, Any]
    policy: Literal["clean", "released"]
    plan: str
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    options: dict[str, str]
    held_out: list[str]
    layout: str
    raw: RawForm
    excluded: Counts
    warnings: Counts
    quarantined: list[QuarantinedForm]
    splits: dict[Annotated[str, Field(pattern=f"^{SPLIT}$")], SplitForm]
    shards: list[ShardForm]
    statistics: StatisticsForm | None
    id_key_digest: NotRequired[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]]
    folds: NotRequired[FoldsForm]
    held_out_fold: NotRequired[HeldOutFoldForm]


def described(manifest: Mapping[str, Any]) -> tuple[DatasetCard | None, str]:
    """The card that a manifest holds, None without one; and its fault, empty if there is none."""
    if fault := form_fault(ManifestForm, manifest):
        return None, fault
    try:
        card = card_of(manifest["card"], "its card")
    except BenchmdError as error:
        return None, str(error).rstrip(".")
    return card, _fault(manifest, card)


def _fault(manifest: Mapping[str, Any], card: DatasetCard) -> str:
    """What does not agree with the card, or the shards with the splits."""
    if card.layouts and manifest["layout"] not in card.layouts:
        return f"its layout {shown(manifest['layout'])} is not one of {card.name}"
    if manifest["policy"] not in card.evaluation_splits:
        return f"its policy {shown(manifest['policy'])} is not one of {card.name}"
    for name in manifest["options"]:
        if name not in card.options:
            return f"its option {shown(name)} is not one of {card.name}"
    for name, split in manifest["splits"].items():
        for key in ("classes", "unit_classes"):
            if tuple(split.get(key, card.classes)) != card.classes:
                return f"the {key} of its split {name} are not those of {card.name}"
    if fold := manifest.get("held_out_fold"):
        if fold["number"] >= fold["folds"]:
            return f"it is the fold {fold['number']} of {fold['folds']}, counted from 0"
    patients = [name for fold in manifest.get("folds", {}).get("patients", ()) for name in fold]
    if len(set(patients)) < len(patients):
        return "a patient is in two of its folds"
    if ("folds" in manifest) != (FOLDS in manifest["splits"]):
        return f"it has the split {FOLDS} without folds, or folds without that split"
    channels = card.signal.stored_shape[0]
    statistics = manifest["statistics"] or {}
    if any(len(statistics[key]) != channels for key in ("mean", "std") if statistics):
        return f"its statistics are not those of {count_of(channels, 'channel')}"
    return _shards_fault(manifest)


def _shards_fault(manifest: Mapping[str, Any]) -> str:
    """Shards whose rows are not those of the splits."""
    shards, rows = manifest["shards"], dict.fromkeys(manifest["splits"], 0)
    for shard in shards:
        file, split = shard["file"], shard["split"]
        if split not in rows or not file.startswith(f"{SHARDS}/{split}-"):
            return f"its shard {file} is of an odd split, {shown(split)}"
        rows[split] += shard["rows"]
    stated = {name: split["records"] for name, split in manifest["splits"].items()}
    if rows != stated or len({shard["file"] for shard in shards}) != len(shards):
        return "the rows of its shards are not those of its splits"
    return ""
