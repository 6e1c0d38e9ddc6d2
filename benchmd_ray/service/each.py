"""Independent calls as Ray tasks with memory limits, such as cases that a benchmark scores."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmd_ray.console.interrupts import stopping
from benchmd_ray.errors import BenchmdError, first_line

TRIES = 3
"""Lost workers after which an item is given up: it may be the cause."""
NODE_LOSSES = 20
"""How often an item's node may go away; this does not count as a try."""
WAIT_SECONDS = 0.5
_AGAIN = object()
"""Returned instead of a result if the item is tried again."""
AHEAD = 2
"""Tasks submitted to Ray at a time, per CPU."""


@dataclass(frozen=True)
class Call:
    name: str
    given: Any
    """Argument of the call."""
    memory: int = 0
    """Memory in bytes."""


@dataclass(frozen=True)
class FailedCall:
    """A call that failed."""

    reason: str


def each(
    calls: Iterable[Call],
    work: Callable[[Any], Any],
    *,
    cpus: float = 1.0,
    gpus: float = 0.0,
    grows: bool = False,
) -> Iterator[tuple[str, Any | FailedCall]]:
    """Yield names of items with their results as they finish; requires `cluster.connected`.

    Args:
        calls: Calls by item, in starting order.
        work: A module-level function, which workers import.
        cpus: Of each item.
        gpus: Of each item.
        grows: Whether the cluster may still get nodes with GPUs.

    Raises:
        Stopped: A signal asked to stop; all tasks have been ended.
    """
    import ray

    available = ray.cluster_resources().get("GPU", 0)
    if gpus > available and not grows:
        raise BenchmdError(
            f"{gpus:g} GPUs are requested, and this machine has {available:g}: request fewer, or "
            "name a cluster with --address."
        )
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(work)
    waiting, running = deque(calls), dict[Any, Call]()
    tries: dict[str, list[int]] = {}
    most = _largest_memory()
    ahead = max(2, int(AHEAD * ray.cluster_resources().get("CPU", 1)))
    try:
        with stopping() as stop:
            while waiting or running:
                stop.check()
                while waiting and len(running) < ahead:
                    call = waiting.popleft()
                    sized = task.options(name=call.name, memory=min(call.memory, most))
                    running[sized.remote(call.given)] = call
                ready, _ = ray.wait(list(running), num_returns=1, timeout=WAIT_SECONDS)
                for reference in ready:
                    call = running.pop(reference)
                    result = _result(reference, tries.setdefault(call.name, [0, 0]))
                    if result is _AGAIN:
                        waiting.append(call)  # last, as it may end the next worker too
                    else:
                        yield call.name, result
    finally:
        for reference in running:
            with contextlib.suppress(Exception):  # Ray itself may have gone
                ray.cancel(reference, force=True)


def _result(reference: Any, tries: list[int]) -> Any:
    """Result of a task, a `FailedCall`, or `_AGAIN`."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return FailedCall(str(error).strip().rpartition("\n")[2])
    except ray.exceptions.NodeDiedError as error:
        tries[1] += 1
        return (
            FailedCall(f"its nodes went away: {first_line(error)}")
            if tries[1] > NODE_LOSSES
            else _AGAIN
        )
    except ray.exceptions.RayError as error:
        tries[0] += 1
        if tries[0] < TRIES:
            return _AGAIN
        memory = isinstance(error, ray.exceptions.OutOfMemoryError)
        why = "for lack of memory" if memory else f"({type(error).__name__})"
        return FailedCall(f"its Ray worker was lost {TRIES} times {why}")


def _largest_memory() -> int:
    """Memory in bytes of the largest node: a task that requests more would wait forever."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return int(max((node.get("memory", 0) for node in nodes), default=0))
