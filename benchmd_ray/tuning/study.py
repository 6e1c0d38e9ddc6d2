"""The trials of a search, stored by Optuna in a journal: all of the search's state.

A trial is granted evaluations, more as it earns them (`tuning.racing`), and each is noted when it
ends. A killed search repeats only what was running. Proposals and stopping follow from the journal
alone, so a resumed search does what an uninterrupted one would have done.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmd_ray.data.inner import FOLDS
from benchmd_ray.errors import first_line
from benchmd_ray.files.integrity import OF, Damaged, name_of, require_of
from benchmd_ray.storage.location import Location
from benchmd_ray.training.seeds import derived_seed
from benchmd_ray.tuning.confirm import (
    FINALISTS,
    Decision,
    SamplingVariance,
    decided,
    level_of,
)
from benchmd_ray.tuning.importance import importance
from benchmd_ray.tuning.journal import FAULTS, REMEDY, journal_at
from benchmd_ray.tuning.known import (
    CRASHES,
    CURVE,
    EVALUATIONS,
    FINISHED,
    GRANTED,
    HOURS,
    OVER,
    REASON,
    SECONDS,
    STARTED,
    TESTED,
    Numbers,
    Over,
    Trial,
    evaluations_of,
    known_trial,
    limits,
    noted_fault,
    noted_over,
)
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.racing import (
    FEWEST,
    HALF,
    REDUCTION,
    falls_behind,
    promoted,
    rungs,
)
from benchmd_ray.tuning.samplers import Direction, SamplerTrial, proposed
from benchmd_ray.tuning.spaces import Space

ASHA = (REDUCTION, REDUCTION - 1)
"""Asynchronous successive halving stops all but the best of so many trials, of so many or more."""


@dataclass(frozen=True)
class Job:
    """Evaluations of a trial to run."""

    number: int
    values: dict[str, Any]
    """Chosen values by setting; conditional ones only where active."""
    evaluations: tuple[int, ...]
    seconds: float = 0.0
    """Earlier work on the trial."""
    resumed: bool = True
    """Whether a process has begun them before."""


class Study:
    """The trials of one search, with one writing process at a time."""

    def __init__(
        self,
        path: Location,
        space: Space,
        method: Method,
        devices: float = 1.0,
        first: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Open the journal, or begin it.

        Args:
            path: The journal, in the search's folder or below its address.
            space: The search space.
            method: Options of the search.
            devices: GPUs, or CPUs, of a trial in this session.
            first: Values that are tried right after the start, each of the space.

        Raises:
            Damaged: The journal is, is another search's, or has values outside the space.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.method, self.devices = space, method, devices
        self.whole: set[int] = set()
        """Trials that ran out of memory on a share of a GPU: they get a whole one."""
        self.judge: Callable[[], Decision | None] = lambda: None
        """What fresh evaluations choose so far; who has the scores of records sets it."""
        self._first = (space.start, *first)
        self._turns: dict[tuple[int, int], bool] = {}
        """Whether a trial has had its turn, by its number and evaluations of all compared ones."""
        self._path, of = path, Path(str(path)).parent
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend = journal_at(path)
            self._together = backend.together
            try:
                self._study = optuna.create_study(
                    storage=JournalStorage(backend),
                    study_name="search",
                    directions=self._directions,
                    load_if_exists=True,
                )
                if self._study.trials:
                    require_of(self._study.user_attrs.get(OF), of, path, REMEDY)
                else:
                    self._study.set_user_attr(OF, name_of(of))
                self._require_sound()
                self.trials()
                self._over()
            except FAULTS as error:
                why = f"{type(error).__name__}: {first_line(error)}"
                raise Damaged(path, why, REMEDY) from error

    @property
    def _directions(self) -> list[Direction]:
        return ["maximize", "minimize"] if self.method.cost else ["maximize"]

    def _require_sound(self) -> None:
        for trial in self._frozen:
            if fault := noted_fault(trial, self.space):
                raise Damaged(self._path, f"trial {trial.number} has {fault}", REMEDY)

    @property
    def _frozen(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _over(self) -> Over | None:
        return noted_over(self._study.user_attrs, self.begun)

    # What is to be done.

    def unfinished(self) -> list[Job]:
        """Evaluations that were begun and did not end, in the order of trials."""
        jobs = (self._job(trial) for trial in self._frozen)
        return [job for job in jobs if job is not None]

    def _job(self, trial: FrozenTrial) -> Job | None:
        """Granted evaluations of a trial that are not done."""
        done = evaluations_of(trial)
        left = tuple(
            evaluation for evaluation in trial.user_attrs[GRANTED] if evaluation not in done
        )
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
        """Number of trials that were begun, however they ended."""
        return len(self._frozen)

    def propose(self) -> Job:
        """Begin another trial: the start, then the given first ones, then proposals."""
        number = self.begun
        method = self.method
        seed = derived_seed(method.seed, number) % 2**32
        if number < len(self._first):
            proposal = fixed_trial(self.space, self._first[number])
        else:
            proposal = proposed(self.space, method.sampler, seed, self._shown(), self._directions)
        granted = self._rungs[0]
        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=proposal.params,
                distributions=proposal.distributions,
                user_attrs={GRANTED: list(range(granted)), STARTED: _now()},
            )
        )
        job = self._job(self._frozen[number])
        assert job is not None  # it has just been granted
        return replace(job, resumed=False)

    @property
    def _rungs(self) -> tuple[int, ...]:
        """Numbers of evaluations at which trials are compared."""
        every = self.method.evaluations
        return rungs(every) if self.method.stopping == "racing" else (every,)

    def _shown(self) -> list[SamplerTrial]:
        """All trials as a sampler sees them now."""
        visible = []
        for trial, summary in zip(self._frozen, self.trials(), strict=True):
            if summary.state == "failed" or not trial.params:
                continue
            score: tuple[float, ...] | None = None
            if summary.evaluations:
                score = (summary.score, summary.cost) if self.method.cost else (summary.score,)
            curve = dict(summary.curve) if trial.state is TrialState.PRUNED else None
            visible.append(SamplerTrial(trial.params, trial.distributions, score, curve))
        return visible

    def promote(self) -> Job | None:
        """Grant more evaluations to a trial that has earned them, if any.

        The start, with which all are compared, gets them first, or once a trial has them.
        """
        granted = {number: self.granted(number) for number in range(self.begun)}
        most = max(granted.values(), default=0)
        for rung, following in reversed(list(itertools.pairwise(self._rungs))):
            at = {t.number: t for t in self._frozen if self._goes_on(t, rung)}
            number = promoted(self._goodness(at, rung), granted, rung)
            if 0 in at and granted[0] <= rung and (number is not None or most > rung):
                number = 0
            if number is None:
                continue
            if self._job(at[number]) is not None:
                return None  # it is at work as a finalist, in another process
            return self._grant(number, range(following))
        return None

    def granted(self, number: int) -> int:
        """Evaluations of the race that a trial was granted."""
        granted = self._frozen[number].user_attrs[GRANTED] if number < self.begun else ()
        return sum(evaluation < self.method.evaluations for evaluation in granted)

    @staticmethod
    def _goes_on(trial: FrozenTrial, rung: int) -> bool:
        """Whether a trial has all evaluations of a rung."""
        done = evaluations_of(trial)
        return not trial.state.is_finished() and all(number in done for number in range(rung))

    def _goodness(self, trials: Mapping[int, FrozenTrial], rung: int) -> dict[int, float]:
        """Mean score of trials over the evaluations of a rung."""
        goodness = {}
        for number, trial in trials.items():
            done = evaluations_of(trial)
            scores = [score for evaluation in range(rung) for score in done[evaluation].values()]
            goodness[number] = math.fsum(scores) / len(scores)
        return goodness

    def _grant(self, number: int, evaluations: Sequence[int]) -> Job | None:
        """Grant additional evaluations to a trial; None: it has them all."""
        trial = self._frozen[number]
        granted = list(dict.fromkeys([*trial.user_attrs[GRANTED], *evaluations]))
        if granted != trial.user_attrs[GRANTED]:
            self._handle(number).set_user_attr(GRANTED, granted)
        job = self._job(self._frozen[number])
        return None if job is None else replace(job, resumed=False)

    def confirm(self, budget: Numbers = (), left: float = math.inf) -> Job | None:
        """Grant fresh evaluations, a cut at a time, to the start and to the finalists in turn.

        None if all have what they need, there is nothing to choose between, or nothing is left.
        """
        racing = (job.evaluations[0] < self.method.evaluations for job in self.unfinished())
        wanted = self._wanted(budget)
        if wanted is None or any(racing):
            return None  # of the latter: who the finalists are is not settled yet
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

        The next finalist has its turn if the one before is not above the start on the first cut; a
        finalist that is chosen after a cut needs no other.
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
                    return None  # whether it goes on is not known yet
                if not self._above(finalist, batches[0]):
                    break  # the next one has its turn
                if self._has_had_its_turn(finalist, self.trials()):
                    return None
        return None

    def _needed(self, number: int, batch: range) -> int:
        """Evaluations that a cut takes: a finalist's follows the start's."""
        if number == 0:
            return 2 * len(batch)
        others = (t.user_attrs[GRANTED] for t in self._frozen if t.number not in (0, number))
        is_begun = any(set(batch) & set(granted) for granted in others)
        return len(batch) if is_begun else 0  # the start's was begun for this one

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
        """Trials that had their turn in races of earlier budgets, so that others have theirs."""
        over = self._over()
        before = [] if over is None else over.settled
        if self.race_is_over(budget):
            return before
        tested = [trial.number for trial in trials if trial.tested and trial.number not in before]
        return [*before, *(number for number in tested if self._has_had_its_turn(number, trials))]

    def _note_tested(self, number: int) -> None:
        """Note a trial's position in the order of comparisons with the start."""
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
        """Whether a trial is above the start on fresh evaluations that both have."""
        trials = self.trials()
        scores, start = dict(trials[number].fresh), dict(trials[0].fresh)
        return math.fsum(scores.get(e, 0.0) - start.get(e, 0.0) for e in evaluations) > 0

    @property
    def hopeless(self) -> bool:
        """Whether the start failed, with which finalists are compared."""
        failed = bool(self._frozen) and self._frozen[0].state is TrialState.FAIL
        return failed and self.method.choosing == "confirmed"

    def finalists(self, budget: Numbers = ()) -> tuple[int, ...]:
        """The best few trials above the start, those with the most evaluations first."""
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
        self,
        ratio: float,
        sampling: Mapping[int, SamplingVariance] | None = None,
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

    # What is reported.

    def reported(self, number: int, step: int, score: float, seconds: float) -> bool:
        """Note a trial's score within its first evaluation; whether it should stop.

        The first trial, with which the others are compared, never is stopped.
        """
        with self._together():
            self.worked(number, seconds)
            curve = list(self._frozen[number].user_attrs.get(CURVE, []))
            if any(point[0] == step for point in curve):  # by a process that was lost
                return any(len(point) > 2 for point in curve)
            stop = False
            if number and self.method.stopping != "none":
                curves = [trial.user_attrs.get(CURVE, []) for trial in self._frozen]
                scores = [value for points in curves for at, value, *_ in points if at == step]
                racing = self.method.stopping == "racing"
                rule = (HALF, FEWEST) if racing else ASHA
                stop = falls_behind(score, [*scores, score], *rule)
            # In one line: a process may be killed after any.
            point = [step, score, "stop"] if stop else [step, score]
            self._handle(number).set_user_attr(CURVE, [*curve, point])
            return stop

    def evaluated(
        self, number: int, evaluation: int, scores: Mapping[str, float], seconds: float
    ) -> bool:
        """Note the end of an evaluation; False if a score of NaN ends the trial."""
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
        """Note that a trial failed, or was stopped if there is no reason."""
        with self._together():
            self.worked(number, seconds)
            trial = self._handle(number)
            trial.set_user_attr(FINISHED, _now())
            if reason:
                trial.set_user_attr(REASON, reason)
            self._study.tell(number, state=TrialState.FAIL if reason else TrialState.PRUNED)

    def end_stopped(self) -> None:
        """End trials that were to stop when their process was lost."""
        for trial in self._frozen:
            curve = trial.user_attrs.get(CURVE, [])
            if not trial.state.is_finished() and any(len(point) > 2 for point in curve):
                self.ended(trial.number, seconds=float(trial.user_attrs.get(SECONDS, 0.0)))

    def worked(self, number: int, seconds: float) -> None:
        """Note a trial's seconds of work; the increase counts on this session's devices."""
        trial, attributes = self._handle(number), self._frozen[number].user_attrs
        before = float(attributes.get(SECONDS, 0.0))
        more = max(0.0, seconds - before)
        if more:
            trial.set_user_attr(SECONDS, before + more)
            devices = 1.0 if number in self.whole else self.devices
            trial.set_user_attr(HOURS, float(attributes.get(HOURS, 0.0)) + more / 3600 * devices)

    def crashed(self, number: int) -> int:
        """Note that a trial's process was lost; how often so far."""
        times = int(self._frozen[number].user_attrs.get(CRASHES, 0)) + 1
        self._handle(number).set_user_attr(CRASHES, times)
        return times

    def _handle(self, number: int) -> optuna.Trial:
        return optuna.Trial(self._study, self._frozen[number]._trial_id)

    # What is known.

    def trials(self) -> list[Trial]:
        """All trials that were begun, in order."""
        trials = self._frozen
        start = trials[0] if trials else None
        return [known_trial(trial, start, self.method) for trial in trials]

    def best(self) -> Trial | None:
        """The earliest trial with the highest value among those with the most evaluations.

        The result of the race; `judge` gives the choice.
        """
        scored = [t for t in self.trials() if t.state in ("complete", "stopped") and t.evaluations]
        return max(scored, key=lambda t: (len(t.evaluations), t.score), default=None)

    def importance(self) -> tuple[dict[str, float], str]:
        """Share of each searched setting in the variance of the score; or why not."""
        return importance(self._shown())


def fixed_trial(space: Space, values: Mapping[str, Any]) -> FrozenTrial:
    """Values of a space, as a trial with their distributions."""
    study = optuna.create_study()
    study.enqueue_trial(dict(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        space.suggest(study.ask())
    return study.get_trials(deepcopy=False)[-1]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
