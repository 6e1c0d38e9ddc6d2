"""Shards of a catalog, each built from a chunk of raw files by a Ray task.

No reader is imported here: a separate process (`reading`) reads, so a crash costs one file only.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.data.apart import NOWHERE, Apart, Died
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.duplicates import Change, rows_of
from benchmd_ray.data.manifest import shard_part
from benchmd_ray.data.manifest_form import SHARDS
from benchmd_ray.data.quarantine import named, quarantined
from benchmd_ray.data.raw import RawItem
from benchmd_ray.data.records import RecordError, schema
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import json_bytes
from benchmd_ray.files.integrity import Damaged, hashed, parsed_json, without_hash
from benchmd_ray.storage.location import Location, delete, location, read, write

Part = dict[str, Any]
"""Summary of a shard."""
PARTS = "parts"
"""Folder with a summary of each finished shard, while others are built."""
TRIES = 2
"""Times that a file may end the process that reads it, the last time by itself in a new one."""
OUTSIDE_TRIES = 3
"""Times that the process may be ended from outside while it reads a chunk."""
PROCESS = Apart("benchmd_ray.data.reading")
"""Reads the files of this process's chunks."""


@dataclass(frozen=True)
class Chunk:
    """One shard's work, as pure data for a Ray task."""

    name: str
    split: str
    card: DatasetCard
    """As the build validated it; other machines need not have its file."""
    root: str
    out: str
    plan: str
    """Digest of all that determines its rows, the card included, but the raw files' contents."""
    items: tuple[RawItem, ...]

    @property
    def shard(self) -> Location:
        return location(self.out) / SHARDS / f"{self.name}.parquet"

    @property
    def part(self) -> Location:
        """Summary of its shard, as JSON."""
        return location(self.out) / PARTS / f"{self.name}.json"

    @property
    def span(self) -> str:
        """Its records, for messages."""
        return f"the records {self.items[0].record_id} to {self.items[-1].record_id}"

    def finished(self, shards: Mapping[str, int], retry_quarantined: bool) -> dict[str, Any] | None:
        """Its part, if an earlier build finished it from the same inputs and it is not damaged.

        ``shards`` has the bytes of the existing shards by file name.
        """
        content = read(self.part)
        if content is None:
            return None
        try:
            part = without_hash(parsed_json(content, self.part, ""), self.part, "")["part"]
        except Damaged:
            return None
        whole = part["rows"] == 0 or shards.get(self.shard.name) == part["bytes"]
        again = retry_quarantined and part["quarantined"]
        return part if part["plan"] == self.plan and whole and not again else None


def as_row(chunk: Chunk) -> dict[str, bytes]:
    """A chunk for a Ray task, without the shared card; compressed, as all are in memory at once."""
    text = json.dumps({k: v for k, v in vars(chunk).items() if k != "card"}, default=_fields)
    return {"chunk": zlib.compress(text.encode(), 1)}


def items_digest(items: Sequence[RawItem]) -> str:
    """SHA-256 over items, one at a time, as there may be hundreds of thousands."""
    whole = hashlib.sha256()
    for item in items:
        values = list(_fields(item).values())
        whole.update(json.dumps(values, sort_keys=True).encode() + b"\n")
    return whole.hexdigest()


def _fields(item: RawItem) -> dict[str, Any]:
    """`dataclasses.asdict` without copying what the fields hold."""
    return {name: getattr(item, name) for name in RawItem.__slots__}


def build_row(row: Mapping[str, bytes], card: DatasetCard) -> dict[str, str]:
    """Build one chunk in a Ray task; errors come back as messages without Ray's wrapping."""
    fields = json.loads(zlib.decompress(row["chunk"]))
    fields["items"] = tuple(RawItem(**item) for item in fields["items"])
    chunk = Chunk(card=card, **fields)
    try:
        return {"part": json.dumps(build_chunk(chunk))}
    except BenchmdError as error:
        return {"part": json.dumps({"error": str(error)})}
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        return {"part": json.dumps({"error": f"{chunk.span} could not be built: {what}"})}


def build_chunk(chunk: Chunk) -> dict[str, Any]:
    """Read the files of one chunk, write its shard and then its part.

    Raises:
        BenchmdError: A file cannot be read for now, or the shard cannot be written.
    """
    reading = _read(chunk)
    table = reading.table(chunk.card)
    part: dict[str, Any] = {
        "name": chunk.name,
        "split": chunk.split,
        "plan": chunk.plan,
        "items": len(chunk.items),
        "rows": len(table),
        "excluded": dict(reading.excluded),
        "warnings": dict(reading.warnings),
        "quarantined": [reading.quarantined[place] for place in sorted(reading.quarantined)],
    }
    delete([chunk.part])  # no part of other inputs next to the new shard
    if part["rows"]:
        part |= shard_part(table, chunk.shard, chunk.card) | rows_of(table)
    write(chunk.part, json_bytes(hashed({"part": part})))
    return part


