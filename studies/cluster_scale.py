r"""``python -m studies.cluster_scale`` from the project's root.

How throughput grows with the nodes of a cluster, simulated on this machine (`ray.cluster_utils`):
1, 2 and 4 nodes of two CPUs each, of which a stream of records takes the second. For each size:

- ``build``: raw records/s of a catalog's build, for which each node has a shard at least;
- ``feed``: records/s of an epoch of the streaming feed, one worker pinned to each node;
- ``plan``: items/s of a plan of ``--items`` runs whose work is nothing, against the same empty
  tasks given to Ray at once (``peer``): what the scheduler itself costs;
- ``search``: trials/min of a search of ``--trials`` a node, each of which sleeps for ``--sleep``
  seconds on a node, from when all processes are up (``minutes`` is the whole); ``overhead_seconds``
  is what a trial takes beyond its sleep. With ``--store s3://…`` its journal is there.

``ms_per_item`` and ``driver_cpu_ms_per_item`` say what an item costs by the clock and of the
driver's CPU; ``growth`` compares that CPU time with a plan of a quarter as many items: near 1 where
nothing is quadratic. Simulated nodes share this machine's CPUs (``machine``): rates grow with nodes
only as long as there are as many.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmd_ray.cluster.connection import connected, ray_data
from benchmd_ray.console.progress import Display
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.build import build
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.service import execution
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.plan import Item, Plan, make_plan
from benchmd_ray.service.schedule import run_plan
from benchmd_ray.service.work import ItemReport
from benchmd_ray.settings.definition import Settings, load_settings
from benchmd_ray.storage.location import location
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.search import search
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.stages import Arm, FamilyWork, Setup, Stage, TrialContext
from benchmd_ray.tuning.study import Study
from speed import measure
from speed.sources import raw_ecgs

CPUS = 2
"""Of a simulated node."""
STORE_BYTES = 200 * 2**20
"""Object store of a simulated node."""
BATCH = 64
RATE = "transfer.optimiser.lr"
DECLARED = {
    "nodes": ([1, 2, 4], "sizes of the cluster"),
    "records": (1200, "raw records"),
    "items": (1000, "runs of the plan"),
    "trials": (30, "of a search, on each node"),
    "sleep": (1.0, "seconds of a trial"),
    "store": (str, "s3:// address of searches; else a folder"),
}


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.options(__doc__, arguments, DECLARED, repeats=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw = raw_ecgs(folder, options.records)
        sizes = [measured(count, raw, folder / str(count), options) for count in options.nodes]
    first, last = sizes[0], sizes[-1]
    ratios = {
        name: last[name]["per_second"] / first[name]["per_second"]
        for name in ("build", "feed", "plan", "search")
    }
    ratio = measure.rounded_all(ratios)
    measure.print_result("cluster_scale", options, sizes=sizes, ratio=ratio)


def measured(count: int, raw: Path, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Rates on a cluster of so many nodes."""
    with simulated(count):
        ray_data().range(count * CPUS).map(lambda row: row).materialize()  # processes are up
        begin = time.perf_counter()
        catalog = build("ptb-xl", raw, folder / "catalog", allow_missing=True, max_quarantined=0.2)
        seconds = time.perf_counter() - begin
        records = catalog.manifest["raw"]["records"]
        return {
            "nodes": count,
            "build": rate(records, seconds) | {"shards": len(catalog.manifest["shards"])},
            "feed": fed(catalog, count),
            "plan": planned(catalog, folder, chosen.items),
            "search": searched(catalog, count, folder, chosen),
        }


def rate(units: int, seconds: float) -> dict[str, float]:
    """Units and what that is a second."""
    rounded = measure.rounded
    return {"units": units, "seconds": rounded(seconds), "per_second": rounded(units / seconds)}


@contextmanager
def simulated(count: int) -> Iterator[None]:
    """A cluster of so many nodes, to which this process is connected."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            cluster.add_node(**node)
        with connected(cluster.address, cpus=count * CPUS):
            yield
    finally:
        cluster.shutdown()


def fed(catalog: Catalog, count: int) -> dict[str, float]:
    """An epoch of the training split, streamed by one worker on each node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=1)(stream)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]

    def epoch() -> int:
        there = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
        placed = [task.options(scheduling_strategy=place) for place in there]
        return sum(ray.get([t.remote(catalog.path, n, count) for n, t in enumerate(placed)]))

    epoch()  # processes are up
    begin = time.perf_counter()
    records = epoch()
    return rate(records, time.perf_counter() - begin)


def stream(path: Path, rank: int, world: int) -> int:
    """Read this worker's share of an epoch; how many records it was."""
    catalog = open_catalog(path)
    settings = load_settings(assignments=["execution.feed=streaming", "execution.device=cpu"])
    feed = whole_split_feed(
        catalog, "train", settings, Worker(rank=rank, world=world), catalog.statistics
    )
    return sum(len(batch.signals) for batch in feed.epoch(BATCH * world, 0))


