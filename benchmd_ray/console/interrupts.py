"""Signals that ask a process to stop: Ctrl-C and SIGTERM."""

from __future__ import annotations

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

SECONDS_TO_STOP = 1.0
"""Seconds after which it is checked that a signal has led to a clean-up."""


@contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Install signal handlers in this context, and restore the previous ones afterwards.

    Only the main thread can handle signals; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # a handler not set from Python cannot be restored
                signal.signal(number, handler)


class _Insistent:
    """A handler that raises `Stopped`, and again if that exception was lost."""

    def __init__(self) -> None:
        self.ended = False
        """Whether signals no longer matter."""
        self.lock = threading.Lock()
        """Held while a reminder is sent, and to end."""
        self._thread = threading.get_ident()
        self._raised: Stopped | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.ended:
            return
        self._raised = Stopped(number)
        self._remind_later(number)
        raise self._raised

    def _remind_later(self, number: int) -> None:
        later = threading.Timer(SECONDS_TO_STOP, self._remind, (number,))
        later.daemon = True
        later.start()

    def _remind(self, number: int) -> None:
        """Send the signal again, unless the first one has led to a clean-up."""
        with self.lock:
            if self.ended:
                return
            if self._is_cleaning_up() or not callable(signal.getsignal(number)):
                self._remind_later(number)
            else:
                signal.pthread_kill(self._thread, number)

    def _is_cleaning_up(self) -> bool:
        """Whether the exception that the interrupted thread is handling comes from `Stopped`."""
        current: Any = sys._current_exceptions().get(self._thread)
        if isinstance(current, tuple):  # Python 3.11 gives type, value, traceback
            current = current[1]
        while current is not None and current is not self._raised:
            current = current.__context__
        return current is not None


@contextmanager
def stoppable() -> Iterator[None]:
    """Context in which Ctrl-C and SIGTERM raise `Stopped`, again a second later if that was lost.

    A handler's exception is lost where exceptions cannot propagate, such as in garbage collection,
    and where libraries catch it during imports. Ctrl-C stays ignored if it was, as in a script's
    background process.
    """
    handler, before = _Insistent(), sys.unraisablehook

    def hook(ignored: Any) -> None:
        if isinstance(ignored.exc_value, Stopped):
            # Interrupted compiled modules would warn, but this process ends anyway.
            warnings.simplefilter("ignore", RuntimeWarning)
        else:
            before(ignored)

    heeded = [
        number
        for number in SIGNALS
        if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
    ]
    with handled(dict.fromkeys(heeded, handler)):
        sys.unraisablehook = hook
        try:
            yield
        finally:
            sys.unraisablehook = before
            with handler.lock:
                handler.ended = True


def stop(number: int, frame: FrameType | None = None) -> None:
    """Handle a signal by raising `Stopped`."""
    raise Stopped(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Context in which Ctrl-C raises KeyboardInterrupt and SIGTERM raises `Stopped`.

    Ray cancels tasks by an interrupt, but background processes of a script ignore interrupts, and
    so do their child processes; Ray Train leaves its own handler behind. Without this context,
    SIGTERM would end a Ray worker silently.
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
        """Raise `Stopped` if a signal came."""
        if self.number:
            raise Stopped(self.number)


@contextmanager
def stopping() -> Iterator[Stopping]:
    """Context that notes Ctrl-C and SIGTERM instead of ending at once."""
    asked = Stopping()
    with handled(dict.fromkeys(SIGNALS, asked.take)):
        yield asked


@contextmanager
def deferred() -> Iterator[None]:
    """Context that delays signals, for work that must not end halfway; a second one interrupts.

    Raises:
        Stopped: A signal came meanwhile.
    """
    with stopping() as asked:
        yield
    asked.check()
