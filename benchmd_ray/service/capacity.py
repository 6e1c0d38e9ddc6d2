"""What fits on a cluster at the same time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.sizes import streams
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.service.plan import Item

SLACK = 1e-6
"""Tolerance for rounding when shares of a GPU are summed."""


@dataclass(frozen=True)
class Need:
    """Resources of an item while it runs."""

    cpus: float
    gpus: float
    workers: int
    spare: bool
    """Whether a CPU must stay free in addition: Ray Data starves if all are taken."""
    fewest: int = 0
    """Fewest workers that are enough if not all fit; 0: all are needed."""


@dataclass(frozen=True)
class Capacity:
    cpus: float
    """CPUs to keep busy at once."""
    gpus: float
    all_cpus: float
    """CPUs in total: a single item may take more than the limit for several items."""
    each: tuple[tuple[float, float], ...]
    """CPUs and GPUs of each node."""
    nodes: frozenset[str] = frozenset()

    def fits(self, need: Need, running: Iterable[Need]) -> bool:
        """Whether an item may start while others run; it always may if none do."""
        running = list(running)
        if not running:
            return True
        everyone = [*running, need]
        cpus = sum(n.cpus for n in everyone) + any(n.spare for n in everyone)
        gpus = sum(n.gpus for n in everyone)
        return cpus <= self.cpus + SLACK and gpus <= self.gpus + SLACK

    def refusal(self, need: Need) -> str:
        """Why an item can never run here; empty if it can."""
        share = (need.fewest or need.workers) / need.workers
        cpus, gpus = need.cpus * share + need.spare, need.gpus * share
        worker = (need.cpus / need.workers, need.gpus / need.workers)
        node_cpus = max((amount for amount, _ in self.each), default=0.0)
        node_gpus = max((amount for _, amount in self.each), default=0.0)
        if cpus > self.all_cpus + SLACK or worker[0] > node_cpus + SLACK:
            return (
                f"it needs {count_of(cpus, 'CPU')} at once and the cluster has {self.all_cpus:g} "
                f"({node_cpus:g} on its largest node): use fewer workers (execution.workers, "
                "execution.cpus_per_worker) or a larger cluster (--cpus for an embedded one)."
            )
        if gpus > self.gpus + SLACK or worker[1] > node_gpus + SLACK:
            return (
                f"it needs {count_of(gpus, 'GPU')} and the cluster has {self.gpus:g}: use fewer "
                "workers or --set execution.device=cpu."
            )
        workers = need.fewest or need.workers
        if (places := self.places(*worker)) < workers:
            return (
                f"it needs room for {count_of(workers, 'worker')} of "
                f"{count_of(worker[0], 'CPU')} and {count_of(worker[1], 'GPU')} each, every worker "
                f"on a single node, and only {places} fit on the cluster's nodes: lower "
                "execution.cpus_per_worker, or use other nodes."
            )
        return ""

    def places(self, cpus: float, gpus: float) -> int:
        """How many processes with these resources fit on the nodes at once."""
        return sum(
            min(
                int((held + SLACK) / one)
                for held, one in zip(node, (cpus, gpus), strict=True)
                if one
            )
            for node in self.each
        )


def cluster_capacity(cpus: float | None = None, leaving: Collection[str] = ()) -> Capacity:
    """Resources of the connected cluster, without nodes that are about to go away."""
    import ray

    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    machines = tuple(
        (float(node.get("CPU", 0)), float(node.get("GPU", 0)))
        for name, node in nodes.items()
        if name not in leaving
    )
    total = sum(amount for amount, _ in machines)
    return Capacity(
        cpus=total if cpus is None else min(total, cpus),
        gpus=sum(amount for _, amount in machines),
        all_cpus=total,
        each=machines,
        nodes=frozenset(nodes),
    )


def need_of(item: Item) -> Need:
    """What an item needs while it runs."""
    execution = item.settings.execution
    several = execution.workers > 1
    cpus = float(execution.workers * execution.cpus_per_worker) if several else max(item.cpus, 1.0)
    fewest = execution.least_workers if several else 0
    return Need(cpus, item.gpus, execution.workers, several or _streams(item), fewest)


def _streams(item: Item) -> bool:
    """Whether it streams a split by Ray Data; unreadable catalogs fail later, with their name."""
    if item.catalog is None:
        return False
    try:
        catalog = open_catalog(item.catalog)
    except BenchmdError:
        return False
    splits = {"train", "validation", *catalog.evaluation_splits}
    return any(
        streams(catalog, split, item.settings.execution) for split in splits if catalog.rows(split)
    )
