"""Execution of one item of a plan in a Ray task."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmd_ray.cluster.gpu_memory import is_exhausted, take_share
from benchmd_ray.console.interrupts import interruptible
from benchmd_ray.errors import BenchmdError, BucketError, Busy, NoRoom, Stopped, Transient
from benchmd_ray.files.atomic import remove
from benchmd_ray.runs.places import store_folder
from benchmd_ray.runs.store import read_run
from benchmd_ray.service.plan import Item
from benchmd_ray.service.steps import Request

FAILURE = "failure.txt"
"""File in a run's folder with the traceback of the last failed try."""


@dataclass(frozen=True)
class ItemReport:
    """How the work on an item ended."""

    run: str | None = None
    """Name of the finished run's folder in the store."""
    error: str = ""
    """Why it failed; empty when it did not."""
    busy: bool = False
    """Another process works on it: not an error, check again later."""
    again: bool = False
    """Whether another try may succeed."""
    memory: bool = False
    """Whether the GPU ran out of memory, which others may use too."""
    lost: bool = False
    """Whether its node, resources or storage went away, which does not count as a try."""
    preempted: bool = False
    """Whether its process was asked to end, after a checkpoint if it trained; this does not count
    as a try.
    """


def execute_item(
    item: Item, store: str, upstream: str | None, name: str | None, weights: Path | None
) -> ItemReport:
    """Execute an item in this process; errors are reported, not raised.

    Args:
        item: The item; its settings have device and precision resolved.
        store: The store of all runs, as in commands: for an address, each machine has a mirror.
        upstream: Folder name of the run that it depends on.
        name: Folder name of its own run, if known; `FAILURE` is written there.
        weights: File of ImageNet weights; None downloads them.
    """
    folder = store_folder(store)
    torch.set_num_threads(max(1, int(item.cpus)))  # a process serves many items
    try:
        take_share(item.gpus)
        with interruptible():
            done = _run(item, folder, upstream, weights)
    except Busy as error:
        return ItemReport(error=str(error), busy=True)
    except BucketError as error:
        return ItemReport(error=str(error), lost=error.away, again=not error.away)
    except NoRoom as error:  # the plan had room for it: a node has gone since
        return ItemReport(error=str(error), lost=True)
    except Transient as error:
        return ItemReport(error=str(error), again=True)
    except BenchmdError as error:
        return ItemReport(error=str(error))
    except Stopped as stop:
        if stop.args[0] != signal.SIGTERM:  # the plan itself is stopped
            raise
        return ItemReport(error="its process was asked to end (SIGTERM)", preempted=True)
    except Exception as error:
        if name is not None and (folder / name).is_dir():
            (folder / name / FAILURE).write_text(traceback.format_exc(), "utf-8")
        first = (str(error).strip().splitlines() or ["no message"])[0]
        memory = is_exhausted(error)
        return ItemReport(error=f"{type(error).__name__}: {first}", again=True, memory=memory)
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    remove(done / FAILURE)
    return ItemReport(done.name)


def _run(item: Item, store: Path, upstream: str | None, weights: Path | None) -> Path:
    """Folder of the run that the item made or found."""
    assert item.catalog is not None  # `run_plan` refuses such items
    before = None if upstream is None else read_run(store / upstream)
    place = (item.catalog, store, item.settings, before, weights, item.also, item.resolved)
    request = Request(item.technique, *place, item.fold)
    return item.step.run(request).folder


def elsewhere(leaving: Collection[str]) -> Any:
    """Scheduling strategy of a task: avoid these nodes, if possible."""
    from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

    if not leaving:
        return "DEFAULT"
    return NodeLabelSchedulingStrategy({}, soft={"ray.io/node-id": NotIn(*sorted(leaving))})


@cache
def task_of(cpus: float, gpus: float, calls: int) -> Any:
    """The Ray task for all items with the same needs; a process serves this many calls."""
    import ray

    return ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, max_calls=calls)(_on_node)


def _on_node(work: Callable[..., ItemReport], *arguments: Any) -> tuple[str, ItemReport]:
    """Execute an item as a Ray task, and return its node too."""
    import ray

    return ray.get_runtime_context().get_node_id(), work(*arguments)


def node_in(error: BaseException) -> str:
    """The node that Ray names in an error; empty if none."""
    match = re.search(r"(?i)node id: ([0-9a-f]{56})", str(error))
    return match[1] if match else ""
