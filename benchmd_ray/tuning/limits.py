"""What a search may use, and whether it is to end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmd_ray.errors import BenchmdError
from benchmd_ray.progress import Board
from benchmd_ray.telemetry import gauge
from benchmd_ray.tuning.study import Study

LOSSES = 2
"""A trial whose process was lost so often, without a newer step between, has failed."""


@dataclass(frozen=True)
class Budget:
    """What a search may use; None sets no limit. What ends first ends the search."""

    trials: int | None = 50
    """Trials in all, those of earlier sessions too."""
    hours: float | None = None
    """By the clock, of all sessions."""
    device_hours: float | None = None
    """Of GPUs, or of CPUs where there is none, over all sessions."""

    def __post_init__(self) -> None:
        for name in ("trials", "hours", "device_hours"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                option = name.replace("_", "-")
                raise BenchmdError(f"--{option} is {value:g}, expected a number above 0.")
        if self.trials is self.hours is self.device_hours is None:
            raise BenchmdError(
                "the search has no budget: give one of --trials, --hours, --device-hours."
            )


@dataclass(frozen=True)
class Place:
    """What a trial holds while it works, and how many work at once."""

    cpus: float
    gpus: float
    at_once: int

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
        shown: Board,
        worked: float = 0.0,
        lost: Callable[[int, str], None] = lambda number, reason: None,
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
        """
        self.study, self.budget, self.place = study, budget, place
        self.halted, self.shown, self.lost = halted, shown, lost
        self.start = time.monotonic() - worked
        self.running: set[int] = set()
        self.trouble: Exception | None = None
        """What is wrong with this program or its surroundings, not with a trial."""
        self.device_hours = 0.0
        self.text = ""
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
        for state, number in (ended | {"running": len(self.running)}).items():
            gauge("benchmd_search_trials", number, state=state)

    @property
    def out_of_time(self) -> bool:
        """Whether running trials must end: a signal or trouble came, or the hours are over."""
        hours = (time.monotonic() - self.start) / 3600
        if self.trouble is not None:
            return True
        return self.halted() or (self.budget.hours is not None and hours >= self.budget.hours)

    @property
    def used(self) -> bool:
        """Whether no further trial may begin."""
        trials, devices = self.budget.trials, self.budget.device_hours
        return (
            self.out_of_time
            or (trials is not None and self.study.begun >= trials)
            or (devices is not None and self.device_hours >= devices)
        )


Ended = Callable[[int], None]
"""Receives the number of a trial that ended."""
