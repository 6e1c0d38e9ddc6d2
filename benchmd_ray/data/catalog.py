"""Catalogs: a folder with ``manifest.json``, written last, and ``shards/<split>-<n>.parquet``.

The folder may be in a bucket. A catalog never changes once it has its manifest, which lists each
shard's size and SHA-256. A process checks a bucket's manifest by its ETag when it opens the
catalog, and each shard by its SHA-256 whenever it is fetched, always whole.
"""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.data.binary import normal_names
from benchmd_ray.data.cards import DatasetCard, cards
from benchmd_ray.data.manifest_form import ID_KEY_DIGEST, SHARDS, described
from benchmd_ray.data.records import schema
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.files.integrity import (
    Damaged,
    has_digest,
    parsed_json,
    require_sha256,
)
from benchmd_ray.files.parquet import opened
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.storage.location import Location, entries, read, read_again

MAX_MANIFEST_BYTES = 2**28
"""Largest manifest that is read: that of a million shards has about as much."""
FORMAT = 7
"""Version of the catalog's layout."""
MANIFEST = "manifest.json"
LOOKED_AT, NAMED = 50, 3
"""Of the folders of one that is not a catalog: how many are looked at, and named at most."""
AHEAD = 8
"""Shards of a bucket that are fetched at once; so many are in memory."""
REBUILD = "Remove the folder and build the catalog again."
REMEDY = "Remove it and build the catalog again."


