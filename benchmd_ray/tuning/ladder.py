"""The ladder: which trials earn more evaluations, which stop within their first, and the choice.

Evaluation ``e`` has the same fold, cut and seed for all trials and for the start, so trials are
compared on the same evaluations, and the difference to the start is paired. The best third of the
trials that have a rung's evaluations earns those of the next rung (successive halving, Jamieson and
Talwalkar, https://arxiv.org/abs/1502.07943; the resource is the number of evaluations). The start
always climbs along. Everything here follows from trials, evaluations and scores alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from statistics import NormalDist

import numpy as np

START = 0
"""Number of the trial with which all others are compared."""
RUNGS = (1, 3, 6, 10, 15, 20, 30)
"""Numbers of evaluations at which trials are compared."""
REDUCTION = 3
"""One trial in so many earns the next rung."""
FEW = 3
"""So many trials, or fewer, all earn the next rung."""
WHOLE_CUT = 6
"""Rung up to which the best trial of each family climbs along: it is the first that has all folds
of a cut. Before, families differ by the fold at hand, in all of their trials alike.
"""
ENOUGH = 10
"""Evaluations of the best trials after which a search ends if only its trials are limited."""
FEWEST = 3
"""Scores at a step of the first evaluation before a trial is stopped there."""
Scores = Mapping[int, Mapping[int, float]]
"""Score of each evaluation, by trial; without trials that failed or were stopped."""


def steps_within(most: int) -> tuple[int, ...]:
    """Steps of the first evaluation at which trials may be stopped: 1/9 and 1/3 of ``most``."""
    first = max(1, most // REDUCTION**2)
    return tuple(step for step in (first, first * REDUCTION) if step < most)


def expected_evaluations(trials: int, families: int, until: int) -> int:
    """Evaluations of a search of so many trials, if none is stopped within its first."""
    climbers, total = trials - 1, trials
    for rung, following in itertools.pairwise(RUNGS):
        if following > until or not climbers:
            break
        leaders = families if following <= WHOLE_CUT else 0
        climbers = min(climbers, max(FEW, climbers // REDUCTION, leaders))
        total += (climbers + 1) * (following - rung)
    return total


def falls_behind(score: float, reached: Sequence[float]) -> bool:
    """Whether a trial stops at a step, as it is in the worst third of those that reached it.

    ``reached`` has the scores of all trials that reached the step, including this one. Early scores
    are noisy, and proposals of a model are alike: to stop more of them stops the best ones as well.
    """
    better = sum(other > score for other in reached)
    return len(reached) >= FEWEST and better >= len(reached) - len(reached) // REDUCTION


def next_evaluation(
    scores: Scores,
    families: Mapping[int, str],
    granted: Mapping[int, Set[int]],
    left: float,
    until: int = RUNGS[-1],
) -> tuple[int, int] | None:
    """The trial that climbs next, and its evaluation; None while others work, and at the end.

    Args:
        scores: Scores of the trials, that of the start included.
        families: Family of each trial.
        granted: Evaluations granted to each trial so far.
        left: Evaluations that may still be granted.
        until: Evaluations that the best trials get at most.
    """
    if START not in scores or len(scores) < 2:
        return None
    climbers = [number for number in scores if number != START]
    for rung, following in itertools.pairwise(RUNGS):
        if following > until or not _have([START, *climbers], scores, range(rung)):
            return None
        climbers = ranked(climbers, scores, rung)
        if following <= WHOLE_CUT:  # the best of each family first
            best = {families[number]: number for number in reversed(climbers)}
            climbers.sort(key=lambda number: best[families[number]] != number)
            earned = max(FEW, len(climbers) // REDUCTION, len(best))
        else:
            earned = max(FEW, len(climbers) // REDUCTION)
        climbers = ranked(climbers[:earned], scores, rung)
        if not _have([START, *climbers], scores, range(following)):
            return _within(climbers, scores, granted, left, range(rung, following))
    return None


def _within(
    climbers: Sequence[int],
    scores: Scores,
    granted: Mapping[int, Set[int]],
    left: float,
    evaluations: range,
) -> tuple[int, int] | None:
    """The next evaluation on the way to a rung: one evaluation of all climbers after the other.

    If not all can have it, the best so far do, with the start.
    """
    for evaluation in evaluations:
        row = [number for number in (START, *climbers) if evaluation not in granted[number]]
        if not row:
            continue
        if len(row) <= left:
            return row[0], evaluation
        before = range(evaluation)
        climbers = [number for number in climbers if {*granted[number]} >= {*before}]
        if not _have([START, *climbers], scores, before):
            return None
        best = [number for number in ranked(climbers, scores, evaluation) if number in row]
        needed = 1 if START not in row else 2
        if left < needed or not best:
            return None
        return (START if START in row else best[0]), evaluation
    return None


def _have(numbers: Sequence[int], scores: Scores, evaluations: range) -> bool:
    return all(scores[number].keys() >= {*evaluations} for number in numbers)


def ranked(numbers: Sequence[int], scores: Scores, rung: int) -> list[int]:
    """Trials by their mean score over a rung's evaluations, the best first."""

    def order(number: int) -> tuple[float, int]:
        return -math.fsum(scores[number][evaluation] for evaluation in range(rung)), number

    return sorted(numbers, key=order)


