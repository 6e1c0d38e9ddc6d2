"""The choice at the end of a search, between the start and the best trials.

The best trial and the start are evaluated again, on cuts and with seeds that the search did not
use. If the trial is not above the start on the first cut, it gets no more evaluations and the next
best trial is compared. A trial replaces the start only if the lower bound of its mean difference is
above 0, possibly already after the first cut. If several do, the one with the largest difference is
chosen.

The variance of a mean difference has a part due to the sample of patients, which no number of cuts
reduces, and a part due to seeds and cuts, which falls with the number of evaluations. With scores
per record the first part is DeLong's (`tuning.sampling`), and the second is the remaining variance
between evaluations, including those of the race around their own mean. Without them the variance is
(1/n + validation/training records) times the variance of the differences (Nadeau & Bengio,
Inference for the Generalization Error, Machine Learning 52, 2003). The bound is one-sided by
Student's t. The share `EARLY` of `LEVEL` is spent on the look after the first of two cuts. The
first compared trial gets the share `FIRST` of each level, and every further trial the same share of
the rest. So the level holds for any number of compared trials, also in extended searches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm
from scipy.stats import t as student

FINALISTS = 3
LEVEL = 0.05
"""Probability that a trial replaces the start although none is better, over all looks at all
trials. Finalists are selected on the same patients; simulated searches account for this.
"""
EARLY = 0.01
"""Share of `LEVEL` for the look after the first of two cuts."""
FIRST = 0.7
"""Share of a level for the first trial; each further trial gets the same share of the rest."""
CUTS = 2
"""Number of whole cuts for a finalist, unless the first one decides."""


@dataclass(frozen=True)
class SamplingVariance:
    """Variance of the difference between two trials that is due to the sample of patients."""

    of_mean: float
    """Variance of the mean over evaluations."""
    of_each: float


@dataclass(frozen=True)
class Finalist:
    """A trial's fresh evaluations, compared with the start's."""

    number: int
    score: float
    error: float
    """Standard error of the mean difference to the start."""
    difference: float
    low: float


@dataclass(frozen=True)
class Decision:
    """The chosen trial, and the comparisons that decided."""

    number: int
    """Chosen trial; 0 is the start."""
    finalists: tuple[Finalist, ...]
    start: float
    """Mean of the start's fresh evaluations, over those that the chosen trial has too."""
    expected: float
    """Expected score of the chosen trial: the start's mean plus the `corrected` gain."""


def cuts(evaluations: int) -> int:
    """Most whole cuts on which a finalist is evaluated."""
    return CUTS if evaluations > 1 else 1


def share(place: int) -> float:
    """Share of a level for the first, second, … compared trial; all add up to 1."""
    return FIRST * (1 - FIRST) ** (place - 1)


def level_of(place: int, seen: int, most: int) -> float:
    """Probability that a look at a trial chooses it although it is no better than the start."""
    early = EARLY if most > 1 else 0.0
    return (early if seen < most else LEVEL - early) * share(place)


def decided(
    start: Mapping[int, float],
    finalists: Mapping[int, Mapping[int, float]],
    ratio: float,
    levels: Mapping[int, float],
    sampling: Mapping[int, SamplingVariance] | None = None,
    race: Mapping[int, Sequence[float]] | None = None,
) -> Decision:
    """Choose by fresh evaluations of the start (two or more) and of finalists on a subset of them.

    ``ratio``: validation records over training records of an evaluation. Of the ``race`` only the
    spread of the differences to the start is used, since the finalists were selected by their size.
    """
    compared, bounds = [], {}
    for number, scores in sorted(finalists.items()):
        differences = np.array([score - start[e] for e, score in scores.items()])
        count = len(differences)
        patients = (sampling or {}).get(number)
        if patients is None:
            spread, freedom = _spread(differences)
            variance = (1 / count + ratio) * spread
        else:
            spread, freedom = _spread(differences, np.array((race or {}).get(number, ())))
            variance = patients.of_mean + max(0.0, spread - patients.of_each) / count
        error, difference = math.sqrt(variance), float(differences.mean())
        bound = float(student.ppf(1 - levels[number], freedom)) * error
        bounds[number] = bound
        score = math.fsum(scores.values()) / count
        compared.append(Finalist(number, score, error, difference, difference - bound))
    compared.sort(key=lambda finalist: (-finalist.difference, finalist.number))
    best = next((finalist for finalist in compared if finalist.low > 0), None)
    number = best.number if best else 0
    counted = finalists[number] if best else start
    mean = math.fsum(start[e] for e in counted) / len(counted)
    gain = corrected(best.difference, best.error, bounds[number]) if best else 0.0
    return Decision(number, tuple(compared), mean, mean + gain)


def _spread(*phases: np.ndarray) -> tuple[float, int]:
    """Variance of differences around the mean of their phase, and its degrees of freedom."""
    squares = sum(float(((phase - phase.mean()) ** 2).sum()) for phase in phases if len(phase))
    freedom = sum(len(phase) - 1 for phase in phases if len(phase))
    return squares / freedom, freedom


def corrected(difference: float, error: float, bound: float) -> float:
    """A difference that is reported because it exceeded a bound, corrected for that selection.

    The maximum-likelihood mean of a normal distribution that is truncated below the bound, 0 if it
    is negative (Zhong and Prentice, Biostatistics 9, 2008,
    https://doi.org/10.1093/biostatistics/kxn001). ``error`` is the standard error of the
    difference.
    """
    if error == 0:
        return difference

    def excess(mean: float) -> float:
        cut = (bound - mean) / error
        beyond = math.exp(norm.logpdf(cut) - norm.logsf(cut))  # φ / (1 - Φ)
        return mean + error * beyond - difference

    if excess(0.0) >= 0:
        return 0.0
    return float(brentq(excess, 0.0, difference))
