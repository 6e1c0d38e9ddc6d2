"""Trials of a search, as they are in its journal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from benchmd_ray.errors import shown
from benchmd_ray.schema.typed import Count
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.ladder import START, paired_differences, paired_mean, standard_error
from benchmd_ray.tuning.parameters import LARGEST, MOST_TRIALS, Value

State = Literal["complete", "stopped", "failed", "unfinished"]
MOST_EVALUATIONS = 1000
Evaluation = Annotated[int, Field(ge=0, lt=MOST_EVALUATIONS)]
Score = Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]
Amount = Annotated[float, Field(ge=0, lt=LARGEST)]
Scores = dict[Evaluation, Annotated[dict[str, Score], Field(min_length=1)]]
"""Scores by modality of each evaluation, in order: AUROC, or DSC for masks."""


@dataclass(frozen=True)
class Trial:
    """The state and the scores of a trial; all its fields but ``baseline`` are in the journal."""

    number: int
    family: str
    values: dict[str, Value]
    """Values of the settings that its family searches, active ones only."""
    started: str = ""
    finished: str = ""
    granted: Annotated[tuple[Evaluation, ...], Field(max_length=MOST_EVALUATIONS)] = (0,)
    """Evaluations that it has, or has earned."""
    scored: Scores = field(default_factory=dict)
    curve: tuple[tuple[Count, Score], ...] = ()
    """Best score so far by step of the first evaluation."""
    is_behind: bool = False
    """Whether it is to stop within its first evaluation."""
    ended: Literal["", "stopped", "failed"] = ""
    """How it ended before it had all evaluations."""
    reason: str = ""
    """Why it failed."""
    worked: dict[Evaluation, Amount] = field(default_factory=dict)
    """Seconds of work on each evaluation."""
    device_hours: Amount = 0.0
    """Hours times its number of GPUs, or of CPUs if it had none."""
    crashes: Annotated[int, Field(ge=0, le=MOST_TRIALS)] = 0
    """How often its process was lost."""
    baseline: Scores = field(default_factory=dict)
    """Scores of the start, with which its own are paired."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Evaluations that were granted and are not done; none of a trial that has ended."""
        return () if self.ended else tuple(e for e in self.granted if e not in self.scored)

    @property
    def state(self) -> State:
        """complete: it has all evaluations that it earned; stopped: within its first evaluation."""
        return self.ended or ("unfinished" if self.missing else "complete")

    @property
    def is_sound(self) -> bool:
        """Whether it can be compared with other trials."""
        return not self.ended and bool(self.scored)

    @property
    def seconds(self) -> float:
        return math.fsum(self.worked.values())

    @cached_property
    def evaluations(self) -> Mapping[int, float]:
        """Score over all modalities by number of the evaluation, in order."""
        return _means(self.scored)

    @cached_property
    def scores(self) -> Mapping[str, float]:
        """Scores by modality over its evaluations so far.

        They are made comparable with other trials, see `ladder.paired_mean`.
        """

        def of_modality(scores: Scores, name: str) -> dict[int, float]:
            return {evaluation: by_name[name] for evaluation, by_name in scores.items()}

        names = sorted(next(iter(self.scored.values()), ()))
        return {
            name: paired_mean(of_modality(self.scored, name), of_modality(self.baseline, name))
            for name in names
        }

    @property
    def score(self) -> float:
        """Score over all modalities, likewise; NaN without an evaluation."""
        return math.fsum(self.scores.values()) / len(self.scores) if self.scores else math.nan

    @cached_property
    def error(self) -> float:
        """Standard error of its mean difference to the start (for the start: of its mean).

        NaN with fewer than two evaluations, or two shared with the start.
        """
        if self.number == START:
            return standard_error([*self.evaluations.values()])
        return standard_error(paired_differences(self.evaluations, _means(self.baseline)))


def _means(scores: Scores) -> dict[int, float]:
    return {
        evaluation: math.fsum(by_name.values()) / len(by_name)
        for evaluation, by_name in scores.items()
    }


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


def trials_fault(trials: Sequence[Trial], families: Mapping[str, Family]) -> str:
    """What is invalid in the trials of a journal; empty if nothing.

    They must not name networks or settings outside the families' spaces.
    """
    for trial in trials:
        family = families.get(trial.family)
        if family is None:
            return f"trial {trial.number} has the family {shown(trial.family)}, not of the search"
        parameters = {parameter.name: parameter for parameter in family.space.parameters}
        for name, value in trial.values.items():
            if name not in parameters or not parameters[name].holds(value):
                return f"trial {trial.number} has {name} {shown(value)}, not of the space"
    if len({frozenset(scores) for trial in trials for scores in trial.scored.values()}) > 1:
        return "its evaluations are of different modalities"
    return ""
