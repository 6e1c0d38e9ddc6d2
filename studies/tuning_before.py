"""The search that the present one replaced, compactly: one family, and a choice that is a test.

Trials by TPE get one evaluation, the best third three. Up to three finalists above the start are
compared with it on a fresh cut of five evaluations and, unless the first one decides, on a second.
One replaces the start only if the lower bound of its mean difference is above 0: one-sided at level
0.05 over all looks and finalists, with DeLong's variance for the patients and the spread of the
evaluations for seeds and folds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.stats import t as student

from benchmd_ray.data.inner import FOLDS
from benchmd_ray.scores.comparison import delong_shares
from benchmd_ray.training.seeds import derived_seed
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.ladder import paired_differences, paired_mean, ranked
from benchmd_ray.tuning.method import Sampler, proposed
from benchmd_ray.tuning.parameters import without
from benchmd_ray.tuning.spaces import Space
from benchmd_ray.tuning.study import fixed_trial
from studies.tuning_heads import HIDDEN, Sample, Trained, Values

TRIALS, RANDOM, RACED, FINALISTS = 45, 8, 3, 3
"""With the finalists' evaluations about 100 in all."""
LEVEL, EARLY, FIRST = 0.05, 0.01, 0.7
"""Of all looks, of that after the first cut, and the first finalist's share of either."""
FRESH = 100
"""Evaluations from here on are of finalists."""
LACKING = {"transfer.solver": "adamw", HIDDEN: 0}
"""Settings that it did not search."""


def search_before(
    models: Callable[[str, Values, int], Trained], family: Family, sample: Sample, seed: int
) -> tuple[str, Values, dict[str, Any]]:
    """The family, the values of the choice, and what else is noted."""
    space = Space("before", without(family.space.parameters, LACKING))
    trials: list[Values] = [family.space.start]
    scores: dict[int, dict[int, float]] = {}

    def evaluate(number: int, evaluation: int) -> float:
        return models(family.name, trials[number], evaluation).score

    seen: list[FrozenTrial] = []
    for number in range(TRIALS):
        sampler: Sampler = "random" if number <= RANDOM else "tpe"
        if number:
            drawn = proposed(space, sampler, derived_seed(seed, number) % 2**32, seen)
            trials.append({**drawn, **LACKING})
        scores[number] = {0: evaluate(number, 0)}
        trial = fixed_trial(space, {p.name: trials[number][p.name] for p in space.parameters})
        seen.append(
            create_trial(
                state=TrialState.COMPLETE,
                value=scores[number][0],
                params=trial.params,
                distributions=trial.distributions,
            )
        )
    climbers = ranked([*scores][1:], scores, 1)[: TRIALS // 3]
    for number in (0, *climbers):
        scores[number] |= {e: evaluate(number, e) for e in range(1, RACED)}
    finalists = [
        number
        for number in ranked(climbers, scores, RACED)
        if paired_mean(scores[number], scores[0]) > paired_mean(scores[0], scores[0])
    ][:FINALISTS]
    for place, number in enumerate(finalists):
        race = paired_differences(scores[number], scores[0])
        for cut in (1, 2):
            fresh = range(FRESH, FRESH + cut * FOLDS)
            differences = np.array([evaluate(number, e) - evaluate(0, e) for e in fresh])
            if differences[:FOLDS].mean() <= 0:
                break  # the next finalist follows
            level = (EARLY if cut == 1 else LEVEL - EARLY) * FIRST * (1 - FIRST) ** place
            pairs = [[models(family.name, trials[n], e) for n in (0, number)] for e in fresh]
            of_mean, of_one = _sampling(sample, pairs)
            phases = (differences, race)
            freedom = sum(len(phase) - 1 for phase in phases)
            spread = sum(float(((p - p.mean()) ** 2).sum()) for p in phases) / freedom
            error = math.sqrt(of_mean + max(0.0, spread - of_one) / len(differences))
            if differences.mean() > float(student.ppf(1 - level, freedom)) * error:
                notes = {"claimed": float(differences.mean()), "trials": TRIALS}
                return family.name, trials[number], notes
    return family.name, trials[0], {"claimed": 0.0, "trials": TRIALS}


def _sampling(sample: Sample, pairs: list[list[Trained]]) -> tuple[float, float]:
    """Variance due to the patients, of the mean difference and of that of one evaluation."""
    together: dict[str, float] = {}
    squares = []
    for evaluation, (start, trial) in enumerate(pairs, FRESH):
        rows = sample.fold(evaluation)
        shares: dict[str, float] = {}
        for half in sample.halves(evaluation):
            about = sample.targets[rows][half], start.logits[half], trial.logits[half]
            moved = delong_shares(*about, sample.groups[rows][half]) / 2
            names = np.unique(sample.groups[rows][half]).tolist()
            for name, share in zip(names, moved, strict=bool(len(moved))):
                shares[name] = shares.get(name, 0.0) + float(share)
        for name, share in shares.items():
            together[name] = together.get(name, 0.0) + share / len(pairs)
        squares.append(sum(share**2 for share in shares.values()))
    return sum(share**2 for share in together.values()), float(np.mean(squares))
