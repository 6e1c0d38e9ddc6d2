"""Work that is repeated in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(do: Callable[[], object], seconds: float, *, wait: bool = True) -> Iterator[None]:
    """Within, call ``do`` every so many seconds in another thread; what it raises ends that.

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
