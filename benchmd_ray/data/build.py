"""Building catalogs: raw files to Parquet shards with a manifest, as a Ray Data job.

The same raw files, policy, options and versions give the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.cluster import connected, ray_data
from benchmd_ray.data.cards import POLICIES, DatasetCard, dataset_card, resource_folder
from benchmd_ray.data.catalog import FORMAT, MANIFEST, Catalog, has_size, open_catalog
from benchmd_ray.data.datasets import DATASETS
from benchmd_ray.data.raw import Choices, Discovery, RawItem
from benchmd_ray.data.records import (
    Record,
    RecordError,
    RecordLeftOut,
    decode_signals,
    decode_targets,
    hashed_patient,
    positives_per_unit,
    schema,
    to_table,
)
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.files import digest, locked, remove, remove_partial, replacing, sha256, write_json
from benchmd_ray.modalities import Modality
from benchmd_ray.progress import progress

ROW_GROUP_BYTES = 6 * 2**20
"""Signal bytes of a row group: small enough to stream, large enough to read fast."""
CHUNK_BYTES = 16 * 2**20
"""Signal bytes of a shard, about."""
ORIGIN = ("policy", "options", "layout", "plan", "raw", "left_out", "remarks", "quarantined")
"""What a manifest says of how its catalog was built, beside what its shards hold."""


@dataclass(frozen=True)
class _Chunk:
    """One shard's work: pure data, so that it can be sent to a Ray task."""

    name: str
    split: str
    dataset: str
    root: str
    out: str
    plan: str
    items: tuple[RawItem, ...]

    @property
    def shard(self) -> Path:
        return Path(self.out, "shards", f"{self.name}.parquet")

    @property
    def part(self) -> Path:
        return Path(self.out, "parts", f"{self.name}.json")

    def finished(self) -> dict[str, Any] | None:
        """Its part when it was built before, from the same inputs and whole."""
        if not self.part.is_file():
            return None
        part: dict[str, Any] = json.loads(self.part.read_text("utf-8"))
        whole = part["rows"] == 0 or (
            self.shard.is_file() and self.shard.stat().st_size == part["bytes"]
        )
        return part if part["plan"] == self.plan and whole else None


def build(
    name: str,
    raw: Path,
    out: Path,
    *,
    policy: str = "clean",
    split_table: Path | None = None,
    options: Mapping[str, str] | None = None,
    allow_missing: bool = False,
    max_quarantined: float = 0.01,
    address: str | None = None,
    cpus: int = 1,
) -> Catalog:
    """Build a catalog, or what is missing of it.

    Args:
        name: Name of the dataset's card.
        raw: Folder with the raw files in one of the card's layouts.
        out: Folder of the catalog.
        policy: ``clean`` or ``released``.
        split_table: Split table that BenchMD released, for ``released`` where there is one.
        options: Values of the card's options; the card's defaults otherwise.
        allow_missing: Accept a raw folder that holds another number of records than the card
            expects, or lacks files that its tables name.
        max_quarantined: Largest share of unreadable records that is accepted.
        address: Ray cluster to work on; None works embedded.
        cpus: CPUs that an embedded Ray offers at least.

    Raises:
        BenchmdError: The raw folder is missing, of another layout or incomplete, ``out`` holds
            something else, or too many records cannot be read.
    """
    card = dataset_card(name)
    choices, found = discovered(card, raw, policy, split_table, options or {})
    _require_complete(found, card, raw, allow_missing)
    plan = _plan(card, choices, found)
    with locked(out / ".lock", f"the catalog {out}"):
        if (out / MANIFEST).is_file():
            catalog = open_catalog(out)
            if catalog.manifest["plan"] != plan:
                raise BenchmdError(
                    f"{out} holds a catalog of {catalog.dataset} ({catalog.manifest['policy']}) "
                    "built from other raw files, policy, options or version. Choose another --out, "
                    "or remove that folder."
                )
            if not catalog.altered_shards():
                return catalog
            remove(out / MANIFEST)  # it is built anew
        for folder in (out, out / "shards", out / "parts"):
            remove_partial(folder)
        chunks = _chunks(found, card, raw, out, plan)
        parts = _run(chunks, card, address, cpus)
        _require_readable(parts, max_quarantined, out)
        _require_records(parts, found, out)
        manifest = _manifest(card, choices, plan, found, parts)
        wanted = {out / shard["file"] for shard in manifest["shards"]}
        lost = [s["file"] for s in manifest["shards"] if not has_size(out / s["file"], s["bytes"])]
        if lost:
            raise BenchmdError(
                f"{out / lost[0]} was written by a worker and cannot be seen here: choose an --out "
                "on storage that all nodes of the cluster share."
            )
        for stray in set((out / "shards").glob("*")) - wanted:
            remove(stray)
        write_json(out / MANIFEST, manifest)
        remove(out / "parts")
    return open_catalog(out)


