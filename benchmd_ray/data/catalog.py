"""Catalogs: a folder with ``manifest.json``, written last, and ``shards/<split>-<n>.parquet``.

The folder may lie on S3. A catalog is never changed once its manifest is there, which names every
shard with its size and SHA-256. Of one on S3 each process compares the manifest with the bucket's
by its ETag when it opens it, and each shard that is fetched, always whole, with its SHA-256.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.data.cards import POLICIES, DatasetCard, dataset_card
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files import sha256
from benchmd_ray.modalities import Modality
from benchmd_ray.storage.bucket import Content
from benchmd_ray.storage.location import Address, Location, entries, read, read_again

FORMAT = 2
"""Version of the catalog's layout."""
MANIFEST = "manifest.json"
SHARDS = "shards"
SHARD = r"[a-z]{1,20}-\d{5,9}\.parquet"
"""What a shard's file is named like."""
AHEAD = 8
"""Shards of S3 that are fetched at once; so many are in memory."""
KEYS: dict[str, type | tuple[type, ...]] = {
    "dataset": str,
    "card_version": int,
    "policy": str,
    "plan": str,
    "digest": str,
    "options": dict,
    "layout": str,
    "raw": dict,
    "left_out": dict,
    "remarks": dict,
    "quarantined": list,
    "splits": dict,
    "shards": list,
    "statistics": (dict, type(None)),
}
"""What a manifest holds at least, and its types."""
SHARD_KEYS = {"file": str, "split": str, "rows": int, "bytes": int, "sha256": str}
"""What it says of a shard at least, and its types."""


