"""Execute a plan on Ray: several items at a time, each exactly once, despite failures.

All state is in the store, so executing the same plan again resumes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmd_ray.cluster.connection import connected, embedded, own_cpus
from benchmd_ray.cluster.head import last_words
from benchmd_ray.console.interrupts import stopping
from benchmd_ray.console.progress import Display, board
from benchmd_ray.errors import BenchmdError
from benchmd_ray.runs.places import backing_of
from benchmd_ray.service.capacity import need_of
from benchmd_ray.service.execution import Execution
from benchmd_ray.service.keeping import release_rest
from benchmd_ray.service.logged import LoggedPlan, quieted
from benchmd_ray.service.outcome import Observer, Observers, PlanOutcome
from benchmd_ray.service.plan import Plan
from benchmd_ray.service.status import find_runs
from benchmd_ray.ssl.brought import ensure_brought


def run_plan(
    plan: Plan,
    store: Path,
    *,
    say: Callable[[str], None],
    address: str | None = None,
    weights: Path | None = None,
    cpus: int | None = None,
    observers: Sequence[Observer] = (),
    quiet: bool = False,
) -> PlanOutcome:
    """Execute the unfinished items of a plan; failures are in the outcome, the rest continues.

    Args:
        plan: A plan whose items have catalogs.
        store: Folder of all runs; on a cluster, one that all nodes share.
        say: Shows a line to the user when something unusual happens.
        address: Ray cluster to work on; None works embedded.
        weights: File of ImageNet weights; None downloads them.
        cpus: CPUs to use at once, though a single item may take more; None uses all.
        observers: Are notified of events.
        quiet: Show no progress.

    Raises:
        Stopped: A signal asked to stop; all tasks have been ended, and the same call resumes.
    """
    _require_executable(plan)
    for technique in dict.fromkeys(item.technique for item in plan.items):
        ensure_brought(technique)
    store, is_embedded = store.resolve(), embedded(address)
    if is_embedded and (outcome := _nothing_to_do(plan, store, weights)):
        with backing_of(store).keeping_weights():
            _release_rest(plan, store, outcome, say)
        Observers(observers).closed()
        return outcome  # excludes the seconds in which Ray starts
    logical = _logical_cpus(plan, cpus, address)
    if is_embedded:  # Ray may offer more CPUs than exist, for the largest item
        cpus = cpus or own_cpus()
    quiet, say = quieted(quiet, say)
    with ExitStack() as stack:
        stack.enter_context(backing_of(store).keeping_weights())
        log = stack.enter_context(LoggedPlan(store, plan))
        stack.enter_context(last_words(log.ended))
        notified = Observers([log, *observers])
        stack.callback(notified.closed)
        stack.enter_context(connected(address, cpus=logical))
        stop = stack.enter_context(stopping())
        display = Display() if quiet else board(len(plan.items), "runs")
        execution = Execution(
            plan,
            store,
            weights=weights,
            cpus=cpus,
            say=say,
            observers=notified,
            shown=display,
            attached=not is_embedded,
        )
        outcome = execution.run(stop)
        _release_rest(plan, store, outcome, say)
        return outcome


def _release_rest(
    plan: Plan, store: Path, outcome: PlanOutcome, say: Callable[[str], None]
) -> None:
    """Remove unneeded weights of items that were done before, too."""
    try:
        release_rest(plan.items, outcome.folders, store)
    except (BenchmdError, OSError) as error:
        say(f"nothing was freed: {error}")


def _nothing_to_do(plan: Plan, store: Path, weights: Path | None) -> PlanOutcome | None:
    """The outcome if everything is already done."""
    folders = {}
    for name, progress in find_runs(plan.items, store, weights=weights).items():
        if progress is None or not progress.done:
            return None
        folders[name] = progress.run.folder
    return PlanOutcome(folders, before=tuple(folders))


def _require_executable(plan: Plan) -> None:
    names = {item.name for item in plan.items}
    for item in plan.items:
        if item.after is not None and item.after not in names:
            raise BenchmdError(f"{item.name} comes after {item.after}, which is not in the plan.")
    missing = sorted({item.dataset for item in plan.items if item.catalog is None})
    if missing:
        raise BenchmdError(
            f"the plan was made from cards, without catalogs of {', '.join(missing)}: build them "
            "with `benchmd catalog build` and name them with --catalog."
        )


def _logical_cpus(plan: Plan, cpus: int | None, address: str | None) -> int:
    """CPUs that Ray must offer; an embedded Ray needs as many as the largest item."""
    if not embedded(address):
        return 0
    needs = [] if cpus else [need_of(item) for item in plan.items]
    return max([cpus or own_cpus(), *(math.ceil(need.cpus) + need.spare for need in needs)])
