"""Debiased squared calibration error, against a mean over all pairs of rows and known truths."""

import numpy as np
import pytest

from benchmd_ray.scores.calibration import squared_error
from benchmd_ray.scores.seeds import difference_over_seeds
from benchmd_ray.scores.sums import BINS
from benchmd_ray.scores.support import support


def by_pairs(targets, scores, groups):
    """Mean over classes, bins and pairs of rows of different patients, pair by pair."""
    errors = []
    for target, score in zip(targets.T, scores.T, strict=True):
        known = target >= 0
        y, s, g = target[known], score[known], groups[known]
        place = np.minimum((s * BINS).astype(int), BINS - 1)
        total, rows = 0.0, 0
        for b in set(place):
            gap, who = (y - s)[place == b], g[place == b]
            products = [
                gap[i] * gap[j]
                for i in range(len(gap))
                for j in range(len(gap))
                if who[i] != who[j]
            ]
            if products:  # a bin of one patient says nothing
                total, rows = total + len(gap) * np.mean(products), rows + len(gap)
        errors.append(total / rows)
    return np.mean(errors)


def drawn(rng, patients, miscalibrated, most=3):
    """Records of a multi-label task whose positives are more frequent than the scores say."""
    sizes = rng.integers(1, most + 1, patients)
    groups = np.repeat(np.arange(patients), sizes)
    scores = rng.uniform(0.02, 0.8, (len(groups), 3))
    targets = (rng.random(scores.shape) < scores + miscalibrated).astype(np.int8)
    return targets, scores, groups


@pytest.mark.parametrize("most", [1, 4])
def test_it_is_the_mean_over_pairs_of_different_patients(most):
    rng = np.random.default_rng(most)
    targets, scores, groups = drawn(rng, 30, 0.1, most)
    targets[rng.random(targets.shape) < 0.2] = -1
    result = squared_error(targets, scores, groups, "multi-label", resamples=20)
    assert result.value == pytest.approx(by_pairs(targets, scores, groups), abs=1e-12)


def test_spread_of_its_draws_is_that_of_the_jackknife():
    targets, scores, groups = drawn(np.random.default_rng(1), 40, 0.15)
    result = squared_error(targets, scores, groups, "multi-label", resamples=2000)
    left = np.array(
        [by_pairs(*(x[groups != p] for x in (targets, scores, groups))) for p in range(40)]
    )
    expected = np.sqrt(39 / 40 * ((left - left.mean()) ** 2).sum())
    assert result.draws.std() == pytest.approx(expected, rel=0.06)


def test_one_patient_says_nothing():
    targets, scores, _ = drawn(np.random.default_rng(1), 5, 0)
    result = squared_error(targets, scores, np.zeros(len(scores)), "multi-label", resamples=3)
    assert np.isnan(result.value)
    assert np.isnan(result.draws).all()


@pytest.mark.slow
@pytest.mark.parametrize("miscalibrated", [0.0, 0.05, 0.15])
def test_it_has_no_bias_and_its_interval_covers_the_truth(miscalibrated):
    """Gaps are constant within bins, so that the truth is known: their square."""
    rng, values, covered = np.random.default_rng(7), [], []
    truth = miscalibrated**2
    for _ in range(400):
        targets, scores, groups = drawn(rng, 120, miscalibrated)
        result = squared_error(targets, scores, groups, "multi-label", resamples=200)
        basis = support(targets, groups).basis("brier")
        interval = difference_over_seeds([result.value], [result.draws], basis)
        values.append(result.value)
        covered.append(max(interval.low, 0) <= truth <= interval.high)
    assert abs(np.mean(values) - truth) < 3 * np.std(values) / np.sqrt(len(values))
    assert np.mean(covered) >= 0.92
    if miscalibrated == 0.15:  # near 0 the jackknife is wide
        assert np.mean(covered) <= 0.985