class Shard(NamedTuple):
    """A shard as its manifest states it."""

    path: Location
    rows: int
    size: int
    """Bytes of the file."""
    sha256: str

    def source(self) -> Path | pa.BufferReader:
        """What Parquet readers read: the file, or what was fetched of S3, compared by SHA-256.

        Raises:
            BenchmdError: It is missing on S3 or another one, or the bucket cannot be reached.
        """
        if isinstance(self.path, Path):
            return self.path
        data = read(self.path)
        if data is None:
            raise _missing(self.path)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise _altered(self.path)
        return pa.BufferReader(data)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Its rows; all columns or some.

        Raises:
            BenchmdError: See `source`.
        """
        return pq.read_table(self.source(), columns=columns and list(columns))


@dataclass(frozen=True)
class Catalog:
    """A finished catalog."""

    path: Location
    manifest: dict[str, Any]

    @property
    def dataset(self) -> str:
        """Name of the dataset in all results, with the mark of its layout: ``…-unofficial``."""
        layout = self.card.layouts.get(self.manifest.get("layout", ""))
        return f"{self.card.name}-{layout.mark}" if layout and layout.mark else self.card.name

    @property
    def card(self) -> DatasetCard:
        """Card of the dataset."""
        return dataset_card(str(self.manifest["dataset"]))

    @property
    def modality(self) -> Modality:
        """Modality of the dataset."""
        return self.card.kind

    @property
    def digest(self) -> str:
        """SHA-256 over all that the catalog holds."""
        return str(self.manifest["digest"])

    @property
    def options(self) -> dict[str, str]:
        """Options of the build that are not the card's defaults."""
        chosen: dict[str, str] = self.manifest["options"]
        policy, options = str(self.manifest["policy"]), self.card.options
        return {k: v for k, v in chosen.items() if v != options[k].default_under(policy)}

    @property
    def statistics(self) -> dict[str, list[float]] | None:
        """Mean and standard deviation per channel over the training split; None without one."""
        held: dict[str, list[float]] | None = self.manifest["statistics"]
        return held

    @property
    def evaluation_splits(self) -> tuple[str, ...]:
        """Splits that are scored and never trained on, those with records."""
        splits = self.card.evaluation_splits[self.manifest["policy"]]
        return tuple(split for split in splits if self.rows(split))

    def rows(self, split: str) -> int:
        """Number of records of a split."""
        return int(self.manifest["splits"].get(split, {}).get("records", 0))

    def shards(self, split: str) -> list[Shard]:
        """The shards of a split, in order.

        Raises:
            BenchmdError: A search runs, and may not read this catalog; see `confined`.
        """
        _require_allowed(self.path)
        return [
            Shard(self.path / shard["file"], shard["rows"], shard["bytes"], shard["sha256"])
            for shard in self.manifest["shards"]
            if shard["split"] == split
        ]

    def tables(self, split: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of each shard of a split, in order; those on S3 are fetched ahead.

        Raises:
            BenchmdError: See `shards` and `Shard.table`.
        """
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
        """Shards of a split, or of all, that are missing or of another size than stated.

        Raises:
            BenchmdError: The bucket cannot be reached.
        """
        sizes = entries(self.path / SHARDS)[0]
        return [
            str(shard["file"])
            for shard in self.manifest["shards"]
            if split in (None, shard["split"])
            and sizes.get(str(shard["file"]).removeprefix(f"{SHARDS}/")) != shard["bytes"]
        ]

    def require_unaltered(self, split: str) -> None:
        """Make sure that a split's shards are those that the build wrote.

        A shard of a file system is read once per process for this, unless the file changes. Shards
        on S3 are not read here: each is compared whenever it is fetched.

        Raises:
            BenchmdError: The SHA-256 of one differs from the manifest's.
        """
        for shard in self.shards(split):
            path = shard.path
            if isinstance(path, Path) and _sha256_once(path, *_stamp(path)) != shard.sha256:
                raise _altered(path)

    def require_split(self, split: str) -> None:
        """Make sure that a split has records and that its shards are there.

        Raises:
            BenchmdError: It has none, or a shard is missing or of another size.
        """
        if altered := self.altered_shards(split):
            raise _missing(self.path / altered[0])
        if not self.rows(split):
            held = ", ".join(f"{k} ({v['records']})" for k, v in self.manifest["splits"].items())
            raise BenchmdError(
                f"the catalog {self.path} has no record in split {split!r}; it holds {held}."
            )


def _missing(shard: Location) -> BenchmdError:
    return BenchmdError(
        f"{shard} is missing or of another size than {MANIFEST} states; see `benchmd catalog "
        "verify`, and build the catalog again to mend it."
    )


def _altered(shard: Location) -> BenchmdError:
    return BenchmdError(
        f"{shard} is not the shard that was built: its SHA-256 differs from {MANIFEST}'s. Remove "
        "it and build the catalog again."
    )


def _stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


@functools.lru_cache(maxsize=100_000)
def _sha256_once(path: Path, size: int, changed: int) -> str:
    return sha256(path)


def _damaged(manifest: Location, why: str) -> BenchmdError:
    return BenchmdError(
        f"{manifest} is damaged: {why}; remove the folder and build the catalog again."
    )


def _odd_name(manifest: Mapping[str, Any]) -> str | None:
    """What in a manifest files are named by and is missing or could lead out of their folder."""
    if not re.fullmatch(r"[0-9a-f]{64}", manifest["digest"]):
        return "its digest is no SHA-256"
    if manifest["policy"] not in POLICIES:
        return f"its policy {manifest['policy']!r} is unknown"
    for shard in manifest["shards"]:
        held = shard if isinstance(shard, dict) else {}
        if not all(isinstance(held.get(key), kind) for key, kind in SHARD_KEYS.items()):
            return f"it says of a shard {shard!r}, expected {', '.join(SHARD_KEYS)}"
        if not re.fullmatch(rf"{SHARDS}/{SHARD}", shard["file"]):
            return f"it names an odd shard, {shard['file']!r}"
        if not re.fullmatch(r"[a-z]{1,20}", shard["split"]):
            return f"it names an odd split, {shard['split']!r}"
    return None


_allowed: frozenset[Location] | None = None
"""Catalogs that this process may read; None stands for all."""


@contextmanager
def confined(paths: Iterable[Location]) -> Iterator[None]:
    """Let this process open and read no other catalogs than these (decisions D17 and D18).

    Every search, and every process that works on its trials, is within; one within another never
    widens it.
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


_opened: dict[Address, Content] = {}
"""Manifests on S3 that this process has read, by their address."""


def _read_manifest(manifest: Location) -> bytes | None:
    if isinstance(manifest, Path):
        return read(manifest)
    found = read_again(manifest, _opened.get(manifest))
    if found is None:
        return None
    _opened[manifest] = found
    return found.data


def open_catalog(path: Location) -> Catalog:
    """Open a finished catalog.

    Raises:
        BenchmdError: There is none, it is unfinished or damaged, a version of another layout
            wrote it, a search runs that may not read it, or its bucket cannot be reached.
    """
    _require_allowed(path)
    manifest = path / MANIFEST
    text = _read_manifest(manifest)
    if text is None:
        state, what = "no catalog", "make one"
        if SHARDS in entries(path)[1]:
            state, what = "an unfinished catalog", "finish it"
        raise BenchmdError(
            f"{path} holds {state} (no {MANIFEST}). Run `benchmd catalog build` to {what}."
        )
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _damaged(manifest, str(error)) from error
    if not isinstance(content, dict):
        raise _damaged(manifest, "it is no JSON object")
    if content.get("format") != FORMAT:
        raise BenchmdError(
            f"{manifest} has format {content.get('format')}, expected {FORMAT}: build it again."
        )
    for key, kind in KEYS.items():
        if not isinstance(content.get(key), kind):
            raise _damaged(manifest, f"it has no {key}, or one of another type")
    if odd := _odd_name(content):
        raise _damaged(manifest, odd)
    catalog = Catalog(path, content)
    if content["card_version"] != catalog.card.version:
        raise BenchmdError(
            f"{path} was built by version {content['card_version']} of the card "
            f"{catalog.dataset}, which is now {catalog.card.version}: build it again, elsewhere or "
            "after removing that folder."
        )
    return catalog
