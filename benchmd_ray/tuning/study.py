"""The trials of a search, kept by Optuna in a journal file: all that a search knows is in it.

A trial is *unfinished* until it is recorded how it ended, so what a killed search was at is begun
again, and nothing that ended is ever repeated. Early stopping reads the reported values from the
same file, so it resumes as if nothing had happened.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import rankdata

from benchmd_ray.errors import first_line, shown
from benchmd_ray.integrity import OF, Damaged, name_of, require_of
from benchmd_ray.training.seeds import derived_seed
from benchmd_ray.tuning.journal import FAULTS, REMEDY, Journal, mend
from benchmd_ray.tuning.spaces import Space

Sampler = Literal["tpe", "random", "gp", "nsga2"]
Stopping = Literal["asha", "median", "none"]
Across = Literal["mean-score", "mean-rank"]
State = Literal["complete", "stopped", "failed", "unfinished"]

REDUCTION = 3
"""Of successive halving: one trial in so many resumes from each rung."""
STARTUP_TRIALS = 8
"""Trials that are drawn at random before a model of the objective proposes."""
IMPORTANCE_TRIALS = 10
"""Complete trials below which nothing is said about the importance of settings."""
STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "stopped",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "unfinished",
    TrialState.WAITING: "unfinished",
}
GENERATION = "generation"
"""Part of the name under which nsga2 notes a trial's generation."""
SECONDS, REASON, SCORES, STARTED = "seconds", "reason", "scores", "started"
CURVE, CRASHES, HOURS, STOP = "curve", "crashes", "device_hours", "stop"
"""Names of what is noted with a trial."""


@dataclass(frozen=True)
class Method:
    """How a search proposes and stops trials."""

    sampler: Sampler = "tpe"
    stopping: Stopping = "asha"
    across: Across | None = None
    """Over several modalities: what their scores are made to."""
    cost: bool = False
    """Whether device hours are a second objective, to be small."""
    seed: int = 0


@dataclass(frozen=True)
class Proposal:
    """A trial to work on."""

    number: int
    values: dict[str, Any]
    """By the setting's name: what the search chose; a conditional one only where it is active."""
    seconds: float = 0.0
    """Worked before, by a process that was ended."""


@dataclass(frozen=True)
class Trial:
    """What is known of a trial."""

    number: int
    state: State
    values: Mapping[str, Any]
    score: float
    """On the search's validation records, over all modalities: AUROC, or DSC of masks; NaN
    unless it is complete."""
    scores: Mapping[str, float]
    """By modality, as far as it came."""
    rank: float
    """Mean rank over the modalities among all complete trials; NaN where that is not asked for."""
    curve: tuple[tuple[int, float], ...]
    """Reported score by step."""
    seconds: float
    device_hours: float
    """Seconds times the GPUs, or CPUs, that it held, in hours."""
    reason: str
    """Why it failed."""
    started: str
    finished: str


