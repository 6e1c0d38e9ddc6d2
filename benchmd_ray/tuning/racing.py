"""Racing: which trials earn more evaluations, and which are stopped before their first ends.

A trial is evaluated on one inner catalog after the other, each with a seed of its own, and its
value is a mean. The best third of those with equally many evaluations earns three times as many
(asynchronous successive halving; Li et al., https://arxiv.org/abs/1810.05934, whose resource is
the number of evaluations here). Trials are compared only at equal evaluations, and within the first
one at equal epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

REDUCTION = 3
"""One trial in so many earns more evaluations; each time it earns so many times as many."""
RECORDS = 10_000
"""Patients that all evaluations of a trial together should be trained or scored on, about."""
MOST = 3
"""Evaluations of a trial that goes to the end, at most. In simulated searches more of them find
nothing more: with few patients a mean varies with these, however often they are cut."""
HALF, FEWEST = 2, 4
"""Racing stops the lower half of the trials at a step within the first evaluation, of so many
trials or more: what is compared there has hardly learned."""


def usual_evaluations(patients: int) -> int:
    """How often a trial that goes to the end is evaluated: the less data, the more often."""
    return min(MOST, -(-RECORDS // max(1, patients)))


def rungs(evaluations: int) -> tuple[int, ...]:
    """Numbers of evaluations at which trials are compared: 1, 3, 9, … and all.

    The last step at least doubles them, so that it is worth a comparison.
    """
    powers = (REDUCTION**power for power in range(evaluations))
    return (*(power for power in powers if 2 * power <= evaluations), evaluations)


def expected_evaluations(trials: int, evaluations: int) -> int:
    """Evaluations of a race of so many trials, about.

    Half of them are stopped within the first, and a third of the others earn more at each rung.
    """
    left, before, total = float(trials - 1) / HALF, 0, float(evaluations)
    for rung in rungs(evaluations):
        total += left * (rung - before)
        left, before = left / REDUCTION, rung
    return math.ceil(total)


def steps_within(most: int) -> tuple[int, ...]:
    """Steps of the first evaluation at which a trial may be stopped: a ninth and a third of most.

    An earlier one would judge what has hardly begun to learn.
    """
    first = max(1, most // REDUCTION**2)
    return tuple(step for step in (first, first * REDUCTION) if step < most)


def falls_behind(score: float, reached: Sequence[float], reduction: int, fewest: int = 2) -> bool:
    """Whether a trial is to stop at a step: it is not in the upper part of those that reached it.

    Of fewer than ``reduction`` trials the best continues.

    Args:
        score: The trial's.
        reached: Scores of all trials that have reached the step so far, its own among them.
        reduction: The upper part is one in so many.
        fewest: Trials at the step below which none is stopped.
    """
    better = sum(other > score for other in reached)
    return len(reached) >= fewest and better >= max(1, len(reached) // reduction)


def promoted(goodness: Mapping[int, float], granted: Mapping[int, int], rung: int) -> int | None:
    """The trial that earns more evaluations at a rung, the best of those that do; None: none does.

    Args:
        goodness: Of each trial that has the rung's evaluations, at these; the higher the better.
        granted: Evaluations that each trial was granted so far.
        rung: Number of evaluations.
    """
    earn = len(goodness) // REDUCTION
    best = sorted(goodness, key=lambda number: (-goodness[number], number))[:earn]
    return next((number for number in best if granted[number] <= rung), None)


def paired(scores: Mapping[int, float], start: Mapping[int, float]) -> float:
    """Value of a trial: the start's mean, and the mean difference to it where both were evaluated.

    Evaluations differ in how hard they are; so a trial with few of them can be compared with one
    that has more.

    Args:
        scores: By evaluation, one or more.
        start: Of the start, likewise; an evaluation that it lacks is skipped, unless all are.
    """
    common = [evaluation for evaluation in scores if evaluation in start]
    if not common:
        return math.fsum(scores.values()) / len(scores)
    difference = math.fsum(scores[each] - start[each] for each in common) / len(common)
    return math.fsum(start.values()) / len(start) + difference


def standard_error(scores: Sequence[float]) -> float:
    """Standard error of a mean of evaluations, taken for independent; NaN of fewer than two."""
    if len(scores) < 2:
        return math.nan
    return float(np.std(scores, ddof=1) / math.sqrt(len(scores)))
