"""Racing: which trials earn more evaluations, and which are stopped within their first.

A trial is evaluated on one inner catalog after the other, each with its own seed; its value is the
mean. The best third of those with equally many evaluations earns three times as many (asynchronous
successive halving, Li et al., https://arxiv.org/abs/1810.05934; the resource is the number of
evaluations). Trials are compared only at equal evaluations, and within the first at equal epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

REDUCTION = 3
"""Reduction factor: one in three trials earns more evaluations, three times as many."""
RECORDS = 10_000
"""Patients on which all evaluations of a trial together should be trained or scored."""
MOST = 3
"""Most evaluations of a trial. More do not help in simulated searches: a mean over few patients
varies with these patients, however often they are split.
"""
HALF, FEWEST = 2, 4
"""The lower half is stopped within the first evaluation if at least `FEWEST` trials are
compared.
"""


def usual_evaluations(patients: int) -> int:
    """Evaluations of a trial that is not stopped: more for smaller datasets."""
    return min(MOST, -(-RECORDS // max(1, patients)))


def rungs(evaluations: int) -> tuple[int, ...]:
    """Numbers of evaluations at which trials are compared: 1, 3, 9, … and all.

    The last step at least doubles the number, otherwise it would not be worth a comparison.
    """
    powers = (REDUCTION**power for power in range(evaluations))
    return (*(power for power in powers if 2 * power <= evaluations), evaluations)


def expected_evaluations(trials: int, evaluations: int) -> int:
    """Expected evaluations of a race.

    Half of the trials are stopped within the first evaluation; a third of the others continue at
    each rung.
    """
    left, before, total = float(trials - 1) / HALF, 0, float(evaluations)
    for rung in rungs(evaluations):
        total += left * (rung - before)
        left, before = left / REDUCTION, rung
    return math.ceil(total)


def steps_within(most: int) -> tuple[int, ...]:
    """Steps of the first evaluation at which trials may be stopped: 1/9 and 1/3 of ``most``."""
    first = max(1, most // REDUCTION**2)
    return tuple(step for step in (first, first * REDUCTION) if step < most)


def falls_behind(score: float, reached: Sequence[float], reduction: int, fewest: int = 2) -> bool:
    """Whether a trial stops at a step, as it is not in the upper part of those that reached it.

    ``reached`` has the scores of all trials that reached the step, including this one. The upper
    part is one in ``reduction``, at least one trial. With fewer than ``fewest`` scores no trial is
    stopped.
    """
    better = sum(other > score for other in reached)
    return len(reached) >= fewest and better >= max(1, len(reached) // reduction)


def promoted(goodness: Mapping[int, float], granted: Mapping[int, int], rung: int) -> int | None:
    """The best trial that earns more evaluations at a rung, or None.

    ``goodness``: mean score of each trial that has the rung's evaluations; ``granted``: evaluations
    granted to each trial so far.
    """
    earn = len(goodness) // REDUCTION
    best = sorted(goodness, key=lambda number: (-goodness[number], number))[:earn]
    return next((number for number in best if granted[number] <= rung), None)


def paired(scores: Mapping[int, float], start: Mapping[int, float]) -> float:
    """Value of a trial: the start's mean plus the mean difference on common evaluations.

    Evaluations differ in difficulty, so only paired values compare trials with different
    evaluations. Without common evaluations it is the plain mean.
    """
    common = [evaluation for evaluation in scores if evaluation in start]
    if not common:
        return math.fsum(scores.values()) / len(scores)
    difference = math.fsum(scores[number] - start[number] for number in common) / len(common)
    return math.fsum(start.values()) / len(start) + difference


def standard_error(scores: Sequence[float]) -> float:
    """Standard error of a mean of independent evaluations; NaN for fewer than two."""
    if len(scores) < 2:
        return math.nan
    return float(np.std(scores, ddof=1) / math.sqrt(len(scores)))
