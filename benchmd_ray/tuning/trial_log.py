"""The trials of a search in its journal, which is the search's whole state.

Evaluations are granted to a trial, and recorded when they end, so a killed search repeats only
those that were running.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.files.integrity import OF, Damaged, name_of, require_of
from benchmd_ray.schema.typed import typed
from benchmd_ray.storage.location import Location
from benchmd_ray.tuning.families import Family, by_name
from benchmd_ray.tuning.journal import REMEDY, Journal
from benchmd_ray.tuning.ladder import REDUCTION, START
from benchmd_ray.tuning.trials import Trial, trials_fault

FORMAT = 2
"""Format of the journal, in its first line; the first one was Optuna's."""
TRIAL, EXPLORED = "trial", "explored"
"""Keys of a line: the number of a trial whose other keys are set, and the end of exploring."""

Explored = tuple[float | None, float | None, float | None, float | None]
"""Limits of a `limits.Budget`; None is no limit."""


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
        self.families, self.devices = by_name(families), devices
        self.whole: set[int] = set()
        """Trials that ran out of memory on a share of a GPU: they get a whole one."""
        self._journal = Journal(path)
        self._trials: list[Trial] = []
        self._explored: Explored | None = None
        search, events = Path(str(path)).parent, self._journal.read()
        if not events:
            self._journal.append({"format": FORMAT, OF: name_of(search)})
            return
        first, *others = events
        if first.get("format") != FORMAT:
            written = shown(first.get("format"))
            why = f"it has the format {written}, expected {FORMAT}: of another version of benchmd"
            raise Damaged(path, why, REMEDY)
        require_of(first.get(OF), search, path, REMEDY)
        try:
            self._load(others)
        except BenchmdError as error:
            raise Damaged(path, str(error), REMEDY) from error

    def _load(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Take over the events of earlier sessions, without believing them."""
        trials: list[dict[str, Any]] = []
        for event in events:
            if EXPLORED in event:
                self._explored = typed(Explored, event[EXPLORED], EXPLORED)
                continue
            number = event.get(TRIAL)
            if not isinstance(number, int) or not 0 <= number <= len(trials):
                raise BenchmdError(f"a line is of the trial {shown(number)}")
            if number == len(trials):
                trials.append({})
            trials[number].update(event)
        for number, values in enumerate(trials):
            values |= {"number": values.pop(TRIAL), "baseline": {}}
            self._trials.append(typed(Trial, values, f"trial {number}"))
        if fault := trials_fault(self._trials, self.families):
            raise BenchmdError(fault)
        self._pair()

    def _pair(self) -> None:
        """Pair the scores of all trials with those of the start."""
        baseline = self._trials[START].scored if self._trials else {}
        self._trials = [replace(trial, baseline=baseline) for trial in self._trials]

    def _note(self, number: int, **changes: Any) -> None:
        """Record changes of a trial in one line, as a process may be killed after any line."""
        self._journal.append({TRIAL: number, **changes})
        self._trials[number] = replace(self._trials[number], **changes)
        if number == START and "scored" in changes:
            self._pair()

    def trials(self) -> list[Trial]:
        """All trials in order of creation."""
        return [*self._trials]

    def unfinished(self) -> list[Job]:
        """Evaluations that were started and not finished, in the order of trials."""
        return [self.job(trial.number, e) for trial in self._trials for e in trial.missing]

    def job(self, number: int, evaluation: int) -> Job:
        """An evaluation of a trial, to start or to resume."""
        trial = self._trials[number]
        seconds = trial.worked.get(evaluation, 0.0)
        return Job(number, evaluation, trial.family, dict(trial.values), seconds)

    def is_missing(self, number: int, evaluation: int) -> bool:
        """Whether an evaluation was granted to a trial and is not done."""
        return evaluation in self._trials[number].missing

    @property
    def begun(self) -> int:
        """Number of trials that were started, however they ended."""
        return len(self._trials)

    @property
    def granted(self) -> dict[int, set[int]]:
        """Evaluations granted to each trial."""
        return {trial.number: set(trial.granted) for trial in self._trials}

    @property
    def spent_evaluations(self) -> float:
        """Evaluations granted; of a trial that was stopped, the share at which it was.

        Otherwise early stopping would save nothing of a budget of evaluations.
        """
        return math.fsum(
            REDUCTION ** (len(trial.curve) - 3) if trial.ended == "stopped" else len(trial.granted)
            for trial in self._trials
        )

    def _begin(self, family: str, values: Mapping[str, Any]) -> Job:
        """Create a trial with its first evaluation."""
        number = self.begun
        trial = Trial(number, family, dict(values), started=_now())
        about = {name: getattr(trial, name) for name in ("family", "values", "started", "granted")}
        self._journal.append({TRIAL: number, **about})
        baseline = self._trials[START].scored if self._trials else {}
        self._trials.append(replace(trial, baseline=baseline))
        return self.job(number, 0)

    def _grant(self, number: int, evaluation: int) -> Job:
        self._note(number, granted=(*self._trials[number].granted, evaluation))
        return self.job(number, evaluation)

    def explored_within(self) -> tuple[float, ...] | None:
        """The budget within which exploring has ended, see `note_explored`; None while it lasts."""
        if self._explored is None:
            return None
        return tuple(math.inf if number is None else number for number in self._explored)

    def note_explored(self, budget: Explored) -> None:
        """Record that exploring has ended within a budget."""
        self._journal.append({EXPLORED: budget})
        self._explored = budget

    def evaluated(
        self, number: int, evaluation: int, scores: Mapping[str, float], seconds: float
    ) -> bool:
        """Record the end of an evaluation; returns False if a score of NaN ends the trial."""
        trial = self._trials[number]
        if trial.ended:  # another evaluation of it failed
            return False
        if not all(map(math.isfinite, scores.values())):
            self.ended(number, evaluation, seconds=seconds, reason="its score is NaN")
            return False
        scored = dict(sorted({evaluation: dict(scores), **trial.scored}.items()))
        work = self._more_work(trial, evaluation, seconds)
        self._note(number, scored=scored, finished=_now(), **work)
        return True

    def ended(self, number: int, evaluation: int, *, seconds: float, reason: str = "") -> None:
        """Record that a trial failed, or was stopped if there is no reason."""
        trial = self._trials[number]
        if trial.ended:  # another evaluation of it failed
            return
        how, work = "failed" if reason else "stopped", self._more_work(trial, evaluation, seconds)
        self._note(number, ended=how, reason=reason, finished=_now(), **work)

    def end_stopped(self) -> None:
        """End trials that should have stopped when their process was lost."""
        for trial in self._trials:
            if trial.is_behind:
                self.ended(trial.number, 0, seconds=0.0)

    def worked(self, number: int, evaluation: int, seconds: float) -> None:
        """Record an evaluation's seconds of work."""
        if work := self._more_work(self._trials[number], evaluation, seconds):
            self._note(number, **work)

    def _more_work(self, trial: Trial, evaluation: int, seconds: float) -> dict[str, Any]:
        """Changes of a trial by seconds of work; an increase counts on this session's devices."""
        more = seconds - trial.worked.get(evaluation, 0.0)
        if not more > 0 or trial.ended:
            return {}
        devices = 1.0 if trial.number in self.whole else self.devices
        return {
            "worked": {**trial.worked, evaluation: seconds},
            "device_hours": trial.device_hours + more / 3600 * devices,
        }

    def crashed(self, number: int) -> int:
        """Record that a trial's process was lost; returns how often so far."""
        self._note(number, crashes=self._trials[number].crashes + 1)
        return self._trials[number].crashes


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
