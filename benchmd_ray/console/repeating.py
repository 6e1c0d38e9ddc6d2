"""Repeated work in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(do: Callable[[], object], seconds: float, *, wait: bool = True) -> Iterator[None]:
    """Context in which ``do`` is called at an interval in another thread, until it raises.

    ``wait``: whether to wait at the end for a call that has not returned.
    """
    done = threading.Event()

    def work() -> None:
        while not done.wait(seconds):
            do()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        if wait:
            thread.join()