def discovered(
    card: DatasetCard,
    raw: Path,
    policy: str,
    split_table: Path | None,
    options: Mapping[str, str],
) -> tuple[Choices, Discovery]:
    """What a raw folder holds, under the arguments of `build`.

    Raises:
        BenchmdError: It is missing or of another layout, or a choice is unknown.
    """
    if policy not in POLICIES:
        raise unknown_name("policy", policy, POLICIES)
    if not raw.is_dir():
        raise BenchmdError(f"the raw folder {raw} does not exist. {_expectation(card)}")
    choices = Choices(policy, split_table, _chosen(card, options))
    return choices, _unique(DATASETS[card.name].discover(raw, card, choices))


def _chosen(card: DatasetCard, given: Mapping[str, str]) -> dict[str, str]:
    """A value for each of the card's options."""
    for name, value in given.items():
        if name not in card.options:
            raise unknown_name(f"option of {card.name}", name, card.options)
        valid = card.options[name].choices
        if valid and value not in valid:
            raise unknown_name(f"value of the option {name} of {card.name}:", value, valid)
    return {name: option.default for name, option in card.options.items()} | dict(given)


def _unique(found: Discovery) -> Discovery:
    """Without the later ones of items of the same record id, which are counted."""
    kept = {item.record_id: item for item in reversed(found.items)}
    items = [item for item in found.items if kept[item.record_id] is item]
    if len(items) == len(found.items):
        return found
    reason = "its id is there twice; the first is kept"
    left_out = found.left_out | {reason: len(found.items) - len(items)}
    return dataclasses.replace(found, items=items, left_out=left_out)


def _expectation(card: DatasetCard) -> str:
    layouts = " Or: ".join(layout.description for layout in card.layouts.values())
    return f"Expected for {card.name}: {layouts} See `benchmd catalog show {card.name}`."


def _require_complete(found: Discovery, card: DatasetCard, raw: Path, allow_missing: bool) -> None:
    total = len(found.items) + sum(found.left_out.values())
    if total == 0:
        raise BenchmdError(f"{raw} holds no record of {card.name}. {_expectation(card)}")
    expected = card.layouts[found.layout].records
    if allow_missing or (total == expected and not found.missing):
        return
    first = f", the first is {found.missing[0]}" if found.missing else ""
    raise BenchmdError(
        f"{raw} holds {total:,} records of {card.name}, the card expects {expected:,} (layout "
        f"{found.layout}); {len(found.missing):,} files that its tables name are missing{first}. "
        "Complete the download, or accept what is there with --allow-missing."
    )


def _plan(card: DatasetCard, choices: Choices, found: Discovery) -> str:
    """Digest of all that determines the catalog, but the raw files' contents."""
    tables = resource_folder("data_catalog") / "tables"
    return digest(
        {
            "format": FORMAT,
            "card": [card.name, card.version, choices.policy, dict(choices.options)],
            "table": sha256(tables / card.code_table) if card.code_table else None,
            "schema": str(schema(card)),
            "patients": hashed_patient(card.name, ""),
            "items": _items_digest(found.items),
        }
    )


