r"""``python -m speed.stream`` from the project's root.

An epoch of a split that streams through a local shuffle buffer, rows as they are stored: the
package's buffer, whose rows change places with those that arrive, against Ray Data's own
``local_shuffle_buffer_size`` of as many rows. Both read the same shards by tasks of Ray Data and
decode them alike; each must give every row once, and in another order than the shards'.

Ours reached 0.89 (0.70 to 0.96) of Ray Data's rate on two CPU cores. It is kept because its order
depends only on seed, epoch and rank, so that a resumed run sees the rows that it would have seen.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmd_ray.cluster.connection import connected, ray_data
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import decode_signals
from benchmd_ray.data.streaming import COLUMNS, PIECE, Shards, StreamingFeed, columns_of, row_groups
from speed import measure
from speed.sources import ecg_catalog


def ray_data_rows(catalog: Catalog, buffer: int, seed: int) -> Iterator[Any]:
    """Signals of an epoch, (rows, …) at a time, through the buffer of Ray Data."""
    shards = catalog.shards("train")
    numbers = ray_data().range(len(shards), override_num_blocks=len(shards))
    work = partial(row_groups, Shards.of(shards), columns=["signal", *COLUMNS])
    dataset = numbers.map_batches(work, batch_size=None)
    for table in dataset.iter_batches(
        batch_size=PIECE,
        batch_format="pyarrow",
        local_shuffle_buffer_size=buffer,
        local_shuffle_seed=seed,
    ):
        columns_of(table, catalog.card.target)  # ours decodes them too
        yield decode_signals(table["signal"], catalog.signal)


def require_shuffled(catalog: Catalog, blocks: Iterable[Any]) -> None:
    """Compare the rows of an epoch with those of the split.

    Raises:
        AssertionError: One is missing or there twice, or a shard keeps its order.
    """
    order = [row.tobytes() for block in blocks for row in block]
    tables = catalog.tables("train", ["signal"])
    stored = (decode_signals(table["signal"], catalog.signal) for table in tables)
    shards = [[row.tobytes() for row in block] for block in stored]
    if sorted(order) != sorted(row for shard in shards for row in shard):
        raise AssertionError("an epoch has other rows than the split")
    place = {row: number for number, row in enumerate(order)}
    if any(sorted(shard, key=place.__getitem__) == shard for shard in shards if len(shard) > 9):
        raise AssertionError("an epoch keeps the order of the rows of a shard")


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    declared = {"records": (2000, "of the raw source"), "buffer": (1024, "rows of the buffer")}
    settings = measure.options(__doc__, arguments, declared)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("BENCHMD_CACHE", f"{folder}/cache")
        catalog = ecg_catalog(Path(folder), settings.records)
        feed = StreamingFeed(catalog, "train", seed=settings.seed, shuffle_rows=settings.buffer)

        def ours() -> Iterator[Any]:
            return (block.signals for block in feed._shuffled(0))

        peer = partial(ray_data_rows, catalog, settings.buffer, settings.seed)
        with connected(None):
            for epoch in (ours, peer):
                require_shuffled(catalog, epoch())
            measure.compare(
                "stream",
                settings,
                {
                    "swapped": lambda: sum(map(len, ours())),
                    "ray_data": lambda: sum(map(len, peer())),
                },
                unit="rows/s",
                units=catalog.rows("train"),
            )


if __name__ == "__main__":
    main()
