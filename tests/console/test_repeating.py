"""What is done again and again while other work continues."""

import threading

import pytest

from benchmd_ray.console.repeating import repeating


def test_it_is_done_again_and_again_and_ends_with_the_work():
    threads, often = [], threading.Event()

    def do():
        threads.append(threading.current_thread())
        if len(threads) == 3:
            often.set()

    def work():
        with repeating(do, 0.001):
            assert often.wait(30)
            raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        work()
    assert threading.current_thread() not in threads
    assert not threads[0].is_alive()


def test_what_is_not_due_is_not_done():
    done = []
    with repeating(lambda: done.append(1), 3600.0):
        pass
    assert done == []
