"""Numbers as files and tables write them: ASCII digits, a sign, a point and an exponent.

Python's own ``int`` and ``float`` take more: ``1_0``, digits of other scripts, ``infinity``.
"""

from __future__ import annotations

import math
import re

VERSION = 1
"""Raised whenever a text is read as another number."""
BLANKS = " \t\r\n"
"""What may be around a number in a field of fixed width."""
LONGEST = 400
"""Characters of a number: of a double written out, without an exponent, at most."""
WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")


def number_of(text: str) -> float | None:
    """The finite number that the whole text is; None where it is none."""
    if len(text) > LONGEST or NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole_of(text: str) -> int | None:
    """The whole number that the whole text is; None where it is none."""
    return int(text) if len(text) <= LONGEST and WHOLE.fullmatch(text) else None
