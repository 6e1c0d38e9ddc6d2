import math
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.comparison import (
    bootstrap_p,
    delong,
    holm,
    unpaired,
)
from benchmd_ray.evaluation.intervals import group_multiplicities, interval, resampled
from benchmd_ray.evaluation.metrics import metric
from benchmd_ray.evaluation.seeds import difference_over_seeds

TASK = "multi-label"


def paired(targets, a, b, groups, **options):
    """AUROC of b minus that of a as the report compares them: one seed, the same resamples."""
    values = [metric("auroc", targets, s, TASK).mean for s in (a, b)]
    draws = [resampled("auroc", targets, s, groups, TASK, **options)[:, 0] for s in (a, b)]
    return difference_over_seeds([values[1] - values[0]], [draws[1] - draws[0]])


def gap(a, b, value_a, value_b):
    """A value minus that on other patients as the report compares them, with one seed."""
    return difference_over_seeds([value_a - value_b], [unpaired(a, b)])


def random_pair(seed, *, rows=60, classes=2, levels=9, patients=25):
    """Targets with unknowns, two score tables with ties, several rows per patient."""
    rng = np.random.default_rng(seed)
    targets = rng.choice([1, 0, -1], size=(rows, classes), p=[0.4, 0.5, 0.1]).astype(np.int8)
    base = rng.random((rows, classes)) + 0.3 * targets
    a, b = (base + rng.normal(0, 0.3, base.shape) for _ in range(2))
    squeezed = [np.round(levels / (1 + np.exp(-s))) / levels for s in (a, b)]
    return targets, *squeezed, rng.integers(0, patients, rows)


def clustered_covariance(target, scores, groups):
    """Slow reference: Obuchowski 1997 over all pairs of rows, (2,) AUROCs and their covariance."""
    m, n = (target == 1).sum(), (target == 0).sum()
    positive, negative = np.flatnonzero(target == 1), np.flatnonzero(target == 0)
    areas, x_sums, y_sums = [], [], []
    clusters = sorted(set(groups[target >= 0]))
    for score in scores:
        won = np.array(
            [[float(score[i] > score[j]) + 0.5 * (score[i] == score[j]) for j in negative]
             for i in positive]
        )  # fmt: skip
        area = won.mean()
        areas.append(area)
        x, y = won.mean(axis=1) - area, won.mean(axis=0) - area
        x_sums.append([x[groups[positive] == c].sum() for c in clusters])
        y_sums.append([y[groups[negative] == c].sum() for c in clusters])
    count, i10, i01 = (
        len(clusters), len(set(groups[positive])), len(set(groups[negative]))
    )  # fmt: skip
    covariance = np.empty((2, 2))
    for r in range(2):
        for s in range(2):
            s10 = i10 / ((i10 - 1) * m) * np.dot(x_sums[r], x_sums[s])
            s01 = i01 / ((i01 - 1) * n) * np.dot(y_sums[r], y_sums[s])
            s11 = count / (count - 1) * np.dot(x_sums[r], y_sums[s])
            s11_other = count / (count - 1) * np.dot(x_sums[s], y_sums[r])
            covariance[r, s] = s10 / m + s01 / n + (s11 + s11_other) / (m * n)
    return np.array(areas), covariance


def structural_covariance(target, scores):
    """Slow reference: DeLong 1988 by sample covariances of the structural components."""
    v10, v01 = [], []
    for score in scores:
        d = score[target == 1][:, None] - score[target == 0][None, :]
        won = (d > 0) + 0.5 * (d == 0)
        v10.append(won.mean(axis=1))
        v01.append(won.mean(axis=0))
    return np.cov(v10) / len(v10[0]) + np.cov(v01) / len(v01[0])


def correlated(rng, patients, *, records=1, gap=0.0):
    """One class, two techniques of AUROC differing by a separation of `gap`."""
    of_patient = np.repeat(np.arange(patients), records)
    target = rng.integers(0, 2, patients)[of_patient]
    shared, own_a, own_b = (rng.normal(size=patients)[of_patient] for _ in range(3))
    noise = rng.normal(0, 0.3, (2, len(target)))
    a = 1.2 * target + shared + 0.7 * own_a + noise[0]
    b = (1.2 + gap) * target + shared + 0.7 * own_b + noise[1]
    return target[:, None].astype(np.int8), a[:, None], b[:, None], of_patient


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("levels", [4, 1000])
def test_clustered_delong_agrees_with_counting_all_pairs(seed, levels):
    targets, a, b, groups = random_pair(seed, levels=levels)
    for index, found in enumerate(delong(targets, a, b, groups)):
        scores = (a[:, index], b[:, index])
        areas, covariance = clustered_covariance(targets[:, index], scores, groups)
        assert found.difference == pytest.approx(areas[1] - areas[0], abs=1e-12)
        variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
        assert found.se == pytest.approx(math.sqrt(variance))
        assert found.z == pytest.approx(found.difference / found.se)
        assert found.p == pytest.approx(2 * norm.sf(abs(found.z)))


