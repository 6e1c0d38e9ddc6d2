"""Catalogs: a folder with ``manifest.json``, written last, and ``shards/<split>-<n>.parquet``."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmd_ray.data.cards import DatasetCard, dataset_card
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files import sha256
from benchmd_ray.modalities import Modality

FORMAT = 2
"""Version of the catalog's layout."""
MANIFEST = "manifest.json"
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
    def options(self) -> dict[str, str]:
        """Options of the build that are not the card's defaults."""
        chosen: dict[str, str] = self.manifest["options"]
        defaults = {name: option.default for name, option in self.card.options.items()}
        return {name: value for name, value in chosen.items() if value != defaults[name]}

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

    def shards(self, split: str) -> list[tuple[Path, int]]:
        """Path and rows of each shard of a split, in order.

        Raises:
            BenchmdError: A search runs, and may not read this catalog; see `confined`.
        """
        _require_allowed(self.path)
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
            and not has_size(self.path / shard["file"], shard["bytes"])
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


def has_size(path: Path, size: int) -> bool:
    """Whether a file is there and has a size in bytes."""
    return path.is_file() and path.stat().st_size == size


def _stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


@functools.lru_cache(maxsize=100_000)
def _sha256_once(path: Path, size: int, changed: int) -> str:
    return sha256(path)


def _damaged(manifest: Path, why: str) -> BenchmdError:
    return BenchmdError(
        f"{manifest} is damaged: {why}; remove the folder and build the catalog again."
    )


_allowed: frozenset[Path] | None = None
"""Catalogs that this process may read; None stands for all."""


@contextmanager
def confined(paths: Iterable[Path]) -> Iterator[None]:
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


def _require_allowed(path: Path) -> None:
    if _allowed is not None and path.resolve() not in _allowed:
        raise BenchmdError(
            f"{path} must not be opened: a search sees the inner catalogs of its sources' training "
            f"splits alone ({', '.join(map(str, sorted(_allowed)))})."
        )


def open_catalog(path: Path) -> Catalog:
    """Open a finished catalog.

    Raises:
        BenchmdError: There is none, it is unfinished or damaged, a version of another layout
            wrote it, or a search runs that may not read it.
    """
    _require_allowed(path)
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
    catalog = Catalog(path, content)
    if content["card_version"] != catalog.card.version:
        raise BenchmdError(
            f"{path} was built by version {content['card_version']} of the card "
            f"{catalog.dataset}, which is now {catalog.card.version}: build it again, elsewhere or "
            "after removing that folder."
        )
    return catalog