def _items_digest(items: list[RawItem]) -> str:
    """SHA-256 over all items, one at a time: there may be hundreds of thousands."""
    whole = hashlib.sha256()
    for item in items:
        whole.update(json.dumps(dataclasses.astuple(item), sort_keys=True).encode() + b"\n")
    return whole.hexdigest()


def _chunks(found: Discovery, card: DatasetCard, raw: Path, out: Path, plan: str) -> list[_Chunk]:
    rows = card.layouts[found.layout].rows_per_record
    size = max(1, CHUNK_BYTES // (rows * schema(card).field("signal").type.byte_width))
    by_split: dict[str, list[RawItem]] = {}
    for item in found.items:
        by_split.setdefault(item.split, []).append(item)
    return [
        _Chunk(
            name=f"{split}-{start // size:05d}",
            split=split,
            dataset=card.name,
            root=str(raw.resolve()),
            out=str(out.resolve()),
            plan=plan,
            items=tuple(items[start : start + size]),
        )
        for split, items in sorted(by_split.items())
        for start in range(0, len(items), size)
    ]


def _run(
    chunks: list[_Chunk], card: DatasetCard, address: str | None, cpus: int
) -> list[dict[str, Any]]:
    """Parts of all chunks in their order; those that are missing are built on Ray."""
    parts = {chunk.name: chunk.finished() for chunk in chunks}
    todo = [chunk for chunk in chunks if parts[chunk.name] is None]
    if todo:
        total = sum(len(chunk.items) for chunk in chunks)
        done = total - sum(len(chunk.items) for chunk in todo)
        shown = progress(f"catalog {card.name}", total, "records", done)
        with connected(address, cpus=cpus):
            # the largest first, so that no worker is left with one at the end
            for part in _map(sorted(todo, key=lambda chunk: -len(chunk.items))):
                if "error" in part:
                    raise BenchmdError(part["error"])
                parts[part["name"]] = part
                done += part["items"]
                shown.update(done)
        shown.close()
    return [part for part in parts.values() if part]


def _map(chunks: list[_Chunk]) -> Iterator[dict[str, Any]]:
    """Parts of the chunks as they are built by a Ray Data job."""
    rows = [{"chunk": json.dumps(dataclasses.asdict(chunk))} for chunk in chunks]
    dataset = ray_data().from_items(rows, override_num_blocks=len(rows)).map(_build_row)
    for row in dataset.iter_rows():
        yield json.loads(row["part"])


def _build_row(row: dict[str, str]) -> dict[str, str]:
    """Build one chunk in a Ray task."""
    fields = json.loads(row["chunk"])
    fields["items"] = tuple(RawItem(**item) for item in fields["items"])
    try:
        return {"part": json.dumps(build_chunk(_Chunk(**fields)))}
    except BenchmdError as error:  # the message reaches the user without Ray's wrapping
        return {"part": json.dumps({"error": str(error)})}


def build_chunk(chunk: _Chunk) -> dict[str, Any]:
    """Read the files of one chunk, write its shard and then its part."""
    card = dataset_card(chunk.dataset)
    records: list[Record] = []
    left_out: Counter[str] = Counter()
    remarks: Counter[str] = Counter()
    quarantined: list[dict[str, str | None]] = []
    for item in chunk.items:
        try:
            reading = DATASETS[card.name].read(Path(chunk.root), item, card)
        except RecordLeftOut as why:
            left_out[str(why)] += 1
        except RecordError as error:
            quarantined.append(_quarantined(str(error), item, chunk, card))
        except MemoryError:
            raise
        except Exception as error:  # a file may be broken in ways that no reader foresees
            reason = f"{type(error).__name__}: {error}"
            quarantined.append(_quarantined(reason, item, chunk, card))
        else:
            records.extend(reading.records)
            left_out.update(reading.left_out)
            remarks.update(reading.remarks)
    part: dict[str, Any] = {
        "name": chunk.name,
        "split": chunk.split,
        "plan": chunk.plan,
        "items": len(chunk.items),
        "rows": len(records),
        "left_out": dict(left_out),
        "remarks": dict(remarks),
        "quarantined": quarantined,
    }
    if records:
        table = to_table(records, chunk.split, card)
        part |= shard_part(table, chunk.shard, card)
    write_json(chunk.part, part)
    return part


def shard_part(table: pa.Table, path: Path, card: DatasetCard) -> dict[str, Any]:
    """Write a shard, and give what the manifest has to know of it."""
    return write_shard(table, path, card.kind) | {
        "groups": sorted(set(table["group_id"].to_pylist())),
        "units": len(set(table["unit_id"].to_pylist())),
        "positives": (decode_targets(table["target"]) == 1).sum(axis=0).tolist(),
        "positive_units": positives_per_unit(table).tolist(),
        "statistics": _sums(table, card.kind),
    }


def _quarantined(
    reason: str, item: RawItem, chunk: _Chunk, card: DatasetCard
) -> dict[str, str | None]:
    """An entry of the quarantine; where file names name patients, without them."""
    if not card.private_names:
        return {"record": item.record_id, "file": item.path, "reason": reason}
    for name in _names(item, chunk.root):
        whole = r"\b" if len(name) <= 3 else ""  # short ones occur within other words
        reason = re.sub(f"{whole}{re.escape(name)}{whole}", "…", reason)
    return {"record": item.record_id, "file": None, "reason": reason}


def _names(item: RawItem, root: str) -> list[str]:
    """All names of the item's files and folders that a reason may hold, the longest first."""
    texts = {item.path, *_texts(item.details)}
    texts |= {path.relative_to(root).as_posix() for path in Path(root, item.path).rglob("*")}
    names: set[str] = set()
    for text in texts:
        path = Path(text)
        stems = {path.stem, path.name.partition(".")[0]}
        names |= {f"{root}/{text}", text, *path.parts} | stems
    return sorted(names - {"", "/"}, key=lambda name: (-len(name), name))


def _texts(value: Any) -> list[str]:
    """All values of a nested dict or list, as text."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    return [str(value)]


def write_shard(table: pa.Table, path: Path, modality: Modality) -> dict[str, Any]:
    """Write a shard, whole or not at all. Images hardly compress; time series and CT do.

    Returns:
        ``bytes`` and ``sha256`` of the file.
    """
    width = table.schema.field("signal").type.byte_width
    with replacing(path) as partial:
        pq.write_table(
            table,
            partial,
            row_group_size=max(1, ROW_GROUP_BYTES // width),
            compression="none" if modality.dtype == "uint8" else "lz4",
            use_dictionary=False,
            write_statistics=False,
        )
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _sums(table: pa.Table, modality: Modality) -> dict[str, list[float]]:
    """Per channel: number, sum and sum of squares of the values in physical units.

    The padding of images is not counted; it is zero, so the sums do not know of it.
    """
    signals = decode_signals(table["signal"], modality)
    channels = modality.stored_shape[0]
    extents: list[tuple[int, ...]] = [modality.stored_shape[1:]] * len(signals)
    if modality.dtype == "uint8":
        extents = table["valid_size"].to_pylist()
    total, squares = np.zeros(channels), np.zeros(channels)
    for signal, scale in zip(signals, table["scale"].to_pylist(), strict=True):
        values = signal.reshape(channels, -1)
        total += values.sum(axis=1, dtype=np.int64) * scale
        squares += np.square(values.astype(np.float32)).sum(axis=1, dtype=np.float64) * scale**2
    count = sum(math.prod(extent) for extent in extents)
    return {
        "count": [count] * channels,
        "sum": total.tolist(),
        "squares": squares.tolist(),
    }


def _require_readable(parts: list[dict[str, Any]], allowed: float, out: Path) -> None:
    quarantined = [entry for part in parts for entry in part["quarantined"]]
    total = sum(part["items"] for part in parts)
    if len(quarantined) > allowed * total:
        reasons = "".join(
            f"\n  {q['file'] or 'record ' + q['record']}: {q['reason']}" for q in quarantined[:5]
        )
        for part in parts:
            if part["quarantined"]:  # read these files again next time: they may be mended by then
                remove(out / "parts" / f"{part['name']}.json")
        raise BenchmdError(
            f"{len(quarantined)} of {total} records cannot be read, more than the accepted share "
            f"of {allowed:.1%}:{reasons}\nMend the files, or accept more with --max-quarantined."
        )


def _require_records(parts: list[dict[str, Any]], found: Discovery, out: Path) -> None:
    if any(part["rows"] for part in parts):
        return
    left_out = Counter(found.left_out)
    for part in parts:
        left_out.update(part["left_out"])
        left_out.update(entry["reason"] for entry in part["quarantined"])
    reasons = "".join(f"\n  {count}: {reason}" for reason, count in sorted(left_out.items()))
    raise BenchmdError(f"the catalog {out} would be empty; no record can be used:{reasons}")


def _manifest(
    card: DatasetCard,
    choices: Choices,
    plan: str,
    found: Discovery,
    parts: list[dict[str, Any]],
) -> dict[str, Any]:
    left_out = Counter(found.left_out)
    remarks: Counter[str] = Counter()
    for part in parts:
        left_out.update(part["left_out"])
        remarks.update(part["remarks"])
    origin = {
        "policy": choices.policy,
        "options": dict(choices.options),
        "layout": found.layout,
        "plan": plan,
        "raw": {
            "records": len(found.items) + sum(found.left_out.values()),
            "expected": card.layouts[found.layout].records,
            "missing": len(found.missing),
            "grouped_by": found.grouped_by,
        },
        "left_out": dict(sorted(left_out.items())),
        "remarks": dict(sorted(remarks.items())),
        "quarantined": [entry for part in parts for entry in part["quarantined"]],
    }
    return manifest_of(card, origin, parts)


def manifest_of(
    card: DatasetCard, origin: Mapping[str, Any], parts: list[dict[str, Any]]
) -> dict[str, Any]:
    """The manifest of a catalog.

    Args:
        card: Card of its dataset.
        origin: What is known of how it was built, the values of `ORIGIN`.
        parts: Of each shard, what `shard_part` gives, with its name, split and rows.
    """
    splits: dict[str, Any] = {}
    for split in sorted({part["split"] for part in parts if part["rows"]}):
        own = [part for part in parts if part["split"] == split and part["rows"]]
        positives = np.sum([part["positives"] for part in own], axis=0).tolist()
        splits[split] = {
            "records": sum(part["rows"] for part in own),
            "units": sum(part["units"] for part in own),
            "patients": len({group for part in own for group in part["groups"]}),
            "classes": dict(zip(card.classes, positives, strict=True)),
        }
        if splits[split]["units"] != splits[split]["records"]:
            units = np.sum([part["positive_units"] for part in own], axis=0).tolist()
            splits[split]["unit_classes"] = dict(zip(card.classes, units, strict=True))
    shards = [
        {
            "file": f"shards/{part['name']}.parquet",
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
        "dataset": card.name,
        "card_version": card.version,
        "modality": card.modality,
        "role": card.role,
        "schema": {field.name: str(field.type) for field in schema(card)},
        "splits": splits,
        "statistics": _statistics(parts),
        "shards": shards,
    }
    manifest |= {key: origin[key] for key in ORIGIN}
    return manifest | {"digest": digest(manifest)}


def _statistics(parts: list[dict[str, Any]]) -> dict[str, list[float]] | None:
    """Mean and standard deviation per channel over the training split; None without one."""
    own = [part["statistics"] for part in parts if part["split"] == "train" and part["rows"]]
    if not own:
        return None
    count, total, squares = (
        np.sum([sums[key] for sums in own], axis=0) for key in ("count", "sum", "squares")
    )
    mean = total / count
    return {
        "mean": mean.tolist(),
        "std": np.sqrt(np.maximum(squares / count - mean**2, 0.0)).tolist(),
    }
