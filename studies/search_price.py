r"""``python -m studies.search_price`` from the project's root.

What a search gains, costs and states, in simulated searches by the package's own code: scores are
drawn instead of trained, so hundreds of searches take minutes. Three settings are searched
(learning rate, dropout, label smoothing), whose best values gain 0.048 AUROC over the start
(``usual``), half of it, twice, nothing (``useless``), or lose wherever they differ from the start
(``harmful``). An evaluation takes one device hour. With ``--families`` a search has four families
(`FAMILIES`), next to searches of a single one.

The JSON has, by what is searched: the mean true gain of the choice with its standard error, the
shares of searches that keep the start and that choose something worse by more than 0.01, by how
much the score of the choice is too high, and the search's own estimate of that.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from benchmd_ray.console.progress import Display
from benchmd_ray.data.inner import FOLDS
from benchmd_ray.scores.metrics import auroc_per_class
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.ladder import START, chosen, optimism
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method, Sampler
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study
from benchmd_ray.tuning.trial_log import Job
from speed import measure

Values = Mapping[str, Any]

PATIENTS, POSITIVE = 624, 0.27
"""Of BreastMNIST."""
AUROC, BETWEEN_SEEDS = 0.83, 0.015
HARD, FITTING, TRAINED = 0.6, 0.15, 0.25
"""Parts of the variance of a record's score: what makes it hard for every model, what makes a
setting fit these records by chance, and what differs between trainings."""
RATE, DROPOUT, SMOOTHING = "transfer.optimiser.lr", "transfer.dropout", "transfer.label_smoothing"
SPACE = Space(
    "simulated",
    (
        Parameter(RATE, "log float", 1e-3, low=1e-5, high=0.1),
        Parameter(DROPOUT, "float", 0.0, low=0.0, high=0.6),
        Parameter(SMOOTHING, "float", 0.0, low=0.0, high=0.3),
    ),
)
BEST = 0.048
"""What `usual_gain` is at most."""
LOOKS = ((1, 1 / 9, 0.5, 0.035, 0.03), (3, 1 / 3, 0.8, 0.03, 0.015))
"""Looks within the first evaluation: the step, its share of the training, of the final AUROC's
distance from 0.5, the standard deviation of its score, and of what a setting adds for good."""
FAMILIES = {"start": (0.0, 1.0), "better": (0.03, 1.0), "worse": (-0.03, 1.0), "costly": (0.0, 10)}
"""AUROC of a family's start above the search's, and device hours of an evaluation."""
ONE = ("start",)


def usual_gain(values: Values) -> float:
    """Of a learning rate between two orders of magnitude, and of some regularisation."""
    away = (math.log10(values[RATE]) + 2.6) / 0.8
    rate = max(-0.2, -0.03 * away**2) + 0.0075
    dropout = 0.025 * math.sin(math.pi * min(values[DROPOUT], 0.6) / 0.6)
    return float(rate + dropout + 0.02 * values[SMOOTHING] / 0.3)


GAINS: dict[str, Callable[[Values], float]] = {
    "usual": usual_gain,
    "half": lambda values: 0.5 * usual_gain(values),
    "twice": lambda values: 2 * usual_gain(values),
    "useless": lambda values: 0.0,
    "harmful": lambda values: 0.0 if values == SPACE.start else usual_gain(values) - BEST,
}
"""True gain of settings over those of the start."""


class World:
    """A dataset, and the scores that training on it would give."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        draws = self._draws(0, 1)
        self.targets = (draws.random(PATIENTS) < POSITIVE).astype(np.int8)
        self._hard = draws.normal(size=PATIENTS)

    def _draws(self, *purpose: int) -> np.random.Generator:
        """Independent draws for each purpose, whose last number is not 0."""
        return np.random.default_rng([self._seed, *purpose])

    def score(self, number: int, gain: float, evaluation: int) -> float:
        """AUROC of a trial with a true gain in an evaluation: the mean of its fold's halves."""
        fitting = self._draws(number, 4).normal(size=PATIENTS)
        normal = self._draws(number, evaluation, 5).normal
        auroc = AUROC + gain + normal(0.0, BETWEEN_SEEDS)
        noise = np.sqrt(HARD) * self._hard + np.sqrt(FITTING) * fitting
        scores = np.sqrt(2) * norm.ppf(min(auroc, 0.99)) * self.targets + noise
        scores += np.sqrt(TRAINED) * normal(size=PATIENTS)
        halves = self._halves(evaluation)
        aurocs = [auroc_per_class(self.targets[h, None], scores[h, None]) for h in halves]
        return float(np.mean(aurocs))

    def _halves(self, evaluation: int) -> list[npt.NDArray[np.intp]]:
        """Rows of the halves of an evaluation's fold, with classes in balance."""
        cut, fold = divmod(evaluation, FOLDS)
        order = self._draws(cut, 2).permutation(PATIENTS)
        rows = order[np.argsort(self.targets[order], kind="stable")][fold::FOLDS]
        return [rows[::2], rows[1::2]]


