"""A search without Ray and without training: a race whose scores a function gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmd_ray.console.progress import Display
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.study import Study

Score = Callable[[int, Mapping[str, Any], int], float]
"""From a trial's number, its values and an evaluation."""


class Killed(Exception):
    """The process ended."""


def raced(study: Study, trials: int, score: Score, kill_after: int | None = None) -> None:
    """Work on jobs one after the other, as a session does.

    Args:
        study: The study.
        trials: The budget.
        score: Of an evaluation.
        kill_after: Evaluations after which the process is killed; None: never.
    """
    limits = Limits(study, Budget(trials=trials), Place(1.0, 0.0, 1), lambda: False, Display())
    done = 0
    while jobs := study.unfinished() or [limits.next_job()]:
        job = jobs[0]
        if job is None:
            return
        for place, evaluation in enumerate(job.evaluations, 1):
            if done == kill_after:
                raise Killed
            found = {"ecg": score(job.number, job.values, evaluation)}
            sound = study.evaluated(job.number, evaluation, found, job.seconds + place)
            limits.look()
            done += 1
            if not sound:
                break
