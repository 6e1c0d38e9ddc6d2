r"""``python -m speed.search_price`` from the project's root.

What a choice that keeps the start where nothing is better costs, in simulated searches: their
evaluations are drawn, not trained, so that hundreds of searches take minutes. Three settings are
searched (learning rate, dropout, label smoothing), whose best values gain ``--gain`` AUROC over the
start; a search may take so many evaluations of device time. The JSON has, by strategy and number of
evaluations, the mean true gain of what was chosen with its standard error, how often the start was
kept, and how often something worse than the start was taken.

The tests of the choice simulate their searches in the same `World`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from benchmd_ray.data.inner import FOLDS
from benchmd_ray.progress import SilentBoard
from benchmd_ray.scores.comparison import delong_shares
from benchmd_ray.scores.metrics import auroc_per_class
from benchmd_ray.tuning.confirm import EARLY, LEVEL, Decision, Sampling
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
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
EARLY_LOOKS = ((1, 1 / 9, 0.5, 0.035, 0.03), (3, 1 / 3, 0.8, 0.03, 0.015))
"""Looks within the first evaluation: the step, its share of the training, of the final AUROC's
distance from 0.5, the standard deviation of its score, and of what a setting adds for good."""


class World:
    """A dataset and what training on it would give: scores of records by evaluation."""

    def __init__(self, seed: int, gain: Gain) -> None:
        """Draw who is positive, and who is hard for every model."""
        self._generator, self._gain = np.random.default_rng(seed), gain
        self.targets = (self._generator.random(PATIENTS) < POSITIVE).astype(np.int8)
        self._hard = self._generator.normal(size=PATIENTS)
        self._fitting: dict[int, npt.NDArray[np.float64]] = {}
        self._made: dict[tuple[int, int], npt.NDArray[np.float64]] = {}

    def _halves(self, evaluation: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Rows of an evaluation's fold, classes in balance, as two halves."""
        cut, fold = divmod(evaluation, FOLDS)
        order = np.random.default_rng(cut).permutation(PATIENTS)
        rows = order[np.argsort(self.targets[order], kind="stable")][fold::FOLDS]
        return rows[::2], rows[1::2]

    def __call__(self, number: int, values: Values, evaluation: int) -> float:
        """The score of a trial's evaluation."""
        draw = self._generator.normal
        fitting = self._fitting.setdefault(number, draw(size=PATIENTS))
        auroc = AUROC + self._gain(values) + draw(0.0, BETWEEN_SEEDS)
        separation = np.sqrt(2) * norm.ppf(min(auroc, 0.99))
        noise = np.sqrt(HARD) * self._hard + np.sqrt(FITTING) * fitting
        scores = separation * self.targets + noise + np.sqrt(TRAINED) * draw(size=PATIENTS)
        self._made[number, evaluation] = scores
        halves = [(self.targets[h, None], scores[h, None]) for h in self._halves(evaluation)]
        return float(np.mean([auroc_per_class(*half) for half in halves]))

    def _shares(self, number: int, evaluation: int) -> dict[str, float]:
        start, trial = self._made[0, evaluation], self._made[number, evaluation]
        found: dict[str, float] = {}
        for half in self._halves(evaluation):
            targets, one, other = (each[half, None] for each in (self.targets, start, trial))
            shares = delong_shares(targets, one, other, half) / 2
            found |= dict(zip(map(str, np.sort(half)), shares.tolist(), strict=True))
        return found

    def sampling(self, study: Study) -> dict[int, Sampling]:
        """What is due to the patients, by finalist."""
        confirmed = study.confirmed()
        start = confirmed.pop(0, {})
        return {
            number: sampling_of([self._shares(number, each) for each in own if each in start])
            for number, own in confirmed.items()
        }

    def judging(self, study: Study, *, records: bool = True) -> Callable[[float], Decision | None]:
        """What a search chooses at a level, with the scores of records or without."""

        def judge(level: float) -> Decision | None:
            sampling = self.sampling(study) if records else None
            return study.decision(1 / (FOLDS - 1), sampling, level)

        return judge