def chosen(scores: Scores, *, cautious: bool = False) -> int:
    """The trial with the highest mean among those with the most evaluations; else the start.

    The mean is paired with the start's. A ``cautious`` choice has to be above the start by more
    than one standard error of the difference.
    """
    differences = {
        number: paired_differences(theirs, scores[START])
        for number, theirs in scores.items()
        if number != START
    }
    most = max(map(len, differences.values()), default=0)
    compared = {n: array for n, array in differences.items() if len(array) == most and most}
    if not compared:
        return START
    best = min(compared, key=lambda number: (-compared[number].mean(), number))
    least = standard_error(compared[best]) if cautious else 0.0
    return best if compared[best].mean() > least else START  # False for an error of NaN


def paired_differences(scores: Mapping[int, float], start: Mapping[int, float]) -> np.ndarray:
    """Differences to the start on the evaluations that both have: (evaluations,)."""
    return np.array(
        [scores[number] - start[number] for number in sorted(scores) if number in start]
    )


def paired_mean(scores: Mapping[int, float], start: Mapping[int, float]) -> float:
    """The start's mean plus the mean difference to it on common evaluations.

    Evaluations differ in difficulty, so only paired values compare trials with different
    evaluations. Without common evaluations it is the plain mean.
    """
    differences = paired_differences(scores, start)
    if not len(differences):
        return math.fsum(scores.values()) / len(scores)
    return math.fsum(start.values()) / len(start) + float(differences.mean())


def standard_error(values: Sequence[float] | np.ndarray) -> float:
    """Standard error of a mean; NaN for fewer than two values."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


ABOVE = 0.8413
"""Share of a normal distribution below one standard deviation above its middle."""
CUT = 5
"""Evaluations that score every patient once."""


def optimism(scores: Scores) -> float | None:
    """By how much the mean score of the choice is too high for having been the highest.

    Regression to the mean, of effects and noise that are normal: the noise of a mean, times its
    share in the spread of the means, times how far the highest of so many stands out (Blom's
    approximation). The effects' spread is that of the better half, as bad settings have a long
    tail. At most `CUT` evaluations of a trial count: later ones score the same patients again. In
    simulated searches it is about right where effects are small, and rather too high where they are
    as large as the noise. 0 if the start is kept; None if no trial has two evaluations.
    """
    start = scores[START]
    arrays = [paired_differences(row, start) for n, row in scores.items() if n != START]
    repeated = [array for array in arrays if len(array) > 1]
    if not repeated:
        return None
    freedom = sum(len(array) - 1 for array in repeated)
    squares = sum(float(((array - array.mean()) ** 2).sum()) for array in repeated)
    noise = squares / freedom / 2  # half of it is the start's
    if chosen(scores) == START or noise == 0:
        return 0.0
    middle, upper = np.quantile([array[0] for array in arrays], (0.5, ABOVE))
    spread = max(0.0, float(upper - middle) ** 2 - noise)
    noise /= min(CUT, max(map(len, repeated)))
    highest = NormalDist().inv_cdf((len(scores) - 0.375) / (len(scores) + 0.25))
    return noise / math.sqrt(spread + noise) * highest
