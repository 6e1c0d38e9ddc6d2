"""The trials of a search in Optuna's journal, which is the search's whole state.

Evaluations are granted to a trial, and recorded when they end, so a killed search repeats only
those that were running.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmd_ray.errors import first_line
from benchmd_ray.files.integrity import OF, Damaged, name_of, require_of
from benchmd_ray.storage.location import Location
from benchmd_ray.tuning.journal import FAULTS, REMEDY, journal_at
from benchmd_ray.tuning.known import (
    CRASHES,
    CURVE,
    EVALUATIONS,
    FINISHED,
    GRANTED,
    HOURS,
    REASON,
    SECONDS,
    STARTED,
    Over,
    Trial,
    evaluations_of,
    known_trial,
    noted_fault,
    noted_over,
)
from benchmd_ray.tuning.method import Direction, Method
from benchmd_ray.tuning.spaces import Space


@dataclass(frozen=True)
class Job:
    """Evaluations of a trial to run."""

    number: int
    values: dict[str, Any]
    """Chosen values by setting; conditional ones only where active."""
    evaluations: tuple[int, ...]
    seconds: float = 0.0
    resumed: bool = True
    """Whether a process has started them before."""


class TrialLog:
    """The trials of one search, with one writing process at a time."""

    def __init__(self, path: Location, space: Space, method: Method, devices: float = 1.0) -> None:
        """Open or create the journal, in the search's folder or below its address.

        ``devices``: GPUs, or CPUs, of a trial in this session.

        Raises:
            Damaged: The journal is damaged, of another search, or has values outside the space.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.method, self.devices = space, method, devices
        self.whole: set[int] = set()
        """Trials that ran out of memory on a share of a GPU: they get a whole one."""
        of = Path(str(path)).parent
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend = journal_at(path)
            self._together = backend.together
            try:
                self._study = optuna.create_study(
                    storage=JournalStorage(backend),
                    study_name="search",
                    directions=self.directions,
                    load_if_exists=True,
                )
                if self._study.trials:
                    require_of(self._study.user_attrs.get(OF), of, path, REMEDY)
                else:
                    self._study.set_user_attr(OF, name_of(of))
                for trial in self._frozen:
                    if fault := noted_fault(trial, self.space):
                        raise Damaged(path, f"trial {trial.number} has {fault}", REMEDY)
                self.trials()
                self._over()
            except FAULTS as error:
                why = f"{type(error).__name__}: {first_line(error)}"
                raise Damaged(path, why, REMEDY) from error

    @property
    def directions(self) -> list[Direction]:
        """Directions of the objectives: score, and device hours if they count."""
        return ["maximize", "minimize"] if self.method.cost else ["maximize"]

    @property
    def _frozen(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _over(self) -> Over | None:
        return noted_over(self._study.user_attrs, self.begun)

    def trials(self) -> list[Trial]:
        """All trials in order of creation."""
        trials = self._frozen
        start = trials[0] if trials else None
        return [known_trial(trial, start, self.method) for trial in trials]

    def unfinished(self) -> list[Job]:
        """Evaluations that were started and not finished, in the order of trials."""
        return [job for job in map(self._job, self._frozen) if job is not None]

    def _job(self, trial: FrozenTrial) -> Job | None:
        """Granted evaluations of a trial that are not done."""
        done = evaluations_of(trial)
        left = tuple(number for number in trial.user_attrs[GRANTED] if number not in done)
        if trial.state.is_finished() or not left:
            return None
        seconds = float(trial.user_attrs.get(SECONDS, 0.0))
        return Job(trial.number, dict(trial.params), left, seconds)

    def left(self, number: int) -> tuple[int, ...]:
        """Granted evaluations of a trial that are not done."""
        job = self._job(self._frozen[number])
        return () if job is None else job.evaluations

    @property
    def begun(self) -> int:
        """Number of trials that were started, however they ended."""
        return len(self._frozen)

    def _begin(self, proposal: FrozenTrial, evaluations: Sequence[int]) -> Job:
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=proposal.params,
                distributions=proposal.distributions,
                user_attrs={GRANTED: [*evaluations], STARTED: _now()},
            )
        )
        number = self.begun - 1
        return Job(number, dict(proposal.params), tuple(evaluations), resumed=False)

    def granted(self, number: int) -> int:
        """Evaluations of the race that a trial was granted."""
        granted = self._frozen[number].user_attrs[GRANTED] if number < self.begun else ()
        return sum(evaluation < self.method.evaluations for evaluation in granted)

    def _grant(self, number: int, evaluations: Sequence[int]) -> Job | None:
        """Grant additional evaluations to a trial; returns None if it has them all."""
        trial = self._frozen[number]
        granted = list(dict.fromkeys([*trial.user_attrs[GRANTED], *evaluations]))
        if granted != trial.user_attrs[GRANTED]:
            self._handle(number).set_user_attr(GRANTED, granted)
        job = self._job(self._frozen[number])
        return None if job is None else replace(job, resumed=False)

    def evaluated(
        self, number: int, evaluation: int, scores: Mapping[str, float], seconds: float
    ) -> bool:
        """Record the end of an evaluation; returns False if a score of NaN ends the trial."""
        if not all(map(math.isfinite, scores.values())):
            self.ended(number, seconds=seconds, reason="its score is NaN")
            return False
        with self._together():
            self.worked(number, seconds)
            trial, done = self._handle(number), self._frozen[number].user_attrs.get(EVALUATIONS, [])
            if all(other != evaluation for other, _ in done):
                trial.set_user_attr(EVALUATIONS, [*done, [evaluation, dict(scores)]])
            trial.set_user_attr(FINISHED, _now())
        return True

    def ended(self, number: int, *, seconds: float, reason: str = "") -> None:
        """Record that a trial failed, or was stopped if there is no reason."""
        with self._together():
            self.worked(number, seconds)
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
                self.ended(trial.number, seconds=float(trial.user_attrs.get(SECONDS, 0.0)))

    def worked(self, number: int, seconds: float) -> None:
        """Record a trial's seconds of work; the increase counts on this session's devices."""
        trial, attributes = self._handle(number), self._frozen[number].user_attrs
        before = float(attributes.get(SECONDS, 0.0))
        more = max(0.0, seconds - before)
        if more:
            trial.set_user_attr(SECONDS, before + more)
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