def rewritten(part: Mapping[str, Any], change: Change, card: DatasetCard, out: Location) -> Part:
    """The part of a shard that is written again without some rows, or with other patients.

    What a build resumes from goes first: interrupted, it reads the raw files of this chunk again.
    """
    path = out / SHARDS / f"{part['name']}.parquet"
    data = read(path)
    if data is None:
        raise seen_nowhere(path)
    table = pq.read_table(pa.BufferReader(data), schema=schema(card))
    place = table.schema.get_field_index("group_id")
    patients = [change.patients.get(name, name) for name in table["group_id"].to_pylist()]
    table = table.set_column(place, table.schema.field(place), pa.array(patients, pa.string()))
    table = table.filter(pa.array(change.kept)).combine_chunks()
    excluded = dict(Counter(part["excluded"]) + Counter(change.excluded))
    delete([out / PARTS / f"{part['name']}.json"])
    if not len(table):
        delete([path])
    about = shard_part(table, path, card) if len(table) else {}
    return {**part, "rows": len(table), "excluded": excluded, **about}


def seen_nowhere(path: Location) -> BenchmdError:
    """Error for a shard that a worker wrote and this process does not see."""
    return BenchmdError(
        f"{path} was written by a worker and cannot be seen here: choose an --out on storage that "
        "all nodes of the cluster share."
    )


@dataclass
class _Found:
    """Records, exclusions and quarantine entries of a chunk, collected over several calls."""

    tables: dict[int, pa.Table] = field(default_factory=dict)
    """Records by the place of the first file of a part."""
    excluded: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    quarantined: dict[int, dict[str, str | None]] = field(default_factory=dict)
    """Entries by the place of the file."""

    def add(
        self, head: dict[str, Any], data: bytearray, places: Sequence[int], chunk: Chunk
    ) -> None:
        """Add an answer of `reading` for the files at some places."""
        if "error" in head:
            raise BenchmdError(head["error"])
        if "fault" in head:
            raise BenchmdError(f"{chunk.span} could not be built: {head['fault']}")
        self.tables[places[0]] = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        self.excluded.update(head["excluded"])
        self.warnings.update(head["warnings"])
        self.quarantined |= {places[at]: entry for at, entry in head["quarantined"]}

    def table(self, card: DatasetCard) -> pa.Table:
        parts = [self.tables[place] for place in sorted(self.tables)]
        whole = pa.concat_tables(parts) if parts else schema(card).empty_table()
        return whole.combine_chunks() if len(parts) > 1 else whole


def _read(chunk: Chunk) -> _Found:
    """Read the files of a chunk in the separate process, in one call unless that dies.

    The file at which it died is read again first and by itself, in a new process, so that no other
    file is to blame; if it dies again, the file is quarantined. A process that was ended from
    outside quarantines nothing; after `OUTSIDE_TRIES` times the build stops.
    """
    reading, deaths, ended = _Found(), Counter[int](), 0
    waiting = [list(range(len(chunk.items)))]
    while waiting:
        places = waiting.pop()
        try:
            items = [chunk.items[place] for place in places]
            head, data = PROCESS.call(as_request(chunk.card, chunk.split, chunk.root, items))
        except Died as died:
            if died.outside:
                ended += 1
                if ended == OUTSIDE_TRIES:
                    raise _ended(died, chunk, places) from None
                waiting.append(places)
                continue
            place = places[died.place]
            deaths[place] += 1
            rest = places[died.place + 1 :], places[: died.place]
            waiting += [part for part in rest if part]
            if deaths[place] < TRIES:
                waiting.append([place])
            else:
                reason = RecordError(f"it {died.how}, twice")
                entry = quarantined(reason, chunk.items[place], chunk.root, chunk.card)
                reading.quarantined[place] = entry
        else:
            reading.add(head, data, places, chunk)
    return reading


def as_request(
    card: DatasetCard, split: str, root: str, items: Sequence[RawItem]
) -> dict[str, Any]:
    """The request to `data.reading` to read some files of a raw folder."""
    return {
        "card": json.dumps(asdict(card)),
        "split": split,
        "root": root,
        "items": [*map(_fields, items)],
    }


def _ended(died: Died, chunk: Chunk, places: Sequence[int]) -> BenchmdError:
    """Error for a reading process that was killed from outside, or never started."""
    what = "the first raw file"
    if died.place != NOWHERE:
        what = named(chunk.items[places[died.place]], chunk.card)
    return BenchmdError(
        f"{what} {died.how}, the last of {OUTSIDE_TRIES} times among {chunk.span}. Systems do so "
        "where memory is short: take fewer --cpus, or free memory, and run the same command again; "
        "it resumes where it stopped. Nothing was quarantined for it. If it is always that file, "
        "take it out of the raw folder and add --allow-missing."
    )
