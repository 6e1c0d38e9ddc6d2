"""A split that is larger than memory, as batches of a stream.

Its shuffle buffer has 0.89 of the rows/s of Ray Data's, and an order that a resumed run repeats.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from benchmd_ray.cluster.connection import ray_data
from benchmd_ray.data.batches import (
    Batch,
    Columns,
    Rows,
    Stored,
    Worker,
    ahead,
    epoch_order,
    to_device,
)
from benchmd_ray.data.catalog import Catalog, Shard
from benchmd_ray.data.normalise import Statistics, normaliser
from benchmd_ray.data.pooled import Pool
from benchmd_ray.data.records import decode_signals, targets_of
from benchmd_ray.data.sizes import row_bytes
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Target
from benchmd_ray.storage.location import location

T = TypeVar("T")
READ_BYTES = 32 * 2**20
"""Signal bytes that a stream takes at a time."""
UNLABELLED = ["scale", "valid_size"]
COLUMNS = ["target", *UNLABELLED]
NAMES = ("record_id", "group_id", "unit_id")
PIECE = 256
"""Rows that a stream takes, and that leave its buffer at an epoch's end, at a time, at most."""


def columns_of(table: pa.Table, target: Target | None) -> Columns:
    """What a split holds in addition to its signals, from a table with `COLUMNS`.

    Without a target from one with `UNLABELLED`: targets (rows, 0).
    """
    sizes = table["valid_size"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return Columns(
        targets_of(table["target"], target) if target else np.zeros((len(table), 0), np.int8),
        np.array(table["scale"], np.float32),
        np.array(sizes, np.int32).reshape(len(table), -1),
    )


class _Block(NamedTuple):
    """Stored rows on their way through a stream."""

    rows: Rows
    signals: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    scales: npt.NDArray[Any]
    sizes: npt.NDArray[Any]

    def at(self, index: Rows | slice) -> _Block:
        return _Block(*(part[index] for part in self))

    def empty(self, rows: int) -> _Block:
        return _Block(*(np.empty((rows, *part.shape[1:]), part.dtype) for part in self))

    def put(self, index: Rows | slice, other: _Block) -> None:
        for part, new in zip(self, other, strict=True):
            part[index] = new

    def then(self, other: _Block) -> _Block:
        return _Block(*(np.concatenate(parts) for parts in zip(self, other, strict=True)))


class StreamingFeed:
    """A split read by Ray Data, shard by shard; needs a connected Ray."""

    def __init__(
        self,
        catalog: Catalog,
        split: str,
        *,
        seed: int,
        worker: Worker | None = None,
        shuffle_rows: int = 2048,
        statistics: Statistics | None = None,
    ) -> None:
        """Assign shards to workers.

        Raises:
            BenchmdError: There are fewer shards than workers, or the modality needs statistics.
        """
        catalog.require_split(split)
        self._catalog, self._seed = catalog, seed
        self._target = None if isinstance(catalog, Pool) else catalog.card.target
        self._worker = worker or Worker()
        self._shuffle_rows = shuffle_rows
        self.normalise = normaliser(catalog.signal, statistics, self._worker.device)
        self._shards = catalog.shards(split)
        self._starts = np.cumsum([0] + [shard.rows for shard in self._shards])
        self.rows = int(self._starts[-1])
        if len(self._shards) < self._worker.world:
            raise BenchmdError(
                f"the split {split} of {catalog.path} has {len(self._shards)} shards for "
                f"{self._worker.world} workers; stream to at most as many workers, or hold it "
                "whole with --set execution.feed=resident."
            )

    def _own(self, order: Rows, rank: int) -> Rows:
        """Numbers of this worker's shards, given an order of all shards."""
        return order[rank :: self._worker.world]

    def _own_rows(self, order: Rows, rank: int) -> int:
        return sum(self._shards[i].rows for i in self._own(order, rank))

    def _read(self, order: Rows) -> Iterator[_Block]:
        """Blocks of this worker's shards, in their order."""
        numbers = self._own(order, self._worker.rank)
        rows = np.concatenate([np.arange(self._starts[i], self._starts[i + 1]) for i in numbers])
        read = 0
        size = max(1, min(PIECE, READ_BYTES // row_bytes(self._catalog)))
        columns = ("signal", *(COLUMNS if self._target else UNLABELLED))
        for table in _stream([self._shards[i] for i in numbers], size, columns):
            signals = decode_signals(table["signal"], self._catalog.signal)
            own_rows = rows[read : read + len(signals)]
            labels = columns_of(table, self._target)
            yield _Block(own_rows, signals, labels.targets, labels.scales, labels.sizes)
            read += len(signals)
        if read != len(rows):
            raise BenchmdError(
                f"an epoch of {self._catalog.path} gave worker {self._worker.rank} {read} rows, "
                f"expected {len(rows)}; check it with `benchmd catalog verify`."
            )

    def _shuffled(self, epoch: int) -> Iterator[_Block]:
        generator = np.random.default_rng([self._seed, epoch, 1 + self._worker.rank])
        shards = self._epoch_shards(epoch)
        size = min(self._shuffle_rows, self._own_rows(shards, self._worker.rank))
        buffer, filled = None, 0
        for block in self._read(shards):
            buffer = buffer or block.empty(size)
            count = min(size - filled, len(block.rows))
            buffer.put(slice(filled, filled + count), block.at(slice(count)))
            filled += count
            for start in range(count, len(block.rows), size):
                new = block.at(slice(start, start + size))
                places = generator.choice(size, len(new.rows), replace=False)
                yield buffer.at(places)
                buffer.put(places, new)
        if buffer:
            order = generator.permutation(size)
            for start in range(0, size, PIECE):
                yield buffer.at(order[start : start + PIECE])

    def _regrouped(self, blocks: Iterator[_Block], size: int) -> Iterator[_Block]:
        """Blocks of ``size``; the last one may be shorter."""
        rest: _Block | None = None
        for block in blocks:
            rest = rest.then(block) if rest else block
            while len(rest.rows) >= size:
                yield rest.at(slice(size))
                rest = rest.at(slice(size, None))
        if rest and len(rest.rows):
            yield rest

    def _stored(self, block: _Block) -> Stored:
        signals, scales, sizes = (
            to_device(np.array(part), self._worker.device)
            for part in (block.signals, block.scales, block.sizes)
        )
        return Stored(block.rows, signals, scales, sizes)

    def _batch(self, block: _Block) -> Batch:
        stored = self._stored(block)
        signals = self.normalise(stored.signals, stored.scales, stored.sizes)
        targets = to_device(np.array(block.targets), self._worker.device)
        return Batch(block.rows, signals, targets)

    def endless(self, batch_size: int, first_step: int = 0) -> Iterator[Stored]:
        """See `Feed`; a resumed stream reads the rows of its epoch that it skips."""
        size = batch_size // self._worker.world
        skip, epoch = first_step * size, 0
        while skip >= (rows := self._own_rows(self._epoch_shards(epoch), self._worker.rank)):
            skip, epoch = skip - rows, epoch + 1
        yield from self._ahead(map(self._stored, self._regrouped(self._from(epoch, skip), size)))

    def _ahead(self, batches: Iterator[T]) -> Iterator[T]:
        """Batches; a thread prepares them while a GPU works."""
        return ahead(batches) if self._worker.device.type == "cuda" else batches

    def _epoch_shards(self, epoch: int) -> Rows:
        return epoch_order(self._seed, epoch, len(self._shards))

    def _from(self, epoch: int, skip: int) -> Iterator[_Block]:
        """Blocks of all epochs from one on, without its first ``skip`` rows."""
        while True:
            for block in self._shuffled(epoch):
                if skip < len(block.rows):
                    yield block.at(slice(skip, None))
                skip = max(0, skip - len(block.rows))
            epoch += 1

    def epoch(self, batch_size: int, epoch: int, first: int = 0) -> Iterator[Batch]:
        """See `Feed`; the batches before the first are read, too."""
        batches = self._padded(self._shuffled(epoch), self._epoch_shards(epoch), batch_size)
        yield from itertools.islice(batches, first, None)

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        order = np.arange(len(self._shards))
        yield from self._padded(self._read(order), order, batch_size)

    def _padded(self, blocks: Iterator[_Block], order: Rows, batch_size: int) -> Iterator[Batch]:
        """Batches of one epoch, as many and as long as the worker with most rows has."""
        size = -(-batch_size // self._worker.world)
        most = max(self._own_rows(order, rank) for rank in range(self._worker.world))
        lengths = [min(size, most - start) for start in range(0, most, size)]
        batches = self._ahead(map(self._batch, self._regrouped(blocks, size)))
        last: Batch | None = None
        for length in lengths:
            batch = next(batches, None)
            last = batch or last
            assert last is not None  # every worker has at least one shard
            yield _pad(batch, last, length)


def _stream(shards: list[Shard], size: int, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of shards in their order, ``size`` at a time, read by tasks of Ray Data."""
    numbers = ray_data().range(len(shards), override_num_blocks=len(shards))
    work = partial(row_groups, Shards.of(shards), columns=columns)
    dataset = numbers.map_batches(work, batch_size=None)
    try:
        yield from dataset.iter_batches(batch_size=size, batch_format="pyarrow")
    except BenchmdError as error:  # of a task, in Ray's wrapping
        raise getattr(error, "cause", error) from None


class Shards(NamedTuple):
    """Shards as columns, of which a task makes only its own.

    Every task gets all of them: making a list of many would take it longer than its reading.
    """

    columns: pa.Table
    schemas: tuple[pa.Schema, ...]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Shards:
        """The same shards."""
        schemas = {id(shard.schema): shard.schema for shard in shards}
        places = {name: place for place, name in enumerate(schemas)}
        columns = {
            "path": [str(shard.path) for shard in shards],
            "rows": [shard.rows for shard in shards],
            "size": [shard.size for shard in shards],
            "sha256": [shard.sha256 for shard in shards],
            "schema": [places[id(shard.schema)] for shard in shards],
        }
        return cls(pa.table(columns), (*schemas.values(),))

    def at(self, number: int) -> Shard:
        """One of them."""
        (row,) = self.columns.slice(number, 1).to_pylist()
        path, schema = location(row["path"]), self.schemas[row["schema"]]
        return Shard(path, row["rows"], row["size"], row["sha256"], schema)


def row_groups(
    shards: Shards, numbers: dict[str, Rows], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Row groups of the shards of these numbers."""
    for number in numbers["id"]:
        with shards.at(int(number)).opened() as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=list(columns))


def ray_dataset(catalog: Catalog, split: str) -> Any:
    """A split as a `ray.data.Dataset`, for your own work; needs a connected Ray.

    A row has ``record_id``, ``group_id``, ``unit_id``, ``signal`` (float32 (*stored_shape), in the
    signal's unit), ``target`` and ``valid_size``. Tasks check shards by their hashes.

    Raises:
        BenchmdError: The split has no record, or a shard is missing or of another size.
    """
    catalog.require_split(split)
    shards = catalog.shards(split)
    numbers = ray_data().range(len(shards), override_num_blocks=len(shards))
    work = partial(_in_unit, Shards.of(shards), catalog.signal, catalog.card.target)
    return numbers.map_batches(work, batch_size=None)


def _in_unit(
    shards: Shards, signal: Signal, target: Target, numbers: dict[str, Rows]
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Rows of the shards of these numbers, as `ray_dataset` has them."""
    for table in row_groups(shards, numbers, [*NAMES, "signal", *COLUMNS]):
        columns = columns_of(table, target)
        scales = columns.scales.reshape(-1, *(1,) * len(signal.stored_shape))
        yield {
            **{name: table[name].to_numpy() for name in NAMES},
            "signal": decode_signals(table["signal"], signal).astype(np.float32) * scales,
            "target": columns.targets,
            "valid_size": columns.sizes,
        }


def _pad(batch: Batch | None, filler: Batch, length: int) -> Batch:
    """A batch of ``length`` examples, filled up with an example of weight 0."""
    count = 0 if batch is None else len(batch.rows)
    if batch is not None and count == length:
        return batch
    rows = np.full(length, -1, np.int64)
    index = torch.zeros(length, dtype=torch.long, device=filler.signals.device)
    if batch is not None:
        rows[:count] = batch.rows
        index[:count] = torch.arange(count, device=index.device)
    chosen = batch or filler
    return Batch(rows, chosen.signals[index], chosen.targets[index])