@pytest.mark.parametrize("seed", range(8))
def test_delong_of_one_row_per_patient_is_the_classical_one(seed):
    targets, a, b, _ = random_pair(seed)
    rows = len(targets)
    found = delong(targets, a, b)
    named = delong(targets, a, b, np.random.default_rng(seed).permutation(rows))
    for one, other in zip(found, named, strict=True):
        assert (one.difference, one.se, one.p) == pytest.approx(
            (other.difference, other.se, other.p), abs=1e-12
        )
    for index, one in enumerate(found):
        covariance = structural_covariance(targets[:, index], (a[:, index], b[:, index]))
        assert one.se == pytest.approx(math.sqrt(np.array([-1, 1]) @ covariance @ [-1, 1]))
        known = targets[:, index] >= 0
        areas = [roc_auc_score(targets[known, index], s[known, index]) for s in (a, b)]
        assert one.difference == pytest.approx(areas[1] - areas[0], abs=1e-12)


def test_delong_by_hand():
    targets = np.array([[1], [1], [0], [0]])
    a, b = (np.array(s, float)[:, None] for s in ([4, 2, 3, 1], [4, 3, 2, 1]))
    # AUROC 3/4 and 1; positives differ by (0, 1/2), negatives by (1/2, 0): variances 1/8 each
    (found,) = delong(targets, a, b)
    assert found.difference == pytest.approx(0.25)
    assert found.se == pytest.approx(math.sqrt(1 / 8 / 2 + 1 / 8 / 2))
    assert found.p == pytest.approx(0.479500, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_delong_is_antisymmetric_and_ignores_row_order(seed):
    targets, a, b, groups = random_pair(seed)
    order = np.random.default_rng(seed).permutation(len(groups))
    for one, swapped, moved in zip(
        delong(targets, a, b, groups),
        delong(targets, b, a, groups),
        delong(targets[order], a[order], b[order], groups[order]),
        strict=True,
    ):
        assert one.difference == pytest.approx(-swapped.difference, abs=1e-12)
        assert one.p == pytest.approx(swapped.p) == pytest.approx(moved.p)
        assert one.se == pytest.approx(swapped.se) == pytest.approx(moved.se)


def test_techniques_of_the_same_order_do_not_differ():
    targets, a, _, groups = random_pair(0)
    for same in (a, np.exp(3 * a), np.full_like(a, 0.5)):
        for one in delong(targets, same, same**3, groups):
            assert (one.difference, one.se, one.z, one.p) == (0, 0, 0, 1)
        found = paired(targets, same, same**3, groups, resamples=50)
        assert (found.value, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_delong_says_nothing_where_the_patients_do_not():
    targets, a, b, groups = random_pair(1)
    absent, single = targets.copy(), targets.copy()
    absent[:, 1] = np.minimum(absent[:, 1], 0)
    one = delong(absent, a, b, groups)[1]
    assert np.isnan([one.difference, one.se, one.z, one.p]).all()
    single[:, 1] = groups == groups[0]  # all positives are one patient's
    one = delong(single, a, b, groups)[1]
    assert not math.isnan(one.difference)
    assert np.isnan([one.se, one.z, one.p]).all()
    perfect, constant = np.where(targets == 1, 0.9, 0.1), np.full(targets.shape, 0.5)
    one = delong(targets, constant, perfect, groups)[0]
    assert (one.difference, one.se) == (0.5, 0)
    assert np.isnan([one.z, one.p]).all()


@pytest.mark.parametrize("rows", [0, 1, 6])
def test_nothing_and_one_patient_have_no_p(rows):
    targets = np.resize(np.array([[1], [0]], np.int8), (rows, 1))
    a, b = np.linspace(0, 1, rows)[:, None], np.linspace(1, 0, rows)[:, None]
    groups = np.full(rows, "p")
    (one,) = delong(targets, a, b, groups)
    assert math.isnan(one.p)
    found = paired(targets, a, b, groups, resamples=20)
    assert np.isnan([found.low, found.high, found.p]).all()
    assert math.isnan(found.value) == (rows < 2)


def test_delong_holds_its_level_with_repeated_rows():
    """Without the patients' own rows as clusters it would find a difference far too often."""
    rng = np.random.default_rng(3)
    clustered, naive, trials = 0, 0, 400
    for _ in range(trials):
        targets, a, b, groups = correlated(rng, 80, records=4)
        clustered += delong(targets, a, b, groups)[0].p < 0.05
        naive += delong(targets, a, b)[0].p < 0.05
    assert 0.02 < clustered / trials < 0.09
    assert naive / trials > 0.2


def test_paired_bootstrap_agrees_with_drawing_rows():
    targets, a, b, groups = random_pair(2, levels=40)
    names, of_row = np.unique(groups, return_inverse=True)
    slow = []
    for counts in group_multiplicities(len(names), range(80), seed=7):
        rows = np.repeat(np.arange(len(groups)), counts[of_row])
        means = [metric("auroc", targets[rows], s[rows], TASK).mean for s in (a, b)]
        slow.append(means[1] - means[0])
    found = paired(targets, a, b, groups, resamples=80, seed=7)
    assert (found.low, found.high) == pytest.approx(interval(slow))
    below, above = sum(d <= 0 for d in slow), sum(d >= 0 for d in slow)
    assert found.p == pytest.approx(min(1, 2 * (1 + min(below, above)) / 81))


def test_paired_bootstrap_and_delong_agree_on_many_patients():
    targets, a, b, groups = correlated(np.random.default_rng(5), 1500, records=2, gap=0.1)
    draws = [resampled("auroc", targets, s, groups, TASK, resamples=2000)[:, 0] for s in (a, b)]
    (one,) = delong(targets, a, b, groups)
    assert np.std(draws[1] - draws[0]) == pytest.approx(one.se, rel=0.08)
    found = paired(targets, a, b, groups, resamples=2000)
    assert found.value == pytest.approx(one.difference)
    assert found.p == pytest.approx(one.p, abs=0.06)


def test_paired_bootstrap_holds_its_level_and_finds_a_difference():
    rng = np.random.default_rng(9)
    wrong, trials = 0, 150
    for trial in range(trials):
        targets, a, b, groups = correlated(rng, 80, records=2)
        found = paired(targets, a, b, groups, resamples=199, seed=trial)
        wrong += found.p < 0.05
    assert 0.01 < wrong / trials < 0.11
    targets, a, b, groups = correlated(rng, 300, gap=1.5)
    found = paired(targets, a, b, groups, resamples=199)
    assert found.p == pytest.approx(2 / 200)
    assert 0 < found.low < found.value < found.high


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1, 2, 3, 4], 2 / 5),
        ([-1, 2, 3, 4, 5, 6, 7, 8, 9], 4 / 10),
        ([-1, 1], 1),
        ([0, 0, 0], 1),
        ([1e-17, -1e-17, 0], 1),
        ([np.nan, 1, 2, 3], 2 / 4),
    ],
)
def test_bootstrap_p_by_hand(differences, expected):
    assert bootstrap_p(differences) == pytest.approx(expected)
    assert bootstrap_p(-np.array(differences)) == pytest.approx(expected)


