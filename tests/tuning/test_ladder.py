"""The ladder against a simulation that follows its definition, whatever the order of arrival."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from benchmd_ray.tuning.ladder import (
    RUNGS,
    chosen,
    expected_evaluations,
    falls_behind,
    next_evaluation,
    paired_differences,
    paired_mean,
    ranked,
    standard_error,
    steps_within,
)


def ladder_of(score, families, budget, until=30):
    """Evaluations of each trial by the definition, in whole rows of evaluations.

    Args:
        score: Of a trial and an evaluation.
        families: Of the trials, each with its first evaluation.
        budget: Further evaluations.
        until: Evaluations that a trial gets at most.
    """
    trials = len(families)
    rows, climbers = [[*range(trials)]], [*range(1, trials)]
    for rung, following in itertools.pairwise(RUNGS):
        if following > until:
            break

        def mean(number, count):
            return np.mean([score(number, evaluation) for evaluation in range(count)])

        ranked = sorted(climbers, key=lambda n: mean(n, rung), reverse=True)
        leaders = [
            next(n for n in ranked if families[n] == name) for name in {families[n] for n in ranked}
        ]
        if following > 6:
            leaders = []
        third = max(3, len(climbers) // 3, len(leaders))
        climbers = [*leaders, *(n for n in ranked if n not in leaders)][:third]
        for evaluation in range(rung, following):
            best = sorted(climbers, key=lambda n: mean(n, evaluation), reverse=True)
            row = [0, *best][:budget]
            if len(row) > 1:
                rows.append(row)
                budget -= len(row)
            if len(row) <= len(climbers):
                return rows
    return rows


def climb(score, families, budget, slots=1, generator=None, until=30, granted=None):
    """Grant and finish evaluations in parallel, finishing in random order."""
    of_trials = dict(enumerate(families))
    granted = granted or {number: {0} for number in of_trials}
    scores = {n: {e: score(n, e) for e in sorted(done)} for n, done in granted.items()}
    running = []
    while True:
        while len(running) < slots:
            left = budget - sum(len(done) - 1 for done in granted.values())
            job = next_evaluation(scores, of_trials, granted, left, until)
            if job is None:
                break
            assert job[1] not in granted[job[0]]
            granted[job[0]].add(job[1])
            running.append(job)
        if not running:
            return granted, scores
        number, evaluation = running.pop(
            0 if generator is None else generator.integers(len(running))
        )
        scores[number][evaluation] = score(number, evaluation)


def noisy(seed):
    """Scores whose folds differ far more than trials."""
    generator = np.random.default_rng(seed)
    folds, table = generator.normal(0.8, 0.1, 40), generator.normal(0.0, 0.03, (60, 40))
    return lambda number, evaluation: float(folds[evaluation] + table[number, evaluation])


@pytest.mark.parametrize("seed", range(12))
def test_the_ladder_grants_what_its_definition_says_in_any_order(seed):
    generator = np.random.default_rng(seed)
    trials = int(generator.choice([2, 3, 4, 5, 9, 14, 30]))
    score, until = noisy(seed), int(generator.choice([3, 10, 30]))
    families = generator.choice(["a", "b", "c", "d"][: 1 + seed % 4], trials).tolist()
    for budget in (0, 1, 2, 3, 5, 8, 21, 60, 1000):
        expected = ladder_of(score, families, budget, until)
        for slots in (1, 2, 7):
            granted, scores = climb(score, families, budget, slots, generator, until)
            rows = [sorted(n for n, done in granted.items() if e in done) for e in range(30)]
            assert [row for row in rows if row] == [sorted(row) for row in expected]
            if len(expected[-1]) > 1:
                means = {
                    n: np.mean([score(n, e) for e in range(len(expected))]) for n in expected[-1]
                }
                assert chosen(scores) == max(means, key=means.get)


@pytest.mark.parametrize("trials", [1, 2, 4, 9, 14, 30])
@pytest.mark.parametrize("families", ["a", "abcd", "abcdefgh"])
def test_the_expected_evaluations_are_those_of_a_ladder(trials, families):
    of_trials = [families[number % len(families)] for number in range(trials)]
    granted, _ = climb(noisy(0), of_trials, math.inf, until=10)
    expected = expected_evaluations(trials, len({*of_trials[1:]}), 10)
    assert sum(map(len, granted.values())) == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_larger_budget_continues_a_ladder(seed):
    score, granted = noisy(seed), None
    for budget in (1, 3, 10, 11, 25, 70):
        granted, _ = climb(score, 12 * "a", budget, granted=granted)
    assert granted == climb(score, 12 * "a", 70)[0]


def test_the_best_of_each_family_climbs_until_a_cut_is_whole():
    """On the first fold all trials of one family are lucky; over a cut the other is better."""
    families = ["lucky"] * 10 + ["better"]

    def score(number, evaluation):
        return 0.8 if number == 10 else 0.9 if evaluation == 0 else 0.7

    granted, scores = climb(score, families, 60, until=10)
    assert len(granted[10]) == 10
    assert chosen(scores) == 10
    granted, scores = climb(score, ["alike"] * 11, 60, until=10)
    assert len(granted[10]) == 1


def test_nothing_climbs_without_the_start_or_another_trial():
    families = dict.fromkeys(range(3), "a")
    assert next_evaluation({1: {0: 0.5}, 2: {0: 0.5}}, families, {1: {0}, 2: {0}}, 9) is None
    assert next_evaluation({0: {0: 0.5}}, families, {0: {0}}, 9) is None


def test_trials_without_a_score_do_not_climb():
    """They failed, or were stopped within their first evaluation."""
    scores, granted = {0: {0: 0.5}, 2: {0: 0.4}}, {n: {0} for n in range(4)}
    rows, families = [], dict.fromkeys(range(4), "a")
    while job := next_evaluation(scores, families, granted, 4 - len(rows)):
        rows.append(job)
        granted[job[0]].add(job[1])
        scores[job[0]][job[1]] = 0.5
    assert rows == [(0, 1), (2, 1), (0, 2), (2, 2)]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 20, 26, 27, 100, 100_000])
def test_steps_within_are_a_ninth_and_a_third_of_the_most(most):
    steps = steps_within(most)
    assert steps == tuple(s for s in (most // 9 or 1) * np.array([1, 3]) if s < most)


@pytest.mark.parametrize("seed", range(5))
def test_the_worst_third_of_those_that_reached_a_step_stops(seed):
    scores = np.random.default_rng(seed).integers(0, 9, 11).astype(float)
    for count in range(1, len(scores)):
        reached = scores[: count + 1].tolist()
        place = sorted(reached, reverse=True).index(reached[-1])  # of equal scores, the best one
        in_worst_third = place + len(reached) // 3 >= len(reached)
        assert falls_behind(reached[-1], reached) is (len(reached) > 2 and in_worst_third)


# The choice.


@pytest.mark.parametrize("seed", range(3))
def test_trials_of_unequal_evaluations_are_compared_where_the_start_was_too(seed):
    """Folds differ far more than trials; the value finds the trial's gain all the same."""
    folds = np.random.default_rng(seed).normal(0.8, 0.1, 9)
    start = dict(enumerate(folds))
    for gain in (-0.02, 0.0, 0.03):
        for count in (1, 3, 9):
            scores = {e: folds[e] + gain for e in range(count)}
            assert paired_mean(scores, start) == pytest.approx(folds.mean() + gain)
            assert paired_differences(scores, start) == pytest.approx([gain] * count)
    assert paired_mean({0: 0.7, 1: 0.9}, {}) == pytest.approx(0.8)
    assert paired_mean({0: 0.7, 1: 0.9}, {1: 0.8}) == pytest.approx(0.8 + 0.1)


