"""Signals: axes, shapes, unit and type of the records of a catalog and an encoder's input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from benchmd_ray.errors import BenchmdError, FieldError, require_plain_name, shown, unknown_name
from benchmd_ray.schema.typed import PlainValue, typed


@dataclass(frozen=True)
class Range:
    """A linear mapping of a range of values; values outside are clipped."""

    low: float
    high: float
    onto_low: float = 0.0
    onto_high: float = 1.0

    def __post_init__(self) -> None:
        if not (self.low < self.high and self.onto_low < self.onto_high):
            raise BenchmdError(
                f"the range from {self.low:g} to {self.high:g}, onto {self.onto_low:g} to "
                f"{self.onto_high:g}, is empty: low must be below high."
            )


@dataclass(frozen=True)
class Window:
    """A window of CT: its centre and width, in the signal's unit."""

    centre: float
    width: float

    def __post_init__(self) -> None:
        if self.width <= 0:
            raise BenchmdError(
                f"the window around {self.centre:g} has the width {self.width:g}: expected a "
                "positive number."
            )

    @property
    def range(self) -> Range:
        """Its lowest and highest value."""
        return Range(self.centre - self.width / 2, self.centre + self.width / 2)


@dataclass(frozen=True)
class Plain:
    """No parameters."""


PARAMETERS: dict[str, type] = {
    "record-range": Plain,
    "fixed-range": Range,
    "window": Window,
    "source-statistics": Plain,
    "source-mean": Range,
    "none": Plain,
}
"""Types of parameters by name of the normaliser in `benchmd_ray.data.normalise`."""
BY_STATISTICS = ("source-statistics", "source-mean")
"""Those that need statistics of a training split."""
MAX_VALUES = 2**28
"""Most values of a stored signal: half a gigabyte of int16."""
LOWEST_RATE = 1e-3
"""Hz; rates are rounded to 1 / 10,000."""
AXES = (("channel", "time"), ("channel", "y", "x"), ("channel", "z", "y", "x"))
"""Axes of a signal over time, of an image and of a volume."""
GROUPS = dict(zip(AXES, ("over-time", "images", "volumes"), strict=True))