class Shard(NamedTuple):
    """A shard as its manifest states it."""

    path: Location
    rows: int
    size: int
    """Bytes of the file."""
    sha256: str
    schema: pa.Schema

    @contextmanager
    def opened(self) -> Iterator[pq.ParquetFile]:
        """The shard as an open file, checked by SHA-256 and schema.

        A local file is hashed once per process unless it changes; an object whenever it is fetched.

        Raises:
            BenchmdError: It is missing or altered, or the bucket cannot be reached.
        """
        with opened(_source(self), self.path, REMEDY) as file:
            if not file.schema_arrow.equals(self.schema):
                raise Damaged(self.path, "its columns are not those of the dataset", REMEDY)
            yield file

    def require_whole(self) -> None:
        """Check the SHA-256 of a local file; one in a bucket is checked whenever it is fetched."""
        if isinstance(self.path, Path):
            require_sha256(self.path, self.sha256, REMEDY)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Its rows; all columns or some."""
        with self.opened() as file:
            return file.read(columns=columns and list(columns))


@dataclass(frozen=True)
class Catalog:
    path: Location
    manifest: dict[str, Any]
    card: DatasetCard
    """Card of the dataset, as the manifest holds it."""

    @property
    def dataset(self) -> str:
        """Name of the dataset in all results, with the mark of its layout: ``…-unofficial``."""
        layout = self.card.layouts.get(self.manifest.get("layout", ""))
        return f"{self.card.name}-{layout.mark}" if layout and layout.mark else self.card.name

    @property
    def provenance(self) -> str:
        """What its records are, see `data.provenance`."""
        return str(self.manifest["raw"]["provenance"])

    @property
    def modality(self) -> str:
        """Name of the dataset's modality."""
        return self.card.modality.name

    @property
    def signal(self) -> Signal:
        return self.card.signal

    def normalised_as(self, signal: Signal) -> Catalog:
        """This catalog, whose signals are normalised as another signal states."""
        modality = replace(self.card.modality, signal=signal)
        return replace(self, card=replace(self.card, modality=modality))

    @property
    def task(self) -> Task:
        return self.card.task

    @property
    def digest(self) -> str:
        """SHA-256 over all that the catalog holds."""
        return str(self.manifest["digest"])

    @property
    def options(self) -> dict[str, str]:
        """Options other than the card's defaults, held-out conditions, and normal ones if any."""
        chosen: dict[str, str] = self.manifest["options"]
        policy, options = str(self.manifest["policy"]), self.card.options
        changed = {k: v for k, v in chosen.items() if v != options[k].default_under(policy)}
        changed |= {"hold-out": ", ".join(self.held_out)} if self.held_out else {}
        normal = ", ".join(normal_names(self.card))
        return changed | ({"two-classes": normal} if normal else {})

    @property
    def held_out(self) -> tuple[str, ...]:
        """Conditions whose records nothing is trained on; see `data.holding_out`."""
        return tuple(self.manifest["held_out"])

    @property
    def id_key_digest(self) -> str:
        """See `records.id_key_digest`."""
        return str(self.manifest.get(ID_KEY_DIGEST, ""))

    @property
    def held_out_fold(self) -> dict[str, Any] | None:
        """Of a fold's catalog, which fold of which catalog its test split is; see `data.folds`."""
        stated: dict[str, Any] | None = self.manifest.get("held_out_fold")
        return stated

    @property
    def statistics(self) -> dict[str, list[float]] | None:
        """Mean and standard deviation per channel over the training split; None without one."""
        statistics: dict[str, list[float]] | None = self.manifest["statistics"]
        return statistics

    @property
    def evaluation_splits(self) -> tuple[str, ...]:
        """Splits with records that are scored and never trained on."""
        splits = self.card.evaluation_splits[self.manifest["policy"]]
        return tuple(split for split in splits if self.rows(split))

    def rows(self, split: str) -> int:
        """Number of records of a split."""
        return int(self.manifest["splits"].get(split, {}).get("records", 0))

    def shards(self, split: str) -> list[Shard]:
        """The shards of a split, in order.

        Raises:
            BenchmdError: A search may not read this catalog; see `confined`.
        """
        _require_allowed(self.path)
        columns = schema(self.card)
        named = [shard for shard in self.manifest["shards"] if shard["split"] == split]
        return [
            Shard(
                self.path / shard["file"], shard["rows"], shard["bytes"], shard["sha256"], columns
            )
            for shard in named
        ]

    def tables(self, split: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of each shard of a split, in order; shards in a bucket are fetched ahead."""
        shards = self.shards(split)
        if isinstance(self.path, Path):
            yield from (shard.table(columns) for shard in shards)
            return
        with ThreadPoolExecutor(AHEAD) as pool:
            waiting: deque[Future[pa.Table]] = deque()
            try:
                for shard in shards:
                    waiting.append(pool.submit(shard.table, columns))
                    if len(waiting) == AHEAD:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for fetched in waiting:
                    fetched.cancel()

    def altered_shards(self, split: str | None = None) -> list[str]:
        """Shards of a split, or of all, that are missing or not of the size that is stated."""
        sizes = entries(self.path / SHARDS)[0]
        return [
            str(shard["file"])
            for shard in self.manifest["shards"]
            if split in (None, shard["split"])
            and sizes.get(str(shard["file"]).removeprefix(f"{SHARDS}/")) != shard["bytes"]
        ]

    def require_unaltered(self, split: str) -> None:
        """Check the SHA-256 of a split's local shards, once per process unless a file changes."""
        for shard in self.shards(split):
            shard.require_whole()

    def require_split(self, split: str) -> None:
        """Make sure that a split has records and that its shards are there, with their sizes."""
        if altered := self.altered_shards(split):
            raise _missing(self.path / altered[0])
        if not self.rows(split):
            if "folds" in self.manifest:
                raise _in_folds(self.path, self.manifest)
            counts = ", ".join(f"{k} ({v['records']})" for k, v in self.manifest["splits"].items())
            raise BenchmdError(
                f"the catalog {self.path} has no record in split {split!r}; it holds {counts}."
            )


def _source(shard: Shard) -> Path | pa.BufferReader:
    """What Parquet readers read: the file, or what was fetched of an object, checked by SHA-256."""
    shard.require_whole()
    if isinstance(shard.path, Path):
        return shard.path
    data = read(shard.path)
    if data is None:
        raise _missing(shard.path)
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        raise Damaged(shard.path, "its SHA-256 is not the one that was recorded", REMEDY)
    return pa.BufferReader(data)


def _in_folds(path: Location, manifest: dict[str, Any]) -> BenchmdError:
    """Error for a catalog of which only the catalogs of its folds are trained on and scored."""
    return BenchmdError(
        f"{path} is cut into {len(manifest['folds']['patients'])} folds for cross-validation: "
        f"`benchmd run --catalog {path}` trains and scores a model of each. All else takes the "
        f"catalog of one fold, such as {path / 'folds'}/0, whose held-out patients are its "
        "test split."
    )


def _missing(shard: Location) -> Damaged:
    why = f"it is missing or of another size than {MANIFEST} states"
    return Damaged(
        shard, why, "Build the catalog again; `benchmd catalog verify` lists all faults."
    )


_allowed: frozenset[Location] | None = None
"""Catalogs that this process may read; None stands for all."""


@contextmanager
def confined(paths: Iterable[Location]) -> Iterator[None]:
    """Let this process open and read only these catalogs (decisions D17 and D18).

    Used by each search and each process that works on its trials; nesting never widens it.
    """
    global _allowed
    before, chosen = _allowed, frozenset(path.resolve() for path in paths)
    _allowed = chosen if before is None else chosen & before
    try:
        yield
    finally:
        _allowed = before


def _require_allowed(path: Location) -> None:
    if _allowed is not None and path.resolve() not in _allowed:
        raise BenchmdError(
            f"{path} must not be opened: a search sees the inner catalogs of its sources "
            f"alone ({', '.join(sorted(map(str, _allowed)))})."
        )


def _catalogs_in(path: Location, folders: Sequence[str]) -> list[Location]:
    """Some of the catalogs just below a folder; few are looked at, as each may be in a bucket."""
    below = [path / name for name in sorted(folders)[:LOOKED_AT]]
    return [folder for folder in below if read_again(folder / MANIFEST) is not None][:NAMED]


def open_catalog(path: Location, *, folds: bool = False) -> Catalog:
    """Open a finished catalog.

    One that is cut into folds is opened only if asked for by ``folds``: nothing is trained on it or
    scored, but on the catalogs of its folds (`data.folds`).

    Raises:
        BenchmdError: It is missing, unfinished, damaged or of another version, a search may not
            read it, or its bucket cannot be reached.
    """
    _require_allowed(path)
    manifest = path / MANIFEST
    text = read_again(manifest)
    if text is None:
        state, what = "no catalog", "make one"
        folders = entries(path)[1]
        if SHARDS in folders:
            state, what = "an unfinished catalog", "finish it"
        elif below := _catalogs_in(path, folders):
            raise BenchmdError(
                f"{path} holds no catalog (no {MANIFEST}), but its folders do: name one of them, "
                f"such as {', '.join(map(str, below))}."
            )
        raise BenchmdError(
            f"{path} holds {state} (no {MANIFEST}). Run `benchmd catalog build` to {what}."
        )
    content, card = _parsed(text, manifest)
    if "folds" in content and not folds:
        raise _in_folds(path, content)
    current = cards().get(card.name)
    if current and card.version != current.version:
        raise BenchmdError(
            f"{path} was built by version {card.version} of the card {card.name}, which is now "
            f"{current.version}: build it again, elsewhere or after removing that folder."
        )
    return Catalog(path, content, card)


@functools.lru_cache(maxsize=16)
def _parsed(text: bytes, manifest: Location) -> tuple[dict[str, Any], DatasetCard]:
    """The content of a manifest and its card; each run of a plan opens the same catalogs."""
    if len(text) > MAX_MANIFEST_BYTES:
        raise Damaged(manifest, f"it has more than {MAX_MANIFEST_BYTES:,} bytes", REBUILD)
    content = parsed_json(text, manifest, REBUILD)
    if content.get("format") != FORMAT:
        raise BenchmdError(
            f"{manifest} has format {shown(content.get('format'))}, expected {FORMAT}: build "
            "it again."
        )
    if not has_digest({k: v for k, v in content.items() if k != "digest"}, content.get("digest")):
        raise Damaged(manifest, "its digest is not that of its content", REBUILD)
    card, fault = described(content)
    if card is None or fault:
        raise Damaged(manifest, fault, REBUILD)
    return content, card
