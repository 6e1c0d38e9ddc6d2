"""Stored signals to what the encoder sees, at batch time and on the device (decision D1).

Normalisers take signals (batch, channel, …) of stored steps, scales (batch,) in physical units a
step, statistics of the source's training split and a range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Plain, Range, Signal, Window, valid_starts

Statistics = Mapping[str, Sequence[float]]
"""``mean`` and ``std`` per channel over the source's training split, in the stored unit."""

Held = Mapping[str, torch.Tensor]
"""`Statistics` on the device of the signals: each (channels,) float32."""

Normalise = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(signals (batch, *stored_shape), scales (batch,), valid sizes (batch, axes but the channel's)) →
float32 (batch, *input_shape)."""


def by_own_range(signals: torch.Tensor, scales: torch.Tensor, _: Held, __: Plain) -> torch.Tensor:
    """Each record divided by its own max − min, so that the unit cancels; 0 if constant."""
    x = signals.float()
    axes = tuple(range(1, x.ndim))
    extent = x.amax(dim=axes, keepdim=True) - x.amin(dim=axes, keepdim=True)
    return x / extent.masked_fill(extent == 0, torch.inf)


def fixed_range(signals: torch.Tensor, scales: torch.Tensor, _: Held, to: Range) -> torch.Tensor:
    """A range in the signal's unit mapped onto another; values beyond it are clipped."""
    x = signals.float() * _each(scales, signals)
    x = ((x - to.low) / (to.high - to.low)).clamp(0, 1)
    if (to.onto_low, to.onto_high) == (0, 1):
        return x
    return x * (to.onto_high - to.onto_low) + to.onto_low


def window(signals: torch.Tensor, scales: torch.Tensor, _: Held, to: Window) -> torch.Tensor:
    """A window of CT mapped to [0, 1]; see `fixed_range`."""
    return fixed_range(signals, scales, {}, to.range)


def standardised(
    signals: torch.Tensor, scales: torch.Tensor, moments: Held, _: Plain
) -> torch.Tensor:
    """Mean removed and divided by the standard deviation, per channel."""
    x = signals.float() * _each(scales, signals)
    mean, std = _per_channel(moments, "mean", signals), _per_channel(moments, "std", signals)
    return (x - mean) / std


def centred(signals: torch.Tensor, scales: torch.Tensor, moments: Held, to: Range) -> torch.Tensor:
    """Mean removed, and divided by the extent of a range such as 0 to 255."""
    x = signals.float() * _each(scales, signals)
    return (x - _per_channel(moments, "mean", signals)) / (to.high - to.low)


def as_stored(signals: torch.Tensor, scales: torch.Tensor, _: Held, __: Plain) -> torch.Tensor:
    """Values in the signal's unit."""
    return signals.float() * _each(scales, signals)


def _each(scales: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
    return scales.reshape(-1, *(1,) * (signals.ndim - 1))


def _per_channel(moments: Held, name: str, signals: torch.Tensor) -> torch.Tensor:
    return moments[name].reshape(-1, *(1,) * (signals.ndim - 2))


def _valid(sizes: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
    """(batch, 1, …): True where stored signals are not padding; see `valid_starts`."""
    whole = torch.ones((), dtype=torch.bool, device=signals.device)
    extents = signals.shape[2:]
    axis_sizes = sizes.unbind(dim=1)
    for axis, (start, size) in enumerate(
        zip(valid_starts(extents, axis_sizes), axis_sizes, strict=True)
    ):
        place, stop = torch.arange(extents[axis], device=signals.device), start + size
        inside = (place >= start.reshape(-1, 1)) & (place < stop.reshape(-1, 1))
        shape = [len(sizes), *(1,) * (signals.ndim - 1)]
        shape[2 + axis] = extents[axis]
        whole = whole & inside.reshape(shape)
    return whole


@dataclass(frozen=True)
class Normaliser:
    """A way to normalise that a card may name."""

    function: Callable[..., torch.Tensor]
    """(signals, scales, statistics, parameters) → normalised, of the same shape."""
    by_statistics: bool = False
    """Whether it needs the source's training statistics; what is padding then becomes 0."""


NORMALISERS: dict[str, Normaliser] = {
    "record-range": Normaliser(by_own_range),
    "fixed-range": Normaliser(fixed_range),
    "window": Normaliser(window),
    "source-statistics": Normaliser(standardised, by_statistics=True),
    "source-mean": Normaliser(centred, by_statistics=True),
    "none": Normaliser(as_stored),
}
"""By the names that cards give them; their parameters are in `modality.signals.PARAMETERS`."""


def normaliser(
    signal: Signal, statistics: Statistics | None, device: torch.device | None = None
) -> Normalise:
    """The function from stored signals, scales and valid sizes to what the encoder sees.

    What lies outside of the centre that the encoder sees is cut off. ``device`` is that of the
    signals, None the CPU; ``statistics`` are of the source's training split.

    Raises:
        BenchmdError: It needs statistics, and there are none.
    """
    chosen = NORMALISERS[signal.normaliser]
    if chosen.by_statistics and (statistics is None or 0.0 in statistics["std"]):
        raise BenchmdError(
            f"signals of {signal.name} are normalised by the mean and standard deviation of the "
            "source's training split, and this source has none or constant ones: build its "
            "catalog with a training split."
        )
    parameters = signal.normaliser_parameters()
    centre: tuple[Any, ...] = (..., *map(_centre, signal.stored_shape[1:], signal.input_shape[1:]))
    moments = {
        name: torch.tensor(list(values), dtype=torch.float32, device=device)
        for name, values in (statistics or {}).items()
        if chosen.by_statistics
    }

    def normalise(signals: torch.Tensor, scales: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        x = chosen.function(signals[centre], scales, moments, parameters)
        return x * _valid(sizes, signals)[centre] if chosen.by_statistics else x

    return normalise


def _centre(stored: int, seen: int) -> slice:
    start = (stored - seen) // 2
    return slice(start, start + seen)
