"""Records of one kind of signal as another's, so that a network can be asked about them.

They pass through what an unrelated file would: their valid part is fitted to the extent, channels
are repeated or averaged, and values keep their unit where both have one of the same kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.faults.fault import Fault, Recorded, Values
from benchmd_ray.benchmarks.ood.faults.images import LARGEST, resized
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Range, Signal, Window, valid_area

Batch = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""Stored values of records, (records, *stored_shape), their scales and their valid sizes."""
VOLTS = {"mV": 1e-3, "µV": 1e-6}


def conformable(signal: Signal, to: Signal) -> bool:
    """Whether one can be shown to a network of the other: both over time, or neither."""
    return (len(signal.axes) == 2) == (len(to.axes) == 2)


def require_conformable(signal: Signal, to: Signal) -> None:
    """Refuse to make a signal over time an image or a volume, or the reverse."""
    if not conformable(signal, to):
        raise BenchmdError(
            f"signals of {signal.name} ({', '.join(signal.axes)}) cannot be shown to a network of "
            f"{to.name} ({', '.join(to.axes)}): exclude catalogs of {signal.name}."
        )


def conformed(record: Recorded, to: Signal) -> Values:
    """A record as the signal of another, in its unit: (*to.stored_shape), without padding."""
    signal = record.signal
    area = (slice(None), *valid_area(signal.stored_shape[1:], record.valid_size))
    values = record.values[area] * np.float32(record.step)
    require_conformable(signal, to)
    if len(signal.axes) == 2:
        volts = VOLTS.get(signal.unit, 1.0) / VOLTS.get(to.unit, 1.0)
        shared = {signal.unit, to.unit} <= VOLTS.keys()
        return resized(_channels(values, to) * np.float32(volts if shared else 1.0), _extent(to))
    low, high = _limits(signal)
    grey = np.asarray(np.clip((values - low) / (high - low), 0, 1), np.float32)
    if len(signal.axes) > len(to.axes):
        grey = grey[:, grey.shape[1] // 2]
    elif len(signal.axes) < len(to.axes):
        grey = np.repeat(grey[:, None], to.stored_shape[1], axis=1)
    low, high = _limits(to)
    return np.asarray(low + (high - low) * resized(_channels(grey, to), _extent(to)), np.float32)


def recorded(
    values: npt.NDArray[Any], step: np.float32, size: npt.NDArray[np.int32], signal: Signal
) -> Recorded:
    """A stored record, as faults and `conformed` take it."""
    valid = tuple(int(extent) for extent in size)
    return Recorded(values.astype(np.float32), float(step), valid, signal)


def conformed_batch(batch: Batch, signal: Signal, to: Signal) -> Batch:
    """Records as the signal of another; themselves where it is the same."""
    if signal == to:
        return batch
    signals = [conformed(recorded(*fields, signal), to) for fields in zip(*batch, strict=True)]
    extent = np.array(to.stored_shape[1:], np.int32)
    return np.stack(signals), np.ones(len(signals), np.float32), np.tile(extent, (len(signals), 1))


def coarser(signal: Signal, to: Signal) -> tuple[int, ...]:
    """Extent to which another signal's records are coarser than a network's; empty if nowhere."""
    wanted, extent = to.stored_shape[1:], signal.stored_shape[1:]
    if len(extent) > len(wanted):  # a slice
        extent = extent[1:]
    elif len(extent) < len(wanted):  # the same image in all slices
        extent = (wanted[0], *extent)
    least = tuple(min(pair) for pair in zip(extent, wanted, strict=True))
    return () if least == wanted else least


def coarse(extent: tuple[int, ...]) -> Fault:
    """What makes a record as coarse as one of that extent that was enlarged."""

    def make(record: Recorded, _: int, __: np.random.Generator) -> Values:
        area = (slice(None), *valid_area(record.signal.stored_shape[1:], record.valid_size))
        changed = record.values.copy()
        part = changed[area]
        share = np.array(part.shape[1:]) / record.signal.stored_shape[1:]
        small = tuple(max(1, round(a * b)) for a, b in zip(extent, share, strict=True))
        changed[area] = np.round(resized(resized(part, small), part.shape[1:]))
        return changed

    name = "-".join(map(str, ("coarse", *extent)))
    return Fault(name, "as coarse as another dataset", make, (1,))


def _extent(to: Signal) -> tuple[int, ...]:
    return to.stored_shape[1:]


def _channels(values: Values, to: Signal) -> Values:
    """As many channels: colours as their mean, or one repeated; of leads the first, in turn."""
    wanted = to.stored_shape[0]
    if len(values) == wanted:
        return values
    if len(values) == 3 and wanted == 1:
        return np.asarray(values.mean(axis=0, keepdims=True))
    return values[np.arange(wanted) % len(values)]


def _limits(signal: Signal) -> tuple[float, float]:
    """What is black and white in the unit of an image or a volume."""
    parameters = signal.normaliser_parameters()
    if isinstance(parameters, Window):
        return parameters.range.low, parameters.range.high
    if signal.dtype == "int16" and isinstance(parameters, Range):
        return parameters.low, parameters.high
    return 0.0, LARGEST