@dataclass(frozen=True)
class Signal:
    """Type of the records in a catalog."""

    name: str
    axes: tuple[str, ...]
    stored_shape: tuple[int, ...]
    input_shape: tuple[int, ...]
    """Shape of the encoder's input, the centre of the stored shape, channels first."""
    dtype: Literal["int16", "uint8"]
    unit: str
    patch: tuple[int, ...]
    """Extent of a patch along each axis except the channel."""
    normaliser: str
    parameters: dict[str, PlainValue] = field(default_factory=dict, hash=False)
    channels: tuple[str, ...] = ()
    rate: float | None = None
    """Sampling rate in Hz, for signals over time."""
    within: tuple[str, ...] = ()
    """Groups in search spaces that include this signal, widest first."""

    def __post_init__(self) -> None:
        """Raise `FieldError` for a signal that is impossible for catalogs or encoders."""
        require_plain_name("signal", self.name)
        for name in self.within:
            require_plain_name("group of signals", name, "within")
        field, fault = self._axes_fault() or self._extents_fault() or self._time_fault() or ("", "")
        if fault:
            raise FieldError(field, f"the signal {self.name} is invalid: {fault}.")
        try:
            self.normaliser_parameters()
        except BenchmdError as error:
            field = "parameters" if self.parameters else "normaliser"
            raise FieldError(field, str(error)) from error

    def _axes_fault(self) -> tuple[str, str] | None:
        """A field and its fault; None if there is none (so in the next two methods)."""
        extents = (*self.stored_shape, *self.input_shape, *self.patch)
        if self.axes not in AXES:
            expected = " or ".join(", ".join(axes) for axes in AXES)
            return "axes", f"its axes are {shown(list(self.axes))}, expected {expected}"
        if not len(self.axes) == len(self.stored_shape) == len(self.input_shape):
            fault = "stored_shape and input_shape do not have an extent for each of its axes"
            return "stored_shape", fault
        if len(self.patch) != len(self.axes) - 1:
            return "patch", "patch does not have an extent for each axis but the channel's"
        if min(extents) < 1 or math.prod(self.stored_shape) > MAX_VALUES:
            return "stored_shape", f"its extents are not within 1 and {MAX_VALUES:,} values in all"
        return None

    def _extents_fault(self) -> tuple[str, str] | None:
        if self.stored_shape[0] != self.input_shape[0]:
            return "input_shape", "stored_shape and input_shape have different numbers of channels"
        for axis, stored, seen, patch in zip(
            self.axes[1:], self.stored_shape[1:], self.input_shape[1:], self.patch, strict=True
        ):
            if stored < seen or (stored - seen) % 2:
                return (
                    "input_shape",
                    f"the central {seen} of {stored} stored values along {axis} cannot be cut out: "
                    "expected at most the stored number, and an even difference",
                )
            if seen % patch:
                fault = f"{seen} values along {axis} cannot be divided into patches of {patch}"
                return "patch", fault
        return None

    def _time_fault(self) -> tuple[str, str] | None:
        if self.channels and len(self.channels) != self.stored_shape[0]:
            fault = f"it has {self.stored_shape[0]} channels and names {len(self.channels)}"
            return "channels", fault
        if self.axes[-1] == "time" and (self.rate is None or self.dtype != "int16"):
            field = "rate" if self.rate is None else "dtype"
            return field, "signals over time are int16 and have a rate in Hz"
        if self.rate is not None and self.rate < LOWEST_RATE:
            return "rate", f"its rate is {self.rate:g} Hz, expected {LOWEST_RATE:g} Hz or more"
        return None

    def normaliser_parameters(self) -> Any:
        """Its normaliser's parameters, of the type in `PARAMETERS`."""
        if self.normaliser not in PARAMETERS:
            raise unknown_name(f"normaliser of {self.name}", self.normaliser, PARAMETERS)
        where = f"the normaliser {self.normaliser} of {self.name}"
        return typed(PARAMETERS[self.normaliser], dict(self.parameters), where)

    @property
    def is_image(self) -> bool:
        """Whether it has the axes channel, y, x."""
        return self.axes == ("channel", "y", "x")

    @property
    def by_statistics(self) -> bool:
        """Whether its normaliser needs statistics of a training split."""
        return self.normaliser in BY_STATISTICS

    @property
    def in_unit(self) -> Signal:
        """This signal without normalisation."""
        return replace(self, normaliser="none", parameters={})

    @property
    def tokens(self) -> int:
        """Number of patches, without CLS."""
        return math.prod(s // p for s, p in zip(self.input_shape[1:], self.patch, strict=True))

    @property
    def patch_size(self) -> int:
        """Values of a patch over all channels."""
        return self.input_shape[0] * math.prod(self.patch)

    @property
    def groups(self) -> tuple[str, ...]:
        """Its groups in search spaces, widest first, and its own name."""
        return (GROUPS[self.axes], *self.within, self.name)

    def with_patch(self, size: int) -> Signal:
        """This signal with patches of another extent.

        ``size`` is in samples along time, or in pixels along y and x; the extent along z stays. 0
        keeps the signal's own patches. A size that does not divide the signal's extent is an error.
        """
        if size == 0:
            return self
        kept = self.patch[:-2]  # z, where there is one
        along = self.input_shape[1 + len(kept) :]
        if size < 0 or any(extent % size for extent in along):
            unit = "samples" if self.axes[-1] == "time" else "pixels"
            raise BenchmdError(
                f"setting encoder.patch_size is {size}, which does not divide the {along[0]} "
                f"{unit} of {self.name} along {' and '.join(self.axes[1 + len(kept) :])} into "
                "whole "
                f"patches: expected a divisor, such as {_divisors_near(math.gcd(*along), size)}, "
                f"or 0 for its own ({self.patch[-1]})."
            )
        return replace(self, patch=kept + (size,) * len(along))


def valid_area(extents: Sequence[int], size: Sequence[Any]) -> tuple[slice, ...]:
    """The part of a stored signal that is not padding, along each axis except the channel.

    ``extents`` are those of the stored signal, ``size`` the valid ones (`Record.valid_size`).
    Padding is on both sides, with half of it (rounded down) in front; short volumes are padded only
    after their slices.
    """
    starts = valid_starts(extents, size)
    return tuple(slice(start, start + valid) for start, valid in zip(starts, size, strict=True))


def valid_starts(extents: Sequence[int], size: Sequence[Any]) -> list[Any]:
    """Start of each slice of `valid_area`, with the same arguments; sizes may be tensors."""
    starts = [(whole - valid) // 2 for whole, valid in zip(extents, size, strict=True)]
    return [0 * starts[0], *starts[1:]] if len(starts) == 3 else starts


def differing_in(signal: Signal, other: Signal) -> str:
    """How two signals with the same name differ, for a message; empty if their names differ."""
    if signal.name != other.name:
        return ""
    names = [f.name for f in fields(Signal) if getattr(signal, f.name) != getattr(other, f.name)]
    return f" with another {', '.join(names)}" if names else ""


def misfits(encoder: Signal, signal: Signal) -> list[str]:
    """Why an encoder that was trained on one signal cannot take another; empty if it can.

    Their names, stored type and stored size may differ: the encoder sees what is normalised.
    """
    if encoder.axes != signal.axes:
        return [f"its axes are {', '.join(signal.axes)}, expected {', '.join(encoder.axes)}"]
    faults = []
    missing = [name for name in encoder.channels if name not in signal.channels]
    if signal.channels and missing:
        faults.append(f"its channels lack {', '.join(missing)}")
    elif encoder.channels != signal.channels:
        names = [", ".join(kind.channels) or "without names" for kind in (signal, encoder)]
        faults.append(f"its channels are {names[0]}, expected {names[1]}, in this order")
    if encoder.rate != signal.rate:
        faults.append(f"its rate is {signal.rate:g} Hz, expected {encoder.rate:g} Hz")
    if encoder.input_shape != signal.input_shape:
        sizes = [" × ".join(map(str, kind.input_shape)) for kind in (signal, encoder)]
        faults.append(f"its size is {sizes[0]}, expected {sizes[1]}")
    if encoder.patch[:-2] != signal.patch[:-2]:  # those along y and x are the pretraining's
        faults.append(f"its patches have {signal.patch[0]} slices, expected {encoder.patch[0]}")
    if encoder.unit != signal.unit:
        faults.append(f"its unit is {signal.unit}, expected {encoder.unit}")
    ways = [(kind.normaliser, dict(kind.parameters)) for kind in (signal, encoder)]
    if ways[0] != ways[1]:
        texts = [" ".join([name, *(f"{k}={v}" for k, v in of.items())]) for name, of in ways]
        faults.append(f"it is normalised by {texts[0]}, expected {texts[1]}")
    return faults


def require_signal(upstream: object, encoder: Signal, signal: Signal, catalog: object) -> None:
    """Refuse a catalog whose signal the encoder of ``upstream`` cannot take, see `misfits`."""
    if faults := misfits(encoder, signal):
        raise BenchmdError(
            f"{upstream} was pretrained on the signal {encoder.name}, and {signal.name} of the "
            f"catalog {catalog} does not fit: {'; '.join(faults)}. Name a pretraining on such "
            "signals, or build a catalog with the signals of the pretraining."
        )


def _divisors_near(extent: int, size: int) -> str:
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    below = [d for d in divisors if d < size][-2:]
    return ", ".join(map(str, below + [d for d in divisors if d > size][:2]))