def test_the_standard_error_is_scipys():
    scores = [0.7, 0.75, 0.81, 0.66]
    assert standard_error(scores) == pytest.approx(stats.sem(scores))
    assert math.isnan(standard_error([0.7]))


def test_ranked_is_by_the_mean_of_the_rungs_evaluations_and_then_by_number():
    scores = {
        5: {0: 0.5, 1: 0.9, 2: 0.0},
        2: {0: 0.7, 1: 0.7},
        9: {0: 0.9, 1: 0.9},
        1: {0: 0.7, 1: 0.7},
    }
    assert ranked([*scores], scores, 2) == [9, 1, 2, 5]


def test_the_choice_is_the_best_of_those_with_the_most_evaluations():
    start = {0: 0.5, 1: 0.6, 2: 0.7}
    scores = {0: start, 1: {0: 0.9}, 2: {0: 0.52, 1: 0.61, 2: 0.72}, 3: {0: 0.51, 1: 0.63, 2: 0.72}}
    assert chosen(scores) == 3
    assert chosen({0: start, 1: {0: 0.9}}) == 1
    assert chosen({0: start, 1: {0: 0.5, 1: 0.6, 2: 0.7}}) == 0  # it has to be above the start
    assert chosen({0: start}) == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_cautious_choice_is_above_the_start_by_a_standard_error(seed):
    generator = np.random.default_rng(seed)
    start, trial = generator.normal(0.8, 0.02, 6), generator.normal(0.805, 0.02, 6)
    scores = {0: dict(enumerate(start)), 4: dict(enumerate(trial))}
    difference = trial - start
    clear = difference.mean() > stats.sem(difference)
    assert chosen(scores, cautious=True) == (4 if clear else 0)
    assert chosen(scores) == (4 if difference.mean() > 0 else 0)


def test_a_cautious_choice_keeps_the_start_where_no_error_is_known():
    assert chosen({0: {0: 0.5}, 1: {0: 0.9}}, cautious=True) == 0
