"""Trials read from the journal of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from benchmd_ray.errors import shown
from benchmd_ray.tuning.families import FAMILY, Family, family_named
from benchmd_ray.tuning.ladder import paired_differences, paired_mean, standard_error
from benchmd_ray.tuning.parameters import LARGEST, MOST_TRIALS

State = Literal["complete", "stopped", "failed", "unfinished"]

GRANTED, EVALUATIONS, CURVE = "granted", "evaluations", "curve"
SECONDS, HOURS, REASON, CRASHES = "seconds", "device_hours", "reason", "crashes"
MOST_EVALUATIONS = 1000
STARTED, FINISHED = "started", "finished"
"""Names of attributes of a trial."""


@dataclass(frozen=True)
class Trial:
    """The state and the scores of a trial."""

    number: int
    state: State
    """complete: it has all evaluations that it earned; stopped: within its first evaluation."""
    family: str
    values: Mapping[str, Any]
    """Values of the settings that its family searches, active ones only."""
    score: float
    """Score over all modalities: the mean of its evaluations so far, made comparable with other
    trials (`ladder.paired_mean`); AUROC, or DSC for masks. NaN without an evaluation.
    """
    error: float
    """Standard error of its mean difference to the start (for the start: of its mean); NaN with
    fewer than two evaluations, or two shared with the start.
    """
    scores: Mapping[str, float]
    """Scores by modality, likewise."""
    evaluations: Mapping[int, float]
    """Score over all modalities by number of the evaluation, in order."""
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
    def is_sound(self) -> bool:
        """Whether it can be compared with other trials."""
        return self.state in ("complete", "unfinished") and bool(self.evaluations)


def trial_of(trial: FrozenTrial, start: FrozenTrial) -> Trial:
    """A trial of the journal, with scores relative to those of the start, its first trial."""
    notes, done, baseline = trial.user_attrs, evaluations_of(trial), evaluations_of(start)
    names = sorted(next(iter(done.values()))) if done else []

    def of_modality(evaluations: Mapping[int, Mapping[str, float]], name: str) -> dict[int, float]:
        return {number: scores[name] for number, scores in evaluations.items()}

    scores = {
        name: paired_mean(of_modality(done, name), of_modality(baseline, name)) for name in names
    }
    means, base = _means(done), _means(baseline)
    differences = [*means.values()] if trial is start else paired_differences(means, base)
    return Trial(
        number=trial.number,
        state=_state(trial),
        family=str(trial.params[FAMILY]),
        values={name: value for name, value in trial.params.items() if name != FAMILY},
        score=math.fsum(scores.values()) / len(scores) if scores else math.nan,
        error=standard_error(differences),
        scores=scores,
        evaluations=means,
        curve=tuple((int(step), float(score)) for step, score, *_ in sorted(notes.get(CURVE, []))),
        seconds=math.fsum(notes.get(SECONDS, {}).values()),
        device_hours=float(notes.get(HOURS, 0.0)),
        reason=str(notes.get(REASON, "")),
        started=str(notes.get(STARTED, "")),
        finished=str(notes.get(FINISHED, "")),
    )


def best_of_families(trials: Sequence[Trial]) -> list[Trial]:
    """The trial of each family with the highest mean among those with its most evaluations."""
    best: dict[str, Trial] = {}
    for trial in filter(lambda trial: trial.is_sound, trials):
        other = best.get(trial.family)
        if other is None or _rank(trial) > _rank(other):
            best[trial.family] = trial
    return sorted(best.values(), key=lambda trial: -trial.score)


def _rank(trial: Trial) -> tuple[int, float]:
    return len(trial.evaluations), trial.score


def journal_fault(trial: FrozenTrial, families: Mapping[str, Family]) -> str:
    """What is invalid in a trial of the journal; empty if nothing.

    The journal must not name networks or settings outside the families' spaces.
    """
    family = family_named(trial.params.get(FAMILY), families)
    if family is None:
        return f"the family {shown(trial.params.get(FAMILY))}, not of the search"
    parameters = {parameter.name: parameter for parameter in family.space.parameters}
    for name, value in trial.params.items():
        if name != FAMILY and (name not in parameters or not parameters[name].holds(value)):
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
    for seconds in (*attributes.get(SECONDS, {}).values(), attributes.get(HOURS, 0.0)):
        if not 0 <= seconds < LARGEST:
            return f"{SECONDS} or {HOURS} {shown(seconds)}"
    if not _counts(attributes.get(CRASHES, 0), MOST_TRIALS):
        return f"{CRASHES} {shown(attributes[CRASHES])}"
    for step, score, *_ in attributes.get(CURVE, []):
        if not _counts(step, LARGEST) or not (math.isnan(score) or abs(score) < LARGEST):
            return f"a curve with {shown([step, score])}"
    return ""


def _counts(value: object, most: int) -> bool:
    return isinstance(value, int) and 0 <= value <= most


def _state(trial: FrozenTrial) -> State:
    if trial.state is TrialState.FAIL:
        return "failed"
    if trial.state is TrialState.PRUNED:
        return "stopped"
    return "unfinished" if missing(trial) else "complete"


def missing(trial: FrozenTrial) -> tuple[int, ...]:
    """Evaluations that were granted and are not done; none of a trial that failed or stopped."""
    if trial.state.is_finished():
        return ()
    done = evaluations_of(trial)
    return tuple(number for number in trial.user_attrs[GRANTED] if number not in done)


def evaluations_of(trial: FrozenTrial) -> dict[int, dict[str, float]]:
    """Scores by modality of each evaluation that ended, in order of evaluations."""
    return {int(number): scores for number, scores in sorted(trial.user_attrs.get(EVALUATIONS, []))}


def _means(evaluations: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Score of each evaluation over all modalities."""
    return {
        number: math.fsum(scores.values()) / len(scores) for number, scores in evaluations.items()
    }
