"""Resources of a job, an evaluation of a trial, and the number of jobs that run at once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmd_ray.console.interrupts import Stopping
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.sizes import streams
from benchmd_ray.errors import BenchmdError, NoRoom, count_of
from benchmd_ray.service.capacity import SLACK, Capacity, Need
from benchmd_ray.service.cost import Inputs
from benchmd_ray.service.families import Tuning, family_stage
from benchmd_ray.service.nodes import Nodes
from benchmd_ray.service.searches import SearchPlan, execution_of
from benchmd_ray.service.steps import pretrain_step, transfer_step
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.limits import Place

WAIT_SECONDS = 1.0
"""Seconds between checks for free resources."""
MEMORY_SHARE = 0.85
"""Share of an embedded Ray's memory that all jobs together may allocate."""


def longest(family: Family) -> int:
    """Steps of the longest training that a family can propose."""
    stage = family_stage(family)
    for parameter in family.space.parameters:
        if parameter.name == stage.steps:
            return int(parameter.high or max(parameter.values))
    return stage.last_step(family.settings[0])


def place_of(
    plan: SearchPlan, capacity: Capacity, at_once: int | None, inner: Sequence[Catalog] = ()
) -> Place:
    """Resources of a job, and how many jobs fit at once.

    Inner catalogs that stream need a spare CPU.

    Raises:
        BenchmdError: Not even one job fits.
    """
    execution = execution_of(plan)
    workers, spare = execution.workers, _spare(plan, inner)
    cpus, gpus = float(execution.cpus_per_worker * workers), 0.0
    if execution.device == "cuda":
        # Ray fills one GPU before the next, so the share must not be smaller than a job needs.
        fit = int((capacity.cpus - spare) / cpus + SLACK)
        on_each = math.ceil(min(fit, at_once or fit) / max(capacity.gpus, 1))
        share = execution.gpu_share if _small(plan) else execution.gpu_share_large
        gpus = max(share, 1 / max(on_each, 1)) if workers == 1 and share < 1 else float(workers)
    place = Place(cpus, gpus, 1, workers)
    fit = fitting(capacity, place, spare)
    if fit < 1:
        raise BenchmdError(
            f"an evaluation needs {count_of(cpus + spare, 'CPU')} and {count_of(gpus, 'GPU')} and "
            f"there are {capacity.cpus:g} and {capacity.gpus:g}: lower execution.cpus_per_worker, "
            "use --set execution.feed=resident or --set execution.device=cpu, or use a larger "
            "machine."
        )
    return replace(place, at_once=min(fit, at_once or fit))


def fitting(capacity: Capacity, place: Place, spare: int) -> int:
    """Number of jobs that fit at once if this many CPUs stay free."""
    places = capacity.places(place.cpus / place.workers, place.gpus / place.workers)
    return min(int((capacity.cpus - spare) / place.cpus + SLACK), places // place.workers)


def _spare(plan: SearchPlan, inner: Sequence[Catalog]) -> int:
    """CPUs that must stay free: Ray Data and Ray Train starve if trials take all."""
    execution, splits = execution_of(plan), ("train", "validation")
    streaming = (streams(catalog, split, execution) for catalog in inner for split in splits)
    return int(execution.workers > 1 or any(streaming))


class Room:
    """Number of jobs that run at once on a cluster, which may grow and shrink."""

    def __init__(
        self,
        plan: SearchPlan,
        nodes: Nodes,
        at_once: int | None,
        inner: Sequence[Catalog],
        *,
        stop: Stopping,
    ) -> None:
        """Wait until one job fits."""
        execution = execution_of(plan)
        workers, spare = execution.workers, _spare(plan, inner)
        self._nodes, self._at_once, self._spare = nodes, at_once, spare
        gpus = float(workers) if execution.device == "cuda" else 0.0
        self._need = Need(float(execution.cpus_per_worker * workers), gpus, workers, bool(spare))
        while nodes.refusal(self._need) == "":
            stop.check()
            nodes.look(lambda: [self._need])
            time.sleep(WAIT_SECONDS)
        self.place = place_of(plan, nodes.capacity, at_once, inner)
        self._need = replace(self._need, gpus=self.place.gpus)

    def __call__(self, wanted: int) -> int:
        """Number of jobs that may run now; the cluster is asked for resources for `wanted`.

        Raises:
            NoRoom: All nodes went away, and no new one was added.
        """
        most = self._at_once or wanted
        self._nodes.look(lambda: [self._need] * min(wanted, most))
        if refusal := self._nodes.refusal(self._need):
            raise NoRoom(f"nothing can run: {refusal} Run the same command again later.")
        fit = fitting(self._nodes.capacity, self.place, self._spare)
        return min(fit, self._at_once or fit)


def _small(plan: SearchPlan) -> bool:
    """Whether even the longest evaluation of each family leaves room on a GPU."""
    for family in plan.families:
        pretrains = family_stage(family).pretrains
        for source, settings in zip(plan.sources, family.settings, strict=True):
            step = pretrain_step(family.technique) if pretrains else transfer_step(settings)
            work = step.work(Inputs(family.technique, settings, source))
            if not replace(work, units=longest(family) if work.units else 0).small:
                return False
    return True


def memory_of(tuning: Tuning, plan: SearchPlan, place: Place, *, own: bool) -> int | None:
    """Bytes that a job may allocate, as an embedded Ray sets no limit; None for no limit."""
    if tuning.memory_gib is not None:
        if place.workers > 1:
            raise BenchmdError(
                "--memory-gib limits the process of an evaluation, but these have "
                f"{place.workers} workers each: omit it, or use --set execution.workers=1."
            )
        return int(tuning.memory_gib * 2**30)
    if place.workers > 1 or not own or execution_of(plan).device != "cpu":
        return None
    import ray

    return int(ray.cluster_resources()["memory"] * MEMORY_SHARE / place.at_once)
