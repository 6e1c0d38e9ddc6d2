"""Batches of arrays: which rows a step takes, and each worker's share. Only NumPy and PyTorch.

Order is a pure function of (seed, epoch, step): any number of workers sees the same batches
together, and a resumed run continues where it stopped.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from benchmd_ray.cluster.gpu_memory import room
from benchmd_ray.data.normalise import Normalise

T = TypeVar("T")
Rows = npt.NDArray[np.int64]
Odds = npt.NDArray[np.float64]
"""Chance of each row to be drawn; they add up to 1."""

GPU_SHARE = 0.6
"""A split goes to the GPU whole when it takes at most this share of what memory is left to this
process."""


@dataclass(frozen=True)
class Worker:
    """One of the data-parallel workers."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True)
class Columns:
    """What a split's rows hold in addition to their signals."""

    targets: npt.NDArray[np.int8] | npt.NDArray[np.uint8]
    """(rows, classes), or masks (rows, *extents)."""
    scales: npt.NDArray[np.float32]
    """(rows,)."""
    sizes: npt.NDArray[np.int32]
    """(rows, axes but the channel's): the valid size."""

    def __len__(self) -> int:
        return len(self.targets)

    def at(self, index: Rows | slice) -> Columns:
        return Columns(self.targets[index], self.scales[index], self.sizes[index])


@dataclass(frozen=True)
class Batch:
    """One worker's share of a step."""

    rows: Rows
    """(batch,) row in the split; -1 where the share was padded."""
    signals: torch.Tensor
    """(batch, *input_shape), normalised float32, on the device."""
    targets: torch.Tensor
    """(batch, classes) int8, or masks (batch, *extents) uint8, on the device."""

    @property
    def weights(self) -> torch.Tensor:
        """(batch,) float32: 1, or 0 for padding."""
        return to_device((self.rows >= 0).astype(np.float32), self.signals.device)


@dataclass(frozen=True)
class Stored:
    """One worker's share of a step as it is stored, for `Feed.normalise`."""

    rows: Rows
    """(batch,) row in the split."""
    signals: torch.Tensor
    """(batch, *stored_shape) in the stored type, on the device, as what follows."""
    scales: torch.Tensor
    """(batch,)."""
    sizes: torch.Tensor
    """(batch, axes but the channel's): the valid size."""


