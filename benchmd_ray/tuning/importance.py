"""Importance of settings for the score."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.trial import create_trial

from benchmd_ray.tuning.samplers import SamplerTrial

IMPORTANCE_TRIALS = 10
"""Trials with a score that are needed."""


def importance(trials: Sequence[SamplerTrial]) -> tuple[dict[str, float], str]:
    """Share of each searched setting in the variance of the score, by fANOVA; or why not.

    Conditional settings, which not all of the trials have, are excluded.
    """
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    scored = [(trial, trial.score[0]) for trial in trials if trial.score is not None]
    if len(scored) < IMPORTANCE_TRIALS:
        return {}, f"{len(scored)} trials with a score are too few, expected {IMPORTANCE_TRIALS}"
    if len({score for _, score in scored}) < 2:
        return {}, "all trials have the same score"
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        create_trial(
            params=dict(trial.values), distributions=dict(trial.distributions), value=score
        )
        for trial, score in scored
    )
    try:
        shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    except (RuntimeError, ValueError) as error:
        return {}, str(error)
    return {name: float(share) for name, share in shares.items()}, ""
