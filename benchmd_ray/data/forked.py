"""Work in forked processes, which import nothing: the working folder may have any modules."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import FrameType
from typing import Any, TypeVar

from benchmd_ray.data.apart import end_with_parent
from benchmd_ray.errors import BenchmdError

Result = TypeVar("Result")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""They end a process."""


def results_of(
    work: Callable[[int], Result], count: int, processes: int, doing: str
) -> Generator[Result, None, None]:
    """Results of ``work`` for 0 to ``count`` - 1, in order; computed here with one process.

    Processes share what this one has in memory, and end with it or when it is interrupted. Close
    the iterator if it is not read to its end.

    Args:
        work: Its results can be pickled; in a process it has one thread (`usual_threads`).
        count: Number of results.
        processes: Number of processes.
        doing: What they do, for the error: ``scored bundles``.

    Raises:
        BenchmdError: A process was killed.
    """
    if processes < 2 or sys.platform != "linux":
        yield from map(work, range(count))
        return
    with ProcessPoolExecutor(processes, get_context("fork"), _begin, (work,)) as pool:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until processes handle them
        try:
            jobs = [pool.submit(_call, number) for number in range(count)]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            for job in jobs:
                yield job.result()
        except BrokenProcessPool:
            raise BenchmdError(
                f"a process that {doing} was killed, perhaps for lack of memory: run the command "
                "again, with OMP_NUM_THREADS=1 for one at a time."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_work: list[Callable[[int], Any]] = []
"""In a forked process: the function that it calls."""


def _begin(work: Callable[[int], Any]) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
    end_with_parent()
    os.environ["OMP_NUM_THREADS"] = "1"
    _work[:] = [work]


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(1)


def _call(number: int) -> Any:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return _work[0](number)
    except SystemExit:  # interrupted: partial files are removed, and nothing else is begun
        os._exit(1)
