"""The trials of a search in Optuna's journal, which is the search's whole state.

Evaluations are granted to a trial, and recorded when they end, so a killed search repeats only
those that were running.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmd_ray.errors import first_line, shown
from benchmd_ray.files.integrity import OF, Damaged, name_of, require_of
from benchmd_ray.storage.location import Location
from benchmd_ray.tuning.families import FAMILY, Family, by_name
from benchmd_ray.tuning.journal import FAULTS, REMEDY, journal_at
from benchmd_ray.tuning.ladder import REDUCTION
from benchmd_ray.tuning.trials import (
    CRASHES,
    CURVE,
    EVALUATIONS,
    FINISHED,
    GRANTED,
    HOURS,
    REASON,
    SECONDS,
    STARTED,
    Trial,
    journal_fault,
    missing,
    trial_of,
)

EXPLORED = "explored"
"""Attribute of a study whose exploring has ended."""


@dataclass(frozen=True)
class Job:
    """One evaluation of a trial."""

    number: int
    evaluation: int
    family: str
    values: dict[str, Any]
    """Chosen values by setting; conditional ones only where active."""
    seconds: float = 0.0
    """Seconds of work on it in earlier processes."""


class TrialLog:
    """The trials of one search, with one writing process at a time."""

    def __init__(self, path: Location, families: Sequence[Family], devices: float = 1.0) -> None:
        """Open or create the journal, in the search's folder or below its address.

        ``devices``: GPUs, or CPUs, of a trial in this session.

        Raises:
            Damaged: The journal is damaged, of another search, or has values outside the spaces.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.families, self.devices = by_name(families), devices
        self.whole: set[int] = set()
        """Trials that ran out of memory on a share of a GPU: they get a whole one."""
        self._summaries: dict[int, tuple[FrozenTrial, FrozenTrial, Trial]] = {}
        of = Path(str(path)).parent
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend = journal_at(path)
            self._together = backend.together
            try:
                self._study = optuna.create_study(
                    storage=JournalStorage(backend),
                    study_name="search",
                    direction="maximize",
                    load_if_exists=True,
                )
                if self._study.trials:
                    require_of(self._study.user_attrs.get(OF), of, path, REMEDY)
                else:
                    self._study.set_user_attr(OF, name_of(of))
                for trial in self._frozen:
                    if fault := journal_fault(trial, self.families):
                        raise Damaged(path, f"trial {trial.number} has {fault}", REMEDY)
                self.trials()
                self.explored_within()
            except FAULTS as error:
                why = f"{type(error).__name__}: {first_line(error)}"
                raise Damaged(path, why, REMEDY) from error

    @property
    def _frozen(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def trials(self) -> list[Trial]:
        """All trials in order of creation."""
        trials = self._frozen
        return [self._summary(trial, trials[0]) for trial in trials]

    def _summary(self, trial: FrozenTrial, start: FrozenTrial) -> Trial:
        """A trial with its scores; computed again where it or the start has changed.

        Optuna replaces a trial that changes by another object.
        """
        before = self._summaries.get(trial.number)
        if before is None or before[0] is not trial or before[1] is not start:
            before = self._summaries[trial.number] = (trial, start, trial_of(trial, start))
        return before[2]

    def unfinished(self) -> list[Job]:
        """Evaluations that were started and not finished, in the order of trials."""
        return [self.job(trial.number, e) for trial in self._frozen for e in missing(trial)]

    def job(self, number: int, evaluation: int) -> Job:
        """An evaluation of a trial, to start or to resume."""
        trial = self._frozen[number]
        values = dict(trial.params)
        family, seconds = str(values.pop(FAMILY)), trial.user_attrs.get(SECONDS, {})
        return Job(number, evaluation, family, values, float(seconds.get(str(evaluation), 0.0)))

    def is_missing(self, number: int, evaluation: int) -> bool:
        """Whether an evaluation was granted to a trial and is not done."""
        return evaluation in missing(self._frozen[number])

    @property
    def begun(self) -> int:
        """Number of trials that were started, however they ended."""
        return len(self._frozen)

    @property
    def granted(self) -> dict[int, set[int]]:
        """Evaluations granted to each trial."""
        return {trial.number: set(trial.user_attrs[GRANTED]) for trial in self._frozen}

    @property
    def spent_evaluations(self) -> float:
        """Evaluations granted; of a trial that was stopped, the share at which it was.

        Otherwise early stopping would save nothing of a budget of evaluations.
        """
        return math.fsum(
            REDUCTION ** (len(trial.user_attrs.get(CURVE, ())) - 3)
            if trial.state is TrialState.PRUNED
            else len(trial.user_attrs[GRANTED])
            for trial in self._frozen
        )

    def _begin(self, proposal: FrozenTrial) -> Job:
        """Create a trial with its first evaluation."""
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=proposal.params,
                distributions=proposal.distributions,
                user_attrs={GRANTED: [0], STARTED: _now()},
            )
        )
        return self.job(self.begun - 1, 0)

    def _grant(self, number: int, evaluation: int) -> Job:
        granted = self._frozen[number].user_attrs[GRANTED]
        self._handle(number).set_user_attr(GRANTED, [*granted, evaluation])
        return self.job(number, evaluation)

    def explored_within(self) -> tuple[float, ...] | None:
        """The budget within which exploring has ended, see `note_explored`; None while it lasts.

        Raises:
            ValueError: The note was not written by a search.
        """
        note = self._study.user_attrs.get(EXPLORED)
        if note is None:
            return None
        limits = tuple(math.inf if number is None else float(number) for number in note)
        if any(map(math.isnan, limits)):
            raise ValueError(f"no search notes the end of exploring as {shown(note)}")
        return limits

    def note_explored(self, budget: Sequence[float | None]) -> None:
        """Record that exploring has ended within a budget; None is no limit."""
        self._study.set_user_attr(EXPLORED, list(budget))

    def evaluated(
        self, number: int, evaluation: int, scores: Mapping[str, float], seconds: float
    ) -> bool:
        """Record the end of an evaluation; returns False if a score of NaN ends the trial."""
        if self._frozen[number].state.is_finished():  # another evaluation of it failed
            return False
        if not all(map(math.isfinite, scores.values())):
            self.ended(number, evaluation, seconds=seconds, reason="its score is NaN")
            return False
        with self._together():
            self.worked(number, evaluation, seconds)
            trial, done = self._handle(number), self._frozen[number].user_attrs.get(EVALUATIONS, [])
            if all(other != evaluation for other, _ in done):
                trial.set_user_attr(EVALUATIONS, [*done, [evaluation, dict(scores)]])
            trial.set_user_attr(FINISHED, _now())
        return True

    def ended(self, number: int, evaluation: int, *, seconds: float, reason: str = "") -> None:
        """Record that a trial failed, or was stopped if there is no reason."""
        if self._frozen[number].state.is_finished():  # another evaluation of it failed
            return
        with self._together():
            self.worked(number, evaluation, seconds)
            trial = self._handle(number)
            trial.set_user_attr(FINISHED, _now())
            if reason:
                trial.set_user_attr(REASON, reason)
            self._study.tell(number, state=TrialState.FAIL if reason else TrialState.PRUNED)

    def end_stopped(self) -> None:
        """End trials that should have stopped when their process was lost."""
        for trial in self._frozen:
            curve = trial.user_attrs.get(CURVE, [])
            if not trial.state.is_finished() and any(len(point) > 2 for point in curve):
                self.ended(trial.number, 0, seconds=self.job(trial.number, 0).seconds)

    def worked(self, number: int, evaluation: int, seconds: float) -> None:
        """Record an evaluation's seconds of work; the increase counts on this session's devices."""
        trial, attributes = self._handle(number), self._frozen[number].user_attrs
        before = dict(attributes.get(SECONDS, {}))
        more = max(0.0, seconds - float(before.get(str(evaluation), 0.0)))
        if more and not self._frozen[number].state.is_finished():
            trial.set_user_attr(SECONDS, before | {str(evaluation): seconds})
            devices = 1.0 if number in self.whole else self.devices
            trial.set_user_attr(HOURS, float(attributes.get(HOURS, 0.0)) + more / 3600 * devices)

    def crashed(self, number: int) -> int:
        """Record that a trial's process was lost; returns how often so far."""
        times = int(self._frozen[number].user_attrs.get(CRASHES, 0)) + 1
        self._handle(number).set_user_attr(CRASHES, times)
        return times

    def _handle(self, number: int) -> optuna.Trial:
        return optuna.Trial(self._study, self._frozen[number]._trial_id)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