def test_bootstrap_p_of_nothing_is_nan():
    assert math.isnan(bootstrap_p([]))
    assert math.isnan(bootstrap_p([np.nan]))


def closed_bonferroni(p):
    """Slow reference: Holm is the closed test of Bonferroni: the worst family that holds it."""
    tests = range(len(p))
    families = list(chain.from_iterable(combinations(tests, n + 1) for n in tests))
    return [
        max(min(1, len(f) * min(p[j] for j in f)) for f in families if i in f) for i in tests
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=7))
def test_holm_is_the_closed_test_of_bonferroni(p):
    np.testing.assert_allclose(holm(p), closed_bonferroni(p), atol=1e-12)


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.01, np.nan, 0.02]), [0.02, np.nan, 0.02])
    assert holm([]).shape == (0,)
    with pytest.raises(BenchmdError, match=r"p-values must lie within 0 to 1, but got 1\.5"):
        holm([0.1, 1.5])
    with pytest.raises(BenchmdError, match=r"p-values have shape \(1, 1\), expected \(tests,\)"):
        holm([[0.1]])


def test_gap_of_disjoint_patients_has_both_variances():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.9, 0.03, 4000), rng.normal(0.8, 0.04, 4000)
    found = gap(a, b, 0.9, 0.8)
    assert found.value == pytest.approx(0.1)
    assert (found.low, found.high) == pytest.approx((0.1 - 0.098, 0.1 + 0.098), abs=0.005)
    assert found.p == pytest.approx(2 * norm.sf(2), abs=0.02)


def test_gap_does_not_take_the_same_draws_for_paired():
    """The same predictions for two sets of patients have the same resamples, one by one."""
    targets, a, _, groups = random_pair(5)
    draws = resampled("auroc", targets, a, groups, TASK, resamples=1000)[:, 0]
    found = gap(draws, draws, 0.7, 0.7)
    assert found.p > 0.9
    assert np.std(unpaired(draws, draws)) == pytest.approx(math.sqrt(2) * np.std(draws), rel=0.1)
    np.testing.assert_array_equal(unpaired(draws, draws), unpaired(draws, draws))


def test_gap_leaves_out_what_could_not_be_scored():
    found = gap([np.nan] * 5, np.ones(5), math.nan, 1.0)
    assert np.isnan([found.value, found.low, found.high, found.p]).all()
    assert unpaired(np.ones(5), np.zeros(3)).shape == (3,)
    assert np.isnan(unpaired([np.nan, 1, 1], [1, 1, 1])).sum() == 1
    with pytest.raises(BenchmdError, match=r"shape \(2, 3\), expected \(resamples,\): take column"):
        unpaired(np.ones((2, 3)), np.ones(2))


def test_arguments_that_do_not_fit_are_refused():
    targets, a, b, groups = random_pair(6)
    with pytest.raises(BenchmdError, match=r"groups have shape \(59,\), expected \(60,\)"):
        delong(targets, a, b, groups[1:])
    with pytest.raises(BenchmdError, match=r"scores \(60, 1\)"):
        delong(targets, a, b[:, :1], groups)
