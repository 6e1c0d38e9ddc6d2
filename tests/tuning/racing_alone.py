"""A search without Ray and without training, whose scores a function gives."""

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


def raced(
    study: Study, budget: int | Budget, score: Score, kill_after: int | None = None
) -> Limits:
    """Work on jobs one after the other, as a session does.

    Args:
        study: The study.
        budget: The budget, or its number of trials.
        score: Of an evaluation.
        kill_after: Evaluations after which the process is killed; None: never.

    Returns:
        The limits that decided.
    """
    budget = Budget(trials=budget) if isinstance(budget, int) else budget
    limits = Limits(study, budget, Place(1.0, 0.0, 1), lambda: False, Display())
    done = 0
    while job := (study.unfinished() or [limits.next_job()])[0]:
        if done == kill_after:
            raise Killed
        scores = {"ecg": score(job.number, job.values, job.evaluation)}
        study.evaluated(job.number, job.evaluation, scores, 1.0)  # however often it was begun
        limits.look()
        done += 1
    return limits
