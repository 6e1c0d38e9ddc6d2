"""Independent calls as Ray tasks, each with its memory, such as cases that a benchmark scores."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmd_ray.console.interrupts import stopping
from benchmd_ray.errors import BenchmdError, first_line

TRIES = 3
"""Calls of one item whose worker is lost; then the item may be the reason."""
NODE_LOSSES = 20
"""How often an item's node may go away, which is no try of its own."""
WAIT_SECONDS = 0.5
_AGAIN = object()
"""In the place of a result: the item is tried once more."""
AHEAD = 2
"""Tasks that are with Ray at once, for each CPU."""


@dataclass(frozen=True)
class Call:
    name: str
    given: Any
    """What is called with."""
    memory: int = 0
    """Bytes that it needs."""


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
    """Names of items with their results, as they end; within `cluster.connected`.

    Args:
        calls: The items, in the order in which they begin.
        work: A function of a module, which workers import.
        cpus: Of each item.
        gpus: Of each item.
        grows: Whether the cluster may yet get nodes with them.

    Raises:
        Stopped: A signal asked to stop. All tasks have been ended.
    """
    import ray

    available = ray.cluster_resources().get("GPU", 0)
    if gpus > available and not grows:
        raise BenchmdError(
            f"{gpus:g} GPUs are asked for, and this machine has {available:g}: ask for fewer, or "
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
                        waiting.append(call)  # last: it may end the next worker, too
                    else:
                        yield call.name, result
    finally:
        for reference in running:
            with contextlib.suppress(Exception):  # Ray itself may be what is lost
                ray.cancel(reference, force=True)


def _result(reference: Any, tries: list[int]) -> Any:
    """What a task gave, a `FailedCall`, or `_AGAIN`."""
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
    """Bytes of the largest node: a task that asks for more would wait for ever."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return int(max((node.get("memory", 0) for node in nodes), default=0))
