"""Wait for a condition with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def until(
    what: str, happened: Callable[[], T], seconds: float = 120.0, details: Callable[[], str] = str
) -> T:
    """Wait until a condition is true.

    Args:
        what: Names the event, for the failure message.
        happened: The condition.
        seconds: The bound, generous because the machine may be busy.
        details: Gives more for the failure message, such as a log.

    Returns:
        The first true value of the condition.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := happened():
            return result
        time.sleep(0.02)
    pytest.fail(f"waited {seconds:g} s in vain for {what}: {details()}".rstrip(": "))
