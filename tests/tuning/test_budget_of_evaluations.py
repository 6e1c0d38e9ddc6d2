"""A budget of evaluations: which trials stop, what they count, and that trials are read once."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmd_ray.console.progress import Display
from benchmd_ray.tuning import trials
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.ladder import chosen, falls_behind, optimism
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study

RATE = "transfer.optimiser.lr"
SPACE = Space("made", (Parameter(RATE, "log float", 1e-3, low=1e-5, high=0.1),))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    family = Family("scratch", "finetune-full", SPACE, ())
    return Study(tmp_path / "log", [family], Method(sampler="random"))


def test_a_stopped_trial_counts_as_the_share_that_it_was_trained(study: Study) -> None:
    budget = Budget(trials=None, evaluations=10)
    limits = Limits(study, budget, Place(1.0, 0.0, 1), lambda: False, Display())
    stopped_after = {3: 1, 4: 2, 5: 1}  # steps that were reported, by trial
    while len(study.unfinished()) == 0 and limits.exploring:
        job = limits.next_job()
        assert job is not None
        looks = stopped_after.get(job.number)
        for step in range(1, 1 + (looks or 2)):
            is_last = looks == step
            stop = study.reported(job.number, step, 0.1 if is_last else 0.5, 1.0)
            assert stop == is_last
        if looks:
            study.ended(job.number, 0, seconds=1.0)
        else:
            study.evaluated(job.number, 0, {"ecg": 0.7}, 1.0)
    # Five evaluations explore: trials 0 to 2, 1/9 + 1/3 + 1/9 of the stopped ones, 6 and 7.
    assert study.begun == 8
    assert study.spent_evaluations == pytest.approx(5 + 5 / 9)
    job = limits.next_job()
    assert job is not None
    assert job.evaluation == 1


@pytest.mark.parametrize(("trials", "stopped"), [(2, 0), (3, 1), (5, 1), (6, 2), (9, 3)])
def test_the_worst_third_at_a_step_stops(trials: int, stopped: int) -> None:
    scores = [0.6 + number / 100 for number in range(trials)]
    assert [falls_behind(score, scores) for score in scores] == [n < stopped for n in range(trials)]
    assert not falls_behind(0.7, [0.7] * 9)  # equal scores stop nobody


def test_a_trial_is_read_again_only_where_it_or_the_start_has_changed(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[float] = []
    paired_mean = trials.paired_mean

    def counted(scores, start):  # type: ignore[no-untyped-def]
        read.append(scores[0])
        return paired_mean(scores, start)

    monkeypatch.setattr(trials, "paired_mean", counted)
    for _ in range(3):
        study.propose()
    for number, score in enumerate((0.7, 0.8, 0.6)):
        study.evaluated(number, 0, {"ecg": score}, 1.0)
    assert [trial.score for trial in study.trials()] == [0.7, 0.8, 0.6]
    read.clear()
    assert [trial.score for trial in study.trials()] == [0.7, 0.8, 0.6]
    assert read == []
    study._grant(1, 1)
    study.evaluated(1, 1, {"ecg": 0.9}, 1.0)
    assert dict(study.trials()[1].evaluations) == {0: 0.8, 1: 0.9}
    assert [trial.score for trial in study.trials()][::2] == [0.7, 0.6]
    assert {*read} == {0.8}
    study._grant(0, 1)
    study.evaluated(0, 1, {"ecg": 0.6}, 1.0)
    assert study.trials()[1].score == pytest.approx(0.65 + 0.2)
    assert [trial.score for trial in study.trials()][::2] == pytest.approx([0.65, 0.55])
    assert {*read} == {0.7, 0.8, 0.6}  # all are relative to the start


@pytest.mark.parametrize("tail", [0.0, 1.0])
def test_the_optimism_is_about_what_the_highest_of_equal_trials_gains(tail: float) -> None:
    """Of 20 equal trials and the start, for some of which a bad setting costs much."""
    draws, estimates = np.random.default_rng(0), []
    for _ in range(12):
        scores = draws.normal(0.8, 0.02, (21, 5))
        scores[15:] -= tail
        table = {n: dict(enumerate(row)) for n, row in enumerate(scores)}
        estimates.append(optimism(table))
    highest = draws.normal(0.0, 0.02 / math.sqrt(5), (20_000, 15 if tail else 21)).max(axis=1)
    assert 0.55 < np.mean(estimates) / highest.mean() < 1.1


@pytest.mark.parametrize(("spread", "least", "most"), [(0.005, 0.8, 1.2), (0.02, 1.0, 1.9)])
def test_the_optimism_is_that_of_searches_whose_truth_is_known(
    spread: float, least: float, most: float
) -> None:
    """Of 15 trials and the start, over five folds that differ; where a trial is chosen.

    It is rather too high where settings differ as much as the noise of an evaluation.
    """
    draws, estimates, truths = np.random.default_rng(1), [], []
    for _ in range(300):
        effects = np.concatenate([[0.0], draws.normal(0.0, spread, 15)])
        noise = draws.normal(0.0, 0.02, (16, 5))
        scores = 0.8 + draws.normal(0.0, 0.05, 5) + effects[:, None] + noise
        table = {n: dict(enumerate(row)) for n, row in enumerate(scores)}
        if best := chosen(table):
            estimates.append(optimism(table))
            truths.append(noise[best].mean())
    assert len(truths) > 200
    assert least < np.mean(estimates) / np.mean(truths) < most


def test_a_start_that_is_kept_is_not_too_high() -> None:
    scores = {n: dict.fromkeys(range(5), 0.8 - 0.01 * n) for n in range(6)}
    scores[3][0] += 0.005
    assert optimism(scores) == 0.0
    assert optimism({n: {0: 0.8} for n in range(6)}) is None
