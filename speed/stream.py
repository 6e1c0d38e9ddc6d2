r"""``python -m speed.stream`` from the project's root.

An epoch of a split that streams through a local shuffle buffer, rows as they are stored: the
package's buffer, whose rows change places with those that arrive, against Ray Data's own
``local_shuffle_buffer_size`` of as many rows. Both read the same shards by tasks of Ray Data and
decode them alike; each must give every row once, and in another order than the shards'.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmd_ray.cluster.connection import connected, ray_data
from benchmd_ray.data.build import build
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import decode_signals
from benchmd_ray.data.streaming import PIECE, StreamingFeed, columns_of, row_groups
from benchmd_ray.demo import write_ecg
from speed import measure


def ray_data_rows(catalog: Catalog, buffer: int, seed: int) -> Iterator[Any]:
    """Signals of an epoch, (rows, …) at a time, through the buffer of Ray Data."""
    target = catalog.card.target
    shards = catalog.shards("train")
    numbers = ray_data().range(len(shards), override_num_blocks=len(shards))
    dataset = numbers.map_batches(partial(row_groups, shards), batch_size=None)
    for table in dataset.iter_batches(
        batch_size=PIECE,
        batch_format="pyarrow",
        local_shuffle_buffer_size=buffer,
        local_shuffle_seed=seed,
    ):
        columns_of(table, target)
        yield decode_signals(table["signal"], catalog.signal)


def require_shuffled(catalog: Catalog, found: Iterator[Any]) -> None:
    """Refuse an epoch that lacks a row, has one twice or keeps the order within a shard."""
    order = [row.tobytes() for block in found for row in block]
    tables = catalog.tables("train", ["signal"])
    blocks = (decode_signals(table["signal"], catalog.signal) for table in tables)
    shards = [[row.tobytes() for row in block] for block in blocks]
    if sorted(order) != sorted(row for shard in shards for row in shard):
        raise AssertionError("an epoch has other rows than the split")
    place = {row: number for number, row in enumerate(order)}
    if any(sorted(shard, key=place.__getitem__) == shard for shard in shards if len(shard) > 9):
        raise AssertionError("an epoch keeps the order of the rows of a shard")


def measured(options: argparse.Namespace, catalog: Catalog) -> None:
    """Measure and print."""
    feed = StreamingFeed(catalog, "train", seed=options.seed, shuffle_rows=options.buffer)

    def ours(epoch: int = 0) -> Iterator[Any]:
        return (block.signals for block in feed._shuffled(epoch))

    def peer(epoch: int = 0) -> Iterator[Any]:
        return ray_data_rows(catalog, options.buffer, options.seed + epoch)

    for way in (ours, peer):
        require_shuffled(catalog, way())
    seconds = measure.alternating(
        {"swapped": lambda: sum(map(len, ours())), "ray_data": lambda: sum(map(len, peer()))},
        repetitions=options.repetitions,
        warm_up=options.warm_up,
    )
    rows = catalog.rows("train")
    about = {"units": rows, "unit": "rows/s", "ours": "swapped", "peer": "ray_data"}
    measure.report("stream", options, seconds, **about)  # type: ignore[arg-type]


def main(arguments: list[str] | None = None) -> None:
    """Build a catalog of made ECGs, and measure its stream."""
    options = measure.parser(__doc__)
    options.add_argument("--records", type=int, default=2000, help="of the raw source (2000)")
    options.add_argument("--buffer", type=int, default=1024, help="rows of the buffer (1024)")
    chosen = measure.parsed(options, arguments)
    if min(chosen.records, chosen.buffer) < 1:
        options.error("--records and --buffer have to be 1 or more")
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        os.environ.setdefault("BENCHMD_CACHE", str(folder / "cache"))
        raw = write_ecg(folder / "raw", source_records=chosen.records, target_records=1)
        catalog = build("ptb-xl", raw["ptb-xl"], folder / "catalog", allow_missing=True)
        with connected(None):
            measured(chosen, catalog)


if __name__ == "__main__":
    main()
