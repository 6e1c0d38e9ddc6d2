"""Samplers: proposals of new trials from earlier ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from benchmd_ray.tuning.spaces import Space

Sampler = Literal["tpe", "random"]
STARTUP_TRIALS = 8
"""Random trials before a model of the objective proposes."""
Direction = Literal["maximize", "minimize"]


def proposed(
    space: Space,
    name: Sampler,
    seed: int,
    trials: Sequence[FrozenTrial],
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
        study.add_trials(trials)
        space.suggest(study.ask())
    return study.get_trials(deepcopy=False)[-1]


IMPORTANCE_TRIALS = 10
"""Trials with a score that are needed."""


def importance(trials: Sequence[FrozenTrial]) -> tuple[dict[str, float], str]:
    """Share of each searched setting in the variance of the score, by fANOVA; or why not.

    Conditional settings, which not all of the trials have, are excluded.
    """
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    scored = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    if len(scored) < IMPORTANCE_TRIALS:
        return {}, f"{len(scored)} trials with a score are too few, expected {IMPORTANCE_TRIALS}"
    if len({trial.values[0] for trial in scored}) < 2:
        return {}, "all trials have the same score"
    study = optuna.create_study(directions=["maximize"] * len(scored[0].values))
    study.add_trials(scored)
    evaluator = FanovaImportanceEvaluator(seed=0)
    try:
        shares = get_param_importances(study, evaluator=evaluator, target=lambda t: t.values[0])
    except (RuntimeError, ValueError) as error:
        return {}, str(error)
    return {name: float(share) for name, share in shares.items()}, ""
