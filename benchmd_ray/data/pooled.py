"""Several catalogs as one that encoders are pretrained on, without labels.

Of a source only the training split is read, of a target all its records: a dataset that something
is pretrained on is not scored by it. The records are in the order of the datasets' names, whatever
the order in which the catalogs are named.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.data.catalog import Catalog, Shard, open_catalog
from benchmd_ray.data.provenance import together
from benchmd_ray.data.resident import split_table
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import digest
from benchmd_ray.modality.signals import misfits
from benchmd_ray.storage.location import Location

TRAIN = "train"


@dataclass(frozen=True)
class Pool(Catalog):
    """Catalogs of one signal as a single one, whose only split is the training."""

    members: tuple[Catalog, ...] = field(default=())

    @property
    def dataset(self) -> str:
        return "+".join(member.dataset for member in self.members)

    @property
    def options(self) -> dict[str, str]:
        """Those of each catalog, with the dataset's name before theirs."""
        return {
            f"{member.dataset}.{name}": value
            for member in self.members
            for name, value in member.options.items()
        }

    @functools.cached_property
    def statistics(self) -> dict[str, list[float]] | None:
        return combined_statistics(self.members)

    @property
    def evaluation_splits(self) -> tuple[str, ...]:
        return ()

    @property
    def parts(self) -> tuple[tuple[Catalog, str], ...]:
        """Each catalog with each of its splits that is read, in the order of their records."""
        return tuple((member, split) for member in self.members for split in splits_of(member))

    def shards(self, split: str) -> list[Shard]:
        return [shard for member, own in self.parts for shard in member.shards(own)]

    def tables(self, split: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        for member, own in self.parts:
            yield from member.tables(own, columns)

    def require_unaltered(self, split: str) -> None:
        for member, own in self.parts:
            member.require_unaltered(own)

    def require_split(self, split: str) -> None:
        for member, own in self.parts:
            member.require_split(own)


def splits_of(catalog: Catalog) -> tuple[str, ...]:
    """Splits that a pretraining reads: a source's training, or all of a target."""
    if catalog.card.role == "source":
        return (TRAIN,)
    return tuple(split for split in catalog.manifest["splits"] if catalog.rows(split))


def open_pretraining(paths: Sequence[Location]) -> Catalog:
    """The catalog that an encoder is pretrained on: a source's own, else a `Pool`.

    Raises:
        BenchmdError: One cannot be read or is named twice, or their signals differ.
    """
    catalogs = [open_catalog(path) for path in paths]
    if len(catalogs) == 1 and catalogs[0].card.role == "source":
        return catalogs[0]
    return pooled(catalogs)


def pooled(catalogs: Sequence[Catalog]) -> Pool:
    """A `Pool`; ``catalogs`` in any order."""
    members = sorted(catalogs, key=lambda catalog: (catalog.dataset, catalog.digest))
    for first, second in pairwise(members):
        if first.dataset == second.dataset:
            raise BenchmdError(
                f"{first.path} and {second.path} are both catalogs of {first.dataset}, whose "
                "records would count twice: name one of them."
            )
    for member in members:
        _require_alike(members[0], member)
        for split in splits_of(member) or (TRAIN,):
            member.require_split(split)
    splits = [m.manifest["splits"][split] for m in members for split in splits_of(m)]
    raw = [member.manifest["raw"] for member in members]
    manifest: dict[str, Any] = {
        "digest": members[0].digest if len(members) == 1 else digest(sorted(digests(members))),
        "policy": "+".join(sorted({member.manifest["policy"] for member in members})),
        "held_out": [],
        "raw": {
            "records": sum(stated["records"] for stated in raw),
            "expected": sum(stated["expected"] for stated in raw),
            "provenance": together(*(member.provenance for member in members)),
        },
        "splits": {
            TRAIN: {name: sum(s.get(name, 0) for s in splits) for name in ("records", "patients")}
        },
    }
    return Pool(members[0].path, manifest, members[0].card, tuple(members))


def digests(catalogs: Sequence[Catalog]) -> list[str]:
    return [catalog.digest for catalog in catalogs]


def members_of(catalog: Catalog) -> tuple[Catalog, ...]:
    """The catalogs of a pool, or the catalog itself."""
    return catalog.members if isinstance(catalog, Pool) else (catalog,)


def _require_alike(first: Catalog, other: Catalog) -> None:
    faults = misfits(first.signal, other.signal)
    for name, what in (
        ("stored_shape", "its stored size"),
        ("dtype", "its stored type"),
        ("patch", "its patch"),
    ):
        expected, actual = getattr(first.signal, name), getattr(other.signal, name)
        if expected != actual and not faults:
            faults.append(f"{what} is {actual}, expected {expected}")
    if faults:
        raise BenchmdError(
            f"one pretraining on {first.path} and {other.path} needs one signal, and that of "
            f"{other.dataset} is not as of {first.dataset}: {'; '.join(faults)}. Pretrain on each "
            "alone, or build catalogs of equal signals."
        )


def combined_statistics(catalogs: Sequence[Catalog]) -> dict[str, list[float]] | None:
    """Mean and standard deviation per channel over the training splits of all.

    Of catalogs with n values of a channel, mean m and standard deviation s: the mean is
    M = Σ n·m / Σ n, the variance Σ n·(s² + (m − M)²) / Σ n. None where a target is among them,
    which has no statistics.
    """
    stated = [catalog.statistics for catalog in catalogs]
    if not all(stated) or any(catalog.card.role != "source" for catalog in catalogs):
        return None
    counts = np.array([float(_values(catalog)) for catalog in catalogs])[:, None]
    means, stds = (np.array([s[key] for s in stated if s]) for key in ("mean", "std"))
    mean: npt.NDArray[np.float64] = (counts * means).sum(axis=0) / counts.sum()
    variance = (counts * (stds**2 + (means - mean) ** 2)).sum(axis=0) / counts.sum()
    return {"mean": mean.tolist(), "std": np.sqrt(variance).tolist()}


def _values(catalog: Catalog) -> int:
    """Values of each channel in the training split that are not padding."""
    sizes = split_table(catalog, TRAIN, ["valid_size"])["valid_size"].combine_chunks().flatten()
    extents = sizes.to_numpy(zero_copy_only=False).reshape(catalog.rows(TRAIN), -1)
    return int(extents.astype(np.int64).prod(axis=1).sum())
