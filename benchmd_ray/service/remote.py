"""An item of a plan as a Ray task: where it goes, and what its end says."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from benchmd_ray.service.work import ItemReport


def elsewhere(leaving: Collection[str]) -> Any:
    """Where a task goes: to other nodes than these, if there is room."""
    from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

    if not leaving:
        return "DEFAULT"
    return NodeLabelSchedulingStrategy({}, soft={"ray.io/node-id": NotIn(*sorted(leaving))})


@cache
def task_of(cpus: float, gpus: float, calls: int) -> Any:
    """The one task for all items with the same needs; a process serves so many calls."""
    import ray

    return ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, max_calls=calls)(_on_node)


def _on_node(work: Callable[..., ItemReport], *arguments: Any) -> tuple[str, ItemReport]:
    """Do an item's work, as a Ray task, and say on which node."""
    import ray

    return ray.get_runtime_context().get_node_id(), work(*arguments)


def node_in(error: BaseException) -> str:
    """The node that Ray names in an error; empty where it names none."""
    match = re.search(r"(?i)node id: ([0-9a-f]{56})", str(error))
    return match[1] if match else ""
