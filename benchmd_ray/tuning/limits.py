"""Budget of a search, and when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmd_ray.cluster.telemetry import gauge
from benchmd_ray.console.progress import Display
from benchmd_ray.data.inner import FOLDS
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.tuning.known import Trial
from benchmd_ray.tuning.parameters import MOST_TRIALS
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.trial_log import Job

LOSSES, LOST_NODES = 2, 20
"""A trial fails after losing its process, or its node, this often without progress in between."""
CONFIRMING_AT_ONCE = 2
"""Parallel jobs of the final choice: the start's and a finalist's."""
MOST_WANTED, MORE = 1000, 8
"""Most jobs for which a cluster is asked for resources, and how many more than the running ones if
the number of trials is unlimited.
"""
RESERVED = 0.5
"""Largest share of the hours reserved for finalists, unless a single finalist needs more. With half
of a small budget reserved, simulated searches find almost nothing (`studies.search_price`).
"""


@dataclass(frozen=True)
class Budget:
    """Limits of a search; None is no limit. The first limit reached ends the search."""

    trials: int | None = 50
    """Including those of earlier sessions."""
    hours: float | None = None
    """Wall-clock hours of all sessions, with the evaluations of finalists."""
    device_hours: float | None = None
    """Hours of GPUs, or of CPUs without any, likewise."""

    def __post_init__(self) -> None:
        for name in ("trials", "hours", "device_hours"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                option = name.replace("_", "-")
                raise BenchmdError(f"--{option} is {value:g}, expected a number above 0.")
        if self.trials is not None and self.trials > MOST_TRIALS:
            raise BenchmdError(
                f"--trials is {shown(self.trials)}, expected {MOST_TRIALS:,} at most."
            )
        if self.trials is self.hours is self.device_hours is None:
            raise BenchmdError(
                "the search has no budget: give one of --trials, --hours, --device-hours."
            )

    @property
    def numbers(self) -> tuple[float | None, ...]:
        """All three, as a study notes them."""
        return self.trials, self.hours, self.device_hours


@dataclass(frozen=True)
class Place:
    """Resources of a trial, and the number of parallel trials."""

    cpus: float
    gpus: float
    at_once: int
    """Trials at once at the beginning; a cluster may grow or shrink."""
    workers: int = 1
    """Workers of a trial; several workers use its CPUs and GPUs while its own process waits for
    them.
    """

    @property
    def devices(self) -> float:
        """GPUs of a trial, or CPUs if it has none: the unit of device hours."""
        return self.gpus or self.cpus


class Limits:
    """Decides when a search ends and what it starts next."""

    def __init__(
        self,
        study: Study,
        budget: Budget,
        place: Place,
        halted: Callable[[], bool],
        shown: Display,
        worked: float = 0.0,
        lost: Callable[[int, str], None] = lambda number, reason: None,
        room: Callable[[int], int] | None = None,
    ) -> None:
        """``shown`` displays the progress; ``worked`` are wall-clock seconds of earlier sessions.

        ``lost`` receives the number of a trial whose process was lost, and the reason. ``room`` is
        the number of trials that may run in parallel now, given the number that could; None: as
        many as the place says.
        """
        self.study, self.budget, self.place = study, budget, place
        self.halted, self.shown, self.lost = halted, shown, lost
        self.room = room or (lambda wanted: place.at_once)
        self.at_once = place.at_once
        self.start = time.monotonic() - worked
        self.running: set[int] = set()
        self.waiting: list[Job] = []
        """Jobs that were begun and need another process, those of an earlier session too."""
        self.draining = False
        """Whether nothing is begun before all that works has ended."""
        self.trouble: Exception | None = None
        """What is wrong with this program or its surroundings, not with a trial."""
        self.device_hours = 0.0
        self.each, self.to_come = 0.0, 0
        """See `_compared`."""
        self.text = ""
        self._budget = budget.numbers
        self.look()

    def look(self) -> None:
        """Update from the study."""
        trials = self.study.trials()
        self.device_hours = sum(trial.device_hours for trial in trials)
        ended = {
            state: sum(t.state == state for t in trials)
            for state in ("complete", "stopped", "failed")
        }
        best = self.study.best()
        parts = [f"{len(self.running)} running"]
        parts += [f"{ended['stopped']} stopped early", f"{ended['failed']} failed"]
        if best is not None:
            parts.append(f"best {best.score:.3f} (trial {best.number})")
        self.text, self.ended = ", ".join(parts), sum(ended.values())
        self.each, self.to_come = self._compared(trials)
        for state, number in (ended | {"running": len(self.running)}).items():
            gauge("benchmd_search_trials", number, state=state)

    def _compared(self, trials: Sequence[Trial]) -> tuple[float, int]:
        """Device hours per evaluation of the compared trials, and the expected number to come.

        Both are 0 if there is nothing to compare so far.
        """
        method = self.study.method
        finalists = self.study.finalists(self._budget)
        if method.choosing == "highest" or not finalists:
            return 0.0, 0
        compared = [trials[number] for number in (0, *finalists) if number < len(trials)]
        done = sum(len(trial.evaluations) + len(trial.fresh) for trial in compared)
        hours = sum(trial.device_hours for trial in compared) / done if done else 0.0
        return hours, max(0, method.confirming - sum(len(trial.fresh) for trial in compared))

    @property
    def hours(self) -> float:
        """Wall-clock hours of all sessions."""
        return (time.monotonic() - self.start) / 3600

    @property
    def out_of_time(self) -> bool:
        """Whether running trials must end: a signal or an error came, or the hours are over."""
        if self.trouble is not None:
            return True
        return self.halted() or (self.budget.hours is not None and self.hours >= self.budget.hours)

    @property
    def spent(self) -> bool:
        """Whether no more work may start."""
        devices = self.budget.device_hours
        return self.out_of_time or (devices is not None and self.device_hours >= devices)

    @property
    def used(self) -> bool:
        """Whether no more trials may start: the race is over, or the rest is reserved.

        The hours expected for evaluations of finalists are reserved, at most the share `RESERVED`
        or the hours of one finalist. If they are not enough for one finalist, nothing is reserved.
        """
        if self._over:
            return True
        least, most = (n * self.each for n in (self.study.method.comparing, self.to_come))
        kept = ((left, min(most, max(RESERVED * whole, least))) for whole, left, _ in self._hours)
        return self._cuts() > 0 and any(left <= reserve for left, reserve in kept)

    @property
    def _over(self) -> bool:
        """Whether the race is over; it stays so once the final choice has started."""
        return self.spent or self.study.race_is_over(self._budget)

    @property
    def _hours(self) -> list[tuple[float, float, int]]:
        """For each limit: its device hours, the hours left when running jobs end, and a tolerance.

        A wall-clock limit is converted by the parallel jobs of the choice. The tolerance, in
        evaluations, is half a cut for device hours and none for the wall clock.
        """
        budget, working = self.budget, [len(job.evaluations) for job in self.study.unfinished()]
        limits = []
        if budget.device_hours is not None:
            left = budget.device_hours - self.device_hours - sum(working) * self.each
            limits.append((budget.device_hours, left, FOLDS))
        if budget.hours is not None:
            devices = self.place.devices * max(1, min(self.at_once, CONFIRMING_AT_ONCE))
            longest = max(working, default=0) * self.each / self.place.devices
            left = (budget.hours - self.hours - longest) * devices
            limits.append((budget.hours * devices, left, 0))
        return limits

    @property
    def _left(self) -> float:
        """Expected number of evaluations that may still start."""
        if not self.each:
            return math.inf
        evaluations = (left / self.each + more for _, left, more in self._hours)
        return max(0.0, min(evaluations, default=math.inf))

    def _cuts(self, before: int = 0) -> int:
        """Cuts of a finalist and the start that may still start after other evaluations."""
        most = len(self.study.method.batches)
        left = min(self._left - before, 2.0 * FOLDS * most)
        return max(0, int(left // (2 * FOLDS)))

    @property
    def begun(self) -> bool:
        """Whether all trials of the budget were started."""
        return self.budget.trials is not None and self.study.begun >= self.budget.trials

    def look_around(self) -> None:
        """Update the number of trials that may run in parallel."""
        self.at_once = self.room(self.wanted)

    @property
    def wanted(self) -> int:
        """Number of jobs that would run with unlimited resources."""
        jobs = len(self.running) + len(self.waiting)
        if self.used:
            choice = not self.spent and self.study.undecided(self._budget)
            return max(jobs, CONFIRMING_AT_ONCE * choice)
        left = MORE if self.budget.trials is None else self.budget.trials - self.study.begun
        return min(MOST_WANTED, jobs + max(0, left))

    def start_next(self) -> Job | None:
        """The job to start now; None without resources or work."""
        if not self.running:
            self.look_around()  # otherwise nobody does while nothing runs
        if self.out_of_time or self.full:
            return None
        if self.waiting and self.running:
            if self._occupied + self._slots(self.waiting[0].number) > self.at_once:
                return None  # until the running ones leave it a whole GPU
        job = self.waiting.pop(0) if self.waiting else self.next_job()
        if job is not None:
            self.running.add(job.number)
            self.look()
        return job

    @property
    def full(self) -> bool:
        """Whether there is no room for another job; also true without nodes."""
        return self.draining or self._occupied >= self.at_once

    @property
    def _occupied(self) -> int:
        return sum(map(self._slots, self.running))

    def _slots(self, number: int) -> int:
        return max(1, round(1 / self.place.gpus)) if number in self.study.whole else 1

    def next_job(self) -> Job | None:
        """The next job; None if it depends on running jobs, or if there is none left."""
        study = self.study
        if study.hopeless:
            return None
        if not self._over:
            used, every = self.used, study.method.evaluations
            # Evaluations that the start lacks in the race, and those that a trial may earn.
            promoting = every - study.granted(0) + every - 1
            if not used or self._cuts(promoting) == self._cuts():  # needs no comparison
                if (job := study.promote()) is not None:
                    return job
            if not used and not self.begun:
                return study.propose()
        if self.out_of_time:
            return None
        return study.confirm(self._budget, 0.0 if self.spent else self._left)


Ended = Callable[[int], None]
