"""Whole searches that are simulated: what they choose, and how often they are wrong."""

import os
from functools import partial
from pathlib import Path

import pytest
from racing_alone import raced

from benchmd_ray.data.inner import FOLDS
from benchmd_ray.tuning.confirm import EARLY, LEVEL
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study
from speed.search_price import World

LR = "transfer.optimiser.lr"
SPACE = Space("made", (Parameter(LR, "log float", 1e-4, low=1e-5, high=0.1),))


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    """These searches are simulated: nothing of them has to survive a machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def chosen(folder: Path, seed, gain, *, trials=20, records=True, sampler="random"):
    """What a simulated search chooses: the trial, and its true gain."""
    study = Study(folder / f"{seed}.log", SPACE, Method(sampler=sampler, evaluations=3, seed=seed))
    world = World(seed, gain)

    judge = world.judging(study, records=records)
    study.judge = partial(judge, EARLY)
    raced(study, trials, world)
    decision = judge(LEVEL)
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
