"""Whole searches that are simulated: what they choose, and how often they are wrong."""

import os

import pytest

from benchmd_ray.console.progress import Display
from benchmd_ray.data.inner import FOLDS
from benchmd_ray.tuning.limits import Budget, Limits, Place
from benchmd_ray.tuning.study import Study
from studies.search_price import chosen, of_one_setting, settled, world_of


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    """These searches are simulated: nothing of them has to survive a machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.nightly
@pytest.mark.parametrize("records", [True, False])
def test_a_useless_space_keeps_the_start(records):
    kind = of_one_setting(14, records=records)
    assert sum(chosen(kind, seed)[0].number == 0 for seed in range(100)) >= 95


@pytest.mark.slow
@pytest.mark.parametrize(("height", "often"), [(0.05, 24), (0.03, 10)])
def test_a_planted_gain_is_found(height, often):
    found = [chosen(of_one_setting(20, height=height), seed) for seed in range(30)]
    assert sum(gained == height for _, gained in found) >= often
    assert all(gained == height for trial, gained in found if trial.number)


@pytest.mark.slow
def test_a_large_gain_is_chosen_after_one_cut():
    found = [chosen(of_one_setting(20, height=0.12), seed)[0] for seed in range(6)]
    assert [len(trial.fresh) for trial in found] == [FOLDS] * 6
    assert all(trial.number for trial in found)


def found(study):
    return [
        (t.number, t.state, dict(t.values), t.evaluations, t.fresh, t.tested, t.curve)
        for t in study.trials()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("height", [0.0, 0.12])
def test_killed_after_any_line_of_the_journal_and_resumed_equals_undisturbed(tmp_path, height):
    """With trials that are stopped early, a choice, and finalists in turn."""
    kind, seed = of_one_setting(12, height=height, sampler="tpe"), 3
    whole = Study(tmp_path / "whole.log", kind.space, kind.method)
    number = settled(whole, world_of(kind, seed), kind, seed)
    assert {trial.state for trial in whole.trials()} == {"complete", "stopped"}
    assert {len(trial.curve) for trial in whole.trials()} >= {1, 2}
    assert (number > 0) == (height > 0)
    lines = (tmp_path / "whole.log").read_text().splitlines(keepends=True)
    last = next(n for n, line in enumerate(lines) if '"over"' in line)
    for count in (*range(3, last - 3, 11), *range(last - 3, len(lines), 3), last, last + 1):
        path = tmp_path / f"{count}.log"
        path.write_text("".join(lines[:count]))
        study = Study(path, kind.space, kind.method)
        assert settled(study, world_of(kind, seed), kind, seed) == number, count
        assert found(study) == found(whole), count


@pytest.mark.slow
@pytest.mark.parametrize("cost", [0.1, 1.0, 3.0])
def test_a_race_that_is_over_stays_so_however_cheap_the_choice_is(tmp_path, cost):
    """Hours that are kept for finalists and not needed begin nothing; more hours do."""
    kind, seed = of_one_setting(1), 1
    study = Study(tmp_path / "study.log", kind.space, kind.method)
    world = world_of(kind, seed)
    study.judge = world.judging(study)
    fresh = study.method.fresh[0]

    def played_with(hours):
        limits = Limits(
            study,
            Budget(trials=None, device_hours=hours),
            *(Place(1.0, 0.0, 2), lambda: False, Display()),
        )
        order = []
        while not limits.out_of_time and (job := (study.unfinished() or [limits.next_job()])[0]):
            each = job.evaluations[0]
            order.append(each >= fresh)
            score = world(job.number, job.values, each)
            worked = job.seconds + 3600 * (cost if each >= fresh else 1.0)
            study.evaluated(job.number, each, {"ecg": score}, worked)
            limits.look()
        return order

    order = played_with(60.0)
    assert any(order)
    assert order == sorted(order)  # nothing of the race after the first of the choice
    begun = study.begun
    again = played_with(60.0)
    assert (study.begun, all(again)) == (begun, True)
    played_with(200.0)
    assert study.begun > begun
