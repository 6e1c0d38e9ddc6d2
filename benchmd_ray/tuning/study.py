"""The decisions of a search: next trial, next evaluation, early stopping, the choice.

They depend only on the journal, so a resumed search goes on as an uninterrupted one would. Which
family is proposed next depends on device hours, too, which differ between machines.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmd_ray.storage.location import Location
from benchmd_ray.training.seeds import derived_seed
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.ladder import (
    RUNGS,
    START,
    chosen,
    falls_behind,
    next_evaluation,
    optimism,
)
from benchmd_ray.tuning.method import RANDOM_TRIALS, Method, proposed, proposed_family
from benchmd_ray.tuning.spaces import Space
from benchmd_ray.tuning.trial_log import Job, TrialLog
from benchmd_ray.tuning.trials import Trial

First = tuple[str, Mapping[str, Any]]
"""A family and values of a trial that is tried early."""


class Study(TrialLog):
    """The trials of one search and its decisions, with one writing process at a time."""

    def __init__(
        self,
        path: Location,
        families: Sequence[Family],
        method: Method,
        devices: float = 1.0,
        first: Sequence[First] = (),
    ) -> None:
        """Open or create the journal; ``first`` are tried right after the families' starts.

        The start of the first family is that of the search; families are in order of their cost
        otherwise, the cheapest first.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        super().__init__(path, families, devices)
        self.method = method
        starts = [(family.name, family.space.start) for family in families]
        self._first = (*starts, *first)
        self._fixed: dict[int, FrozenTrial] = {}
        """Trials with their distributions, as Optuna needs them."""

    def propose(self) -> Job:
        """Create the next trial: the families' starts, the ``first``, then proposals."""
        number, method = self.begun, self.method
        if number < len(self._first):
            name, values = self._first[number]
        else:
            name = self._next_family()
            seed = derived_seed(method.seed, number) % 2**32
            is_random = number < len(self._first) + RANDOM_TRIALS
            sampler = "random" if is_random else method.sampler
            seen = () if sampler == "random" else self._seen(name)
            values = proposed(self.families[name].space, sampler, seed, seen)
        return self._begin(name, self.families[name].space.filled(values))

    def _next_family(self) -> str:
        """The family of the next proposal: in turn at first, then by a model of the scores.

        A family that has used more than an equal share of the device hours waits, unless it has
        the best trial.
        """
        hours, counts = dict.fromkeys(self.families, 0.0), dict.fromkeys(self.families, 0)
        for trial in self.trials():
            hours[trial.family] += trial.device_hours
            counts[trial.family] += 1
        # At least one family has no more, also where the mean is rounded down.
        fair = max(math.fsum(hours.values()) / len(hours), min(hours.values()))
        best = self.best()
        leading = "" if best is None else best.family
        names = [name for name in hours if hours[name] <= fair or name == leading]
        number = self.begun - len(self._first)
        if number < RANDOM_TRIALS or self.method.sampler == "random" or len(names) == 1:
            return min(names, key=counts.__getitem__)
        seed = derived_seed(self.method.seed, self.begun, 1) % 2**32
        scores = [
            (trial.family, trial.score if trial.scored else None)
            for trial in self.trials()
            if trial.family in names and trial.state not in ("failed", "stopped")
        ]
        return proposed_family(names, seed, scores)

    def _seen(self, family: str) -> list[FrozenTrial]:
        """Trials of a family as a sampler sees them: scores change with other trials."""
        seen, space = [], self.families[family].space
        for trial in self.trials():
            if trial.family != family or trial.ended == "failed":
                continue
            progress: dict[str, Any] = {"state": TrialState.RUNNING}
            if trial.scored:
                progress = {"state": TrialState.COMPLETE, "value": trial.score}
            elif trial.ended and trial.curve:
                progress = {"state": TrialState.PRUNED, "intermediate_values": dict(trial.curve)}
            if trial.number not in self._fixed:
                self._fixed[trial.number] = fixed_trial(space, trial.values)
            fixed = self._fixed[trial.number]
            params, distributions = fixed.params, fixed.distributions
            seen.append(create_trial(params=params, distributions=distributions, **progress))
        return seen

    def climb(self, left: float = math.inf, until: int = RUNGS[-1]) -> Job | None:
        """Grant the next evaluation of the ladder; see `ladder.next_evaluation`."""
        families = {trial.number: trial.family for trial in self.trials()}
        wanted = next_evaluation(self.scores(), families, self.granted, left, until)
        return None if wanted is None else self._grant(*wanted)

    def scores(self) -> dict[int, Mapping[int, float]]:
        """Scores of the trials that can be compared, by trial and evaluation."""
        return {trial.number: trial.evaluations for trial in self.trials() if trial.is_sound}

    @property
    def hopeless(self) -> bool:
        """Whether the start failed, so that nothing can be compared with it."""
        return self.begun > START and self.trials()[START].ended == "failed"

    def best(self) -> Trial | None:
        """The choice so far; None while the start has no score."""
        scores = self.scores()
        if START not in scores:
            return None
        return self.trials()[chosen(scores, cautious=self.method.cautious)]

    def optimism(self) -> float | None:
        """By how much the score of the choice is too high, see `ladder.optimism`."""
        scores = self.scores()
        return optimism(scores) if START in scores else None

    def leading(self, count: int) -> list[int]:
        """The trials on the highest rung, the best of these first."""
        trials = [t for t in self.trials() if t.is_sound and t.number != START]
        trials.sort(key=lambda t: (-bisect(RUNGS, len(t.evaluations)), -t.score, t.number))
        return [trial.number for trial in trials[:count]]

    def reported(self, number: int, step: int, score: float, seconds: float) -> bool:
        """Record a trial's score within its first evaluation; returns whether it should stop.

        It is compared with trials of its family. The start, with which all others are compared, is
        never stopped.
        """
        trials = self.trials()
        trial = trials[number]
        work = self._more_work(trial, 0, seconds)
        if not math.isfinite(score) or any(at == step for at, _ in trial.curve):
            if work:  # a lost process has reported it before
                self._note(number, **work)
            return trial.is_behind
        alike = (other for other in trials if other.family == trial.family)
        scores = [value for other in alike for at, value in other.curve if at == step]
        stop = number != START and falls_behind(score, [*scores, score])
        curve = tuple(sorted((*trial.curve, (step, score))))
        self._note(number, curve=curve, is_behind=trial.is_behind or stop, **work)
        return stop


def fixed_trial(space: Space, values: Mapping[str, Any]) -> FrozenTrial:
    """An Optuna trial with these values and their distributions."""
    study = optuna.create_study()
    study.enqueue_trial(dict(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        space.suggest(study.ask())
    return study.get_trials(deepcopy=False)[-1]
