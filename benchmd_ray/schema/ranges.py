"""Ranges of numbers: whether a value is within, and what is expected, as messages and help say."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Within:
    """Numbers from one to another, finite ones."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """Whether ``low`` itself is not among them."""
    below: bool = False
    """Whether ``high`` itself is not among them."""
    optional: bool = False
    """Whether there may be no number."""

    def holds(self, value: float | None) -> bool:
        """Whether a value is one of them."""
        if value is None:
            return self.optional
        over = self.low < value if self.above else self.low <= value
        under = value < self.high if self.below else value <= self.high
        return over and under and math.isfinite(value)

    def __str__(self) -> str:
        """What is expected: ``1 or more``, ``a number in [0, 1)``."""
        if self.high == math.inf:
            text = f"{self.low:,g} or more"
            if self.above:
                text = "a positive number" if self.low == 0 else f"a number above {self.low:,g}"
        elif self.high > 1 and not (self.above or self.below):
            text = f"{self.low:,.15g} to {self.high:,.15g}"
        else:
            ends = "(" if self.above else "[", ")" if self.below else "]"
            text = f"a number in {ends[0]}{self.low:g}, {self.high:g}{ends[1]}"
        return f"{text} or null" if self.optional else text


POSITIVE = Within(0, above=True)
FROM_0 = Within(0)
FROM_1 = Within(1)
SHARE = Within(0, 1)
BELOW_1 = Within(0, 1, below=True)
ABOVE_0 = Within(0, 1, above=True)
BETWEEN = Within(0, 1, above=True, below=True)
"""Shares: with both ends, without 1, without 0, without either."""
