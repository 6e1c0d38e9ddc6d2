"""Execution of a plan: the driver schedules the items; each item is one Ray task."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmd_ray.cluster.connection import free_reserved
from benchmd_ray.cluster.telemetry import count, gauge, observe
from benchmd_ray.console.interrupts import Stopping
from benchmd_ray.console.progress import Display, above
from benchmd_ray.errors import BenchmdError, first_line
from benchmd_ray.runs.store import read_run
from benchmd_ray.runs.store import shown as address_of
from benchmd_ray.service.capacity import Need, need_of
from benchmd_ray.service.keeping import pruned_and_needed, release_unneeded
from benchmd_ray.service.live import Progressing, longest_first, status_text
from benchmd_ray.service.nodes import Nodes
from benchmd_ray.service.outcome import Again, Failure, Observers, PlanOutcome
from benchmd_ray.service.plan import Item, Plan
from benchmd_ray.service.simulate import Resources, pace_of, seconds_needed, time_left
from benchmd_ray.service.status import find_run, find_runs
from benchmd_ray.service.steps import Progress
from benchmd_ray.service.work import ItemReport, elsewhere, execute_item, node_in, task_of

TICK_SECONDS = 0.5
"""Seconds between checks of the driver while no task ends."""
LOOK_AGAIN_SECONDS = (1.0, 5.0)
"""First and longest pause before checking again an item that another process works on."""
LOST_SECONDS = (1.0, 30.0)
"""First and longest pause before an item is retried after its node or storage went away."""
LOSSES = 20
"""How often an item may lose its node or storage, which does not count as a try; with the pauses,
storage may be away for about eight minutes.
"""
ITEMS_OF_A_PROCESS = 500
"""Items after which a process is replaced; its successor imports PyTorch again."""
PATIENCE = 60.0
"""Seconds during which smaller items may start before one that does not fit yet."""
CANCEL_SECONDS = 50.0
"""Seconds a cancelled task may take to write a checkpoint before its process is killed."""


@dataclass(frozen=True)
class RunningItem:
    """A running Ray task and its item."""

    item: Item
    need: Need
    shown: Progressing


class Execution:
    """State of a plan's execution."""

    def __init__(
        self,
        plan: Plan,
        store: Path,
        *,
        weights: Path | None,
        cpus: int | None,
        say: Callable[[str], None],
        observers: Observers,
        shown: Display,
        attached: bool = False,
    ) -> None:
        """Use the cluster of this process; an existing cluster may gain and lose nodes."""
        self.say, self.observers, self.shown = say, observers, shown
        self.nodes = Nodes(cpus, attached=attached, say=self._note)
        items = list(plan.items)
        needs: dict[Need, Need] = {}  # equal ones are one object, which is found fast
        self.needs = {item.name: needs.setdefault(n, n) for item in items for n in [need_of(item)]}
        self.items, self.store, self.weights = items, store, weights
        self.by_name = {item.name: item for item in items}
        self.waiting = longest_first(items)
        self.rank = {item.name: number for number, item in enumerate(self.waiting)}
        self.running: dict[Any, RunningItem] = {}
        self.folders: dict[str, Path] = {}
        self.ends: dict[str, list[Any]] = {
            name: [] for name in ("done", "before", "elsewhere", "failed", "not_run")
        }
        self.blocked: dict[str, str] = {}
        """Items that are not done and never will be, with the failed one that is the reason."""
        self.tries: dict[str, int] = {}
        self.losses: dict[str, int] = {}
        self.alone: set[str] = set()
        """Items that ran out of memory next to others."""
        self.preempted: set[str] = set()
        """Items whose process was told to end, until the next one is lost."""
        self.reserved = False
        """Whether a lost Ray Train job may have left a reservation behind."""
        self.look: dict[str, tuple[float, float]] = {}
        """Items that another process works on: when to look again, and the pause before that."""
        self.later: dict[str, float] = {}
        """When to try items again whose node or storage went away."""
        self.passed: dict[str, float] = {}
        """Since when an item could start but for its size."""
        self.took: list[tuple[float, float]] = []
        """Estimated and real seconds of the items that were done."""
        self.start = time.monotonic()
        self.left, self.estimate_at = math.nan, 0.0

    def run(self, stop: Stopping) -> PlanOutcome:
        """Execute items until nothing more can run."""
        try:
            progress = find_runs(self.items, self.store, weights=self.weights)
            if lacking := pruned_and_needed(self.items, progress, self.store):
                raise BenchmdError(f"nothing was started: {lacking}")
            self._sort_out(progress)
            while self.waiting or self.running:
                stop.check()
                self.nodes.look(self._wanted)
                self._admit()
                self._show()
                self._collect()
            self._show()
        except BaseException:
            with contextlib.suppress(Exception):  # Ray itself may be what is lost
                self._cancel()
            raise
        finally:
            self.shown.close()
            with contextlib.suppress(Exception):
                self.nodes.close()
        ends = {name: tuple(items) for name, items in self.ends.items()}
        return PlanOutcome(folders=self.folders, seconds=time.monotonic() - self.start, **ends)

    def _sort_out(self, progress: dict[str, Progress | None]) -> None:
        """Collect finished items, and refuse those that can never run here."""
        left = []
        for item in self.waiting:
            state = progress[item.name]
            if state is not None and state.done:
                self.folders[item.name] = state.run.folder
                self.ends["before"].append(item.name)
            elif refusal := self.nodes.refusal(self.needs[item.name]):
                self._fail(item, refusal, None)
            else:
                left.append(item)
        self.waiting = left

    def _admit(self) -> None:
        """Start the items that fit, in order of rank."""
        left: list[Item] = []
        full: list[Need] = []
        """What did not fit; nothing ends meanwhile, so it need not be asked again."""
        waiting, self.waiting = self.waiting, left
        for number, item in enumerate(waiting):
            if cause := self.blocked.get(item.after or ""):
                self.blocked[item.name] = cause
                self.ends["not_run"].append((item.name, cause))
                continue
            need = self.needs[item.name]
            if need not in full and self._ready(item):
                refusal = self.nodes.refusal(need)
                if refusal:
                    self._fail(item, refusal, None)
                    continue
                if refusal is None and self._fits(item):
                    self.passed.pop(item.name, None)
                    self._start(item)
                    continue
                if item.name not in self.alone:
                    full.append(need)
                now = time.monotonic()
                if refusal is None and now - self.passed.setdefault(item.name, now) > PATIENCE:
                    left += waiting[number:]  # otherwise smaller ones would overtake it forever
                    return
            left.append(item)

    def _ready(self, item: Item) -> bool:
        if item.after is not None and item.after not in self.folders:
            return False
        when = max(self.look.get(item.name, (0.0, 0.0))[0], self.later.get(item.name, 0.0))
        return when <= time.monotonic()

    def _wanted(self) -> list[Need]:
        """Needs of running items, and of those that could start if there were room."""
        ready = [self.needs[item.name] for item in self.waiting if self._ready(item)]
        return [*(task.need for task in self.running.values()), *ready]

    def _fits(self, item: Item) -> bool:
        tasks = self.running.values()
        several = any(task.need.workers > 1 for task in tasks)
        if self.reserved and not several:
            free_reserved()
            self.reserved = False
        if self.reserved and self.needs[item.name].workers > 1:
            return False
        if tasks and (item.name in self.alone or any(t.item.name in self.alone for t in tasks)):
            return False
        return self.nodes.capacity.fits(self.needs[item.name], [task.need for task in tasks])

    def _start(self, item: Item) -> None:
        """Start an item's task, unless another process has done it meanwhile."""
        upstream = self.folders.get(item.after or "")
        progress = None
        with contextlib.suppress(BenchmdError):  # its task will report what is wrong
            run = None if upstream is None else read_run(upstream)
            progress = find_run(item, self.store, run, weights=self.weights)
        if progress is not None and progress.done:
            self._finish(item, progress.run.folder, "elsewhere")
            return
        need, folder = self.needs[item.name], None if progress is None else progress.run.folder
        single = need.workers == 1
        # A Ray Train job reserves resources for its workers; its task only waits for them. A
        # process that used a GPU ends with its task, which frees memory and clears faults of the
        # GPU.
        reserved = (need.cpus, need.gpus) if single else (0.0, 0.0)
        task = task_of(*reserved, 1 if need.gpus else ITEMS_OF_A_PROCESS)
        progressing = Progressing(item, folder, time.monotonic())
        before = min(0.99, progressing.fraction or 0.0)
        where = elsewhere(self.nodes.leaving())
        reference = task.options(name=item.name, scheduling_strategy=where).remote(
            execute_item,
            item if progress is None else replace(item, resolved=progress.resolved),
            address_of(self.store),
            None if upstream is None else upstream.name,
            None if folder is None else folder.name,
            self.weights,
        )
        self.running[reference] = RunningItem(item, need, replace(progressing, before=before))
        if before:
            self._say(f"{item.name} resumes at {before:.0%}")
        self.observers.started(item, folder)

    def _collect(self) -> None:
        """Wait a moment, and collect tasks that ended."""
        import ray

        if not self.running:
            time.sleep(TICK_SECONDS if self.waiting else 0)
            return
        tasks = list(self.running)
        ray.wait(tasks, num_returns=1, timeout=TICK_SECONDS)
        for reference in ray.wait(tasks, num_returns=len(tasks), timeout=0)[0]:
            task = self.running.pop(reference)
            self._settle(task, *self._report(reference, task))

    def _report(self, reference: Any, task: RunningItem) -> tuple[ItemReport, str]:
        """The report of a task, or Ray's error as a report; and its node, if known."""
        import ray

        try:
            node, report = ray.get(reference)
            return report, node
        except ray.exceptions.OutOfMemoryError as error:
            self.alone.add(task.item.name)
            self.reserved |= task.need.workers > 1
            line = "the node ran out of memory and its process was ended"
            return ItemReport(error=line, again=True), node_in(error)
        except ray.exceptions.RayTaskError as error:  # such as a node without this package
            last = str(error).strip().rpartition("\n")[2]
            line = f"its process could not work: {last}"
            return ItemReport(error=line, again=True), node_in(error)
        except ray.exceptions.RayError as error:
            self.reserved |= task.need.workers > 1
            self.nodes.look_soon()
            if isinstance(error, ray.exceptions.NodeDiedError):
                return ItemReport(error="its node went away", lost=True), node_in(error)
            line = f"its process was lost ({type(error).__name__}: {first_line(error)})"
            node = node_in(error)
            # After a preemption it may have been sent to the same node again.
            leaves = node in self.nodes.leaving() or task.item.name in self.preempted
            self.preempted.discard(task.item.name)
            return ItemReport(error=line, lost=leaves, again=not leaves), node

    def _settle(self, task: RunningItem, report: ItemReport, node: str) -> None:
        item = task.item
        if report.run is not None:
            self.took.append((item.seconds, task.shown.seconds))
            observe("benchmd_run_seconds", task.shown.seconds, kind=item.kind)
            self._finish(item, self.store / report.run, "done", node)
            return
        if report.busy:
            if item.name not in self.look:
                self._note(f"{item.name}: another process works on it; waiting for that")
            pause = min(2 * self.look.get(item.name, (0.0, 0.5))[1], LOOK_AGAIN_SECONDS[1])
            self.look[item.name] = (time.monotonic() + pause, pause)
            self._wait(item)
            return
        if report.preempted:
            self.nodes.leave(node)
            self.preempted.add(item.name)
            self._again(item, "preempted", report.error, "resumes elsewhere", node=node)
            return
        if report.memory and 0 < item.gpus < 1:
            whole = replace(item, gpus=1.0)
            self.needs[item.name] = need_of(whole)
            self._again(whole, "retried", report.error, "trying again with a whole GPU", node=node)
            return
        if report.memory:
            self.alone.add(item.name)
        if report.lost and self._lose(item):
            times = f"{self.losses[item.name]} of {LOSSES}"
            self._again(
                item, "lost", report.error, f"resumes elsewhere or later ({times})", node=node
            )
            return
        # Ray Train itself may have failed.
        self.reserved |= report.again and task.need.workers > 1
        tries = self.tries[item.name] = self.tries.get(item.name, 0) + 1
        retries = item.settings.execution.retries
        if report.again and tries <= retries:
            times = f"{tries} of {retries}"
            self._again(item, "retried", report.error, f"trying again ({times})", node=node)
            return
        self._fail(item, report.error, task.shown.folder, node)

    def _lose(self, item: Item) -> bool:
        """Count a lost node or storage of an item; returns whether it is retried after a pause."""
        losses = self.losses[item.name] = self.losses.get(item.name, 0) + 1
        first, longest = LOST_SECONDS
        self.later[item.name] = time.monotonic() + min(first * 2 ** (losses - 1), longest)
        return losses <= LOSSES

    def _again(self, item: Item, why: Again, reason: str, what: str, *, node: str) -> None:
        self._say(f"{item.name}: {reason}; {what}")
        count("benchmd_plan_retries_total", 1, why=why)
        self.observers.again(item, why, reason, node)
        self._wait(item)

    def _wait(self, item: Item) -> None:
        self.waiting.append(item)
        self.waiting.sort(key=lambda item: self.rank[item.name])

    def _finish(self, item: Item, folder: Path, how: str, node: str = "") -> None:
        self.folders[item.name] = folder
        self.look.pop(item.name, None)
        self.ends[how].append(item.name)
        self.observers.finished(item, folder, node)
        try:  # remove weights that are no longer needed
            release_unneeded(item, self.by_name, self.folders)
        except (BenchmdError, OSError) as error:
            self._note(f"{item.name}: nothing was freed: {error}")

    def _fail(self, item: Item, reason: str, folder: Path | None, node: str = "") -> None:
        folder = folder if folder is not None and folder.is_dir() else None
        self.look.pop(item.name, None)
        self.blocked[item.name] = item.name
        self.ends["failed"].append(Failure(item, reason, folder))
        self._say(f"{item.name} failed: {reason}")
        self.observers.failed(item, reason, node)

    def _note(self, line: str) -> None:
        self._say(line)
        self.observers.noted(line)

    def _say(self, line: str) -> None:
        with above():
            self.say(line)

    def _show(self) -> None:
        ended = sum(len(self.ends[name]) for name in ("done", "before", "elsewhere"))
        minutes = (time.monotonic() - self.start) / 60
        rate = len(self.ends["done"]) / minutes if minutes > 0 else 0.0
        progress = [task.shown for task in self.running.values()]
        failed = len(self.ends["failed"])
        states = {"waiting": len(self.waiting), "running": len(progress), "done": ended}
        for state, runs in (states | {"failed": failed}).items():
            gauge("benchmd_plan_runs", runs, state=state)
        self.shown.show(
            ended, status_text(progress, failed, len(self.look), rate, left=self._left())
        )

    def _left(self) -> float:
        """Seconds left, re-estimated only now and then, as that takes time."""
        begin = time.monotonic()
        if not (self.waiting or self.running):
            return 0.0
        if begin < self.estimate_at:
            return self.left
        pace = pace_of(self.took)
        at_work = [task.shown for task in self.running.values()]
        needed = {
            run.item.name: seconds_needed(run.item, run.seconds, run.share, pace) for run in at_work
        }
        items = [run.item for run in at_work]
        cpus = max([self.nodes.capacity.cpus, *(item.cpus for item in [*items, *self.waiting])])
        gpus = max([self.nodes.capacity.gpus, *(item.gpus for item in [*items, *self.waiting])])
        waiting = sorted(self.waiting, key=lambda item: self.rank[item.name])
        self.left = time_left(waiting, needed, Resources(cpus, gpus), items=items, pace=pace)
        now = time.monotonic()
        self.estimate_at = now + max(2.0, 50 * (now - begin))
        return self.left

    def _cancel(self) -> None:
        """End all tasks: by an interrupt, so that they record their end; otherwise by force."""
        import ray

        tasks = list(self.running)
        for force, seconds in ((False, CANCEL_SECONDS), (True, 1.0)):
            for reference in tasks:
                # A job of several workers is not cancelled directly: its process stops it.
                ray.cancel(reference, force=force, recursive=force)
            if tasks:
                tasks = ray.wait(tasks, num_returns=len(tasks), timeout=seconds)[1]
        self.running.clear()
