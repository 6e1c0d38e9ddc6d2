"""What a trial holds of a machine or a cluster, and how many work at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.sizes import streams
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.service.capacity import SLACK, Capacity
from benchmd_ray.service.cost import Inputs
from benchmd_ray.service.searches import SearchPlan, Tuning
from benchmd_ray.service.steps import pretrain_step, transfer_step
from benchmd_ray.tuning.limits import Place

MEMORY_SHARE = 0.85
"""Of the memory that an embedded Ray counts on, what all trials together may allocate."""


def longest(plan: SearchPlan) -> int:
    """Steps of the longest trial that a search can propose."""
    for parameter in plan.space.parameters:
        if parameter.name == plan.stage.steps:
            return int(parameter.high or max(parameter.values))
    return plan.stage.last_step(plan.starts[0])


def place_of(
    plan: SearchPlan, capacity: Capacity, at_once: int | None, inner: Sequence[Catalog] = ()
) -> Place:
    """What a trial holds, and how many fit at once.

    Args:
        plan: The search.
        capacity: What there is.
        at_once: As many as the user wants at most.
        inner: Its inner catalogs, where they are known: one that streams needs a CPU beside.

    Raises:
        BenchmdError: Not even one fits.
    """
    execution = plan.starts[0].execution
    cpus = float(execution.cpus_per_worker)
    # Ray Data starves where trials hold every CPU.
    spare = any(
        streams(catalog, split, execution) for catalog in inner for split in ("train", "validation")
    )
    free = capacity.cpus - spare
    fit = int(free / cpus + SLACK)
    gpus = 0.0
    if execution.device == "cuda":
        # Ray fills a GPU before it takes the next: no smaller share than trials need.
        on_each = math.ceil(min(fit, at_once or fit) / max(capacity.gpus, 1))
        gpus = max(execution.gpu_share, 1 / max(on_each, 1)) if _small(plan) else 1.0
        fit = min(fit, int(capacity.gpus / gpus + SLACK))
    if fit < 1:
        raise BenchmdError(
            f"a trial needs {count_of(cpus + spare, 'CPU')} and {count_of(gpus, 'GPU')} and "
            f"there are {capacity.cpus:g} and {capacity.gpus:g}: lower "
            "execution.cpus_per_worker, take --set execution.feed=resident or "
            "--set execution.device=cpu, or a larger machine."
        )
    return Place(cpus, gpus, min(fit, at_once or fit))


def _small(plan: SearchPlan) -> bool:
    """Whether the longest evaluation of a trial fills no GPU."""
    step = pretrain_step(plan.technique) if plan.stage.pretrains else None
    for source, settings in zip(plan.sources, plan.starts, strict=True):
        inputs = Inputs(plan.technique, settings, source)
        work = (step or transfer_step(settings)).work(inputs)
        if not replace(work, units=longest(plan)).small:
            return False
    return True


def memory_of(tuning: Tuning, plan: SearchPlan, place: Place, *, own: bool) -> int | None:
    """Bytes that a trial may allocate; None sets no limit.

    Args:
        tuning: What was asked for.
        plan: The search.
        place: How many trials work at once.
        own: Whether Ray is embedded, so that no other rule bounds the memory of trials.
    """
    if tuning.memory_gib is not None:
        return int(tuning.memory_gib * 2**30)
    if not own or plan.starts[0].execution.device != "cpu":
        return None
    import ray

    return int(ray.cluster_resources()["memory"] * MEMORY_SHARE / place.at_once)
