"""Catalogs: raw files to Parquet shards with a manifest, as a Ray Data job; and their verification.

A catalog is a folder with ``manifest.json``, written last, and ``shards/<split>-<n>.parquet``.
The same raw files, policy and versions give the same bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.cluster import connected, ray_data
from benchmd_ray.data.cards import POLICIES, DatasetCard, dataset_card, resource_folder
from benchmd_ray.data.datasets import DATASETS, Discovery, RawItem
from benchmd_ray.data.records import (
    Record,
    RecordError,
    RecordLeftOut,
    decode_signals,
    decode_targets,
    hashed_patient,
    schema,
    to_table,
)
from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.files import digest, locked, remove, remove_partial, replacing, sha256, write_json
from benchmd_ray.modalities import Modality
from benchmd_ray.progress import progress

FORMAT = 1
"""Version of the catalog's layout."""
MANIFEST = "manifest.json"
ROW_GROUP_BYTES = 6 * 2**20
"""Signal bytes of a row group: small enough to stream, large enough to read fast."""
CHUNK_BYTES = 16 * 2**20
"""Signal bytes of a shard, about."""


@dataclass(frozen=True)
class Catalog:
    """A finished catalog on disk."""

    path: Path
    manifest: dict[str, Any]

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return str(self.manifest["dataset"])

    @property
    def card(self) -> DatasetCard:
        """Card of the dataset."""
        return dataset_card(self.dataset)

    @property
    def modality(self) -> Modality:
        """Modality of the dataset."""
        return self.card.kind

    @property
    def digest(self) -> str:
        """SHA-256 over all that the catalog holds."""
        return str(self.manifest["digest"])

    @property
    def evaluation_splits(self) -> tuple[str, ...]:
        """Splits that are scored and never trained on, those with records."""
        splits = self.card.evaluation_splits[self.manifest["policy"]]
        return tuple(split for split in splits if self.rows(split))

    def rows(self, split: str) -> int:
        """Number of records of a split."""
        return int(self.manifest["splits"].get(split, {}).get("records", 0))

    def shards(self, split: str) -> list[tuple[Path, int]]:
        """Path and rows of each shard of a split, in order."""
        return [
            (self.path / shard["file"], int(shard["rows"]))
            for shard in self.manifest["shards"]
            if shard["split"] == split
        ]

    def altered_shards(self, split: str | None = None) -> list[str]:
        """Shards of a split, or of all, that are missing or of another size than stated."""
        return [
            str(shard["file"])
            for shard in self.manifest["shards"]
            if split in (None, shard["split"])
            and not _has_size(self.path / shard["file"], shard["bytes"])
        ]

    def require_unaltered(self, split: str) -> None:
        """Make sure that a split's shards are those that the build wrote.

        A shard is read once per process for this, unless the file changes.

        Raises:
            BenchmdError: The SHA-256 of one differs from the manifest's.
        """
        for shard in self.manifest["shards"]:
            path = self.path / shard["file"]
            if shard["split"] == split and _sha256_once(path, *_stamp(path)) != shard["sha256"]:
                raise BenchmdError(
                    f"{path} is not the shard that was built: its SHA-256 differs from "
                    f"{MANIFEST}'s. Remove it and build the catalog again."
                )

    def require_split(self, split: str) -> None:
        """Make sure that a split has records and that its shards are there.

        Raises:
            BenchmdError: It has none, or a shard is missing or of another size.
        """
        if altered := self.altered_shards(split):
            raise BenchmdError(
                f"{self.path / altered[0]} is missing or of another size than {MANIFEST} states; "
                "see `benchmd catalog verify`, and build the catalog again to mend it."
            )
        if not self.rows(split):
            held = ", ".join(f"{k} ({v['records']})" for k, v in self.manifest["splits"].items())
            raise BenchmdError(
                f"the catalog {self.path} has no record in split {split!r}; it holds {held}."
            )


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


@functools.lru_cache(maxsize=100_000)
def _sha256_once(path: Path, size: int, changed: int) -> str:
    return sha256(path)


