"""Signals that ask for an orderly stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from benchmd_ray.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Whether a signal asked to stop."""

    def __init__(self) -> None:
        self.number = 0
        """The signal, 0 before there is one."""

    def take(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; a second one interrupts at once."""
        if self.number:
            raise Stopped(number)
        self.number = number

    def check(self) -> None:
        """Stop where it was asked for.

        Raises:
            Stopped: It was.
        """
        if self.number:
            raise Stopped(self.number)


@contextmanager
def stopping() -> Iterator[Stopping]:
    """Note Ctrl-C and SIGTERM instead of dying of them, and restore what handled them before.

    Outside of the main thread signals cannot be handled, and are not.
    """
    asked = Stopping()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, asked.take) for number in SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that was not set from Python cannot be set again
                signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let an interrupt raise KeyboardInterrupt within, as cancelled Ray tasks end by one.

    A program that a script starts in the background ignores it, and hands that on to all its
    processes; a Ray Train job leaves a handler of its own behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
