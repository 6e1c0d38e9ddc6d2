"""Options of a search, and its samplers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from benchmd_ray.data.inner import FOLDS
from benchmd_ray.tuning.confirm import cuts
from benchmd_ray.tuning.spaces import Space

Sampler = Literal["tpe", "random"]
Stopping = Literal["racing", "asha", "none"]
Choosing = Literal["confirmed", "highest"]


@dataclass(frozen=True)
class Method:
    """How a search proposes, evaluates and stops trials, and how it chooses."""

    sampler: Sampler = "tpe"
    stopping: Stopping = "racing"
    """racing: trials earn evaluations, and the lower half is stopped within the first; asha: all
    but the best third are stopped within the first; none: all trials get all evaluations.
    """
    evaluations: int = 1
    choosing: Choosing = "confirmed"
    """confirmed: the best few and the start are evaluated again (`tuning.confirm`); highest: the
    trial with the highest value, which is biased upward."""
    universal: bool = False
    """One search over several modalities, comparing mean scores."""
    cost: bool = False
    """Whether device hours are minimised as a second objective."""
    seed: int = 0

    @property
    def fresh(self) -> range:
        """Numbers of the finalists' evaluations, on cuts that the race did not use."""
        first = -(-self.evaluations // FOLDS) * FOLDS
        return range(first, first + cuts(self.evaluations) * FOLDS)

    @property
    def batches(self) -> list[range]:
        """The evaluations of `fresh`, one range per cut."""
        return [self.fresh[place : place + FOLDS] for place in range(0, len(self.fresh), FOLDS)]

    @property
    def comparing(self) -> int:
        """Fresh evaluations of the start and a finalist on all cuts."""
        return 2 * len(self.fresh)

    @property
    def confirming(self) -> int:
        """Expected fresh evaluations of the start and finalists; often one finalist is enough."""
        return 0 if self.choosing == "highest" else self.comparing + FOLDS


STARTUP_TRIALS = 8
"""Random trials before a model of the objective makes proposals."""
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


def importance(trials: Sequence[FrozenTrial]) -> tuple[dict[str, float], str]:
    """Share of each searched setting in the variance of the score, by fANOVA; or why not.

    Conditional settings, which not all trials have, are excluded.
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
