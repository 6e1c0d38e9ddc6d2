"""What the journal of a search knows of a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.racing import paired, standard_error

State = Literal["complete", "stopped", "failed", "unfinished"]

GRANTED, EVALUATIONS, CURVE, STOP = "granted", "evaluations", "curve", "stop"
SECONDS, HOURS, REASON, CRASHES = "seconds", "device_hours", "reason", "crashes"
STARTED, FINISHED = "started", "finished"
"""Names of what is noted with a trial."""


@dataclass(frozen=True)
class Trial:
    """What is known of a trial."""

    number: int
    state: State
    """complete: it has all evaluations; stopped: it earned no more."""
    values: Mapping[str, Any]
    score: float
    """Over all modalities: the mean of its evaluations, as far as it has any, made comparable with
    those of others (`racing.paired`); AUROC, or DSC of masks."""
    error: float
    """Standard error of the mean of its evaluations; NaN of fewer than two."""
    scores: Mapping[str, float]
    """By modality, likewise."""
    evaluations: tuple[tuple[int, float], ...]
    """Number of each evaluation, and its score over all modalities."""
    fresh: tuple[tuple[int, float], ...]
    """Likewise of a finalist: evaluations after the race."""
    rank: float
    """Mean rank over the modalities among all complete trials; NaN where that is not asked for."""
    curve: tuple[tuple[int, float], ...]
    """Best score so far by step of the first evaluation."""
    seconds: float
    device_hours: float
    """Seconds times the GPUs, or CPUs, that it held, in hours."""
    reason: str
    """Why it failed."""
    started: str
    finished: str

    @property
    def cost(self) -> float:
        """Device hours of an evaluation; of a trial without one, so far."""
        return self.device_hours / max(1, len(self.evaluations) + len(self.fresh))


def known_trial(trial: FrozenTrial, start: FrozenTrial | None, method: Method) -> Trial:
    """What is known of a trial.

    Args:
        trial: As the journal has it.
        start: The first trial.
        method: Of the search.
    """
    held, done = trial.user_attrs, evaluations_of(trial)
    race = {number: scores for number, scores in done.items() if number < method.evaluations}
    begun = {} if start is None else evaluations_of(start)
    begun = {number: scores for number, scores in begun.items() if number < method.evaluations}
    names = sorted(next(iter(race.values()))) if race else []
    scores = {
        name: paired(
            {number: each[name] for number, each in race.items()},
            {number: each[name] for number, each in begun.items()},
        )
        for name in names
    }
    means = _means(race)
    return Trial(
        number=trial.number,
        state=_state(trial, done, method),
        values=dict(trial.params),
        score=math.fsum(scores.values()) / len(scores) if scores else math.nan,
        error=standard_error(list(means.values())),
        scores=scores,
        evaluations=tuple(sorted(means.items())),
        fresh=tuple(sorted((e, s) for e, s in _means(done).items() if e in method.fresh)),
        rank=math.nan,
        curve=tuple((int(step), float(score)) for step, score in sorted(held.get(CURVE, []))),
        seconds=float(held.get(SECONDS, 0.0)),
        device_hours=float(held.get(HOURS, 0.0)),
        reason=str(held.get(REASON, "")),
        started=str(held.get(STARTED, "")),
        finished=str(held.get(FINISHED, "")),
    )


def _state(trial: FrozenTrial, done: Mapping[int, object], method: Method) -> State:
    if trial.state is TrialState.FAIL:
        return "failed"
    if trial.state is TrialState.PRUNED:
        return "stopped"
    if all(number in done for number in range(method.evaluations)):
        return "complete"
    worked = all(number in done for number in trial.user_attrs[GRANTED])
    return "stopped" if worked else "unfinished"


def evaluations_of(trial: FrozenTrial) -> dict[int, dict[str, float]]:
    """Scores by modality of each evaluation that ended."""
    return {int(number): scores for number, scores in trial.user_attrs.get(EVALUATIONS, [])}


def _means(evaluations: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Score of each evaluation over all modalities."""
    return {e: math.fsum(each.values()) / len(each) for e, each in evaluations.items()}
