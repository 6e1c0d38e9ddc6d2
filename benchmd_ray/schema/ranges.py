"""Ranges of dataclass fields, and their text in messages and help."""

from __future__ import annotations

import functools
import math
import typing
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Within:
    """A range of finite numbers."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """Whether ``low`` is excluded."""
    below: bool = False
    """Whether ``high`` is excluded."""
    optional: bool = False
    """Whether None is allowed."""

    def holds(self, value: float | None) -> bool:
        """Whether a value is in the range."""
        if value is None:
            return self.optional
        over = self.low < value if self.above else self.low <= value
        under = value < self.high if self.below else value <= self.high
        return over and under and math.isfinite(value)

    def __str__(self) -> str:
        """The expected values: ``1 or more``, ``a number in [0, 1)``."""
        if self.high == math.inf:
            text = f"{self.low:,g} or more"
            if self.above:
                text = "a positive number" if self.low == 0 else f"a number above {self.low:,g}"
        elif self.high > 1 and not (self.above or self.below):
            text = f"{self.low:,} to {self.high:,}"
        else:
            ends = "(" if self.above else "[", ")" if self.below else "]"
            text = f"a number in {ends[0]}{self.low:g}, {self.high:g}{ends[1]}"
        return f"{text} or null" if self.optional else text


Count = Annotated[int, Within(1)]
WholeFrom0 = Annotated[int, Within(0)]
Positive = Annotated[float, Within(0, above=True)]
From0 = Annotated[float, Within(0)]
Share = Annotated[float, Within(0, 1)]
ShareBelow1 = Annotated[float, Within(0, 1, below=True)]
ShareBelow1OrNull = Annotated[float | None, Within(0, 1, below=True, optional=True)]
ShareAbove0 = Annotated[float, Within(0, 1, above=True)]
ShareBetween = Annotated[float, Within(0, 1, above=True, below=True)]
"""Types of fields with their ranges; `Share` has both ends, `ShareBetween` neither."""


@functools.cache
def ranges_of(group: type) -> dict[str, Within]:
    """Ranges of a dataclass's fields that state one, by name."""
    return {
        name: within
        for name, kind in typing.get_type_hints(group, include_extras=True).items()
        for within in getattr(kind, "__metadata__", ())
    }
