"""The choice at the end of a search, which the start can win.

The best few trials and the start are evaluated again, on cuts and with seeds that the search did
not use. A trial takes the start's place only where the lower bound of its mean difference to it is
above 0; of several such trials the one with the largest difference does.

Differences of evaluations are not independent, as their training records overlap: the variance of
their mean is taken as (1/n + validation/training records) times theirs (Nadeau & Bengio, Inference
for the Generalization Error, Machine Learning 52, 2003). The bound is one-sided at `LEVEL` over
all trials that are compared (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

FINALISTS = 3
"""Trials that are evaluated again, next to the start."""
LEVEL = 0.05
"""Chance that a trial takes the start's place where none is better."""
FEWEST = 5
"""Fresh evaluations at least: with fewer, hardly any difference could be told from chance."""
DRAWS = 2000
"""Resamples of the evaluations for the expectation."""


@dataclass(frozen=True)
class Finalist:
    """What fresh evaluations say of a trial."""

    number: int
    score: float
    """Mean of the fresh evaluations."""
    error: float
    """Standard error of the mean difference to the start."""
    difference: float
    """Mean difference to the start."""
    low: float
    """One-sided lower bound of the difference."""


@dataclass(frozen=True)
class Decision:
    """What was chosen, and by what."""

    number: int
    """The trial; 0 is the start."""
    finalists: tuple[Finalist, ...]
    """Without the start, the largest difference first."""
    start: float
    """Mean of the start's fresh evaluations."""
    expected: float
    """What to expect of the trial that is chosen, corrected for its having been the best of
    several: see `expectation`."""


def fresh_evaluations(evaluations: int) -> int:
    """How often finalists are evaluated again.

    Args:
        evaluations: Of a trial that goes to the end.
    """
    return max(FEWEST, evaluations)


def decided(
    start: Mapping[int, float], finalists: Mapping[int, Mapping[int, float]], ratio: float
) -> Decision:
    """Choose by fresh evaluations.

    Args:
        start: The start's score by evaluation, two or more.
        finalists: By trial, the same evaluations of each.
        ratio: Validation records over training records of an evaluation.
    """
    each = list(start)
    own = np.array([start[e] for e in each])
    found = []
    for number, scores in sorted(finalists.items()):
        theirs = np.array([scores[e] for e in each])
        differences = theirs - own
        mean, n = float(differences.mean()), len(each)
        error = math.sqrt((1 / n + ratio) * float(differences.var(ddof=1)))
        quantile = float(student.ppf(1 - LEVEL / len(finalists), n - 1))
        low = mean - quantile * error
        found.append(Finalist(number, float(theirs.mean()), error, mean, low))
    found.sort(key=lambda one: (-one.difference, one.number))
    better = [one.number for one in found if one.low > 0]
    number = better[0] if better else 0
    expected = float(own.mean())
    if number:
        table = np.array([[scores[e] for e in each] for _, scores in sorted(finalists.items())])
        expected = expectation(table)
    return Decision(number, tuple(found), float(own.mean()), expected)


def expectation(scores: np.ndarray) -> float:
    """Mean score of the best of several, on evaluations that did not choose it.

    Evaluations are drawn with replacement; the trial that is best on those drawn is scored on the
    others (the bootstrap bias correction of Tsamardinos et al., Machine Learning 107, 2018,
    https://arxiv.org/abs/1708.07180, over evaluations instead of records).

    Args:
        scores: (trials, evaluations).
    """
    trials, evaluations = scores.shape
    if trials == 1:
        return float(scores.mean())
    generator, found = np.random.default_rng(0), []
    for _ in range(DRAWS):
        drawn = generator.integers(0, evaluations, evaluations)
        left = np.setdiff1d(np.arange(evaluations), drawn)
        if len(left):
            found.append(scores[scores[:, drawn].mean(axis=1).argmax()][left].mean())
    return float(np.mean(found))
