"""Options of a search, and its samplers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmd_ray.tuning.families import FAMILY
from benchmd_ray.tuning.spaces import Space

Sampler = Literal["tpe", "random"]


@dataclass(frozen=True)
class Method:
    """How a search proposes trials and how it chooses."""

    sampler: Sampler = "tpe"
    cautious: bool = False
    """Whether a choice has to be above the start by more than one standard error."""
    universal: bool = False
    """One search over several modalities, comparing mean scores."""
    seed: int = 0


RANDOM_TRIALS = 8
"""Random trials, over all families, before a model of the scores makes proposals."""
MODELLED = 4
"""Trials of a family from which on a model proposes its settings."""


def proposed_family(
    families: Sequence[str], seed: int, scores: Sequence[tuple[str, float | None]]
) -> str:
    """The family of the next trial, by a model of the scores of trials.

    ``scores``: family and score of each trial; None of one that has none yet.
    """
    distribution = CategoricalDistribution(families)
    known = [
        create_trial(
            state=TrialState.RUNNING if score is None else TrialState.COMPLETE,
            value=score,
            params={FAMILY: family},
            distributions={FAMILY: distribution},
        )
        for family, score in scores
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = TPESampler(seed=seed, n_startup_trials=1, constant_liar=True)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        study.add_trials(known)
        return str(study.ask({FAMILY: distribution}).params[FAMILY])


def proposed(
    space: Space, name: Sampler, seed: int, trials: Sequence[FrozenTrial]
) -> Mapping[str, Any]:
    """Values for a trial of a family, from the trials of this family.

    Scores change with other trials, so all trials are passed every time.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental options of Optuna
        sampler: BaseSampler = RandomSampler(seed=seed)
        if name == "tpe":
            sampler = TPESampler(
                seed=seed,
                n_startup_trials=MODELLED,
                multivariate=True,
                group=True,
                constant_liar=True,
            )
        study = optuna.create_study(sampler=sampler, direction="maximize")
        study.add_trials(trials)
        return space.suggest(study.ask())
