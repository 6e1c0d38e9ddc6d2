"""What is done again and again while other work continues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(do: Callable[[], object], seconds: float, *, wait: bool = True) -> Iterator[None]:
    """Within, call ``do`` every so many seconds in another thread.

    Args:
        do: What is done; what it raises ends it.
        seconds: Between two calls.
        wait: Whether to wait at the end for a call that has not returned.
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
