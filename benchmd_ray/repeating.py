"""What is done again and again while other work continues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(do: Callable[[], object], seconds: float) -> Iterator[None]:
    """Within, call ``do`` every so many seconds in another thread; wait for it at the end."""
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
        thread.join()
