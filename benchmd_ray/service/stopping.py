"""Signals that ask for an orderly stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from benchmd_ray.errors import Stopped
from benchmd_ray.training.notice import SIGNALS, handled


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
    with handled(dict.fromkeys(SIGNALS, asked.take)):
        yield asked


@contextmanager
def interruptible() -> Iterator[None]:
    """Let an interrupt raise KeyboardInterrupt within, and SIGTERM `Stopped`.

    Cancelled Ray tasks end by an interrupt. A program that a script starts in the background
    ignores it, and hands that on to all its processes; a Ray Train job leaves a handler of its own
    behind. SIGTERM would end a Ray worker without a word.
    """
    with handled({signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _stop}):
        yield


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)