def usual_gain(values: Values) -> float:
    """Of a learning rate between two orders of magnitude, and of some regularisation."""
    away = (math.log10(values[RATE]) + 2.6) / 0.8
    rate = max(-0.2, -0.03 * away**2) + 0.0075
    dropout = 0.025 * math.sin(math.pi * min(values[DROPOUT], 0.6) / 0.6)
    return float(rate + dropout + 0.02 * values[SMOOTHING] / 0.3)


def played(study: Study, world: World, gain: Gain, evaluations: float, seed: int) -> None:
    """Let a search take so many evaluations of an hour each, one trial after the other."""
    budget = Budget(trials=None, device_hours=evaluations)
    limits = Limits(study, budget, Place(1.0, 0.0, 2), lambda: False, SilentBoard())
    draws, begun = np.random.default_rng([seed, 9]), set[int]()
    while not limits.spent:
        jobs = study.unfinished()
        job = jobs[0] if jobs else limits.next_job()
        if job is None:
            return
        seconds, final = job.seconds, AUROC + gain(job.values) - 0.5
        for each in job.evaluations:
            if limits.spent:
                return
            if job.number not in begun:
                begun.add(job.number)
                if _stopped(study, job.number, final, seconds, draws):
                    break
            seconds += 3600
            score = world(job.number, job.values, each)
            study.evaluated(job.number, each, {"ecg": score}, seconds)
            limits.look()
        limits.look()


def _stopped(
    study: Study, number: int, final: float, seconds: float, draws: np.random.Generator
) -> bool:
    """Whether a trial is stopped at a look within its first evaluation."""
    own = draws.normal()
    for step, share, reached, noise, lasting in EARLY_LOOKS:
        score = 0.5 + reached * final + lasting * own + draws.normal(0, noise)
        worked = seconds + 3600 * share
        if study.reported(number, step, score, worked):
            study.ended(number, seconds=worked)
            return True
    return False


def searched(strategy: str, evaluations: float, seed: int, scale: float) -> float | None:
    """The true gain of what a simulated search chooses; None: it keeps the start."""

    def gain(values: Values) -> float:
        return scale * usual_gain(values)

    method = METHODS[strategy]
    with tempfile.TemporaryDirectory() as folder:
        own = Method(**{**vars(method), "seed": seed})
        study, world = Study(Path(folder, "log"), SPACE, own), World(seed, gain)
        judge = world.judging(study)
        if method.choosing != "highest":
            study.judge = partial(judge, EARLY)
        played(study, world, gain, evaluations, seed)
        if method.choosing == "highest":
            best = study.best()
            number = best.number if best else 0
        else:
            decision = judge(LEVEL)
            number = 0 if decision is None else decision.number
        return gain(study.trials()[number].values) if number else None


def _search(asked: tuple[str, float, int, float]) -> float | None:
    return searched(*asked)


def main(arguments: list[str] | None = None) -> None:
    """Simulate and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--gain", type=float, default=BEST, help=f"of the best values ({BEST})")
    options.add_argument("--evaluations", type=float, nargs="+", default=[20, 40], help="(20 40)")
    options.add_argument("--searches", type=int, default=50, help="of each kind (50)")
    chosen = options.parse_args(arguments)
    if chosen.searches < 2 or min(chosen.evaluations) < 1 or not math.isfinite(chosen.gain):
        options.error("at least 2 --searches, and 1 of --evaluations, and a finite --gain")
    found = []
    with ProcessPoolExecutor(measure.cpus()) as pool:
        for strategy, count in product(METHODS, chosen.evaluations):
            asked = [(strategy, count, s, chosen.gain / BEST) for s in range(chosen.searches)]
            held = list(pool.map(_search, asked))
            gains = np.array([gain or 0.0 for gain in held])
            found.append(
                {
                    "strategy": strategy,
                    "evaluations": count,
                    "gain": measure.rounded(float(gains.mean())),
                    "standard_error": measure.rounded(float(gains.std() / len(gains) ** 0.5)),
                    "start_kept": held.count(None) / len(held),
                    "worse_than_start": float((gains < 0).mean()),
                }
            )
    about = {"gain": chosen.gain, "searches": chosen.searches}
    json.dump({"benchmark": "search_price", **about, "found": found}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
