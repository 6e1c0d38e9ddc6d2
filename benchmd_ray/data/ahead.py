"""Items that a thread prepares in advance."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")
DEPTH = 2
"""Items that wait, at most, in addition to the one that is being made."""
LOOK_SECONDS = 0.1
"""How long the thread waits for room before it looks whether it is still needed."""


def ahead(items: Iterator[T], depth: int = DEPTH) -> Iterator[T]:
    """The items of an iterator in order, prepared by a thread while the caller works on others.

    The thread alone uses `items`. An error is raised in the place of its item. The thread ends with
    the items, with an error, or when the generator is closed; at most `depth` items wait.
    """
    held: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(depth)
    unneeded = threading.Event()

    def put(last: bool, what: T | BaseException | None) -> None:
        while not unneeded.is_set():
            try:
                held.put((last, what), timeout=LOOK_SECONDS)
            except queue.Full:
                continue
            return

    def make() -> None:
        try:
            for item in items:
                put(False, item)
                if unneeded.is_set():
                    break
        except BaseException as error:
            put(True, error)
        else:
            put(True, None)
        finally:
            if isinstance(items, Generator):
                items.close()

    thread = threading.Thread(target=make, name="ahead", daemon=True)
    thread.start()
    try:
        while True:
            last, what = held.get()
            if not last:
                yield what  # type: ignore[misc]
            elif what is None:
                return
            else:
                assert isinstance(what, BaseException)
                raise what
    finally:
        unneeded.set()
        thread.join()
