"""Catalogs that tests write by hand, and manifests that they change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import MANIFEST
from benchmd_ray.data.manifest import manifest_of, shard_part
from benchmd_ray.data.records import Record, to_table
from benchmd_ray.files.atomic import digest, write_json


def write_catalog(
    path: Path,
    card: DatasetCard,
    splits: Mapping[str, Sequence[Sequence[Record]]],
    **changes: Any,
) -> Path:
    """Write a catalog whose manifest is as a build writes it, but for ``changes``.

    Args:
        path: Its folder.
        card: Card of its dataset.
        splits: Records of each shard of each split.
        changes: Values of the manifest.
    """
    parts = []
    for split, shards in splits.items():
        for number, records in enumerate(shards):
            name = f"{split}-{number:05d}"
            table = to_table(list(records), split, card)
            part = {"name": name, "split": split, "rows": len(table)}
            parts.append(part | shard_part(table, path / "shards" / f"{name}.parquet", card))
    write_manifest(path, manifest_of(card, origin(card, path), parts) | changes)
    return path


def origin(card: DatasetCard, path: Path) -> dict[str, Any]:
    """How a made catalog was built; no two folders have the same digest."""
    return {
        "policy": "clean",
        "options": {name: option.default for name, option in card.options.items()},
        "held_out": [],
        "layout": next(iter(card.layouts)),
        "plan": str(path),
        "raw": {
            "records": 9,
            "expected": 9,
            "missing": 0,
            "grouped_by": "patient",
            "provenance": "whole",
        },
        "excluded": {},
        "warnings": {},
        "quarantined": [],
    }


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest with the digest of its content."""
    content = {key: value for key, value in manifest.items() if key != "digest"}
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / MANIFEST, content | {"digest": digest(content)})


def change_manifest(path: Path, **changes: Any) -> None:
    """Change a catalog's manifest as who forges it would, with the right digest."""
    write_manifest(path, json.loads((path / MANIFEST).read_text("utf-8")) | changes)
