"""Whole searches that are simulated: what they choose, and that no interruption changes it."""

import os

import numpy as np
import pytest
from racing_alone import Killed, raced

from benchmd_ray.settings.definition import Settings
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.limits import Budget
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study

RATE, SMOOTHING = "transfer.optimiser.lr", "transfer.label_smoothing"
RATES = Space("rates", (Parameter(RATE, "log float", 1e-4, low=1e-5, high=0.1),))
BOTH = Space("both", (*RATES.parameters, Parameter(SMOOTHING, "float", 0.0, low=0.0, high=0.3)))
FAMILIES = [
    Family("scratch", "finetune-full", BOTH, (Settings(),)),
    Family("mae", "linear", RATES, (Settings(),)),
]


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    """These searches are simulated: nothing of them has to survive a machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class World:
    """Scores whose folds differ more than settings; a quarter of the learning rates gains."""

    def __init__(self, seed, gain=0.0, family=""):
        generator = np.random.default_rng(seed)
        self.folds = generator.normal(0.0, 0.05, 40)
        self.noise = generator.normal(0.0, 0.012, (200, 40))
        self.height, self.family = gain, family

    def gain(self, trial):
        """True gain of a trial over the start."""
        rates = 1e-3 <= trial.values[RATE] <= 1e-2
        return self.height * (rates and self.family in ("", trial.family))

    def score(self, study):
        def score(number, values, evaluation):
            gain = self.gain(study.trials()[number])
            return 0.8 + gain + self.folds[evaluation] + self.noise[number, evaluation]

        return score


def search(path, world, budget, **method):
    study = Study(path, FAMILIES, Method(**method))
    raced(study, budget, world.score(study))
    return study


BUDGET = Budget(trials=None, evaluations=40)


@pytest.mark.slow
def test_a_planted_gain_is_chosen_also_in_another_family_than_the_starts(tmp_path):
    gains = []
    for seed in range(10):
        world = World(seed, 0.04, "mae linear")
        study = search(tmp_path / f"{seed}.log", world, BUDGET, seed=seed)
        gains.append(world.gain(study.best()))
        assert study.best().family == "mae linear" or not gains[-1]
    assert np.mean(gains) > 0.75 * 0.04


@pytest.mark.slow
def test_a_cautious_choice_keeps_the_start_more_often(tmp_path):
    kept = {}
    for cautious in (False, True):
        studies = (
            search(tmp_path / f"{cautious}-{seed}.log", World(seed), BUDGET, cautious=cautious)
            for seed in range(10)
        )
        kept[cautious] = sum(study.best().number == 0 for study in studies)
    assert kept[True] > kept[False]
    assert kept[True] < 10  # one standard error is no test


def outcome(study):
    return [
        (t.number, t.state, t.family, dict(t.values), t.score, dict(t.evaluations), t.seconds)
        for t in study.trials()
    ]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_killed_again_and_again_and_resumed_equals_undisturbed(tmp_path, sampler):
    world, generator = World(3, 0.03), np.random.default_rng(3)
    whole = search(tmp_path / "whole.log", world, BUDGET, sampler=sampler)
    pieces, kills = tmp_path / "pieces.log", 0
    while True:
        study = Study(pieces, FAMILIES, Method(sampler=sampler))
        try:
            raced(study, BUDGET, world.score(study), kill_after=int(generator.integers(2, 9)))
            break
        except Killed:
            kills += 1
    assert kills > 4
    assert outcome(study) == outcome(whole)
    assert study.best().number == whole.best().number


@pytest.mark.slow
def test_killed_after_any_line_of_the_journal_and_resumed_equals_undisturbed(tmp_path):
    world, budget = World(5, 0.03), Budget(trials=None, evaluations=24)
    whole = search(tmp_path / "whole.log", world, budget)
    lines = (tmp_path / "whole.log").read_text().splitlines(keepends=True)
    ended = next(n for n, line in enumerate(lines) if '"explored"' in line)
    for count in (*range(3, len(lines), 9), ended, ended + 1, len(lines)):
        path = tmp_path / f"{count}.log"
        path.write_text("".join(lines[:count]))
        study = search(path, world, budget)
        assert outcome(study) == outcome(whole), count
