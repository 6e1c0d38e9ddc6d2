"""One item of a plan, as a Ray task executes it."""

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
"""In a run's folder: where in the program its last try failed."""


@dataclass(frozen=True)
class ItemReport:
    """How the work on an item ended."""

    run: str | None = None
    """Name of the finished run's folder in the store."""
    error: str = ""
    """Why it failed; empty when it did not."""
    busy: bool = False
    """Another process works on it: nothing is wrong, look again."""
    again: bool = False
    """Whether another try may mend the error."""
    memory: bool = False
    """Whether the GPU had no memory left: others may work on it too."""
    lost: bool = False
    """Whether its node, its room or its storage went away: that is not a try of its own."""
    preempted: bool = False
    """Whether its process was told to end, and wrote a checkpoint where it trained: no try, too."""


def execute_item(
    item: Item, store: str, upstream: str | None, name: str | None, weights: Path | None
) -> ItemReport:
    """Execute an item in this process; whatever goes wrong is reported, not raised.

    Args:
        item: What to do; its settings name device and precision.
        store: The store of all runs, as commands name it: on S3, each machine has its own mirror.
        upstream: Name of the folder of the run that it comes after.
        name: That of its own run, if it is known; the folder takes `FAILURE`.
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
    except NoRoom as error:  # the plan saw room for it before: a node went away since
        return ItemReport(error=str(error), lost=True)
    except Transient as error:
        return ItemReport(error=str(error), again=True)
    except BenchmdError as error:
        return ItemReport(error=str(error))
    except Stopped as stop:
        if stop.args[0] != signal.SIGTERM:  # the plan itself is stopped
            raise
        return ItemReport(error="its process was told to end (SIGTERM)", preempted=True)
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
    request = Request(item.technique, *place)
    return item.step.run(request).folder


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
