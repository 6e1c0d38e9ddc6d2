r"""``python -m studies.search_price`` from the project's root.

What a choice that keeps the start where nothing is better costs, in simulated searches: their
evaluations are drawn, not trained, so that hundreds of searches take minutes. Three settings are
searched (learning rate, dropout, label smoothing), whose best values gain ``--gain`` AUROC over the
start; a search may take so many evaluations of device time. The JSON has, by strategy and number of
evaluations, the mean true gain of what was chosen with its standard error, how often the start was
kept, and how often something no better than the start was taken. ``--levels`` gives the same of
searches of one setting, of which a quarter of the range gains something or nothing does;
``--methods`` compares samplers and ways to stop trials.

The tests of the choice simulate their searches in the same `World`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from benchmd_ray.console.progress import Display
from benchmd_ray.data.inner import FOLDS
from benchmd_ray.scores.comparison import delong_shares
from benchmd_ray.scores.metrics import auroc_per_class
from benchmd_ray.tuning.confirm import Decision, SamplingVariance
from benchmd_ray.tuning.known import Trial
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method, Sampler, Stopping
from benchmd_ray.tuning.sampling import sampling_of
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study
from speed import measure

Values = Mapping[str, Any]
Gain = Callable[[Values], float]
"""Values of the searched settings to what they gain in AUROC; those of the start gain nothing."""

PATIENTS, POSITIVE = 624, 0.27
"""Of BreastMNIST."""
AUROC, BETWEEN_SEEDS = 0.83, 0.015
HARD, FITTING, TRAINED = 0.6, 0.15, 0.25
"""Parts of the variance of a record's score: what makes it hard for every model, what makes a
setting fit these records by chance, and what differs between trainings."""
RATE, DROPOUT, SMOOTHING = "transfer.optimiser.lr", "transfer.dropout", "transfer.label_smoothing"
SPACE = Space(
    "made",
    (
        Parameter(RATE, "log float", 1e-3, low=1e-5, high=0.1),
        Parameter(DROPOUT, "float", 0.0, low=0.0, high=0.6),
        Parameter(SMOOTHING, "float", 0.0, low=0.0, high=0.3),
    ),
)
BEST = 0.048
"""What `usual_gain` is at most."""
METHODS = {
    "highest": Method(sampler="tpe", stopping="asha", evaluations=1, choosing="highest"),
    "choice": Method(evaluations=3),
}
VARIED = {
    f"{sampler}, {stopping}": Method(sampler=sampler, stopping=stopping, evaluations=3)
    for sampler, stopping in product(get_args(Sampler), get_args(Stopping))
}
EARLY_LOOKS = ((1, 1 / 9, 0.5, 0.035, 0.03), (3, 1 / 3, 0.8, 0.03, 0.015))
"""Looks within the first evaluation: the step, its share of the training, of the final AUROC's
distance from 0.5, the standard deviation of its score, and of what a setting adds for good."""


class World:
    """A dataset and what training on it would give: scores of records by evaluation."""

    def __init__(
        self,
        seed: int,
        gain: Gain,
        lasting: float = 0.0,
        patients: int = PATIENTS,
        positive: float = POSITIVE,
    ) -> None:
        """Draw who is positive, and who is hard for every model.

        Args:
            seed: Of all draws; what is drawn for an evaluation depends on nothing else.
            gain: Of settings.
            lasting: Standard deviation of what a setting gains or loses by chance on the training
                records at hand, in all its trainings.
            patients: How many there are.
            positive: Share of them that is, about.
        """
        self._seed, self._gain, self._lasting = seed, gain, lasting
        draw = self._draws(0, 1)
        self.targets = (draw.random(patients) < positive).astype(np.int8)
        self._hard = draw.normal(size=patients)
        self._made: dict[tuple[int, int], npt.NDArray[np.float64]] = {}

    def _draws(self, *what: int) -> np.random.Generator:
        """Draws of their own for each purpose, whose last number is not 0."""
        return np.random.default_rng([self._seed, *what])

    def _halves(self, evaluation: int) -> list[npt.NDArray[Any]]:
        """Rows of the halves of an evaluation's fold, classes in balance, that can be scored."""
        cut, fold = divmod(evaluation, FOLDS)
        order = self._draws(cut, 2).permutation(len(self.targets))
        rows = order[np.argsort(self.targets[order], kind="stable")][fold::FOLDS]
        halves = [rows[::2], rows[1::2]]
        return [half for half in halves if len(set(self.targets[half].tolist())) == 2]

    def gain(self, number: int, values: Values) -> float:
        """What a trial gains over the start when it is trained on these records."""
        by_chance, start = (self._lasting * self._draws(trial, 3).normal() for trial in (number, 0))
        return self._gain(values) + by_chance - start

    def __call__(self, number: int, values: Values, evaluation: int) -> float:
        """The score of a trial's evaluation."""
        halves, scores = self._halves(evaluation), self._scores(number, values, evaluation)
        each = [(self.targets[h, None], scores[h, None]) for h in halves]
        return float(np.mean([auroc_per_class(*half) for half in each]))

    def _scores(self, number: int, values: Values, evaluation: int) -> npt.NDArray[np.float64]:
        if (number, evaluation) in self._made:
            return self._made[number, evaluation]
        patients = len(self.targets)
        fitting = self._draws(number, 4).normal(size=patients)
        draw = self._draws(number, evaluation, 5).normal
        auroc = AUROC + self.gain(number, values) + draw(0.0, BETWEEN_SEEDS)
        separation = np.sqrt(2) * norm.ppf(min(auroc, 0.99))
        noise = np.sqrt(HARD) * self._hard + np.sqrt(FITTING) * fitting
        scores = separation * self.targets + noise + np.sqrt(TRAINED) * draw(size=patients)
        self._made[number, evaluation] = np.asarray(scores, np.float64)
        return self._made[number, evaluation]

    def _shares(self, start: Trial, trial: Trial, evaluation: int) -> dict[str, float]:
        """What each patient moves the difference of an evaluation by."""
        begun, theirs = (self._scores(t.number, t.values, evaluation) for t in (start, trial))
        shares_by_patient: dict[str, float] = {}
        halves = self._halves(evaluation)
        for half in halves:
            targets, of_start, of_trial = (
                scores[half, None] for scores in (self.targets, begun, theirs)
            )
            shares = delong_shares(targets, of_start, of_trial, half) / len(halves)
            shares_by_patient |= dict(zip(map(str, np.sort(half)), shares.tolist(), strict=True))
        return shares_by_patient

    def sampling(self, study: Study) -> dict[int, SamplingVariance]:
        """What is due to the patients, by finalist."""
        confirmed, trials = study.confirmed(), study.trials()
        start = confirmed.pop(0, {})
        common = {
            number: [e for e in evaluations if e in start]
            for number, evaluations in confirmed.items()
        }
        return {
            number: sampling_of([self._shares(trials[0], trials[number], each) for each in own])
            for number, own in common.items()
            if own and all(len(self._halves(each)) == 2 for each in own)  # else none are kept
        }

    def judging(self, study: Study, *, records: bool = True) -> Callable[[], Decision | None]:
        """What a search chooses, with the scores of records or without."""

        def judge() -> Decision | None:
            return study.decision(1 / (FOLDS - 1), self.sampling(study) if records else None)

        return judge


