"""Retries of calls to a server that may be away for a while."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from benchmd_ray.errors import BucketError

PATIENCE_SECONDS = 120.0
Result = TypeVar("Result")


def patiently(ask: Callable[[], Result]) -> Result:
    """Call with retries for `PATIENCE_SECONDS` while the server is away (`BucketError.away`)."""
    start, pause = time.monotonic(), 0.25
    while True:
        try:
            return ask()
        except BucketError as error:
            if not error.away or time.monotonic() - start > PATIENCE_SECONDS:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))  # random, so that not all retry at once
        pause = min(2 * pause, 5.0)
