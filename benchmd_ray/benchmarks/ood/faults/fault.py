"""What a fault is: a change of a stored signal that makes it wrong, of three severities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import require_plain_name
from benchmd_ray.signals import Signal

Values = npt.NDArray[np.float32]
SEVERITIES = (1, 2, 3)


@dataclass(frozen=True)
class Recorded:
    """A record as its catalog stores it."""

    values: Values
    """Of the signal's ``stored_shape``, in stored steps."""
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
    """What went wrong, in a few words."""
    make: Callable[[Recorded, int, np.random.Generator], Values]
    """From a record, a severity and the random numbers of this record to its values, in stored
    steps, of the same shape."""
    severities: tuple[int, ...] = SEVERITIES
    """Those that differ: (1,) of a change that is there or not."""
    control: bool = False
    """Whether the protocol's normalisation removes it, so that no detector can see it."""

    def __post_init__(self) -> None:
        require_plain_name("fault", self.name)
