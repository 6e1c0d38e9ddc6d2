"""Catalog to device batches.

*Resident*: the split is memory-mapped in its stored type, once per node, or is on the GPU.
*Streaming*: Ray Data reads each worker's shards, for splits larger than memory. Feeds check only
sizes of local shards; the caller has checked their content (`Catalog.require_unaltered`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.batches import Columns, Feed, Odds, ResidentFeed, Rows, Worker
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.normalise import Statistics, normaliser
from benchmd_ray.data.records import decode_signals
from benchmd_ray.data.resident import resident_signals, split_table
from benchmd_ray.data.sizes import row_bytes, shuffle_rows, streams
from benchmd_ray.data.streaming import COLUMNS, StreamingFeed, columns_of
from benchmd_ray.errors import BenchmdError
from benchmd_ray.settings.definition import Settings


def read_columns(catalog: Catalog, split: str) -> Columns:
    """What the rows of a split hold in addition to their signals, in row order."""
    return columns_of(split_table(catalog, split, COLUMNS), catalog.card.target)


def read_units(catalog: Catalog, split: str) -> list[str]:
    """The scored unit of each row of a split, in row order: the scan of a CT window."""
    units: list[str] = split_table(catalog, split, ["unit_id"])["unit_id"].to_pylist()
    return units


def chosen_rows_feed(
    catalog: Catalog,
    split: str,
    rows: Rows,
    columns: Columns,
    *,
    settings: Settings,
    worker: Worker,
    statistics: Statistics | None,
    odds: Odds | None = None,
) -> ResidentFeed:
    """The feed of some rows of a split, ascending; of one that streams only these are in memory.

    ``columns`` are of all rows of the split; their targets need not be the catalog's.

    Raises:
        BenchmdError: The split has no record, or the rows of one that streams exceed the memory.
    """
    if not streams(catalog, split, settings.execution):
        catalog.require_split(split)
        signals, subset = resident_signals(catalog, split), rows
    else:
        signals = _chosen_signals(catalog, split, rows, settings.execution.resident_gib)
        columns, subset = columns.at(rows), None
    normalise = normaliser(catalog.signal, statistics, worker.device)
    return ResidentFeed(
        signals, columns, normalise, seed=settings.seed, worker=worker, subset=subset, odds=odds
    )


def _chosen_signals(
    catalog: Catalog, split: str, rows: Rows, most_gib: float
) -> npt.NDArray[np.generic]:
    """Signals of some rows of a split, ascending, read shard by shard."""
    gib = len(rows) * row_bytes(catalog) / 2**30
    if gib > most_gib:
        raise BenchmdError(
            f"{len(rows)} of the {catalog.rows(split)} records of split {split} of {catalog.path} "
            f"are to be held in memory, {gib:.3g} GiB, and execution.resident_gib is {most_gib:g}: "
            "raise it where the memory is there, or choose a smaller transfer.labels."
        )
    kind = catalog.signal
    signals = np.empty((len(rows), *kind.stored_shape), kind.dtype)
    start = 0
    for shard in catalog.shards(split):
        first, last = np.searchsorted(rows, (start, start + shard.rows))
        if first < last:
            shard_signals = decode_signals(shard.table(["signal"])["signal"], kind)
            signals[first:last] = shard_signals[rows[first:last] - start]
        start += shard.rows
    return signals


def resident_feed(
    catalog: Catalog,
    split: str,
    *,
    seed: int,
    worker: Worker | None = None,
    subset: Rows | None = None,
    statistics: Statistics | None = None,
) -> ResidentFeed:
    """The feed of a split held whole, or of some of its rows (`subset`)."""
    catalog.require_split(split)
    return ResidentFeed(
        resident_signals(catalog, split),
        read_columns(catalog, split),
        normaliser(catalog.signal, statistics, worker.device if worker else None),
        seed=seed,
        worker=worker,
        subset=subset,
    )


def whole_split_feed(
    catalog: Catalog,
    split: str,
    settings: Settings,
    worker: Worker,
    statistics: Statistics | None,
) -> Feed:
    """The feed of all rows of a split, of the kind that `streams` says."""
    execution, seed = settings.execution, settings.seed
    if streams(catalog, split, execution):
        return StreamingFeed(
            catalog,
            split,
            seed=seed,
            worker=worker,
            shuffle_rows=shuffle_rows(catalog, execution),
            statistics=statistics,
        )
    return resident_feed(catalog, split, seed=seed, worker=worker, statistics=statistics)
