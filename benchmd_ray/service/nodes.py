"""The nodes of a cluster, which may change while a plan is executed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from benchmd_ray.cluster.connection import ask
from benchmd_ray.errors import count_of
from benchmd_ray.service.capacity import Capacity, Need, cluster_capacity

LOOK_SECONDS = 5.0
"""Seconds between checks of the nodes."""
GROW_SECONDS = 600.0
"""Seconds for which an item that fits on no node waits for the cluster to grow."""
ASK_SECONDS = 60.0
"""Seconds between requests to the autoscaler, which keeps only the last request of any client."""
LEAVING_SECONDS = 180.0
"""Seconds for which a node gets no new work after one of its processes was asked to end; by then it
is gone, or it stays.
"""
MOST_BUNDLES = 1000
"""Most bundles in one request to the autoscaler."""


class Nodes:
    """Current resources of a cluster, and requests for more."""

    def __init__(
        self, cpus: int | None, *, attached: bool, say: Callable[[str], None] = lambda line: None
    ) -> None:
        """Use the cluster of this process; an existing cluster may gain and lose nodes."""
        self._cpus, self._attached, self._say = cpus, attached, say
        self.capacity: Capacity = cluster_capacity(cpus)
        self._next = time.monotonic() + LOOK_SECONDS
        self._asked: list[dict[str, float]] = []
        self._ask_again = 0.0
        self._short: dict[Need, tuple[float, float]] = {}
        """Since when something fits no node, and when that was last seen."""
        self._leaving: dict[str, float] = {}
        """Until when nodes count as about to go away."""

    def look(self, needs: Callable[[], Iterable[Need]]) -> None:
        """Update the list of nodes, and request those that the work needs or could use."""
        now = time.monotonic()
        if not self._attached or now < self._next:
            return
        before, self.capacity = self.capacity, cluster_capacity(self._cpus, self.leaving())
        self._next = now + LOOK_SECONDS
        for nodes, what in (
            (before.nodes - self.capacity.nodes, "went away"),
            (self.capacity.nodes - before.nodes, "came"),
        ):
            for node in sorted(nodes):
                capacity = self.capacity
                self._say(
                    f"node {node} {what}; the cluster has "
                    f"{count_of(len(capacity.nodes), 'node')} with "
                    f"{count_of(capacity.all_cpus, 'CPU')} and {count_of(capacity.gpus, 'GPU')}"
                )
        self._ask(needs())

    def look_soon(self) -> None:
        """Check at the next call of `look`, since something was lost."""
        self._next = 0.0

    def leave(self, node: str) -> None:
        """Assume that a node is about to go away, as a process on it was asked to end."""
        self._leaving[node] = time.monotonic() + LEAVING_SECONDS
        self.look_soon()

    def leaving(self) -> set[str]:
        """Nodes that are about to go away."""
        return {node for node, end in self._leaving.items() if time.monotonic() < end}

    def refusal(self, need: Need) -> str | None:
        """None if it fits, empty while the cluster may still grow, otherwise why it never will."""
        refusal = self.capacity.refusal(need)
        if not refusal:
            self._short.pop(need, None)
            return None
        if not self._attached:
            return refusal
        now = time.monotonic()
        since, seen = self._short.get(need, (now, -math.inf))
        if now - seen > GROW_SECONDS / 10:  # nothing has waited for it meanwhile
            since = now
            self._say(
                f"waiting up to {GROW_SECONDS:g} s for nodes: a run needs "
                f"{count_of(need.cpus, 'CPU')} and {count_of(need.gpus, 'GPU')}, and "
                f"the cluster has {self.capacity.all_cpus:g} and {self.capacity.gpus:g} now"
            )
        self._short[need] = (since, now)
        if now - since < GROW_SECONDS:
            return ""
        return f"{refusal} No such node was added within {GROW_SECONDS:g} s."

    def close(self) -> None:
        """Withdraw the request."""
        self._ask([])

    def _ask(self, needs: Iterable[Need]) -> None:
        """Send the request to the autoscaler, if there is one.

        The autoscaler starts nodes for tasks that wait in Ray, but a plan submits only tasks that
        fit.
        """
        listed = [*needs]
        bundles = [bundle for need in listed for bundle in _bundles(need)][:MOST_BUNDLES]
        bundles += [{"CPU": 1.0}] * any(need.spare for need in listed)
        now = time.monotonic()
        if bundles == self._asked and (not bundles or now < self._ask_again):
            return
        self._asked, self._ask_again = bundles, now + ASK_SECONDS
        with suppress(Exception):  # only a hint; failures of the head show elsewhere
            ask(bundles)


def _bundles(need: Need) -> list[dict[str, float]]:
    """Resources of a need, worker by worker."""
    share = {"CPU": need.cpus / need.workers, "GPU": need.gpus / need.workers}
    bundle = {name: amount for name, amount in share.items() if amount}
    return [bundle] * need.workers
