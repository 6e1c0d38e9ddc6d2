"""Stop on Ctrl-C or a signal of a scheduler: training writes a checkpoint and stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from benchmd_ray.console.interrupts import SIGNALS, handled
from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import Stopped
from benchmd_ray.training.engine import gather

LOOK_SECONDS = 1.0
"""Approximate seconds between checks among several workers."""
MOST_STEPS = 1000
"""Most steps between two such checks."""

_noted = 0


def note(number: int, frame: FrameType | None = None) -> None:
    """Handle a signal; a second one interrupts at once."""
    global _noted
    if _noted:
        raise Stopped(number)
    _noted = number


def noted() -> int:
    """The signal that was noted, 0 if none."""
    return _noted


@contextmanager
def heeding() -> Iterator[None]:
    """Context that notes Ctrl-C and SIGTERM, so that training stops; only in the main thread.

    Raises `Stopped` if the work ended before it could stop.
    """
    global _noted
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _noted = 0
    try:
        with handled(dict.fromkeys(SIGNALS, note)):
            yield
            if _noted:
                raise Stopped(_noted)
    finally:
        _noted = 0


class Agreement:
    """Agreement of all workers to stop after a step.

    A single process checks after each step. Several workers check about once a second; a signal to
    one of them stops all.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._steps = self._left = 1
        self._looked = time.monotonic()

    def stop(self) -> int:
        """The signal to stop for, 0 for none; every worker calls it after every step."""
        if self._worker.world == 1:
            return noted()
        self._left -= 1
        if self._left:
            return 0
        now = time.monotonic()
        message = torch.tensor([[float(noted()), now - self._looked]], device=self._worker.device)
        number, seconds = gather(message).max(dim=0).values.tolist()
        # All have the same numbers, so all check again after the same number of steps.
        self._steps = max(1, min(MOST_STEPS, int(self._steps * LOOK_SECONDS / max(seconds, 1e-3))))
        self._left, self._looked = self._steps, now
        return int(number)
