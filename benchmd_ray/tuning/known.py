"""Trials read from the journal of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from benchmd_ray.errors import shown
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.parameters import LARGEST, MOST_TRIALS, Space
from benchmd_ray.tuning.racing import paired, standard_error

State = Literal["complete", "stopped", "failed", "unfinished"]

GRANTED, EVALUATIONS, CURVE, TESTED = "granted", "evaluations", "curve", "tested"
SECONDS, HOURS, REASON, CRASHES = "seconds", "device_hours", "reason", "crashes"
MOST_EVALUATIONS = 10_000
STARTED, FINISHED = "started", "finished"
"""Names of attributes of a trial."""
OVER = "over"
"""Attribute of a study whose race is over, see `Over`."""
Numbers = Sequence[float | None]
"""Numbers of a budget."""


@dataclass(frozen=True)
class Trial:
    """The state and the scores of a trial."""

    number: int
    state: State
    """complete: it has all evaluations; stopped: it earned no further ones."""
    values: Mapping[str, Any]
    score: float
    """Score over all modalities: the mean of its evaluations so far, made comparable with other
    trials (`racing.paired`); AUROC, or DSC for masks.
    """
    error: float
    """Standard error of its mean difference to the start (for the start: of its mean); NaN with
    fewer than two evaluations, or two shared with the start.
    """
    scores: Mapping[str, float]
    """Scores by modality, likewise."""
    evaluations: tuple[tuple[int, float], ...]
    """Score over all modalities by number of the evaluation."""
    fresh: tuple[tuple[int, float], ...]
    """Scores of a finalist's fresh evaluations after the race, by number."""
    tested: int
    """Position, from 1, in the order of comparisons with the start; 0 if it was not compared."""
    curve: tuple[tuple[int, float], ...]
    """Best score so far by step of the first evaluation."""
    seconds: float
    device_hours: float
    """Hours times its number of GPUs, or of CPUs if it had none."""
    reason: str
    """Why it failed."""
    started: str
    finished: str

    @property
    def cost(self) -> float:
        """Device hours per evaluation; without a finished evaluation, device hours so far."""
        return self.device_hours / max(1, len(self.evaluations) + len(self.fresh))


def known_trial(trial: FrozenTrial, start: FrozenTrial | None, method: Method) -> Trial:
    """A trial with its scores, relative to the start's.

    Args:
        trial: The trial in the journal.
        start: The first trial.
        method: Method of the search.
    """
    notes, done = trial.user_attrs, evaluations_of(trial)
    race, baseline = (
        {number: scores for number, scores in evaluations.items() if number < method.evaluations}
        for evaluations in (done, {} if start is None else evaluations_of(start))
    )
    names = sorted(next(iter(race.values()))) if race else []
    scores = {
        name: paired(
            {number: by_name[name] for number, by_name in race.items()},
            {number: by_name[name] for number, by_name in baseline.items()},
        )
        for name in names
    }
    means = _means(race)
    is_baseline = trial is start or not baseline
    base = dict.fromkeys(means, 0.0) if is_baseline else _means(baseline)
    differences = [score - base[number] for number, score in means.items() if number in base]
    return Trial(
        number=trial.number,
        state=_state(trial, done, method),
        values=dict(trial.params),
        score=math.fsum(scores.values()) / len(scores) if scores else math.nan,
        error=standard_error(differences),
        scores=scores,
        evaluations=tuple(sorted(means.items())),
        fresh=tuple(sorted((e, s) for e, s in _means(done).items() if e in method.fresh)),
        tested=int(notes.get(TESTED, 0)),
        curve=tuple((int(step), float(score)) for step, score, *_ in sorted(notes.get(CURVE, []))),
        seconds=float(notes.get(SECONDS, 0.0)),
        device_hours=float(notes.get(HOURS, 0.0)),
        reason=str(notes.get(REASON, "")),
        started=str(notes.get(STARTED, "")),
        finished=str(notes.get(FINISHED, "")),
    )


@dataclass(frozen=True)
class Over:
    """The end of a search's race."""

    budget: list[float]
    """The budget that ended it; infinite where it sets no limit."""
    settled: list[int]
    """Trials that were already settled in earlier races."""


def noted_over(attributes: Mapping[str, Any], begun: int) -> Over | None:
    """The end of a study's race; None while it lasts.

    Args:
        attributes: Attributes of the study in the journal.
        begun: Number of trials that were started.

    Raises:
        ValueError: The note was not written by a search.
    """
    if OVER not in attributes:
        return None
    over = Over(limits(attributes[OVER]["budget"]), attributes[OVER]["settled"])
    is_sound = isinstance(over.settled, list) and not any(map(math.isnan, over.budget))
    if not is_sound or not all(_counts(number, begun - 1) for number in over.settled):
        raise ValueError(f"no search notes the end of its race as {shown(attributes[OVER])}")
    return over


def limits(budget: Numbers) -> list[float]:
    """Numbers of a budget, infinite where it sets no limit."""
    return [math.inf if number is None else float(number) for number in budget]


def noted_fault(trial: FrozenTrial, space: Space) -> str:
    """What is invalid in a trial of the journal; empty if nothing.

    Args:
        trial: The trial in the journal.
        space: The search space; the journal must not name networks outside it.
    """
    parameters = {parameter.name: parameter for parameter in space.parameters}
    for name, value in trial.params.items():
        if name not in parameters or not parameters[name].holds(value):
            return f"{name} {shown(value)}, not of the space"
    attributes = trial.user_attrs
    if max(len(attributes.get(name, ())) for name in (EVALUATIONS, GRANTED)) > MOST_EVALUATIONS:
        return f"more than {MOST_EVALUATIONS:,} evaluations"
    done = [*attributes.get(EVALUATIONS, []), *((e, {"": 0.0}) for e in attributes[GRANTED])]
    for number, scores in done:
        if (
            not _counts(number, MOST_EVALUATIONS - 1)
            or not scores
            or not all(abs(score) < LARGEST for score in scores.values())
        ):
            return f"an evaluation {shown(number)} with the scores {shown(scores)}"
    for name in (SECONDS, HOURS):
        if not 0 <= attributes.get(name, 0.0) < LARGEST:
            return f"{name} {shown(attributes[name])}"
    for name in (TESTED, CRASHES):
        if not _counts(attributes.get(name, 0), MOST_TRIALS):
            return f"{name} {shown(attributes[name])}"
    for step, score, *_ in attributes.get(CURVE, []):
        if not _counts(step, LARGEST) or not (math.isnan(score) or abs(score) < LARGEST):
            return f"a curve with {shown([step, score])}"
    return ""


def _counts(value: object, most: int) -> bool:
    return isinstance(value, int) and 0 <= value <= most


def _state(trial: FrozenTrial, done: Mapping[int, object], method: Method) -> State:
    if trial.state is TrialState.FAIL:
        return "failed"
    if trial.state is TrialState.PRUNED:
        return "stopped"
    if all(number in done for number in range(method.evaluations)):
        return "complete"
    race = (number for number in trial.user_attrs[GRANTED] if number < method.evaluations)
    worked = all(number in done for number in race)
    return "stopped" if worked else "unfinished"


def evaluations_of(trial: FrozenTrial) -> dict[int, dict[str, float]]:
    """Scores by modality of each evaluation that ended."""
    return {int(number): scores for number, scores in trial.user_attrs.get(EVALUATIONS, [])}


def _means(evaluations: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Score of each evaluation over all modalities."""
    return {
        number: math.fsum(scores.values()) / len(scores) for number, scores in evaluations.items()
    }
