"""Outputs of a network for sets of records, cached."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmd_ray.benchmarks.ood.conform import Batch, conformed_batch, recorded
from benchmd_ray.benchmarks.ood.faults import made
from benchmd_ray.benchmarks.ood.methods.formulas import drawn
from benchmd_ray.benchmarks.ood.methods.method import Detector, Seen, State
from benchmd_ray.benchmarks.ood.network import Network, small, visible
from benchmd_ray.benchmarks.ood.sets import OutSet, SplitRecords
from benchmd_ray.data.resident import resident_signals
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.modality.signals import Signal
from benchmd_ray.settings.definition import EncoderSettings, Settings, updated
from benchmd_ray.training.collect import evaluation_batch
from benchmd_ray.training.features import feature_store

VERSION = 2
"""Raised whenever quantities, faults or fitting to another signal change."""
SEED = 0
TIMED, TIMES = 32, 5
"""Records of which the network's work is timed, and how often; the median counts."""


@dataclass(frozen=True)
class NetworkObserver:
    """Asks a network about records."""

    network: Network
    settings: Settings
    folder: Path
    sources: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the sources of detectors that are not the package's."""

    @classmethod
    def of(
        cls, network: Network, settings: Settings, sources: Mapping[str, str] | None = None
    ) -> NetworkObserver:
        """One that keeps the network's outputs in this node's cache."""
        return cls(network, settings, cache_folder() / "ood", sources or {})

    def seen(self, records: Sequence[SplitRecords], of: OutSet | None = None) -> Seen:
        """Outputs of the network for records, in their order."""
        network = self.network
        about = {"quantities": {name: list(shape) for name, shape in network.shapes.items()}}
        quantities = self._kept(records, of, network.quantities, about, (network.values,))
        _require_finite(quantities, records)
        return network.seen(quantities)

    def pixels(
        self, records: Sequence[SplitRecords], of: OutSet | None = None
    ) -> npt.NDArray[np.float32]:
        """Small pictures of records as the network sees them: (records, channels, …)."""
        shape = tuple(small(torch.zeros(1, *self.network.signal.input_shape)).shape[1:])
        return self._kept(records, of, partial(pictures, self.network), {"pixels": True}, shape)

    def asked(
        self,
        records: Sequence[SplitRecords],
        method: Detector,
        state: State,
        of: OutSet | None = None,
    ) -> npt.NDArray[np.float32]:
        """What a detector computes of records by the network: (records, …)."""
        assert method.asks is not None
        network = self.network
        zeros = torch.zeros(1, *network.signal.input_shape, device=network.worker.device)
        shape = tuple(method.asks(network, state, zeros).shape[1:])

        def ask(*batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
            assert method.asks is not None
            answers = method.asks(network, state, network.normalised(*batch))
            return np.asarray(answers.float().cpu().numpy(), np.float32)

        source = self.sources.get(method.name, "")
        about = {"detector": method.name, "state": digest_of(state), "source": source}
        return self._kept(records, of, ask, about, shape)

    @cached_property
    def shown_shape(self) -> tuple[int, ...]:
        """Shape of a picture that is to be looked at: (channels, …), of a volume one slice."""
        zeros = torch.zeros(1, *self.network.signal.input_shape)
        return tuple(visible(zeros).shape[1:])

    def shown(self, records: SplitRecords, of: OutSet | None = None) -> Iterator[bytes]:
        """Pictures of records to be looked at, from black to white: bytes of `shown_shape`."""
        for batch in _batches(records, self.network.signal, of, 16):
            for picture in visible(self.network.normalised(*batch).float()).cpu().numpy():
                low, high = float(picture.min()), float(picture.max())
                grey = (picture - low) / (high - low) if high > low else np.zeros_like(picture)
                yield np.round(grey * 255).astype(np.uint8).tobytes()

    def costs(
        self, records: SplitRecords, asking: Mapping[str, tuple[Detector, State]]
    ) -> dict[str, float]:
        """Seconds that a record takes, by part of the network or detector that asks it."""
        few = records.at(np.isin(np.arange(len(records)), drawn(len(records), TIMED)))
        batch = next(_batches(few, self.network.signal, None, TIMED))
        signals = self.network.normalised(*batch)
        work: dict[str, Callable[[], object]] = {
            name: partial(part, signals) for name, part in self.network.parts.items()
        }
        work["pixels"] = partial(pictures, self.network, *batch)
        for name, (method, state) in asking.items():
            assert method.asks is not None
            work[name] = partial(method.asks, self.network, state, signals)
        return {name: median_seconds(call) / len(few) for name, call in work.items()}

    def _kept(
        self,
        records: Sequence[SplitRecords],
        of: OutSet | None,
        ask: Callable[..., npt.NDArray[np.float32]],
        about: Mapping[str, Any],
        shape: tuple[int, ...],
    ) -> npt.NDArray[np.float32]:
        """Answers for batches of records, (records, *shape), kept in the cache by ``about``."""
        parts = [self._of_split(part, of, ask, about, prod(shape)) for part in records]
        return np.concatenate(parts).reshape(-1, *shape)

    def _of_split(
        self,
        records: SplitRecords,
        of: OutSet | None,
        ask: Callable[..., npt.NDArray[np.float32]],
        about: Mapping[str, Any],
        width: int,
    ) -> npt.NDArray[np.float32]:
        network = self.network
        encoder = updated(EncoderSettings(), network.about["encoder"])
        settings = replace(self.settings, encoder=encoder)
        store = feature_store(
            self.folder, network.model.encoder, settings, records.catalog, network.worker.device
        )
        decides = {
            **store.about,
            "weights": network.digest,
            "ood": VERSION,
            "signal": str(network.signal),
            "statistics": network.about["statistics"],
            "augmentation": network.about["augmentation"],
            "fault": None if of is None or of.fault is None else [of.fault.name, of.severity, SEED],
            **about,
        }
        if "pixels" in about:
            del decides["weights"], decides["encoder"]

        def encode() -> npt.NDArray[np.float32]:
            size = evaluation_batch(network.model.encoder)
            batches = _batches(records, network.signal, of, size)
            answers = [ask(*batch).reshape(len(batch[0]), -1) for batch in batches]
            return np.concatenate(answers) if answers else np.empty((0, width), np.float32)

        kept = replace(store, about=decides, width=width)
        return kept.features(records.split, records.rows, encode, False)


def digest_of(state: State) -> str:
    """SHA-256 of all arrays of a fitted detector."""
    hashed = hashlib.sha256()
    for name, value in sorted(state.items()):
        hashed.update(f"{name} {value.dtype} {value.shape}\n".encode())
        hashed.update(np.ascontiguousarray(value).tobytes())
    return hashed.hexdigest()


def pictures(network: Network, *batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Small pictures of records as a network sees them; arguments as of `Network.normalised`."""
    return np.asarray(small(network.normalised(*batch).float()).cpu().numpy(), np.float32)


def _require_finite(quantities: npt.NDArray[np.float32], records: Sequence[SplitRecords]) -> None:
    """Refuse NaN or infinite features; the message names the first record."""
    wrong = np.flatnonzero(~np.isfinite(quantities).all(axis=1))
    if len(wrong):
        name = [name for part in records for name in part.ids("record_id")][wrong[0]]
        raise BenchmdError(
            f"the network gives NaN or infinite features for {count_of(len(wrong), 'record')}, the "
            f"first is {name}: detectors cannot be fitted or asked. Check the run's training, and "
            "the record."
        )


def median_seconds(work: Callable[[], object]) -> float:
    """Seconds that something takes: the median of `TIMES`, after a first time."""
    work()
    seconds = []
    for _ in range(TIMES):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _batches(records: SplitRecords, to: Signal, of: OutSet | None, size: int) -> Iterator[Batch]:
    """Stored values, scales and valid sizes of records as the network is to see them."""
    signals = resident_signals(records.catalog, records.split)
    signal = records.catalog.signal
    scales = records.table["scale"].to_numpy().astype(np.float32)
    sizes = np.array(records.table["valid_size"].to_pylist(), np.int32)
    names = records.table["record_id"].to_pylist()
    for start in range(0, len(records), size):
        places = range(start, min(start + size, len(records)))
        values = np.asarray(signals[records.rows[start : start + size]])
        step, valid = scales[start : start + size], sizes[start : start + size]
        values, step, valid = conformed_batch((values, step, valid), signal, to)
        if of is not None and of.fault is not None:
            values = np.stack(
                [
                    made(recorded(value, s, v, to), of.fault, of.severity, names[place], SEED)
                    for value, s, v, place in zip(values, step, valid, places, strict=True)
                ]
            )
        yield values, step, valid