def open_catalog(path: Path) -> Catalog:
    """Open a finished catalog.

    Raises:
        BenchmdError: There is none, it is unfinished or damaged, or a version of another layout
            wrote it.
    """
    manifest = path / MANIFEST
    if not manifest.is_file():
        state, what = "no catalog", "make one"
        if (path / "shards").is_dir():
            state, what = "an unfinished catalog", "finish it"
        raise BenchmdError(
            f"{path} holds {state} (no {MANIFEST}). Run `benchmd catalog build` to {what}."
        )
    try:
        content = json.loads(manifest.read_text("utf-8"))
    except ValueError as error:
        raise BenchmdError(
            f"{manifest} is damaged ({error}): remove the folder and build the catalog again."
        ) from error
    if content.get("format") != FORMAT:
        raise BenchmdError(
            f"{manifest} has format {content.get('format')}, expected {FORMAT}: build it again."
        )
    catalog = Catalog(path, content)
    if content["card_version"] != catalog.card.version:
        raise BenchmdError(
            f"{path} was built by version {content['card_version']} of the card "
            f"{catalog.dataset}, which is now {catalog.card.version}: build it again, elsewhere or "
            "after removing that folder."
        )
    return catalog


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
        split_table: Split table that BenchMD released, for ``released``.
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
    if policy not in POLICIES:
        raise unknown_name("policy", policy, POLICIES)
    if not raw.is_dir():
        raise BenchmdError(f"the raw folder {raw} does not exist. {_expectation(card)}")
    found = DATASETS[name].discover(raw, card, policy, split_table)
    _require_complete(found, card, raw, allow_missing)
    plan = _plan(card, policy, found)
    with locked(out / ".lock", f"the catalog {out}"):
        if (out / MANIFEST).is_file():
            catalog = open_catalog(out)
            if catalog.manifest["plan"] != plan:
                raise BenchmdError(
                    f"{out} holds a catalog of {catalog.dataset} ({catalog.manifest['policy']}) "
                    "built from other raw files, policy or version. Choose another --out, or "
                    "remove that folder."
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
        manifest = _manifest(card, policy, plan, found, parts)
        wanted = {out / shard["file"] for shard in manifest["shards"]}
        lost = [s["file"] for s in manifest["shards"] if not _has_size(out / s["file"], s["bytes"])]
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


def _plan(card: DatasetCard, policy: str, found: Discovery) -> str:
    """Digest of all that determines the catalog, but the raw files' contents."""
    tables = resource_folder("data_catalog") / "tables"
    return digest(
        {
            "format": FORMAT,
            "card": [card.name, card.version, policy],
            "table": sha256(tables / card.code_table),
            "schema": str(schema(card.kind)),
            "patients": hashed_patient(card.name, ""),
            "items": [dataclasses.astuple(item) for item in found.items],
        }
    )


def _chunks(found: Discovery, card: DatasetCard, raw: Path, out: Path, plan: str) -> list[_Chunk]:
    bytes_per_record = schema(card.kind).field("signal").type.byte_width
    size = max(1, CHUNK_BYTES // bytes_per_record)
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
    quarantined: list[dict[str, str]] = []
    for item in chunk.items:
        try:
            records.extend(DATASETS[card.name].read(Path(chunk.root), item, card))
        except RecordLeftOut as reason:
            left_out[str(reason)] += 1
        except RecordError as error:
            quarantined.append({"file": item.path, "reason": str(error)})
        except MemoryError:
            raise
        except Exception as error:  # a file may be broken in ways that no reader foresees
            quarantined.append({"file": item.path, "reason": f"{type(error).__name__}: {error}"})
    part: dict[str, Any] = {
        "name": chunk.name,
        "split": chunk.split,
        "plan": chunk.plan,
        "items": len(chunk.items),
        "rows": len(records),
        "left_out": dict(left_out),
        "quarantined": quarantined,
    }
    if records:
        table = to_table(records, chunk.split, card.kind)
        part |= write_shard(table, chunk.shard, card.kind) | {
            "groups": sorted(set(table["group_id"].to_pylist())),
            "positives": (decode_targets(table["target"]) == 1).sum(axis=0).tolist(),
            "statistics": _sums(table, card.kind),
        }
    write_json(chunk.part, part)
    return part


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
    """Per channel: number, sum and sum of squares of the values in physical units."""
    signals = decode_signals(table["signal"], modality).reshape(
        len(table), modality.stored_shape[0], -1
    )
    scale = table["scale"].to_numpy()[:, None].astype(np.float64)
    count = np.full(signals.shape[1], signals.shape[0] * signals.shape[2])
    total = (signals.sum(axis=2, dtype=np.int64) * scale).sum(axis=0)
    squares = np.einsum("rcv,rcv->rc", signals.astype(np.float64), signals.astype(np.float64))
    return {
        "count": count.tolist(),
        "sum": total.tolist(),
        "squares": (squares * scale**2).sum(axis=0).tolist(),
    }


def _require_readable(parts: list[dict[str, Any]], allowed: float, out: Path) -> None:
    quarantined = [entry for part in parts for entry in part["quarantined"]]
    total = sum(part["items"] for part in parts)
    if len(quarantined) > allowed * total:
        reasons = "".join(f"\n  {q['file']}: {q['reason']}" for q in quarantined[:5])
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
    card: DatasetCard, policy: str, plan: str, found: Discovery, parts: list[dict[str, Any]]
) -> dict[str, Any]:
    splits: dict[str, Any] = {}
    left_out = Counter(found.left_out)
    for part in parts:
        left_out.update(part["left_out"])
    for split in sorted({part["split"] for part in parts if part["rows"]}):
        own = [part for part in parts if part["split"] == split and part["rows"]]
        positives = np.sum([part["positives"] for part in own], axis=0).tolist()
        splits[split] = {
            "records": sum(part["rows"] for part in own),
            "patients": len({group for part in own for group in part["groups"]}),
            "classes": dict(zip(card.kind.classes, positives, strict=True)),
        }
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
        "policy": policy,
        "layout": found.layout,
        "plan": plan,
        "schema": {field.name: str(field.type) for field in schema(card.kind)},
        "raw": {
            "records": len(found.items) + sum(found.left_out.values()),
            "expected": card.layouts[found.layout].records,
            "missing": len(found.missing),
            "patients_known": found.patients_known,
        },
        "splits": splits,
        "left_out": dict(sorted(left_out.items())),
        "quarantined": [entry for part in parts for entry in part["quarantined"]],
        "statistics": _statistics(parts),
        "shards": shards,
    }
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