def usual_gain(values: Values) -> float:
    """Of a learning rate between two orders of magnitude, and of some regularisation."""
    away = (math.log10(values[RATE]) + 2.6) / 0.8
    rate = max(-0.2, -0.03 * away**2) + 0.0075
    dropout = 0.025 * math.sin(math.pi * min(values[DROPOUT], 0.6) / 0.6)
    return float(rate + dropout + 0.02 * values[SMOOTHING] / 0.3)


def played(study: Study, world: World, budget: Budget, seed: int) -> None:
    """Work on a search of evaluations of an hour each, one trial after the other."""
    limits = Limits(study, budget, Place(1.0, 0.0, 2), lambda: False, Display())
    begun = set[int]()
    while not limits.out_of_time:
        jobs = study.unfinished()
        job = jobs[0] if jobs else limits.next_job()
        if job is None:
            return
        seconds, final = job.seconds, AUROC + world.gain(job.number, job.values) - 0.5
        for each in job.evaluations:  # what was begun is finished
            if job.number not in begun and each == 0:
                begun.add(job.number)
                if _stopped(study, job.number, final, seconds, seed):
                    break
            seconds += 3600
            score = world(job.number, job.values, each)
            study.evaluated(job.number, each, {"ecg": score}, seconds)
            limits.look()
        limits.look()


