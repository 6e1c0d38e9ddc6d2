"""Signals that ask a process to stop, Ctrl-C and SIGTERM, and who handles them for a while."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from benchmd_ray.errors import Stopped

Handler = Callable[[int, FrameType | None], Any]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Handle signals so within, and afterwards as before.

    Outside of the main thread signals cannot be handled, and are not.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that was not set from Python cannot be set again
                signal.signal(number, handler)


@contextmanager
def sent_again() -> Iterator[None]:
    """Send this process an interrupt again that Python ignored.

    What a handler raises is lost where no exception can go on: in a garbage collector's callbacks,
    or in a compiled module while it is imported.
    """
    before = sys.unraisablehook

    def hook(ignored: Any) -> None:
        error = ignored.exc_value
        if not isinstance(error, KeyboardInterrupt):
            before(ignored)
            return
        # Compiled modules warn of what they then lack, and this process ends.
        warnings.simplefilter("ignore", RuntimeWarning)
        number = error.args[0] if isinstance(error, Stopped) else signal.SIGINT
        later = threading.Timer(0.1, os.kill, (os.getpid(), number))
        later.daemon = True
        later.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def stop(number: int, frame: FrameType | None = None) -> None:
    """Handle a signal by raising `Stopped`."""
    raise Stopped(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let an interrupt raise KeyboardInterrupt within, and SIGTERM `Stopped`.

    Cancelled Ray tasks end by an interrupt. A program that a script starts in the background
    ignores it, and hands that on to all its processes; a Ray Train job leaves a handler of its own
    behind. SIGTERM would end a Ray worker without a word.
    """
    with handled({signal.SIGINT: signal.default_int_handler, signal.SIGTERM: stop}):
        yield


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
def deferred() -> Iterator[None]:
    """Let signals wait within for what must not end halfway; a second one interrupts at once.

    Raises:
        Stopped: One came meanwhile.
    """
    with stopping() as asked:
        yield
    asked.check()