def planned(catalog: Catalog, folder: Path, items: int) -> dict[str, Any]:
    """Plans of runs whose work is nothing, and the same tasks without a plan."""
    few = max(1, items // 4)
    empty_tasks(few)  # processes are up
    peer = empty_tasks(items)
    smaller = empty_plan(catalog, folder / "few", few)
    whole = empty_plan(catalog, folder / "all", items)
    cpu = whole["driver_cpu_ms_per_item"]
    return whole | {
        "peer": peer,
        "ratio": measure.rounded(whole["per_second"] / peer["per_second"]),
        "growth": measure.rounded(cpu / smaller["driver_cpu_ms_per_item"]),
    }


def empty_plan(catalog: Catalog, store: Path, items: int) -> dict[str, float]:
    """A plan of so many seeds of linear evaluation, none of which does anything.

    Raises:
        AssertionError: Not all of them were started.
    """
    choice = Choice(
        catalogs=(catalog.path,),
        techniques=("scratch",),
        settings=("linear",),
        seeds=tuple(range(items)),
        assignments=("execution.device=cpu",),
    )
    plan: Plan = make_plan(choice, tflops=1.0)
    # Such a run holds a whole CPU; tasks that do nothing would wait for those of the nodes.
    plan = replace(plan, items=tuple(replace(item, cpus=1.0) for item in plan.items))
    with patch.object(execution, "execute_item", nothing):
        begin, cpu = time.perf_counter(), time.process_time()
        outcome = run_plan(plan, store, say=lambda line: None, quiet=True)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    if len(outcome.done) != items:
        raise AssertionError(f"{len(outcome.done)} of {items} runs were done")
    return rate(items, seconds) | {
        "ms_per_item": measure.rounded(1000 * seconds / items),
        "driver_cpu_ms_per_item": measure.rounded(1000 * cpu / items),
    }


def nothing(item: Item, store: str, *_: Any) -> ItemReport:
    """Takes the place of an item's work."""
    return ItemReport(f"nothing-{item.seed}")


class Sleeping(Stage):
    """Trials whose work is to sleep."""

    def __init__(self, seconds: float) -> None:
        """Each sleeps for so long."""
        self._seconds = seconds

    def last_step(self, settings: Settings) -> int:
        """One."""
        return 1

    def train(self, setup: Setup) -> float:
        """Sleep."""
        time.sleep(self._seconds)
        return 0.5


def searched(
    catalog: Catalog, count: int, folder: Path, chosen: argparse.Namespace
) -> dict[str, Any]:
    """A search whose trials sleep, one at a time on each node.

    Raises:
        AssertionError: Not all trials are complete.
    """
    place = location(chosen.store) if chosen.store else folder
    place = place / "searches" / f"tune-made-{count:012x}"
    space = Space("made", (Parameter(RATE, "log float", 1e-3, low=1e-5, high=0.1),))
    if isinstance(place, Path):
        place.mkdir(parents=True)
    family = Family("scratch", "finetune-full", space, (Settings(),))
    study = Study(place / "journal", [family], Method(sampler="random"))
    sleeping = FamilyWork("scratch", Sleeping(chosen.sleep), (Arm("ecg", Settings()),), ())
    work = TrialContext({family.name: sleeping}, place)
    trials = chosen.trials * count
    nodes = Place(float(CPUS), 0.0, count)
    # All of it explores: evaluations that climb wait for each other.
    limits = Limits(study, Budget(trials, trials), nodes, lambda: False, Display())
    ends: list[float] = []
    begin = time.perf_counter()
    with patch("benchmd_ray.tuning.limits.TO_CLIMB", trials + 1):
        search(
            work,
            limits,
            lambda number: ends.append(time.perf_counter()),
            lambda evaluation: [catalog.path],
        )
    seconds = time.perf_counter() - begin
    if [trial.state for trial in study.trials()] != ["complete"] * trials:
        raise AssertionError(f"not all of {trials} trials are complete")
    first = 2 * count  # of each process, one trial or two until it is up
    figures = rate(trials - first, ends[-1] - ends[first - 1])
    return figures | {
        "per_minute": measure.rounded(60 * figures["per_second"]),
        "overhead_seconds": measure.rounded(count / figures["per_second"] - chosen.sleep),
        "minutes": measure.rounded(seconds / 60),
    }


def empty_tasks(count: int) -> dict[str, float]:
    """As many tasks that hold a CPU and do nothing, given to Ray at once."""
    import ray

    task = ray.remote(num_cpus=1)(empty)
    begin = time.perf_counter()
    ray.get([task.remote(0) for _ in range(count)])
    return rate(count, time.perf_counter() - begin)


def empty(number: int) -> int:
    """A task that does nothing."""
    return number


if __name__ == "__main__":
    main()