def _stopped(study: Study, number: int, final: float, seconds: float, seed: int) -> bool:
    """Whether a trial is stopped at a look within its first evaluation."""
    draws = np.random.default_rng([seed, number, 6])
    lasting_draw = draws.normal()
    for step, share, reached, noise, lasting in EARLY_LOOKS:
        score = 0.5 + reached * final + lasting * lasting_draw + draws.normal(0, noise)
        worked = seconds + 3600 * share
        if study.reported(number, step, score, worked):
            study.ended(number, seconds=worked)
            return True
    return False


@dataclass(frozen=True)
class Kind:
    """Searches that are simulated."""

    budgets: tuple[Budget, ...]
    """One after the other: each extends the search."""
    gain: Gain
    space: Space = SPACE
    method: Method = METHODS["choice"]
    lasting: float = 0.0
    patients: int = PATIENTS
    positive: float = POSITIVE
    records: bool = True
    """Whether the scores of records are known, from which DeLong's variance is."""


def chosen(kind: Kind, seed: int) -> tuple[Trial, float]:
    """What a simulated search chooses, the start or another trial, and what that gains."""
    method, world = replace(kind.method, seed=seed), world_of(kind, seed)
    with tempfile.TemporaryDirectory() as folder:
        study = Study(Path(folder, "log"), kind.space, method)
        number = settled(study, world, kind, seed)
        trial = study.trials()[number]
    return trial, world.gain(number, trial.values)


def world_of(kind: Kind, seed: int) -> World:
    """The world of such searches."""
    return World(seed, kind.gain, kind.lasting, kind.patients, kind.positive)


def settled(study: Study, world: World, kind: Kind, seed: int) -> int:
    """Number of the trial that a search chooses when its budgets are used."""
    study.judge = world.judging(study, records=kind.records)
    for budget in kind.budgets:
        played(study, world, budget, seed)
    if study.method.choosing == "highest":
        best = study.best()
        return best.number if best else 0
    decision = study.judge()
    return 0 if decision is None else decision.number


ONE = Space("made", (Parameter(RATE, "log float", 1e-4, low=1e-5, high=0.1),))


def quarter(height: float) -> Gain:
    """A gain in a quarter of the range of the learning rate, of which the start is not."""
    return lambda values: height if 1e-3 <= values[RATE] <= 1e-2 else 0.0


def of_one_setting(
    *trials: int,
    height: float = 0.0,
    sampler: Sampler = "random",
    evaluations: int = 3,
    **about: Any,
) -> Kind:
    """Searches of the learning rate by so many trials, of which a quarter may gain something.

    Args:
        trials: The budget, and those that extend it.
        height: What a quarter of the range gains.
        sampler: Of the method.
        evaluations: Of a trial that goes to the end.
        about: Further, of `Kind`.
    """
    method = Method(sampler=sampler, evaluations=evaluations)
    budgets = tuple(Budget(trials=count) for count in trials)
    return Kind(budgets, quarter(height), ONE, method, **about)


