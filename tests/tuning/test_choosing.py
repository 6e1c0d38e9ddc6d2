"""Whole searches that are simulated: what they choose, and how often they are wrong."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from racing_alone import raced
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from benchmd_ray.data.inner import FOLDS
from benchmd_ray.scores.comparison import delong_shares
from benchmd_ray.tuning.confirm import EARLY, LEVEL
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.sampling import sampling_of
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study

LR = "transfer.optimiser.lr"
SPACE = Space("made", (Parameter(LR, "log float", 1e-4, low=1e-5, high=0.1),))
PATIENTS, POSITIVE = 624, 0.27
"""Of BreastMNIST."""
AUROC, BETWEEN_SEEDS = 0.83, 0.015
HARD, FITTING, TRAINED = 0.6, 0.15, 0.25
"""Parts of the variance of a record's score: what makes it hard for every model, what makes a
setting fit these records by chance, and what differs between trainings."""


class World:
    """A dataset and what training on it would give: scores of records by evaluation."""

    def __init__(self, seed, gain):
        """Args: gain: Of values, in AUROC; the start has none."""
        self._generator, self._gain = np.random.default_rng(seed), gain
        self.targets = (self._generator.random(PATIENTS) < POSITIVE).astype(np.int8)
        self._hard = self._generator.normal(size=PATIENTS)
        self._fitting, self._made = {}, {}

    def _halves(self, evaluation):
        """Rows of an evaluation's fold, classes in balance, as two halves."""
        cut, fold = divmod(evaluation, FOLDS)
        order = np.random.default_rng(cut).permutation(PATIENTS)
        rows = order[np.argsort(self.targets[order], kind="stable")][fold::FOLDS]
        return rows[::2], rows[1::2]

    def __call__(self, number, values, evaluation):
        """The score of an evaluation."""
        draw = self._generator.normal
        fitting = self._fitting.setdefault(number, draw(size=PATIENTS))
        auroc = AUROC + self._gain(values) + draw(0.0, BETWEEN_SEEDS)
        separation = np.sqrt(2) * norm.ppf(min(auroc, 0.99))
        noise = np.sqrt(HARD) * self._hard + np.sqrt(FITTING) * fitting
        scores = separation * self.targets + noise + np.sqrt(TRAINED) * draw(size=PATIENTS)
        self._made[number, evaluation] = scores
        each = [roc_auc_score(self.targets[h], scores[h]) for h in self._halves(evaluation)]
        return float(np.mean(each))

    def _shares(self, number, evaluation):
        start, trial = self._made[0, evaluation], self._made[number, evaluation]
        found = {}
        for half in self._halves(evaluation):
            own = (self.targets[half], start[half], trial[half])
            each = delong_shares(*(one[:, None] for one in own), half) / 2
            found |= dict(zip(np.sort(half).tolist(), each.tolist(), strict=True))
        return found

    def sampling(self, study):
        """What is due to the patients, by finalist."""
        confirmed = study.confirmed()
        start = confirmed.pop(0, {})
        return {
            number: sampling_of([self._shares(number, each) for each in own if each in start])
            for number, own in confirmed.items()
        }


def chosen(folder: Path, seed, gain, *, trials=20, records=True, sampler="random"):
    """What a simulated search chooses: the trial, and its true gain."""
    study = Study(folder / f"{seed}.log", SPACE, Method(sampler=sampler, evaluations=3, seed=seed))
    world = World(seed, gain)

    def judge(level=LEVEL):
        sampling = world.sampling(study) if records else None
        return study.decision(1 / (FOLDS - 1), sampling, level)

    study.judge = partial(judge, EARLY)
    raced(study, trials, world)
    decision = judge()
    found = study.trials()[0 if decision is None else decision.number]
    return found, gain(found.values)


def quarter(height):
    """A gain in a quarter of the range, of which the start is not."""
    return lambda values: height if 1e-3 <= values[LR] <= 1e-2 else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("records", [True, False])
def test_a_useless_space_keeps_the_start(tmp_path, records):
    found = [chosen(tmp_path, s, quarter(0.0), trials=14, records=records) for s in range(100)]
    assert sum(trial.number == 0 for trial, _ in found) >= 95


@pytest.mark.slow
@pytest.mark.parametrize(("height", "often"), [(0.05, 24), (0.03, 10)])
def test_a_planted_gain_is_found(tmp_path, height, often):
    found = [chosen(tmp_path, seed, quarter(height)) for seed in range(30)]
    assert sum(own == height for _, own in found) >= often
    assert all(own == height for trial, own in found if trial.number)


@pytest.mark.slow
def test_a_large_gain_is_chosen_after_one_cut(tmp_path):
    found = [chosen(tmp_path, seed, quarter(0.12))[0] for seed in range(6)]
    assert [len(trial.fresh) for trial in found] == [FOLDS] * 6
    assert all(trial.number for trial in found)
