"""What a thread makes ahead is what would have been made, and the thread ends."""

from __future__ import annotations

import itertools
import threading

import pytest

from benchmd_ray.data.batches import DEPTH, ahead


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]


@pytest.mark.parametrize("count", [0, 1, 5, 50])
def test_items_come_in_their_order_and_the_thread_ends(count):
    assert list(ahead(iter(range(count)))) == list(range(count))
    assert not threads()


def test_no_more_are_made_than_wait():
    made, asked = [], threading.Event()

    def items():
        for number in itertools.count():
            made.append(number)
            if number == DEPTH + 1:
                asked.set()
            yield number

    found = ahead(items())
    assert next(found) == 0
    assert asked.wait(5)
    assert made[-1] <= DEPTH + 2
    found.close()
    assert not threads()


def test_what_cannot_be_made_is_an_error_in_its_place():
    def items():
        yield 1
        raise ValueError("the second")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="the second"):
        next(found)
    assert not threads()


def test_the_iterator_is_closed_in_its_thread():
    closed = []

    def items():
        try:
            yield from itertools.count()
        finally:
            closed.append(threading.current_thread().name)

    for item in ahead(items()):
        if item == 3:
            break
    assert closed == ["ahead_0"]
