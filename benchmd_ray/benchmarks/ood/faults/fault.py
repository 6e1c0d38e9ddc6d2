"""What a fault is: a change of a stored signal that makes it wrong, of up to three severities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.normalise import NORMALISERS
from benchmd_ray.errors import require_plain_name
from benchmd_ray.modality.signals import Range, Signal, Window, valid_area

Values = npt.NDArray[np.float32]
SEVERITIES = (1, 2, 3)
LIMITS = {"uint8": (0, 2**8 - 1), "int16": (-(2**15), 2**15 - 1)}


@dataclass(frozen=True)
class Recorded:
    """A record as its catalog stores it."""

    values: Values
    step: float
    """Physical value of a step, in the signal's unit."""
    valid_size: tuple[int, ...]
    """Extent along each axis but the channel's; beyond it lies padding, evenly on both sides."""
    signal: Signal


@dataclass(frozen=True)
class Fault:
    """A fault that can be made of a correct record."""

    name: str
    title: str
    make: Callable[[Recorded, int, np.random.Generator], Values]
    """From a record, a severity and the random numbers of this record to its values, in stored
    steps, of the same shape."""
    severities: tuple[int, ...] = SEVERITIES
    """Those that differ: (1,) of a change that is there or not."""
    control: bool = False
    """Whether the protocol's normalisation removes it, so that no detector can see it."""
    use_case: Literal["faulty", "unrelated"] = "faulty"
    """Whether it is a record acquired or prepared wrongly, or no longer one of its domain."""

    def __post_init__(self) -> None:
        require_plain_name("fault", self.name)


Change = Callable[[Values, Recorded, int, np.random.Generator], Values]
"""From the valid part of a record, the record, a severity and random numbers to the same part."""


def makers(
    seen: Callable[[Values, Recorded], Values], stored: Callable[[Values, Recorded], Values]
) -> tuple[Callable[..., Fault], Callable[..., Fault], Callable[..., Fault]]:
    """Makers of faults from name, title and `Change`: of one severity, of three, unrelated.

    ``seen`` turns stored steps into what a change takes, ``stored`` turns its result back. Padding
    stays as it is.
    """

    def graded(
        name: str, title: str, change: Change, severities: tuple[int, ...] = SEVERITIES, **more: Any
    ) -> Fault:
        def make(record: Recorded, severity: int, draw: np.random.Generator) -> Values:
            area, changed = valid_values(record), record.values.copy()
            values = change(seen(changed[area], record), record, severity, draw)
            changed[area] = stored(values, record)
            return changed

        return Fault(name, title, make, severities, **more)

    once = partial(graded, severities=(1,))
    return once, graded, partial(once, use_case="unrelated")


def spread(x: Values, of_flat: float = 1.0) -> float:
    """Standard deviation of a record, or ``of_flat`` where it is constant."""
    return float(x.std()) if np.ptp(x) > 0 else of_flat


def valid_values(record: Recorded) -> tuple[slice, ...]:
    """Where a record is more than padding, in all its channels."""
    return (slice(None), *valid_area(record.signal.stored_shape[1:], record.valid_size))


def clipped_range(signal: Signal) -> Range | None:
    """The range, in the signal's unit, beyond which its normaliser clips; None if it does not."""
    parameters = signal.normaliser_parameters()
    if isinstance(parameters, Window):
        return parameters.range
    return parameters if signal.normaliser == "fixed-range" else None


def _other_padding(record: Recorded, _: int, draw: np.random.Generator) -> Values:
    """Noise of 0 to 255 steps in place of the padding."""
    area = valid_values(record)
    changed = draw.integers(0, 256, record.values.shape).astype(np.float32)
    changed[area] = record.values[area]
    return changed


def _beyond_range(record: Recorded, _: int, __: np.random.Generator) -> Values:
    """Values beyond the range that is seen, further out by a third of it."""
    seen = clipped_range(record.signal)
    assert seen is not None
    area, changed = valid_values(record), record.values.copy()
    x = changed[area] * np.float32(record.step)
    side = (x > seen.high).astype(np.float32) - (x < seen.low)
    changed[area] += side * round((seen.high - seen.low) / 3 / record.step)
    return np.asarray(np.clip(changed, *LIMITS[record.signal.dtype]))


PADDING = Fault("padding", "other padding (negative control)", _other_padding, (1,), control=True)
BEYOND = Fault(
    "beyond-range",
    "further beyond the range that is seen (negative control)",
    _beyond_range,
    (1,),
    control=True,
)


def controls(signal: Signal) -> tuple[Fault, ...]:
    """Negative controls by the signal's normaliser, whatever its axes.

    A normaliser by statistics makes padding 0; one to a range clips, and only 16-bit signals are
    wider than their range.
    """
    faults = []
    if NORMALISERS[signal.normaliser].by_statistics:
        faults.append(PADDING)
    if signal.dtype == "int16" and clipped_range(signal) is not None:
        faults.append(BEYOND)
    return tuple(faults)
