"""Simulated duration of a plan on given resources, by list scheduling."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmd_ray.errors import BenchmdError
from benchmd_ray.service.live import longest_first
from benchmd_ray.service.plan import Item

ROUNDING = 1e-9
"""Tolerance for rounding: shares of a GPU do not add up to exactly one."""
LATE_SHARE = 0.05
"""Share of the estimate that is still expected for a run that takes longer than estimated."""


@dataclass(frozen=True)
class Resources:
    """Resources that may be used at once."""

    cpus: float
    gpus: float = 0.0

    def holds(self, item: Item) -> bool:
        return item.cpus <= self.cpus + ROUNDING and item.gpus <= self.gpus + ROUNDING

    def without(self, item: Item) -> Resources:
        return Resources(self.cpus - item.cpus, self.gpus - item.gpus)

    def along(self, item: Item) -> Resources:
        """What is free when an item ends."""
        return Resources(self.cpus + item.cpus, self.gpus + item.gpus)


@dataclass(frozen=True)
class Schedule:
    """When each item of a plan would start and end, in seconds from now."""

    times: Mapping[str, tuple[float, float]]
    peak_bytes: int
    """Peak bytes on disk."""

    @property
    def seconds(self) -> float:
        """End of the last item."""
        return max((end for _, end in self.times.values()), default=0.0)


def simulate(
    items: Sequence[Item],
    resources: Resources,
    done: Collection[str] = frozenset(),
    first: Collection[str] = (),
) -> Schedule:
    """Start each item as soon as its predecessor is done and it fits.

    Among items that could start, the one with the longest chain of dependent items comes first, as
    in an execution. Items that already run (`first`) precede all others.
    """
    waiting = longest_first([item for item in items if item.name not in done])
    for item in waiting:
        require_fitting(item, resources)
    ready = _Ready(sorted(waiting, key=lambda item: item.name not in first))
    running: list[tuple[float, int, Item]] = []
    times: dict[str, tuple[float, float]] = {}
    now, kept, working, peak, free = 0.0, 0, 0, 0, resources
    while True:
        while (next_one := ready.take(free)) is not None:
            free, end = free.without(next_one), now + next_one.seconds
            working, times[next_one.name] = working + _bytes(next_one), (now, end)
            heapq.heappush(running, (end, len(times), next_one))
        peak = max(peak, kept + working)
        if not running:
            return Schedule(times, peak)
        now, _, ended = heapq.heappop(running)
        free, kept = free.along(ended), kept + ended.disk_bytes
        working -= _bytes(ended)
        ready.release(ended.name)


def _bytes(item: Item) -> int:
    """Peak disk space of an item while it runs."""
    return item.disk_bytes + item.peak_bytes


class _Ready:
    """Items that could start, in order, with one queue for each amount of resources."""

    def __init__(self, waiting: Sequence[Item]) -> None:
        names = {item.name for item in waiting}
        self._behind: dict[str, list[tuple[int, Item]]] = defaultdict(list)
        self._queues: dict[tuple[float, float], list[tuple[int, Item]]] = defaultdict(list)
        for rank, item in enumerate(waiting):
            if item.after in names and item.after is not None:
                self._behind[item.after].append((rank, item))
            else:
                self._put(rank, item)

    def _put(self, rank: int, item: Item) -> None:
        heapq.heappush(self._queues[item.cpus, item.gpus], (rank, item))

    def release(self, name: str) -> None:
        for rank, item in self._behind.pop(name, []):
            self._put(rank, item)

    def take(self, free: Resources) -> Item | None:
        fitting = [queue for queue in self._queues.values() if queue and free.holds(queue[0][1])]
        if not fitting:
            return None
        return heapq.heappop(min(fitting, key=lambda queue: queue[0][0]))[1]


def require_fitting(item: Item, resources: Resources) -> None:
    """Refuse an item that needs more CPUs or GPUs than available."""
    for name, needed, available in (
        ("CPUs", item.cpus, resources.cpus),
        ("GPUs", item.gpus, resources.gpus),
    ):
        if needed > available + ROUNDING:
            raise BenchmdError(
                f"{item.name} needs {needed:g} {name} at once but only {available:g} can be used: "
                "use fewer workers (execution.workers, execution.cpus_per_worker), or a larger "
                "cluster."
            )


def time_left(
    waiting: Sequence[Item],
    running: Mapping[str, float],
    resources: Resources,
    *,
    items: Iterable[Item] = (),
    pace: float = 1.0,
) -> float:
    """Seconds until all is done.

    Args:
        waiting: Items that have not started, in order of dependency.
        running: Seconds left by name of running item; see `seconds_needed`.
        resources: CPUs and GPUs, including those of the running items.
        items: The running items.
        pace: Real seconds per estimated second so far; see `pace_of`.
    """
    now = [replace(i, seconds=running[i.name], after=None) for i in items if i.name in running]
    later = [replace(item, seconds=item.seconds * pace) for item in waiting]
    return simulate([*now, *later], resources, first=tuple(running)).seconds


def seconds_needed(item: Item, worked: float, share: float = 0.0, pace: float = 1.0) -> float:
    """Seconds that a running item still needs; `share` of it was done in the seconds `worked`."""
    if share > 0:
        return worked * (1 - min(share, 1.0)) / share
    expected = item.seconds * pace
    return max(expected - worked, LATE_SHARE * expected)


def pace_of(pairs: Iterable[tuple[float, float]]) -> float:
    """Real seconds per estimated second, from finished items (estimated, real); 1 without any."""
    timed = [(estimated, real) for estimated, real in pairs if estimated > 0]
    expected = sum(pair[0] for pair in timed)
    return sum(pair[1] for pair in timed) / expected if expected else 1.0