@dataclass(frozen=True)
class Kind:
    """Searches that are simulated."""

    world: str
    """Name of `GAINS`."""
    sampler: Sampler
    budget: str
    """``evaluations`` or ``device_hours``."""
    amount: float
    families: tuple[str, ...] = ONE


@dataclass(frozen=True)
class Outcome:
    """What a search chose, and its true and stated quality."""

    gain: float
    keeps_start: bool
    worse: bool
    """By more than 0.01."""
    bias: float
    """Score of the choice minus its true one."""
    optimism: float
    """The search's estimate of it."""
    best_family: bool
    trials: int
    evaluations: int
    """Of the choice."""


def search(kind: Kind, seed: int) -> tuple[Outcome, Outcome]:
    """Outcomes of a search, and of a cautious one of the same trials."""
    world, method = World(seed), Method(sampler=kind.sampler, seed=seed)
    families = [Family(name, "finetune-full", SPACE, ()) for name in kind.families]
    memory = Path("/dev/shm")  # in which a journal is written faster than on a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        study = Study(Path(folder, "log"), families, method)
        about: dict[str, Any] = {"trials": None, kind.budget: kind.amount}
        budget = Budget(**about)
        limits = Limits(study, budget, Place(1.0, 0.0, 2), lambda: False, Display())
        while (job := next(iter(study.unfinished()), None) or limits.next_job()) is not None:
            work(study, job, world, kind)
            limits.look()
        normal, cautious = (outcome(study, kind, cautious=cautious) for cautious in (False, True))
    return normal, cautious


def work(study: Study, job: Job, world: World, kind: Kind) -> None:
    """Draw an evaluation's scores, unless a look stops the trial."""
    gain, seconds = true_gain(job, kind), 3600 * FAMILIES[job.family.split()[0]][1]
    draws = np.random.default_rng([study.method.seed, job.number, 6])
    lasting = draws.normal()
    for step, share, reached, noise, spread in LOOKS if job.evaluation == 0 else ():
        score = 0.5 + reached * (AUROC + gain - 0.5) + spread * lasting + draws.normal(0, noise)
        if study.reported(job.number, step, score, share * seconds):
            return study.ended(job.number, 0, seconds=share * seconds)
    score = world.score(job.number, gain, job.evaluation)
    study.evaluated(job.number, job.evaluation, {"ecg": score}, seconds)


def true_gain(trial: Any, kind: Kind) -> float:
    """Of a trial or a job over the start."""
    return FAMILIES[trial.family.split()[0]][0] + GAINS[kind.world](trial.values)


def outcome(study: Study, kind: Kind, *, cautious: bool) -> Outcome:
    scores = study.scores()
    trial = study.trials()[chosen(scores, cautious=cautious)]
    gain = true_gain(trial, kind)
    best = max(kind.families, key=lambda name: FAMILIES[name][0])
    return Outcome(
        gain=gain,
        keeps_start=trial.number == START,
        worse=gain < -0.01,
        bias=trial.score - AUROC - gain,
        optimism=math.nan if (estimate := optimism(scores)) is None else estimate,
        best_family=trial.family.startswith(best),
        trials=study.begun,
        evaluations=len(trial.evaluations),
    )


def main(arguments: list[str] | None = None) -> None:
    """Simulate and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--world", nargs="+", choices=GAINS, default=["usual"], help="(usual)")
    options.add_argument("--sampler", nargs="+", choices=get_args(Sampler), default=["tpe"])
    options.add_argument("--budget", default="evaluations", choices=("evaluations", "device_hours"))
    options.add_argument("--amount", type=int, nargs="+", default=[20, 40, 100])
    options.add_argument("--families", action="store_true", help="four, two and one")
    options.add_argument("--searches", type=int, default=50, help="of each kind (50)")
    options.add_argument("--processes", type=int, default=measure.cpus())
    asked = options.parse_args(arguments)
    if asked.searches < 2 or min(asked.amount) < 1:
        options.error("at least 2 --searches, and 1 of --amount")
    families = [ONE, ("better",), ("start", "better"), (*FAMILIES,)] if asked.families else [ONE]
    rows = []
    with ProcessPoolExecutor(asked.processes) as pool:
        for settings in product(asked.world, asked.sampler, [asked.budget], asked.amount, families):
            kind = Kind(*settings)
            pairs = [*pool.map(search, [kind] * asked.searches, range(asked.searches))]
            for index, choice in enumerate(("highest", "cautious")):
                row = asdict(kind) | {"choice": choice} | summary([pair[index] for pair in pairs])
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
    json.dump({"benchmark": "search_price", "searches": asked.searches, "rows": rows}, sys.stdout)
    sys.stdout.write("\n")


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Means over searches, and the standard error of the gain."""
    gains = np.array([outcome.gain for outcome in outcomes])
    table = {
        field.name: np.array([getattr(outcome, field.name) for outcome in outcomes], float)
        for field in fields(Outcome)
    }
    error = {"standard_error": float(gains.std(ddof=1) / math.sqrt(len(gains)))}
    return {name: round(float(np.nanmean(a)), 4) for name, a in table.items()} | {
        name: round(value, 4) for name, value in error.items()
    }


if __name__ == "__main__":
    main()