def rungs(most: int) -> tuple[int, ...]:
    """Steps at which a trial reports and may be stopped: a ninth and a third of the most.

    Successive halving leaves one trial in nine to the end; an earlier rung would judge what has
    hardly begun to learn.

    Args:
        most: Steps of the longest trial.
    """
    first = max(1, most // REDUCTION**2)
    return tuple(step for step in (first, first * REDUCTION) if step < most)


class Study:
    """The trials of one search. One process at a time may write."""

    def __init__(
        self, path: Path, space: Space, method: Method, first_rung: int = 1, devices: float = 1.0
    ) -> None:
        """Open the journal, or begin it with the trial that takes the space's start.

        Args:
            path: The journal file.
            space: What is searched.
            method: How.
            first_rung: First step at which a trial may be stopped.
            devices: GPUs, or CPUs, that a trial of this session holds.

        Raises:
            Damaged: The journal is, is another search's, or has values that the space does not
                have.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.method, self.devices = space, method, devices
        mend(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend = Journal(str(path), lock_obj=JournalFileOpenLock(str(path)))
            self._path = path
            try:
                self._study = optuna.create_study(
                    storage=JournalStorage(backend),
                    study_name="search",
                    directions=["maximize", "minimize"] if method.cost else ["maximize"],
                    pruner=_pruner(method.stopping, first_rung),
                    load_if_exists=True,
                )
                if self._study.trials:
                    require_of(self._study.user_attrs.get(OF), path.parent, path, REMEDY)
                else:
                    self._study.set_user_attr(OF, name_of(path.parent))
                    self._study.enqueue_trial(space.start)
                self._require_of_space()
                self.trials()
            except FAULTS as error:
                why = f"{type(error).__name__}: {first_line(error)}"
                raise Damaged(path, why, REMEDY) from error

    def _require_of_space(self) -> None:
        """Refuse values that the space does not have: the journal may name no network of its own.

        Raises:
            Damaged: A trial has one.
        """
        parameters = {parameter.name: parameter for parameter in self.space.parameters}
        for trial in self._study.get_trials(deepcopy=False):
            for name, value in trial.params.items():
                if name not in parameters or not parameters[name].holds(value):
                    why = f"trial {trial.number} has {name} {shown(value)}, not of the space"
                    raise Damaged(self._path, why, REMEDY)

    def unfinished(self) -> list[Proposal]:
        """Trials that were begun and whose end is not recorded, in their order.

        One that was ended before all its values were drawn gets the others now.
        """
        found = []
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            seconds = float(trial.user_attrs.get(SECONDS, 0.0))
            found.append(Proposal(trial.number, self._values(self._handle(trial.number)), seconds))
        return found

    def _values(self, trial: optuna.Trial) -> dict[str, Any]:
        """What a trial takes: values that it has, and what the sampler proposes for the others."""
        self._study.sampler = self._sampler(trial.number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is marked as experimental
            return self.space.suggest(trial)

    def _sampler(self, number: int) -> BaseSampler:
        """The sampler of one trial, whose draws depend on its number and no session."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is marked as experimental
            return _sampler(self.method, derived_seed(self.method.seed, number) % 2**32)

    @property
    def begun(self) -> int:
        """Trials that were begun, however they ended."""
        trials = self._study.get_trials(deepcopy=False)
        return sum(trial.state is not TrialState.WAITING for trial in trials)

    def propose(self) -> Proposal:
        """Begin another trial: the first takes the start, others what the sampler proposes."""
        number = self.begun
        notes: dict[str, Any] = {}
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if number and self.method.across == "mean-rank" and not waiting:
            chosen, notes = self._proposed_by_rank(number)
            self._study.enqueue_trial(chosen)
        self._study.sampler = self._sampler(number)
        trial = self._study.ask()
        for name, note in notes.items():
            self._study._storage.set_trial_system_attr(trial._trial_id, name, note)
        trial.set_user_attr(STARTED, datetime.now(UTC).isoformat(timespec="seconds"))
        return Proposal(trial.number, self._values(trial))

    def _proposed_by_rank(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the sampler proposes where each trial's value is its mean rank of now.

        And what it notes with the trial: nsga2 its generation, without which it would begin anew.

        Ranks of earlier trials change with each new one, and a journal's values cannot: so the
        sampler is shown a study made for the moment.
        """
        shown = optuna.create_study(sampler=self._sampler(number), direction="minimize")
        ranks = {trial.number: trial.rank for trial in self.trials() if trial.state == "complete"}
        for trial in self._study.get_trials(deepcopy=True):
            if trial.number in ranks:
                trial.values = [ranks[trial.number]]
                trial.intermediate_values = {}
                shown.add_trial(trial)
        chosen = self.space.suggest(shown.ask())
        held = shown.get_trials(deepcopy=False)[-1].system_attrs
        return chosen, {name: note for name, note in held.items() if GENERATION in name}

    def reported(self, number: int, step: int, score: float, seconds: float) -> bool:
        """Note what a trial has reached; whether it should be stopped there.

        The first trial, which is what the others are compared with, never is.
        """
        trial = self._worked(number, seconds)
        if self.method.cost:
            # What a process that was lost reported before is reported again.
            before = [point for point in trial.user_attrs.get(CURVE, []) if point[0] < step]
            trial.set_user_attr(CURVE, [*before, [step, score]])
            return False
        if step in self._study.get_trials(deepcopy=False)[number].intermediate_values:
            return bool(trial.user_attrs.get(STOP))  # likewise
        trial.report(score, step)
        stopped = trial.should_prune()  # asked of the first too: it is one of those at a rung
        if number > 0 and stopped:
            trial.set_user_attr(STOP, True)
        return number > 0 and bool(stopped)

    def ended(
        self,
        number: int,
        *,
        seconds: float,
        scores: Mapping[str, float] | None = None,
        reason: str = "",
    ) -> None:
        """Tell how a trial ended: complete with a score for each modality, failed or stopped.

        Args:
            number: The trial.
            seconds: Worked in all.
            scores: By modality, of a complete trial; None of one that was stopped early or failed.
            reason: Why it failed.
        """
        trial = self._worked(number, seconds)
        if scores is not None and not all(map(math.isfinite, scores.values())):
            reason = reason or "its score is NaN"
        if reason:
            trial.set_user_attr(REASON, reason)
            self._study.tell(number, state=TrialState.FAIL)
        elif scores is None:
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            trial.set_user_attr(SCORES, dict(scores))
            mean = math.fsum(scores.values()) / len(scores)
            hours = float(trial.user_attrs[HOURS])
            self._study.tell(number, [mean, hours] if self.method.cost else mean)

    def _worked(self, number: int, seconds: float) -> optuna.Trial:
        """Note how long a trial has worked; what is new of it on the devices of this session."""
        trial = self._handle(number)
        before = float(trial.user_attrs.get(SECONDS, 0.0))
        hours = float(trial.user_attrs.get(HOURS, 0.0))
        more = max(0.0, seconds - before)
        trial.set_user_attr(SECONDS, before + more)
        trial.set_user_attr(HOURS, hours + more / 3600 * self.devices)
        return trial

    def crashed(self, number: int) -> int:
        """Note that a trial's process was lost; how often it was so far."""
        trial = self._handle(number)
        times = int(trial.user_attrs.get(CRASHES, 0)) + 1
        trial.set_user_attr(CRASHES, times)
        return times

    def _handle(self, number: int) -> optuna.Trial:
        return optuna.Trial(self._study, self._study.get_trials(deepcopy=False)[number]._trial_id)

    def trials(self) -> list[Trial]:
        """All trials that were begun, in their order."""
        held = self._study.get_trials(deepcopy=False)
        ranks = self._ranks(held)
        return [
            _known(trial, ranks.get(trial.number, math.nan))
            for trial in held
            if trial.state is not TrialState.WAITING
        ]

    def _ranks(self, held: Sequence[FrozenTrial]) -> dict[int, float]:
        complete = [trial for trial in held if trial.state is TrialState.COMPLETE]
        if self.method.across != "mean-rank" or not complete:
            return {}
        names = sorted(complete[0].user_attrs[SCORES])
        values = np.array([[t.user_attrs[SCORES][name] for name in names] for t in complete])
        ranks = mean_ranks(values)
        return {trial.number: float(r) for trial, r in zip(complete, ranks, strict=True)}

    def best(self) -> Trial | None:
        """The best complete trial, the earliest among equals; None while there is none."""
        complete = [trial for trial in self.trials() if trial.state == "complete"]
        if self.method.across == "mean-rank":
            return min(complete, key=lambda trial: trial.rank, default=None)
        return max(complete, key=lambda trial: trial.score, default=None)

    def importance(self) -> tuple[dict[str, float], str]:
        """Share of each searched setting in the variance of the score, by fANOVA; or why not.

        Of complete trials, and of settings that all of these have: conditional ones are excluded.
        """
        from optuna.importance import FanovaImportanceEvaluator, get_param_importances

        complete = [trial for trial in self.trials() if trial.state == "complete"]
        if len(complete) < IMPORTANCE_TRIALS:
            return {}, f"{len(complete)} complete trials are too few, expected {IMPORTANCE_TRIALS}"
        if len({trial.score for trial in complete}) < 2:
            return {}, "all complete trials have the same score"
        try:
            found = get_param_importances(
                self._study,
                evaluator=FanovaImportanceEvaluator(seed=0),
                target=lambda trial: trial.values[0],
            )
        except (RuntimeError, ValueError) as error:
            return {}, str(error)
        return {name: float(share) for name, share in found.items()}, ""


def mean_ranks(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean rank of each trial over the modalities, 1 the best; ties share their mean rank.

    Args:
        scores: (trials, modalities).

    Returns:
        (trials,).
    """
    return np.asarray(rankdata(-scores, axis=0).mean(axis=1), np.float64)


def _known(trial: FrozenTrial, rank: float) -> Trial:
    curve = sorted(trial.intermediate_values.items()) or trial.user_attrs.get(CURVE, [])
    complete = trial.state is TrialState.COMPLETE
    ended = trial.datetime_complete
    return Trial(
        number=trial.number,
        state=STATES[trial.state],
        values=dict(trial.params),
        score=float(trial.values[0]) if complete else math.nan,
        scores=dict(trial.user_attrs.get(SCORES, {})),
        rank=rank,
        curve=tuple((int(step), float(value)) for step, value in curve),
        seconds=float(trial.user_attrs.get(SECONDS, 0.0)),
        device_hours=float(trial.user_attrs.get(HOURS, 0.0)),
        reason=str(trial.user_attrs.get(REASON, "")),
        started=str(trial.user_attrs.get(STARTED, "")),
        finished="" if ended is None else ended.astimezone(UTC).isoformat(timespec="seconds"),
    )


def _pruner(stopping: Stopping, first_rung: int) -> BasePruner:
    if stopping == "asha":
        return SuccessiveHalvingPruner(min_resource=first_rung, reduction_factor=REDUCTION)
    if stopping == "median":
        return MedianPruner(n_startup_trials=STARTUP_TRIALS // 2)
    return NopPruner()


def _sampler(method: Method, seed: int) -> BaseSampler:
    if method.sampler == "random":
        return RandomSampler(seed=seed)
    if method.sampler == "gp":
        return GPSampler(
            seed=seed, n_startup_trials=STARTUP_TRIALS, warn_independent_sampling=False
        )
    if method.sampler == "nsga2":
        return NSGAIISampler(seed=seed, population_size=STARTUP_TRIALS)
    return TPESampler(
        seed=seed,
        n_startup_trials=STARTUP_TRIALS,
        multivariate=True,
        group=True,
        constant_liar=True,
    )
