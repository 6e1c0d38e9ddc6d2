"""What a search may use, and whether it is to end."""

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
from benchmd_ray.tuning.study import Job, Study

LOSSES, LOST_NODES = 2, 20
"""A trial whose process was lost so often, without a newer step between, has failed; where it went
with its node, so often."""
CONFIRMING_AT_ONCE = 2
"""Jobs of the choice that work at once: the start's and a finalist's."""
MOST_WANTED, MORE = 1000, 8
"""Jobs that a cluster is asked to make room for at once, at most, and how many more than there are
where nothing says how many trials there will be."""
RESERVED = 0.5
"""Share of the hours that is kept for the evaluations of finalists, at most, unless one needs more:
of few hours half finds next to nothing in simulated searches (`studies.search_price`)."""


@dataclass(frozen=True)
class Budget:
    """What a search may use; None sets no limit. What ends first ends the search."""

    trials: int | None = 50
    """Trials in all, those of earlier sessions too."""
    hours: float | None = None
    """By the clock, of all sessions, evaluations of finalists included."""
    device_hours: float | None = None
    """Of GPUs, or of CPUs where there is none, over all sessions, likewise."""

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
        """All three, which a study notes."""
        return self.trials, self.hours, self.device_hours


@dataclass(frozen=True)
class Place:
    """What a trial holds while it works, and how many work at once."""

    cpus: float
    gpus: float
    at_once: int
    """When the search begins: a cluster may grow or shrink."""
    workers: int = 1
    """Of a trial; several hold its CPUs and GPUs, and its own process only waits for them."""

    @property
    def devices(self) -> float:
        """GPUs of a trial, or CPUs where it has none: what device hours count."""
        return self.gpus or self.cpus


class Limits:
    """Whether the search is to end, and what it shows meanwhile."""

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
        """Look at the study.

        Args:
            study: The trials.
            budget: What may be used.
            place: What a trial holds.
            halted: Whether a signal came.
            shown: Shows how far the search is.
            worked: Seconds by the clock of earlier sessions.
            lost: Receives the number of a trial whose process was lost, and why, as far as known.
            room: Says how many trials may work at once now, given how many would if they could;
                None: as many as the place says.
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
        """Take what the study knows now."""
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
        """Device hours of an evaluation of what is compared, and how many are to come, about.

        Nothing where there is nothing to compare so far.
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
        """By the clock, of all sessions."""
        return (time.monotonic() - self.start) / 3600

    @property
    def out_of_time(self) -> bool:
        """Whether running trials must end: a signal or trouble came, or the hours are over."""
        if self.trouble is not None:
            return True
        return self.halted() or (self.budget.hours is not None and self.hours >= self.budget.hours)

    @property
    def spent(self) -> bool:
        """Whether nothing more may be worked on."""
        devices = self.budget.device_hours
        return self.out_of_time or (devices is not None and self.device_hours >= devices)

    @property
    def used(self) -> bool:
        """Whether no trial may begin any more: the race is over, or what is left is kept.

        Of hours so many are kept as the evaluations of finalists will take, at most `RESERVED` or
        what one finalist takes; none where they are not enough to begin with.
        """
        if self._over:
            return True
        least, most = (n * self.each for n in (self.study.method.comparing, self.to_come))
        kept = ((left, min(most, max(RESERVED * whole, least))) for whole, left, _ in self._hours)
        return self._cuts() > 0 and any(left <= own for left, own in kept)

    @property
    def _over(self) -> bool:
        """Whether the race is: once the choice has begun, it stays over."""
        return self.spent or self.study.race_is_over(self._budget)

    @property
    def _hours(self) -> list[tuple[float, float, int]]:
        """Device hours of the budget, and what those at work will leave, by each of its limits.

        By the clock they are those of the jobs of the choice that work at once. The third number
        is of evaluations by which they may be exceeded: half a cut, and none by the clock.
        """
        budget, working = self.budget, [len(job.evaluations) for job in self.study.unfinished()]
        found = []
        if budget.device_hours is not None:
            left = budget.device_hours - self.device_hours - sum(working) * self.each
            found.append((budget.device_hours, left, FOLDS))
        if budget.hours is not None:
            held = self.place.devices * max(1, min(self.at_once, CONFIRMING_AT_ONCE))
            longest = max(working, default=0) * self.each / self.place.devices
            found.append((budget.hours * held, (budget.hours - self.hours - longest) * held, 0))
        return found

    @property
    def _left(self) -> float:
        """Evaluations that may be begun, about."""
        if not self.each:
            return math.inf
        found = (left / self.each + more for _, left, more in self._hours)
        return max(0.0, min(found, default=math.inf))

    def _cuts(self, before: int = 0) -> int:
        """Cuts of a finalist and the start that may be begun after other evaluations."""
        most = len(self.study.method.batches)
        left = min(self._left - before, 2.0 * FOLDS * most)
        return max(0, int(left // (2 * FOLDS)))

    @property
    def _promoting(self) -> int:
        """Evaluations of the race that the start lacks, and those that a trial may earn."""
        every = self.study.method.evaluations
        return every - self.study.granted(0) + every - 1

    @property
    def begun(self) -> bool:
        """Whether all trials of the budget have begun."""
        return self.budget.trials is not None and self.study.begun >= self.budget.trials

    def look_around(self) -> None:
        """See how many trials may work at once by now."""
        self.at_once = self.room(self.wanted)

    @property
    def wanted(self) -> int:
        """How many jobs would work now if there was room for all."""
        known = len(self.running) + len(self.waiting)
        if self.used:
            choice = not self.spent and self.study.undecided(self._budget)
            return max(known, CONFIRMING_AT_ONCE * choice)
        left = MORE if self.budget.trials is None else self.budget.trials - self.study.begun
        return min(MOST_WANTED, known + max(0, left))

    def start_next(self) -> Job | None:
        """What is to be begun now; None: nothing, as there is no room or nothing to do."""
        if not self.running:
            self.look_around()  # nobody else does while nothing works
        if self.out_of_time or self.full:
            return None
        if self.waiting and not self._fits(self.waiting[0].number):
            return None  # until those that work leave it a whole GPU
        job = self.waiting.pop(0) if self.waiting else self.next_job()
        if job is not None:
            self.running.add(job.number)
            self.look()
        return job

    @property
    def full(self) -> bool:
        """Whether there is no room for another job; without nodes there is none at all."""
        return self.draining or self._held >= self.at_once

    @property
    def _held(self) -> int:
        return sum(map(self._slots, self.running))

    def _slots(self, number: int) -> int:
        """How many jobs could work in the place of one of a trial."""
        return max(1, round(1 / self.place.gpus)) if number in self.study.whole else 1

    def _fits(self, number: int) -> bool:
        return not self.running or self._held + self._slots(number) <= self.at_once

    def next_job(self) -> Job | None:
        """What is to be worked on next.

        None: nothing, as long as nothing else ends; and nothing at all where nothing is running.
        """
        study = self.study
        if study.hopeless:
            return None
        if not self._over:
            used = self.used
            if not used or self._cuts(self._promoting) == self._cuts():  # it costs no comparison
                job = study.promote()
                if job is not None:
                    return job
            if not used and not self.begun:
                return study.propose()
        if self.out_of_time:
            return None
        return study.confirm(self._budget, 0.0 if self.spent else self._left)


Ended = Callable[[int], None]
"""Receives the number of a trial that ended."""
