"""Simulated scores: tests hold their level, intervals their coverage."""

import numpy as np
import pytest
from scipy.stats import binom
from touchstone_scores import algorithm

from benchmd_ray.benchmarks.touchstone.contests import Means, agreement, p_of_pairs
from benchmd_ray.benchmarks.touchstone.joining import joined
from benchmd_ray.benchmarks.touchstone.metadata import Metadata
from benchmd_ray.benchmarks.touchstone.summaries import draw
from benchmd_ray.scores.comparison import holm_together

CASES = 60


def within_chance(count, trials, share):
    """Whether so few are compatible with a share, one in a thousand apart."""
    return binom.cdf(count, trials, share) > 0.001


def cube(rng, cases, effects):
    """(cases, algorithms, classes): skewed, paired by case, some failures, some organs absent."""
    hard = rng.beta(1.5, 8, (cases, 1, 3))
    own = rng.beta(1.5, 8, (cases, len(effects), 3))
    values = 1 - 0.5 * hard - 0.5 * own - np.asarray(effects)[None, :, None]
    values = np.where(rng.random(values.shape) < 0.05, 0.0, values.clip(0, 1))
    return np.where(rng.random((cases, 1, 3)) < 0.3, np.nan, values)


def drawn_of(values, resamples=200):
    scores = joined([algorithm(f"n{a}", values[:, a]) for a in range(values.shape[1])])
    return draw(scores, "dsc", Metadata(), resamples)


@pytest.mark.slow
def test_equal_algorithms_seldom_differ_in_any_pair_of_a_class():
    rng, trials, false = np.random.default_rng(0), 400, 0
    for _ in range(trials):
        p = p_of_pairs(drawn_of(cube(rng, CASES, (0, 0, 0, 0)), resamples=2))
        false += bool((holm_together(p[0]) < 0.05).any())
    assert within_chance(trials - false, trials, 0.95)
    assert false > 0  # it can fail


@pytest.mark.slow
def test_intervals_of_means_averages_and_differences_hold_the_truth():
    rng, trials = np.random.default_rng(1), 300
    truth = np.nanmean(cube(rng, 400_000, (0, 0.05)), axis=0)  # (algorithms, classes)
    inside = np.zeros(3)
    for _ in range(trials):
        one = drawn_of(cube(rng, 2 * CASES, (0, 0.05)))
        found = (one.interval(0, 0), one.interval(0, 3), one.difference(0, 1, 3)[1:])
        wanted = (truth[0, 0], truth[0].mean(), truth[0].mean() - truth[1].mean())
        inside += [low <= value <= high for (low, high), value in zip(found, wanted, strict=True)]
    assert all(within_chance(count, trials, 0.95) for count in inside), inside / trials
    assert inside.min() < trials


@pytest.mark.slow
def test_intervals_of_the_agreement_of_two_sets_hold_the_truth():
    rng, trials, inside, widths = np.random.default_rng(2), 200, 0, []
    first, second = np.array([0.8, 0.79, 0.7, 0.5, 0.49]), np.array([0.8, 0.6, 0.7, 0.5, 0.3])
    names = tuple("abcde")
    truth = 0.8  # one pair of ten is turned
    for _ in range(trials):
        sets = []
        for means in (first, second):
            sample = means + rng.normal(0, 0.15, (80, 5)) + rng.normal(0, 0.1, (80, 1))
            counts = rng.multinomial(80, np.full(80, 1 / 80), 200)
            sets.append(Means(names, sample.mean(axis=0), counts @ sample / 80, 80))
        found = agreement(*sets)
        inside += found.low - 1e-9 <= truth <= found.high + 1e-9
        widths.append(found.high - found.low)
    assert within_chance(inside, trials, 0.95)
    assert np.mean(widths) < 1.5  # it says something