LEVELS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((14,), {}),
    ((14,), {"evaluations": 1}),
    ((14,), {"evaluations": 10}),
    ((60,), {}),
    ((60,), {"sampler": "tpe"}),
    ((14, 40), {}),
    ((14,), {"lasting": 0.01}),
    ((14,), {"patients": 2000}),
    ((14,), {"patients": 350, "positive": 0.1}),
    ((14,), {"patients": 350, "positive": 0.04}),
    ((14,), {"records": False}),
    ((14,), {"records": False, "patients": 100}),
    ((20,), {"height": 0.03}),
    ((20,), {"height": 0.05}),
    ((14, 40), {"height": 0.05}),
    ((20,), {"height": 0.05, "records": False}),
)
"""Searches of one setting by their trials and what else they are, see `of_one_setting`."""


def _of_level(asked: tuple[tuple[int, ...], dict[str, Any], int]) -> float | None:
    trials, about, seed = asked
    trial, gained = chosen(of_one_setting(*trials, **about), seed)
    return gained if trial.number else None


def _of_price(asked: tuple[str, float, int, float]) -> float | None:
    strategy, evaluations, seed, scale = asked
    budget = Budget(trials=None, device_hours=evaluations)
    gain: Gain = lambda values: scale * usual_gain(values)  # noqa: E731
    method = (METHODS | VARIED)[strategy]
    trial, gained = chosen(Kind((budget,), gain, method=method), seed)
    return gained if trial.number else None


def _summed(choices: Sequence[float | None]) -> dict[str, float]:
    """Of searches: what each chose gains, None where it keeps the start."""
    gains = np.array([gain or 0.0 for gain in choices])
    return {
        "gain": measure.rounded(float(gains.mean())),
        "standard_error": measure.rounded(float(gains.std(ddof=1) / len(gains) ** 0.5)),
        "start_kept": choices.count(None) / len(choices),
        "no_better_than_start": float(
            np.mean([gain is not None and gain <= 0 for gain in choices])
        ),
    }


def main(arguments: list[str] | None = None) -> None:
    """Simulate and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--gain", type=float, default=BEST, help=f"of the best values ({BEST})")
    options.add_argument("--evaluations", type=float, nargs="+", default=[20, 40], help="(20 40)")
    options.add_argument("--searches", type=int, default=50, help="of each kind (50)")
    modes = options.add_mutually_exclusive_group()
    modes.add_argument("--levels", action="store_true", help="how often the start is kept")
    modes.add_argument("--methods", action="store_true", help="samplers and ways to stop trials")
    asked = options.parse_args(arguments)
    if asked.searches < 2 or min(asked.evaluations) < 1 or not math.isfinite(asked.gain):
        options.error("at least 2 --searches, and 1 of --evaluations, and a finite --gain")
    kinds: list[tuple[dict[str, Any], Callable[[Any], float | None], list[Any]]] = []
    seeds = range(asked.searches)
    if asked.levels:
        for trials, about in LEVELS:
            searches = [(trials, about, seed) for seed in seeds]
            kinds.append(({"trials": trials} | about, _of_level, searches))
    else:
        methods, scale = VARIED if asked.methods else METHODS, asked.gain / BEST
        for strategy, count in product(methods, asked.evaluations):
            about = {"strategy": strategy, "evaluations": count}
            kinds.append((about, _of_price, [(strategy, count, s, scale) for s in seeds]))
    results = []
    with ProcessPoolExecutor(measure.cpus()) as pool:
        for about, play, searches in kinds:
            print(", ".join(f"{name} {value}" for name, value in about.items()), file=sys.stderr)
            results.append(about | _summed(list(pool.map(play, searches))))
    about = {"searches": asked.searches} | ({} if asked.levels else {"gain": asked.gain})
    json.dump({"benchmark": "search_price", **about, "found": results}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
