"""The decisions of a search: next trial, granted evaluations, final choice.

They depend only on the journal, so a resumed search equals an uninterrupted one.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmd_ray.data.inner import FOLDS
from benchmd_ray.storage.location import Location
from benchmd_ray.training.seeds import derived_seed
from benchmd_ray.tuning.confirm import FINALISTS, Decision, SamplingVariance, decided, level_of
from benchmd_ray.tuning.known import (
    CURVE,
    GRANTED,
    OVER,
    TESTED,
    Numbers,
    Trial,
    evaluations_of,
    limits,
)
from benchmd_ray.tuning.method import Method, importance, proposed
from benchmd_ray.tuning.racing import FEWEST, HALF, REDUCTION, falls_behind, promoted, rungs
from benchmd_ray.tuning.spaces import Space
from benchmd_ray.tuning.trial_log import Job, TrialLog

ASHA = (REDUCTION, REDUCTION - 1)
"""Reduction and fewest trials of asynchronous successive halving."""


class Study(TrialLog):
    """The trials of one search and its decisions, with one writing process at a time."""

    def __init__(
        self,
        path: Location,
        space: Space,
        method: Method,
        devices: float = 1.0,
        first: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Open or create the journal; ``first`` values are tried right after the start."""
        super().__init__(path, space, method, devices)
        self.judge: Callable[[], Decision | None] = lambda: None
        """What fresh evaluations choose so far; set by the owner of the records' scores."""
        self._first = (space.start, *first)
        self._turns: dict[tuple[int, int], bool] = {}
        """Whether a trial has had its turn, by its number and evaluations of all compared ones."""

    def propose(self) -> Job:
        """Create the next trial: the start, then the ``first`` values, then proposals."""
        number = self.begun
        method = self.method
        seed = derived_seed(method.seed, number) % 2**32
        if number < len(self._first):
            proposal = fixed_trial(self.space, self._first[number])
        else:
            proposal = proposed(self.space, method.sampler, seed, self._seen(), self.directions)
        return self._begin(proposal, range(self._rungs[0]))

    @property
    def _rungs(self) -> tuple[int, ...]:
        every = self.method.evaluations
        return rungs(every) if self.method.stopping == "racing" else (every,)

    def _seen(self) -> list[FrozenTrial]:
        """All trials as a sampler sees them: their scores change with those of others."""
        seen = []
        for trial, summary in zip(self._frozen, self.trials(), strict=True):
            if summary.state == "failed" or not trial.params:
                continue
            progress: dict[str, Any] = {"state": TrialState.RUNNING}
            if summary.evaluations:
                values = [summary.score, summary.cost] if self.method.cost else [summary.score]
                progress = {"state": TrialState.COMPLETE, "values": values}
            elif trial.state is TrialState.PRUNED and summary.curve:
                finite = {step: score for step, score in summary.curve if math.isfinite(score)}
                progress = {"state": TrialState.PRUNED, "intermediate_values": finite}
            seen.append(
                create_trial(params=trial.params, distributions=trial.distributions, **progress)
            )
        return seen

    def promote(self) -> Job | None:
        """Grant more evaluations to a trial that has earned them, if any.

        The start, with which all are compared, gets them first, at the latest when a trial has
        them.
        """
        granted = {number: self.granted(number) for number in range(self.begun)}
        most = max(granted.values(), default=0)
        for rung, following in reversed(list(itertools.pairwise(self._rungs))):
            at = {
                trial.number: trial
                for trial in self._frozen
                if not trial.state.is_finished() and {*range(rung)} <= evaluations_of(trial).keys()
            }
            number = promoted(self._goodness(at, rung), granted, rung)
            if 0 in at and granted[0] <= rung and (number is not None or most > rung):
                number = 0
            if number is None:
                continue
            if self._job(at[number]) is not None:
                return None  # it is running as a finalist in another process
            return self._grant(number, range(following))
        return None

    def _goodness(self, trials: Mapping[int, FrozenTrial], rung: int) -> dict[int, float]:
        goodness = {}
        for number, trial in trials.items():
            done = evaluations_of(trial)
            scores = [score for evaluation in range(rung) for score in done[evaluation].values()]
            goodness[number] = math.fsum(scores) / len(scores)
        return goodness

    def confirm(self, budget: Numbers = (), left: float = math.inf) -> Job | None:
        """Grant fresh evaluations, a cut at a time, to the start and to the finalists in turn.

        None if all have what they need, or nothing can be compared or is left to evaluate.
        """
        racing = (job.evaluations[0] < self.method.evaluations for job in self.unfinished())
        wanted = self._wanted(budget)
        if wanted is None or any(racing):
            return None  # the finalists are not final yet
        number, batch = wanted
        if left < self._needed(number, batch):
            return None
        if not self.race_is_over(budget):
            about = {"budget": list(budget), "settled": self._settled(budget, self.trials())}
            self._study.set_user_attr(OVER, about)
        self._note_tested(number)
        return self._grant(number, batch)

    def _wanted(self, budget: Numbers) -> tuple[int, range] | None:
        """The next trial to evaluate again, and on which cut.

        The next finalist follows if the previous one is not above the start on the first cut. If a
        finalist is chosen after a cut, no other is needed.
        """
        if self.method.choosing == "highest":
            return None
        batches = self.method.batches
        for finalist in self.finalists(budget):
            for batch in batches:
                for number in (0, finalist):
                    if not set(batch) <= set(self._frozen[number].user_attrs[GRANTED]):
                        return number, batch
                if any(set(batch) & set(self.left(number)) for number in (0, finalist)):
                    return None  # not known yet whether it continues
                if not self._above(finalist, batches[0]):
                    break  # the next finalist follows
                if self._has_had_its_turn(finalist, self.trials()):
                    return None
        return None

    def _needed(self, number: int, batch: range) -> int:
        """Missing evaluations of a cut; a finalist's follow the start's."""
        if number == 0:
            return 2 * len(batch)
        others = (t.user_attrs[GRANTED] for t in self._frozen if t.number not in (0, number))
        is_begun = any(set(batch) & set(granted) for granted in others)
        return len(batch) if is_begun else 0  # the start's was started for this finalist

    def undecided(self, budget: Numbers = ()) -> bool:
        """Whether finalists lack evaluations that they need."""
        fresh = self.method.fresh
        begun = any(job.evaluations[-1] in fresh for job in self.unfinished())
        return begun or self._wanted(budget) is not None

    def _has_had_its_turn(self, finalist: int, trials: Sequence[Trial]) -> bool:
        """Whether a compared trial needs no more evaluations."""
        compared = [trial for trial in trials if trial.tested or trial.number == 0]
        turn = finalist, sum(len(trial.evaluations) + len(trial.fresh) for trial in compared)
        if turn not in self._turns:
            self._turns[turn] = self._looked_at(finalist, trials)
        return self._turns[turn]

    def _looked_at(self, finalist: int, trials: Sequence[Trial]) -> bool:
        batches = self.method.batches
        common = dict(trials[0].fresh).keys() & dict(trials[finalist].fresh).keys()
        done = [batch for batch in batches if common >= set(batch)]
        if not done:
            return False
        if len(done) == len(batches) or not self._above(finalist, batches[0]):
            return True
        chosen = self.judge()
        return chosen is not None and chosen.number == finalist

    def _settled(self, budget: Numbers, trials: Sequence[Trial]) -> list[int]:
        """Trials already compared under earlier budgets, which are not compared again."""
        over = self._over()
        before = [] if over is None else over.settled
        if self.race_is_over(budget):
            return before
        tested = [trial.number for trial in trials if trial.tested and trial.number not in before]
        return [*before, *(number for number in tested if self._has_had_its_turn(number, trials))]

    def _note_tested(self, number: int) -> None:
        """Record a trial's position in the order of comparisons with the start."""
        tested = [int(trial.user_attrs.get(TESTED, 0)) for trial in self._frozen]
        if number and not tested[number]:
            self._handle(number).set_user_attr(TESTED, max(tested) + 1)

    def race_is_over(self, budget: Numbers) -> bool:
        """Whether finalists were evaluated within this budget; a higher limit reopens the race."""
        over, now = self._over(), limits(budget)
        if over is None or len(over.budget) != len(now):
            return False
        return all(new <= old for new, old in zip(now, over.budget, strict=True))

    def _above(self, number: int, evaluations: Sequence[int]) -> bool:
        trials = self.trials()
        scores, start = dict(trials[number].fresh), dict(trials[0].fresh)
        return math.fsum(scores.get(e, 0.0) - start.get(e, 0.0) for e in evaluations) > 0

    @property
    def hopeless(self) -> bool:
        """Whether the start failed, so that nothing can be compared with it."""
        failed = bool(self._frozen) and self._frozen[0].state is TrialState.FAIL
        return failed and self.method.choosing == "confirmed"

    def finalists(self, budget: Numbers = ()) -> tuple[int, ...]:
        """The best few trials above the start; those with the most evaluations come first."""
        trials = self.trials()
        if not trials or not trials[0].evaluations or self.hopeless:
            return ()
        settled = self._settled(budget, trials)
        above = [
            trial
            for trial in trials[1:]
            if trial.number not in settled
            and trial.state in ("complete", "stopped")
            and trial.evaluations
            and trial.score > trials[0].score
        ]
        above.sort(key=lambda trial: (-len(trial.evaluations), -trial.score, trial.number))
        return tuple(trial.number for trial in above[:FINALISTS])

    def confirmed(self) -> dict[int, dict[int, float]]:
        """Fresh evaluations of the start and of finalists, by trial and number, in whole cuts."""
        confirmed: dict[int, dict[int, float]] = {}
        for trial in self.trials():
            fresh = dict(trial.fresh)
            whole = [batch for batch in self.method.batches if fresh.keys() >= set(batch)]
            if trial.state != "failed" and whole:
                confirmed[trial.number] = {e: fresh[e] for batch in whole for e in batch}
        return confirmed

    def decision(
        self, ratio: float, sampling: Mapping[int, SamplingVariance] | None = None
    ) -> Decision | None:
        """Choose by fresh evaluations; None while there are none.

        ``ratio``: validation records over training records of an evaluation.
        """
        fresh = self.confirmed()
        start = fresh.pop(0, None)
        if start is None or not fresh or self.method.choosing == "highest":
            return None
        common = {
            number: {e: score for e, score in scores.items() if e in start}
            for number, scores in fresh.items()
        }
        common = {number: scores for number, scores in common.items() if scores}
        if not common:
            return None
        trials = self.trials()
        first = dict(trials[0].evaluations)
        race = {
            number: [score - first[e] for e, score in trials[number].evaluations if e in first]
            for number in common
        }
        levels = {
            number: level_of(trials[number].tested, len(scores) // FOLDS, len(self.method.batches))
            for number, scores in common.items()
        }
        return decided(start, common, ratio, levels, sampling, race)

    def reported(self, number: int, step: int, score: float, seconds: float) -> bool:
        """Record a trial's score within its first evaluation; returns whether it should stop.

        The start, with which the others are compared, is never stopped.
        """
        with self._together():
            self.worked(number, seconds)
            curve = list(self._frozen[number].user_attrs.get(CURVE, []))
            if any(point[0] == step for point in curve):  # from a process that was lost
                return any(len(point) > 2 for point in curve)
            stop = False
            if number and self.method.stopping != "none":
                curves = [trial.user_attrs.get(CURVE, []) for trial in self._frozen]
                scores = [value for points in curves for at, value, *_ in points if at == step]
                racing = self.method.stopping == "racing"
                rule = (HALF, FEWEST) if racing else ASHA
                stop = falls_behind(score, [*scores, score], *rule)
            # In one line, as a process may be killed after any line.
            point = [step, score, "stop"] if stop else [step, score]
            self._handle(number).set_user_attr(CURVE, [*curve, point])
            return stop

    def best(self) -> Trial | None:
        """The earliest trial with the highest value among those with the most evaluations.

        This is the result of the race; `judge` gives the final choice.
        """
        scored = [t for t in self.trials() if t.state in ("complete", "stopped") and t.evaluations]
        return max(scored, key=lambda t: (len(t.evaluations), t.score), default=None)

    def importance(self) -> tuple[dict[str, float], str]:
        """Share of each searched setting in the variance of the score; or why not."""
        return importance(self._seen())


def fixed_trial(space: Space, values: Mapping[str, Any]) -> FrozenTrial:
    """An Optuna trial with these values and their distributions."""
    study = optuna.create_study()
    study.enqueue_trial(dict(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        space.suggest(study.ask())
    return study.get_trials(deepcopy=False)[-1]
