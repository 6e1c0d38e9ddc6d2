"""Budget of a search, and when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass

from benchmd_ray.cluster.telemetry import gauge
from benchmd_ray.console.progress import Display
from benchmd_ray.errors import BenchmdError, count_of, shown
from benchmd_ray.tuning.ladder import ENOUGH, RUNGS, START
from benchmd_ray.tuning.parameters import MOST_TRIALS
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.trial_log import Job
from benchmd_ray.tuning.trials import Trial

RESTARTS = 3
"""Restarts of a job whose process was lost, by Ray Tune; lost to preemption, they do not count."""
MOST_WANTED, MORE = 1000, 8
"""Most jobs for which a cluster is asked for resources, and how many more than the running ones if
their number is not known.
"""
EXPLORING = 0.5
"""Share of a budget for trials with one evaluation; the rest is for further evaluations."""
TO_CLIMB = 10
"""Evaluations from which on a budget is divided; of fewer, each trial gets one."""


@dataclass(frozen=True)
class Budget:
    """Limits of a search; None is no limit. The first limit reached ends the search."""

    trials: int | None = 50
    """Including those of earlier sessions. If it is the only limit, the search ends when its best
    trials have `ladder.ENOUGH` evaluations."""
    evaluations: int | None = None
    """Of all trials together; one that is stopped counts as the share that it was trained."""
    hours: float | None = None
    """Wall-clock hours of all sessions."""
    device_hours: float | None = None
    """Hours of GPUs, or of CPUs without any, likewise."""

    def __post_init__(self) -> None:
        for name in ("trials", "evaluations", "hours", "device_hours"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                option = name.replace("_", "-")
                raise BenchmdError(f"--{option} is {value:g}, expected a number above 0.")
        for name in ("trials", "evaluations"):
            if (getattr(self, name) or 0) > MOST_TRIALS:
                number = shown(getattr(self, name))
                raise BenchmdError(f"--{name} is {number}, expected {MOST_TRIALS:,} at most.")
        if all(value is None for value in astuple(self)):
            raise BenchmdError(
                "the search has no budget: give one of --trials, --evaluations, --hours, "
                "--device-hours."
            )

    @property
    def limits(self) -> tuple[float, ...]:
        return tuple(math.inf if limit is None else limit for limit in astuple(self))

    @property
    def explored_evaluations(self) -> int | None:
        """Trials that are begun within a limit of evaluations."""
        if self.evaluations is None or self.evaluations < TO_CLIMB:
            return self.evaluations
        return int(EXPLORING * self.evaluations)

    @property
    def until(self) -> int:
        """Evaluations that the best trials get at most."""
        return ENOUGH if astuple(self)[1:] == (None, None, None) else RUNGS[-1]


@dataclass(frozen=True)
class Place:
    """Resources of a job, and the number of parallel jobs."""

    cpus: float
    gpus: float
    at_once: int
    """Jobs at once at the beginning; a cluster may grow or shrink."""
    workers: int = 1
    """Workers of a job; several workers use its CPUs and GPUs while its own process waits for
    them.
    """

    @property
    def devices(self) -> float:
        """GPUs of a job, or CPUs if it has none: the unit of device hours."""
        return self.gpus or self.cpus


def chosen_so_far(best: Trial, start: Trial) -> str:
    """What a search would choose now.

    Scores move as harder folds are scored, also the start's; the difference is on the same ones.
    """
    score = f"{best.score:.3f} over {count_of(len(best.evaluations), 'evaluation')}"
    if best.number == START:
        return f"chosen so far: the start, {best.family}, {score}"
    margin = best.score - start.score
    return f"chosen so far: trial {best.number}, {best.family}, {score}, {margin:+.3f} vs the start"


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
        the number of jobs that may run in parallel now, given the number that could; None: as many
        as the place says.
        """
        self.study, self.budget, self.place = study, budget, place
        self.halted, self.shown, self.lost = halted, shown, lost
        self.room = room or (lambda wanted: place.at_once)
        self.at_once = place.at_once
        self.start = time.monotonic() - worked
        self.running: set[tuple[int, int]] = set()
        """Trial and evaluation of each running job."""
        self.draining = False
        """Whether nothing is begun before all that works has ended."""
        self.trouble: Exception | None = None
        """What is wrong with this program or its surroundings, not with a trial."""
        self.device_hours = 0.0
        self.text = ""
        self.look()

    def look(self) -> None:
        """Update from the study."""
        trials = self.study.trials()
        self.device_hours = sum(trial.device_hours for trial in trials)
        ended = {
            state: sum(t.state == state for t in trials)
            for state in ("complete", "stopped", "failed")
        }
        parts = ["exploring" if self.exploring else "climbing", f"{len(self.running)} running"]
        parts += [f"{ended['stopped']} stopped early", f"{ended['failed']} failed"]
        if (best := self.study.best()) is not None:
            parts.append(chosen_so_far(best, trials[START]))
        self.text, self.ended = ", ".join(parts), sum(ended.values())
        for state, number in (ended | {"running": len(self.running)}).items():
            gauge("benchmd_search_trials", number, state=state)

    @property
    def waiting(self) -> list[Job]:
        """Jobs that were begun and need another process, those of an earlier session too."""
        unfinished = self.study.unfinished()
        return [job for job in unfinished if (job.number, job.evaluation) not in self.running]

    @property
    def hours(self) -> float:
        """Wall-clock hours of all sessions."""
        return (time.monotonic() - self.start) / 3600

    @property
    def out_of_time(self) -> bool:
        """Whether running jobs must end: a signal or an error came, or the hours are over."""
        if self.trouble is not None:
            return True
        return self.halted() or (self.budget.hours is not None and self.hours >= self.budget.hours)

    @property
    def spent(self) -> bool:
        """Whether no more work may start."""
        devices = self.budget.device_hours
        return self.out_of_time or (devices is not None and self.device_hours >= devices)

    @property
    def exploring(self) -> bool:
        """Whether trials may still begin; once that has ended, only a larger budget reopens it."""
        budget, study = self.budget, self.study
        if within := study.explored_within():
            if all(new <= old for new, old in zip(budget.limits, within, strict=True)):
                return False
        quota = budget.explored_evaluations
        return (
            (budget.trials is None or study.begun < budget.trials)
            and (quota is None or study.spent_evaluations < quota)
            and (budget.hours is None or self.hours < EXPLORING * budget.hours)
            and (budget.device_hours is None or self.device_hours < EXPLORING * budget.device_hours)
        )

    def look_around(self) -> None:
        """Update the number of jobs that may run in parallel."""
        self.at_once = self.room(self.wanted)

    @property
    def wanted(self) -> int:
        """Number of jobs that would run with unlimited resources."""
        jobs = len(self.running) + len(self.waiting)
        if self.spent:
            return jobs
        trials = self.budget.trials if self.exploring else None
        left = MORE if trials is None else trials - self.study.begun
        return min(MOST_WANTED, jobs + max(0, left))

    def start_next(self) -> Job | None:
        """The job to start now; None without resources or work."""
        if not self.running:
            self.look_around()  # otherwise nobody does while nothing runs
        if self.out_of_time or self.full:
            return None
        job = next(iter(self.waiting), None)
        if job is not None and self.running:
            if self._occupied + self._slots(job.number) > self.at_once:
                return None  # until the running ones leave it a whole GPU
        job = job or self.next_job()
        if job is not None:
            self.running.add((job.number, job.evaluation))
            self.look()
        return job

    @property
    def full(self) -> bool:
        """Whether there is no room for another job; also true without nodes."""
        return self.draining or self._occupied >= self.at_once

    @property
    def _occupied(self) -> int:
        return sum(self._slots(number) for number, _ in self.running)

    def _slots(self, number: int) -> int:
        return max(1, round(1 / self.place.gpus)) if number in self.study.whole else 1

    def next_job(self) -> Job | None:
        """The next job; None if it depends on running jobs, or if there is none left."""
        study, budget = self.study, self.budget
        if study.hopeless or self.spent:
            return None
        if self.exploring:
            return study.propose()
        if any(job.evaluation == 0 for job in study.unfinished()):
            return None
        if study.explored_within() != budget.limits:
            study.note_explored(astuple(budget))
        most = math.inf if budget.evaluations is None else budget.evaluations
        return study.climb(most - study.spent_evaluations, budget.until)


Ended = Callable[[int], None]
