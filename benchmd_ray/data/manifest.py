"""Write a catalog's shards, and count and sum what they hold for its manifest."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.data.cards import DatasetCard, without_build
from benchmd_ray.data.catalog import FORMAT
from benchmd_ray.data.manifest_form import ID_KEY_DIGEST, SHARDS
from benchmd_ray.data.provenance import provenance_of
from benchmd_ray.data.raw import Choices, Discovery
from benchmd_ray.data.records import (
    HELD_OUT,
    conditions,
    decode_signals,
    id_key_digest,
    positives_per_unit,
    schema,
    targets_of,
)
from benchmd_ray.files.atomic import digest, json_bytes
from benchmd_ray.modality.signals import Signal, valid_area
from benchmd_ray.storage.location import Location, write

ROW_GROUP_BYTES = 6 * 2**20
"""Signal bytes of a row group: small enough to stream, large enough to read fast."""
ORIGIN = (
    *("policy", "options", "held_out", "layout", "plan", "raw", "excluded", "warnings"),
    "quarantined",
)
"""What a manifest says of how its catalog was built, in addition to what its shards hold."""


def origin_in(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of how its catalog was built."""
    return {key: manifest[key] for key in (*ORIGIN, ID_KEY_DIGEST) if key in manifest}


def shard_part(table: pa.Table, path: Location, card: DatasetCard) -> dict[str, Any]:
    """Write a shard, and give what the manifest needs from it."""
    positive = card.target.present(targets_of(table["target"], card.target))
    return write_shard(table, path, card.signal) | {
        "groups": sorted(set(table["group_id"].to_pylist())),
        "units": len(set(table["unit_id"].to_pylist())),
        "positives": positive.sum(axis=0).tolist(),
        "positive_units": positives_per_unit(table, positive).tolist(),
        "conditions": conditions(table),
        "statistics": _sums(table, card.signal),
    }


def write_shard(table: pa.Table, path: Location, signal: Signal) -> dict[str, Any]:
    """Write a shard, whole or not at all; ``bytes`` and ``sha256`` of the file.

    Images hardly compress; time series and CT do.
    """
    target = table.schema.field("target").type
    width = table.schema.field("signal").type.byte_width
    masks = pa.types.is_fixed_size_binary(target)
    width += target.byte_width if masks else 0
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        row_group_size=max(1, ROW_GROUP_BYTES // width),
        compression="none" if signal.dtype == "uint8" and not masks else "lz4",
        use_dictionary=False,
        write_statistics=False,
    )
    data = buffer.getvalue()
    write(path, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _sums(table: pa.Table, signal: Signal) -> dict[str, list[float]]:
    """Per channel: number, sum and sum of squares of the values in physical units.

    Padding does not count, except the air behind short CT scans, which encoders see as air.
    """
    channels, *extents = signal.stored_shape
    total, squares, count = np.zeros(channels), np.zeros(channels), 0
    sizes = table["valid_size"].to_pylist()
    if signal.normaliser == "window":
        sizes = [extents] * len(sizes)
    rows = zip(
        decode_signals(table["signal"], signal), table["scale"].to_pylist(), sizes, strict=True
    )
    for stored, scale, size in rows:
        values = stored[:, *valid_area(extents, size)].reshape(channels, -1)
        total += values.sum(axis=1, dtype=np.int64) * scale
        squares += np.square(values.astype(np.float32)).sum(axis=1, dtype=np.float64) * scale**2
        count += values.shape[1]
    return {
        "count": [count] * channels,
        "sum": total.tolist(),
        "squares": squares.tolist(),
    }


def origin_of(
    card: DatasetCard,
    choices: Choices,
    plan: str,
    discovery: Discovery,
    parts: list[dict[str, Any]],
    raw: Path,
) -> dict[str, Any]:
    """How a build made a catalog of a raw folder: the values of `ORIGIN`."""
    stated = card.layouts.get(discovery.layout)
    expected = stated.records if stated else discovery.total + len(discovery.missing)
    mark, part = (stated.mark, stated.part) if stated else ("", False)
    excluded = Counter(discovery.excluded)
    warnings = Counter(discovery.warnings)
    for summary in parts:
        excluded.update(summary["excluded"])
        warnings.update(summary["warnings"])
    return {
        "policy": choices.policy,
        "options": dict(choices.options),
        "held_out": list(choices.hold_out),
        "layout": discovery.layout,
        "plan": plan,
        "raw": {
            "records": discovery.total,
            "expected": expected,
            "missing": len(discovery.missing),
            "grouped_by": discovery.grouped_by,
            "provenance": provenance_of(raw, discovery.total, expected, mark=mark, part=part),
        },
        "excluded": dict(sorted(excluded.items())),
        "warnings": dict(sorted(warnings.items())),
        "quarantined": [entry for part in parts for entry in part["quarantined"]],
        **({ID_KEY_DIGEST: key} if (key := id_key_digest(card.namespace)) else {}),
    }


def manifest_of(
    card: DatasetCard, origin: Mapping[str, Any], parts: list[dict[str, Any]]
) -> dict[str, Any]:
    """The manifest of a catalog.

    `origin` has the values of `ORIGIN`, maybe `ID_KEY_DIGEST`, and of a fold's catalog
    ``held_out_fold``; each part what `shard_part` gives, with name, split, rows.
    """
    splits: dict[str, Any] = {}
    for split in sorted({part["split"] for part in parts if part["rows"]}):
        split_parts = [part for part in parts if part["split"] == split and part["rows"]]
        positives = np.sum([part["positives"] for part in split_parts], axis=0).tolist()
        splits[split] = {
            "records": sum(part["rows"] for part in split_parts),
            "units": sum(part["units"] for part in split_parts),
            "patients": len({group for part in split_parts for group in part["groups"]}),
            "classes": dict(zip(card.classes, positives, strict=True)),
        }
        if splits[split]["units"] != splits[split]["records"]:
            units = np.sum([part["positive_units"] for part in split_parts], axis=0).tolist()
            splits[split]["unit_classes"] = dict(zip(card.classes, units, strict=True))
        if split == HELD_OUT:
            counts = sum((Counter(part["conditions"]) for part in split_parts), Counter[str]())
            splits[split]["conditions"] = dict(sorted(counts.items()))
    shards = [
        {
            "file": f"{SHARDS}/{part['name']}.parquet",
            "split": part["split"],
            "rows": part["rows"],
            "bytes": part["bytes"],
            "sha256": part["sha256"],
        }
        for part in parts
        if part["rows"]
    ]
    manifest = {
        "format": FORMAT,
        "card": json.loads(json_bytes(asdict(without_build(card)))),
        "schema": {field.name: str(field.type) for field in schema(card)},
        "splits": splits,
        "statistics": _statistics(parts),
        "shards": shards,
    }
    manifest |= {key: origin[key] for key in ORIGIN}
    manifest |= {key: origin[key] for key in origin.keys() & {"held_out_fold", ID_KEY_DIGEST}}
    return manifest | {"digest": digest(manifest)}


def _statistics(parts: list[dict[str, Any]]) -> dict[str, list[float]] | None:
    """Mean and standard deviation per channel over the training split; None without one."""
    training = [part["statistics"] for part in parts if part["split"] == "train" and part["rows"]]
    if not training:
        return None
    count, total, squares = (
        np.sum([sums[key] for sums in training], axis=0) for key in ("count", "sum", "squares")
    )
    mean = total / count
    return {
        "mean": mean.tolist(),
        "std": np.sqrt(np.maximum(squares / count - mean**2, 0.0)).tolist(),
    }