def to_device(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device, without waiting for a GPU's earlier work."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Feed(Protocol):
    """Batches of one split for one worker."""

    rows: int
    """Rows of all workers together."""
    normalise: Normalise
    """What `endless` gives to what the encoder sees."""

    def endless(self, batch_size: int, first_step: int = 0) -> Iterator[Stored]:
        """Shuffled batches without end; each epoch has each row once.

        ``batch_size`` is that of all workers together, a multiple of their number.
        """

    def epoch(self, batch_size: int, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Shuffled batches of an epoch from ``first`` on; shares are padded to equal length."""

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        """Each row once, in a fixed order; shares are padded to equal length."""


@functools.lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, rows: int) -> Rows:
    """A permutation of an epoch's rows that depends on nothing else."""
    order = np.random.default_rng([seed, epoch]).permutation(rows)
    order.setflags(write=False)
    return order


def drawn_order(seed: int, epoch: int, odds: Odds) -> Rows:
    """As many rows as there are, drawn with replacement, in the order of an epoch."""
    # The 1 tells the stream from that of `epoch_order`.
    return np.random.default_rng([seed, epoch, 1]).choice(len(odds), len(odds), p=odds)


def step_rows(seed: int, step: int, batch_size: int, rows: int) -> Rows:
    """Rows of a step of the endless sequence of epochs, all workers together."""
    position, parts, wanted = step * batch_size, [], batch_size
    while wanted:
        epoch, start = divmod(position, rows)
        part = epoch_order(seed, epoch, rows)[start : start + wanted]
        parts.append(part)
        position, wanted = position + len(part), wanted - len(part)
    return np.concatenate(parts)


def share(rows: Rows, worker: Worker) -> Rows:
    """A worker's contiguous share of a step, padded with -1 to the length of the others'."""
    length = -(-len(rows) // worker.world)
    padded = np.full(length * worker.world, -1, np.int64)
    padded[: len(rows)] = rows
    return padded[worker.rank * length : (worker.rank + 1) * length]


class JoinedSignals:
    """Arrays of signals as the rows of one; of those that are mapped only what is asked is read."""

    def __init__(self, parts: Sequence[npt.NDArray[np.generic]]) -> None:
        self._parts, self.dtype = parts, parts[0].dtype
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self.shape = (int(self._starts[-1]), *parts[0].shape[1:])

    def __getitem__(self, index: Rows | slice) -> npt.NDArray[np.generic]:
        rows = np.arange(self.shape[0])[index]
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        self.take(rows, result)
        return result

    def take(self, rows: Rows, out: npt.NDArray[np.generic]) -> None:
        """Copy rows into an array of their shape."""
        for part, start in zip(self._parts, self._starts[:-1], strict=True):
            inside = (rows >= start) & (rows < start + len(part))
            out[inside] = part[rows[inside] - start]


Arrival = Callable[[], torch.Tensor]
"""Gives a tensor on the device, once it was sent there."""


class _Sender:
    """Sends rows of signals from the host to a device.

    To a GPU through two pinned buffers in turn and by a stream of their own: rows are sent while
    the GPU works on earlier ones. One thread calls it, and its arrivals may be another's.
    """

    def __init__(
        self, signals: npt.NDArray[np.generic] | JoinedSignals, device: torch.device
    ) -> None:
        self._signals, self._device = signals, device
        self._buffers: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque(maxlen=2)
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, rows: Rows) -> Arrival:
        if self._device.type != "cuda":
            here = torch.from_numpy(np.asarray(self._signals[rows]))
            return lambda: here
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream, buffer = self._stream, self._buffer(len(rows))
        if isinstance(self._signals, JoinedSignals):
            self._signals.take(rows, buffer.numpy())
        else:
            np.take(self._signals, rows, axis=0, out=buffer.numpy(), mode="clip")
        with torch.cuda.stream(stream):
            sent = buffer.to(self._device, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._buffers.append((buffer, event))

        def arrived() -> torch.Tensor:
            now = torch.cuda.current_stream(self._device)
            now.wait_event(event)
            sent.record_stream(now)
            return sent

        return arrived

    def _buffer(self, rows: int) -> torch.Tensor:
        """A pinned buffer that nothing is sent from any more."""
        if len(self._buffers) == 2:
            buffer, event = self._buffers.popleft()
            event.synchronize()
            if len(buffer) == rows:
                return buffer
        kind = {"int16": torch.int16, "uint8": torch.uint8}[self._signals.dtype.name]
        return torch.empty((rows, *self._signals.shape[1:]), dtype=kind, pin_memory=True)


class ResidentFeed:
    """A split, or some of its rows, in memory or on the GPU."""

    def __init__(
        self,
        signals: npt.NDArray[np.generic] | JoinedSignals,
        columns: Columns,
        normalise: Normalise,
        *,
        seed: int,
        worker: Worker | None = None,
        subset: Rows | None = None,
        odds: Odds | None = None,
    ) -> None:
        """Put the rows to use, ``subset`` or all, on the GPU where they fit.

        ``signals`` are (rows, *stored_shape) in the stored type, in memory or mapped. With
        ``odds`` of the rows to use, an epoch draws with replacement; else it has each row once.
        """
        self._odds = odds
        self._seed, self._worker = seed, worker or Worker()
        self.normalise = normalise
        self._subset = np.arange(len(columns)) if subset is None else subset
        self.rows = len(self._subset)
        device, used = self._worker.device, columns.at(self._subset)
        self._send = _Sender(signals, device)
        self._device_signals: torch.Tensor | None = None
        masks = used.targets.nbytes if used.targets.ndim > 2 else 0  # as large as signals
        fits = self._fits(signals[:1].nbytes * self.rows + masks)
        if fits:
            self._device_signals = _to_device(signals, self._subset, device)
        self._targets = torch.from_numpy(np.ascontiguousarray(used.targets))
        if fits or not masks:
            self._targets = self._targets.to(device)
        self._scales = torch.from_numpy(used.scales).to(device)
        self._sizes = torch.from_numpy(used.sizes).to(device)

    def _fits(self, size: int) -> bool:
        device = self._worker.device
        return device.type == "cuda" and size <= GPU_SHARE * room(device)

    def _sent(self, shares: Iterator[Rows]) -> Iterator[tuple[Rows, Arrival | None]]:
        """Shares of steps, with signals that the host holds, sent by a thread while a GPU works."""
        if self._device_signals is not None:
            return ((positions, None) for positions in shares)
        sent = ((at, self._send(self._subset[np.maximum(at, 0)])) for at in shares)
        return ahead(sent) if self._worker.device.type == "cuda" else sent

    def _stored(self, place: Rows, arrival: Arrival | None) -> tuple[Stored, torch.Tensor]:
        """Rows at places of the subset, and the places on the device."""
        on_device = to_device(place, self._worker.device)
        if arrival is None:
            assert self._device_signals is not None
            signals = self._device_signals[on_device]
        else:
            signals = arrival()
        scales, sizes = self._scales[on_device], self._sizes[on_device]
        return Stored(self._subset[place], signals, scales, sizes), on_device

    def _batch(self, positions: Rows, arrival: Arrival | None) -> Batch:
        stored, place = self._stored(np.maximum(positions, 0), arrival)
        signals = self.normalise(stored.signals, stored.scales, stored.sizes)
        if self._targets.device == place.device:
            targets = self._targets[place]
        else:  # the host holds them
            targets = to_device(self._targets.numpy()[np.maximum(positions, 0)], place.device)
        return Batch(np.where(positions < 0, -1, stored.rows), signals, targets)

    def endless(self, batch_size: int, first_step: int = 0) -> Iterator[Stored]:
        steps = itertools.count(first_step)
        rows = (step_rows(self._seed, step, batch_size, self.rows) for step in steps)
        for sent in self._sent(share(of_step, self._worker) for of_step in rows):
            yield self._stored(*sent)[0]

    def epoch(self, batch_size: int, epoch: int, first: int = 0) -> Iterator[Batch]:
        """See `Feed`; with odds as many rows, drawn with replacement."""
        order = (
            epoch_order(self._seed, epoch, self.rows)
            if self._odds is None
            else drawn_order(self._seed, epoch, self._odds)
        )
        yield from self._steps(order[first * batch_size :], batch_size)

    def ordered(self, batch_size: int) -> Iterator[Batch]:
        yield from self._steps(np.arange(self.rows), batch_size)

    def _steps(self, order: Rows, batch_size: int) -> Iterator[Batch]:
        starts = range(0, len(order), batch_size)
        shares = (share(order[start : start + batch_size], self._worker) for start in starts)
        yield from itertools.starmap(self._batch, self._sent(shares))


def _to_device(
    signals: npt.NDArray[np.generic] | JoinedSignals, rows: Rows, device: torch.device
) -> torch.Tensor:
    """Copy rows in pieces, so that the host never holds a second copy of them all."""
    kind = {"int16": torch.int16, "uint8": torch.uint8}[signals.dtype.name]
    result = torch.empty((len(rows), *signals.shape[1:]), dtype=kind, device=device)
    size = max(1, 2**28 // max(1, signals[:1].nbytes))
    for start in range(0, len(rows), size):
        piece = rows[start : start + size]
        result[start : start + size] = torch.from_numpy(np.asarray(signals[piece]))
    return result


DEPTH = 2
"""Items that wait, at most, in addition to the one that is being made."""


def ahead(items: Iterator[T], depth: int = DEPTH) -> Iterator[T]:
    """The items of an iterator in order, prepared by a thread while the caller works on others.

    The thread alone uses `items`. An error is raised in the place of its item. The thread ends with
    the items, with an error, or when the generator is closed; at most `depth` items wait.
    """
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        waiting = deque(pool.submit(next, items, end) for _ in range(depth + 1))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(pool.submit(next, items, end))
                yield item  # type: ignore[misc]  # not the end
        finally:
            for future in waiting:
                future.cancel()
            if isinstance(items, Generator):
                pool.submit(items.close)
