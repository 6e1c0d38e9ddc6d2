"""Samplers: proposals of new trials from earlier ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmd_ray.tuning.spaces import Space

Sampler = Literal["tpe", "random"]
STARTUP_TRIALS = 8
"""Random trials before a model of the objective proposes."""
Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class SamplerTrial:
    """A trial as a sampler sees it."""

    values: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]
    score: tuple[float, ...] | None = None
    """One number per objective; None while it is running."""
    curve: Mapping[int, float] | None = None
    """By step, of a trial that was stopped before it had a score."""


def proposed(
    space: Space,
    name: Sampler,
    seed: int,
    trials: Sequence[SamplerTrial],
    directions: Sequence[Direction],
) -> FrozenTrial:
    """A sampler's proposal, as a trial with values and distributions.

    Scores change with other trials, so all trials are passed every time.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental options of Optuna
        sampler: BaseSampler = RandomSampler(seed=seed)
        if name == "tpe":
            sampler = TPESampler(
                seed=seed,
                n_startup_trials=STARTUP_TRIALS,
                multivariate=True,
                group=True,
                constant_liar=True,
            )
        study = optuna.create_study(sampler=sampler, directions=directions)
        study.add_trials([_frozen(trial) for trial in trials])
        space.suggest(study.ask())
    return study.get_trials(deepcopy=False)[-1]


def _frozen(trial: SamplerTrial) -> FrozenTrial:
    about: dict[str, Any] = {
        "params": dict(trial.values),
        "distributions": dict(trial.distributions),
    }
    if trial.score is not None:
        return create_trial(state=TrialState.COMPLETE, values=list(trial.score), **about)
    if trial.curve:
        finite = {step: score for step, score in trial.curve.items() if math.isfinite(score)}
        return create_trial(state=TrialState.PRUNED, intermediate_values=finite, **about)
    return create_trial(state=TrialState.RUNNING, **about)
