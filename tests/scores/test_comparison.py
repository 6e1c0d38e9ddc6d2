import math
from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata, t, wilcoxon
from sklearn.metrics import roc_auc_score

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores import comparison
from benchmd_ray.scores.comparison import (
    EXCHANGES,
    LEAST_EXCHANGE_P,
    delong,
    delong_shares,
    exchange_p,
    exchange_shares,
    holm,
    holm_together,
    ordered_pairs,
    signed_rank,
)
from benchmd_ray.scores.metrics import metric
from benchmd_ray.scores.resampling import group_multiplicities, resampled
from benchmd_ray.scores.seeds import difference_over_seeds
from benchmd_ray.scores.support import support

TASK = "multi-label"


def paired(targets, a, b, groups, **options):
    """AUROC of b minus that of a by the bootstrap: one seed, the same resamples."""
    values = [metric("auroc", targets, s, TASK).mean for s in (a, b)]
    draws = [resampled("auroc", targets, s, groups, TASK, **options)[:, 0] for s in (a, b)]
    basis = support(targets, groups).basis("auroc")
    return difference_over_seeds([values[1] - values[0]], [draws[1] - draws[0]], basis)


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


def mean_covariance(targets, a, b, groups):
    """Slow reference: variance of the difference of mean AUROCs, class by class and row by row.

    A class's variance is the clustered one; the covariance of two classes is that of the patients'
    sums over their positives and their negatives, with n / (n - 1) for n patients.
    """
    clusters, classes = sorted(set(groups)), targets.shape[1]
    total, sums = 0.0, np.zeros((classes, len(clusters)))
    for c in range(classes):
        target, scores = targets[:, c], (a[:, c], b[:, c])
        _, covariance = clustered_covariance(target, scores, groups)
        total += covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
        positive, negative = np.flatnonzero(target == 1), np.flatnonzero(target == 0)
        for score, sign in zip(scores, (-1, 1), strict=True):
            d = score[positive][:, None] - score[negative][None, :]
            won = (d > 0) + 0.5 * (d == 0)
            for rows, centred, size in (
                (positive, won.mean(axis=1) - won.mean(), len(positive)),
                (negative, won.mean(axis=0) - won.mean(), len(negative)),
            ):
                for row, value in zip(rows, centred, strict=True):
                    sums[c, clusters.index(groups[row])] += sign * value / size
    factor = len(clusters) / (len(clusters) - 1)
    for c in range(classes):
        for other in range(classes):
            if c != other:
                total += factor * np.dot(sums[c], sums[other])
    return total / classes**2


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("levels", [4, 1000])
def test_clustered_delong_agrees_with_counting_all_pairs(seed, levels):
    targets, a, b, groups = random_pair(seed, levels=levels)
    for index in range(targets.shape[1]):
        one = slice(index, index + 1)
        found = delong(targets[:, one], a[:, one], b[:, one], groups)
        scores = (a[:, index], b[:, index])
        areas, covariance = clustered_covariance(targets[:, index], scores, groups)
        assert found.difference == pytest.approx(areas[1] - areas[0], abs=1e-12)
        variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
        assert found.se == pytest.approx(math.sqrt(variance))
        assert found.degrees == support(targets[:, one], groups).basis("auroc").degrees
        assert found.p == pytest.approx(2 * t.sf(abs(found.difference) / found.se, found.degrees))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("classes", [2, 5])
def test_delong_of_a_mean_has_the_covariance_of_all_classes(seed, classes):
    targets, a, b, groups = random_pair(seed, classes=classes)
    found = delong(targets, a, b, groups)
    each = [
        np.diff(clustered_covariance(targets[:, c], (a[:, c], b[:, c]), groups)[0])[0]
        for c in range(classes)
    ]
    assert found.difference == pytest.approx(np.mean(each))
    assert found.se == pytest.approx(math.sqrt(mean_covariance(targets, a, b, groups)))
    assert found.p == pytest.approx(2 * t.sf(abs(found.difference) / found.se, found.degrees))


def test_delong_of_a_class_and_its_mirror_is_that_of_the_class():
    """Their AUROCs vary as one: a mean of independent classes would vary less."""
    targets, a, b, groups = random_pair(3, classes=1)
    targets[targets < 0] = 0
    one = delong(targets, a, b, groups)
    both = delong(*(np.hstack([x, 1 - x]) for x in (targets, a, b)), groups)
    assert both.difference == pytest.approx(one.difference)
    assert both.se == pytest.approx(one.se, rel=0.02)
    assert both.degrees == one.degrees


@pytest.mark.parametrize("seed", range(8))
def test_delong_of_one_row_per_patient_is_the_classical_one(seed):
    targets, a, b, _ = random_pair(seed, classes=1)
    one = delong(targets, a, b)
    named = delong(targets, a, b, np.random.default_rng(seed).permutation(len(targets)))
    assert (one.difference, one.se, one.p) == pytest.approx((named.difference, named.se, named.p))
    covariance = structural_covariance(targets[:, 0], (a[:, 0], b[:, 0]))
    assert one.se == pytest.approx(math.sqrt(np.array([-1, 1]) @ covariance @ [-1, 1]))
    known = targets[:, 0] >= 0
    areas = [roc_auc_score(targets[known, 0], s[known, 0]) for s in (a, b)]
    assert one.difference == pytest.approx(areas[1] - areas[0], abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_squares_of_what_patients_move_add_up_to_delongs_variance(seed):
    targets, a, b, _ = random_pair(seed, classes=1)
    patients = np.arange(len(targets))
    shares = delong_shares(targets, a, b, patients)
    assert math.sqrt(np.square(shares).sum()) == pytest.approx(delong(targets, a, b).se)


def test_a_single_patient_moves_a_difference_by_all_of_it():
    targets, a, b, _ = random_pair(0, classes=1)
    targets[:] = 0
    targets[3] = 1
    patients = np.arange(len(targets))
    shares = delong_shares(targets, a, b, patients)
    gap = roc_auc_score(targets, b) - roc_auc_score(targets, a)
    assert shares[3] == pytest.approx(gap)
    below = np.array([(s[3] > s).astype(float) + (s[3] == s) / 2 for s in (a[:, 0], b[:, 0])])
    others = np.delete(below[1] - below[0], 3)
    assert np.square(np.delete(shares, 3)).sum() == pytest.approx(others.var(ddof=1) / len(others))
    assert not len(delong_shares(np.zeros_like(targets), a, b, patients))


def test_delong_by_hand():
    targets = np.array([[1], [1], [0], [0]])
    a, b = (np.array(s, float)[:, None] for s in ([4, 2, 3, 1], [4, 3, 2, 1]))
    # AUROC 3/4 and 1; positives differ by (0, 1/2), negatives by (1/2, 0): variances 1/8 each
    found = delong(targets, a, b)
    assert found.difference == pytest.approx(0.25)
    assert found.se == pytest.approx(math.sqrt(1 / 8 / 2 + 1 / 8 / 2))
    assert found.degrees == 1  # two patients on the rarer side
    assert found.p == pytest.approx(2 * t.sf(0.25 / math.sqrt(1 / 8), 1))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_delong_is_antisymmetric_and_ignores_row_order(seed):
    targets, a, b, groups = random_pair(seed)
    order = np.random.default_rng(seed).permutation(len(groups))
    one, swapped = delong(targets, a, b, groups), delong(targets, b, a, groups)
    moved = delong(targets[order], a[order], b[order], groups[order])
    assert one.difference == pytest.approx(-swapped.difference, abs=1e-12)
    assert one.p == pytest.approx(swapped.p) == pytest.approx(moved.p)
    assert one.se == pytest.approx(swapped.se) == pytest.approx(moved.se)


def test_techniques_of_the_same_order_do_not_differ():
    targets, a, _, groups = random_pair(0)
    for same in (a, np.exp(3 * a), np.full_like(a, 0.5)):
        one = delong(targets, same, same**3, groups)
        assert (one.difference, one.se, one.p) == (0, 0, 1)
        assert exchange_p(targets, same, same**3, groups, at_a_time=50, most=50) == 1
        found = paired(targets, same, same**3, groups, resamples=50)
        assert found.value == 0
        assert np.isnan([found.low, found.high, found.p]).all()
        assert "the resamples do not differ" in found.caution


def test_delong_says_nothing_where_the_patients_do_not():
    targets, a, b, groups = random_pair(1)
    absent, single = targets.copy(), targets.copy()
    absent[:, 1] = np.minimum(absent[:, 1], 0)
    assert delong(absent, a, b, groups) == delong(targets[:, :1], a[:, :1], b[:, :1], groups)
    nothing = delong(absent[:, 1:], a[:, 1:], b[:, 1:], groups)
    assert np.isnan([nothing.difference, nothing.se, nothing.p]).all()
    single[:, 1] = groups == groups[0]  # all positives are one patient's
    one = delong(single, a, b, groups)
    assert not math.isnan(one.difference)
    assert np.isnan([one.se, one.p]).all()
    perfect, constant = np.where(targets == 1, 0.9, 0.1), np.full(targets.shape, 0.5)
    one = delong(targets, constant, perfect, groups)
    assert (one.difference, one.se) == (0.5, 0)
    assert math.isnan(one.p)


@pytest.mark.parametrize("rows", [0, 1, 6])
def test_nothing_and_one_patient_have_no_p(rows):
    targets = np.resize(np.array([[1], [0]], np.int8), (rows, 1))
    a, b = np.linspace(0, 1, rows)[:, None], np.linspace(1, 0, rows)[:, None]
    groups = np.full(rows, "p")
    assert math.isnan(delong(targets, a, b, groups).p)
    found = paired(targets, a, b, groups, resamples=20)
    assert np.isnan([found.low, found.high, found.p]).all()
    assert math.isnan(found.value) == (rows < 2)
    assert math.isnan(exchange_p(targets, a, b, groups)) == (rows < 2)


def test_delong_holds_its_level_with_repeated_rows():
    """Without the patients' own rows as clusters it would find a difference far too often."""
    rng = np.random.default_rng(3)
    clustered, naive, trials = 0, 0, 400
    for _ in range(trials):
        targets, a, b, groups = correlated(rng, 80, records=4)
        clustered += delong(targets, a, b, groups).p < 0.05
        naive += delong(targets, a, b).p < 0.05
    assert 0.02 < clustered / trials < 0.09
    assert naive / trials > 0.2


def exchanged(targets, a, b, groups, swapped):
    """Slow reference: mean AUROC of b minus that of a once ranks are swapped in some patients."""
    differences = []
    for c in range(targets.shape[1]):
        known = targets[:, c] >= 0
        target, turned = targets[known, c], np.isin(groups[known], list(swapped))
        first, second = (rankdata(s[known, c]) for s in (a, b))
        one, other = np.where(turned, second, first), np.where(turned, first, second)
        differences.append(roc_auc_score(target, other) - roc_auc_score(target, one))
    return np.mean(differences)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("levels", [3, 1000])
def test_shares_with_turned_signs_are_the_difference_after_an_exchange(seed, levels):
    targets, a, b, groups = random_pair(seed, levels=levels)
    shares = exchange_shares(targets, a, b, groups)
    names = np.unique(groups)
    rng = np.random.default_rng(seed)
    for size in (0, 1, 4, len(names)):
        swapped = rng.choice(names, size, replace=False)
        signs = np.where(np.isin(names, swapped), -1, 1)
        expected = exchanged(targets, a, b, groups, set(swapped))
        assert signs @ shares == pytest.approx(expected, abs=1e-12)
    difference = [metric("auroc", targets, s, TASK).mean for s in (b, a)]
    assert shares.sum() == pytest.approx(difference[0] - difference[1], abs=1e-12)


def test_exchange_p_approaches_that_of_all_exchanges():
    targets, a, b, groups = random_pair(4, patients=8)
    shares = exchange_shares(targets, a, b, groups)
    whole = [
        abs(np.dot(signs, shares)) >= abs(shares.sum()) - 1e-12
        for signs in product((-1, 1), repeat=len(shares))
    ]
    found = exchange_p(targets, a, b, groups, at_a_time=20_000, most=20_000)
    assert found == pytest.approx(np.mean(whole), abs=0.015)
    assert exchange_p(targets, b, a, groups, at_a_time=20_000, most=20_000) == found
    scaled = np.exp(5 * a)  # which leaves the ranks as they are
    assert exchange_p(targets, scaled, b, groups, at_a_time=20_000, most=20_000) == found


def test_exchange_p_draws_more_where_it_is_small_and_keeps_what_was_drawn():
    draws = np.random.default_rng(0)
    for gap in (0.0, 0.15, 0.4, 1.5):
        targets, a, b, groups = correlated(draws, 120, gap=gap)
        few = exchange_p(targets, a, b, groups, at_a_time=100, most=100)
        found = exchange_p(targets, a, b, groups, at_a_time=100, most=2_000)
        if few > 10 / 101:  # ten of the first hundred were as far from 0: no more are drawn
            assert found == few
        else:
            whole = exchange_p(targets, a, b, groups, at_a_time=2_000, most=2_000)
            assert found == pytest.approx(whole, rel=0.7, abs=1 / 2_001)
    assert few == 1 / 101
    assert found == 1 / 2_001
    assert LEAST_EXCHANGE_P == 1 / (EXCHANGES + 1)


def test_exchange_p_that_stops_early_keeps_every_level():
    """Of a sum of signs, which nothing tells from another: P(p <= α) <= α for all α."""
    targets, a, b, groups = correlated(np.random.default_rng(5), 40)
    shares = exchange_shares(targets, a, b, groups)
    rng, p = np.random.default_rng(6), []
    for seed in range(2_000):
        signs = rng.choice((-1, 1), len(shares))
        p.append(comparison.exchange_of_shares(signs * shares, at_a_time=50, most=400, seed=seed))
    for level in (0.01, 0.025, 0.05, 0.1, 0.2, 0.5):
        share = np.mean(np.array(p) <= level)
        assert share <= level + 3 * math.sqrt(level * (1 - level) / len(p)), level
        assert share > 0.6 * level - 0.004, level


def test_exchange_p_of_many_patients_is_drawn_in_blocks(monkeypatch):
    targets, a, b, groups = correlated(np.random.default_rng(8), 300, gap=0.3)
    whole = exchange_p(targets, a, b, groups, at_a_time=4000, most=4000)
    monkeypatch.setattr(comparison, "_BLOCK", 64)
    assert exchange_p(targets, a, b, groups, at_a_time=4000, most=4000) == pytest.approx(
        whole, abs=0.02
    )


def test_exchange_p_is_never_0_and_finds_a_difference():
    targets, a, b, groups = correlated(np.random.default_rng(9), 300, gap=1.5)
    assert exchange_p(targets, a, b, groups, at_a_time=199, most=199) == 1 / 200


@pytest.mark.parametrize(
    ("patients", "records", "positives"), [(24, 8, 12), (120, 1, 12), (120, 1, 60)]
)
def test_exchange_p_holds_its_level_with_few_patients_and_few_positives(
    patients, records, positives
):
    rng, wrong, trials = np.random.default_rng(patients + positives), 0, 600
    target = (np.arange(patients) < positives).astype(np.int8)
    groups = np.repeat(np.arange(patients), records)
    for _ in range(trials):
        people = rng.normal(size=(3, patients))
        a, b = (
            1.2 * target[groups] + (people[0] + people[n])[groups] + rng.normal(size=len(groups))
            for n in (1, 2)
        )
        rows = target[groups, None], a[:, None], b[:, None]
        wrong += exchange_p(*rows, groups, at_a_time=199, most=199) < 0.05
    assert 0.03 < wrong / trials < 0.07


def test_the_test_of_a_mean_holds_its_level_where_the_smallest_p_of_a_class_does_not():
    """Two positives in the rarest of seven classes: their two ranks decide a class's own test."""
    rng, of_mean, smallest, trials = np.random.default_rng(1), 0, 0, 200
    label = np.append([0, 0], np.arange(58) % 6 + 1)
    targets = np.eye(7, dtype=np.int8)[label]
    groups = np.arange(60)
    for _ in range(trials):
        shared = rng.normal(size=targets.shape)
        a, b = (1.2 * targets + shared + 0.7 * rng.normal(size=targets.shape) for _ in range(2))
        of_mean += exchange_p(targets, a, b, groups, at_a_time=199, most=199) < 0.05
        each = [delong(*(x[:, c : c + 1] for x in (targets, a, b)), groups) for c in range(7)]
        by_normal = [2 * norm.sf(abs(one.difference) / one.se) if one.se else 1 for one in each]
        smallest += min(holm(by_normal)) < 0.05
    assert of_mean / trials < 0.085
    assert smallest / trials > 0.12


def test_paired_bootstrap_agrees_with_drawing_rows():
    targets, a, b, groups = random_pair(2, levels=40)
    names, of_row = np.unique(groups, return_inverse=True)
    slow = []
    for counts in group_multiplicities(len(names), range(80), seed=7):
        rows = np.repeat(np.arange(len(groups)), counts[of_row])
        means = [metric("auroc", targets[rows], s[rows], TASK).mean for s in (a, b)]
        slow.append(means[1] - means[0])
    found = paired(targets, a, b, groups, resamples=80, seed=7)
    degrees = support(targets, groups).basis("auroc").degrees
    half = np.std(slow, ddof=1) * t.ppf(0.975, degrees)
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))


def test_paired_bootstrap_exchange_and_delong_agree_on_many_patients():
    targets, a, b, groups = correlated(np.random.default_rng(5), 1500, records=2, gap=0.1)
    draws = [resampled("auroc", targets, s, groups, TASK, resamples=2000)[:, 0] for s in (a, b)]
    one = delong(targets, a, b, groups)
    assert np.std(draws[1] - draws[0]) == pytest.approx(one.se, rel=0.08)
    found = paired(targets, a, b, groups, resamples=2000)
    assert found.value == pytest.approx(one.difference)
    assert found.p == pytest.approx(one.p, abs=0.06)
    assert exchange_p(targets, a, b, groups, at_a_time=2000, most=2000) == pytest.approx(
        one.p, abs=0.06
    )


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
    assert 0 < found.p < 1e-6
    assert 0 < found.low < found.value < found.high


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


def test_what_no_outcome_could_make_significant_is_not_tested():
    floor = 1 / 1_001
    seventy_two = np.full(72, floor)
    assert np.isnan(holm(seventy_two, floor)).all()  # 72 / 1001 is above 0.05 whatever was seen
    assert (holm(seventy_two) > 0.05).all()  # and not "no difference"
    twenty = holm(np.full(20, floor), floor)
    np.testing.assert_allclose(twenty, 20 * floor)
    # Those with the largest smallest p go first; tests by Student's t have none and always stay.
    p, least = [1e-9] * 60 + [1e-4] * 3 + [floor] * 3, [0.0] * 60 + [1e-4] * 3 + [floor] * 3
    mixed = holm(p, least)
    assert np.isnan(mixed[63:]).all()
    np.testing.assert_allclose(mixed[:60], 63e-9)
    np.testing.assert_allclose(mixed[60:63], 3e-4)
    missing = holm([np.nan, floor], floor)
    np.testing.assert_allclose(missing, [np.nan, floor])


@pytest.mark.parametrize("techniques", [8, 12])
def test_the_best_of_many_techniques_differs_from_all_others_after_holm(techniques):
    rng = np.random.default_rng(techniques)
    targets = np.repeat([[1], [0]], 40, axis=0)
    shared = rng.normal(size=(80, 1))
    scores = [shared + rng.normal(size=(80, 1)) for _ in range(techniques - 1)]
    scores.append(shared + 4 * targets)
    pairs = list(combinations(range(techniques), 2))
    p = [exchange_p(targets, scores[a], scores[b], np.arange(80)) for a, b in pairs]
    corrected = holm(p, LEAST_EXCHANGE_P)
    best = np.array([b == techniques - 1 for _, b in pairs])
    assert corrected[best].max() < 0.05
    assert np.mean(corrected[~best] < 0.05) < 0.05
    if techniques == 12:  # with 1,000 draws none of the 66 could have been significant
        assert 66 / 1_001 > 0.05


def test_arguments_that_do_not_fit_are_refused():
    targets, a, b, groups = random_pair(6)
    with pytest.raises(BenchmdError, match=r"groups have shape \(59,\), expected \(60,\)"):
        delong(targets, a, b, groups[1:])
    with pytest.raises(BenchmdError, match=r"scores \(60, 1\)"):
        delong(targets, a, b[:, :1], groups)
    with pytest.raises(BenchmdError, match=r"groups have shape \(59,\), expected \(60,\)"):
        exchange_p(targets, a, b, groups[1:])


def differences(seed, count, levels=1000):
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(0.1, 1, count) * levels) / levels


@pytest.mark.parametrize("levels", [3, 1000])
@pytest.mark.parametrize("count", [60, 400])
def test_large_samples_have_scipys_p(count, levels):
    held = differences(count, count, levels)
    found = signed_rank(held)
    for side in ("greater", "less"):
        expected = wilcoxon(held, alternative=side, method="approx", correction=False).pvalue
        assert getattr(found, side) == pytest.approx(expected, rel=1e-10)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_small_samples_without_ties_have_scipys_exact_p(seed, count):
    held = np.random.default_rng(seed).normal(0.2, 1, count)
    found = signed_rank(held)
    for side in ("greater", "less"):
        expected = wilcoxon(held, alternative=side, method="exact").pvalue
        assert getattr(found, side) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_small_samples_with_ties_have_the_share_of_all_signs(held):
    nonzero = np.array([each for each in held if each], float)
    found = signed_rank(held)
    if not len(nonzero):
        assert found == (1.0, 1.0)
        return
    from scipy.stats import rankdata

    ranks = rankdata(np.abs(nonzero))
    signs = np.array(np.meshgrid(*[[0, 1]] * len(ranks))).reshape(len(ranks), -1)
    sums, own = ranks @ signs, ranks[nonzero > 0].sum()
    assert found.greater == pytest.approx((sums >= own - 1e-9).mean())
    assert found.less == pytest.approx((sums <= own + 1e-9).mean())


def test_missing_values_are_no_cases_and_none_is_nan():
    held = differences(1, 80)
    assert signed_rank(np.append(held, [np.nan] * 5)) == signed_rank(held)
    assert all(math.isnan(p) for p in signed_rank([np.nan, np.nan]))
    with pytest.raises(BenchmdError, match=r"differences have shape \(2, 1\), expected \(cases,\)"):
        signed_rank([[1.0], [2.0]])


def test_identical_samples_have_p_1_for_any_number_of_cases():
    for count in (10, 50, 51, 500):
        values = np.random.default_rng(0).random((count, 1)).repeat(2, axis=1)
        assert np.nansum(ordered_pairs(values)) == 2.0


def test_every_ordered_pair_is_tested_once():
    values = np.random.default_rng(3).random((70, 4)) + np.arange(4) / 10
    found = ordered_pairs(values)
    assert np.isnan(found.diagonal()).all()
    assert np.count_nonzero(~np.isnan(found)) == 12
    for a, b in ((0, 1), (1, 0), (3, 2)):
        expected = wilcoxon(
            values[:, a], values[:, b], alternative="greater", method="approx", correction=False
        ).pvalue
        assert found[a, b] == pytest.approx(expected)
    with pytest.raises(BenchmdError, match=r"expected \(cases, techniques\)"):
        ordered_pairs([1.0, 2.0])


def test_a_family_of_any_shape_is_holms():
    p = np.array([[np.nan, 0.01, 0.04], [0.3, np.nan, 0.02]])
    np.testing.assert_array_equal(holm_together(p).ravel(), holm(p.ravel()))


def test_an_exchange_over_folds_ranks_each_fold_by_itself():
    """Offsets of the folds' models change nothing; the shares add up to the difference."""
    rng = np.random.default_rng(0)
    target, fold = rng.integers(0, 2, 60), np.arange(60) % 3
    targets = np.stack([1 - target, target], axis=1)
    a, b = (rng.normal(size=60) + gain * target for gain in (0.2, 1.0))
    both = [np.stack([-score, score], axis=1) for score in (a, b)]
    shares = exchange_shares(targets, *both, np.arange(60), fold)
    of_folds = [
        roc_auc_score(target[fold == f], b[fold == f])
        - roc_auc_score(target[fold == f], a[fold == f])
        for f in range(3)
    ]
    np.testing.assert_allclose(shares.sum(), np.mean(of_folds))
    offsets = 10 * rng.normal(size=3)[fold][:, None] * np.array([-1, 1])
    moved = exchange_shares(targets, both[0], both[1] + offsets, np.arange(60), fold)
    np.testing.assert_allclose(moved, shares)
    p = exchange_p(targets, *both, np.arange(60), folds=fold)
    assert p == exchange_p(targets, both[0], both[1] + offsets, np.arange(60), folds=fold)
    assert p != exchange_p(targets, both[0], both[1] + offsets, np.arange(60))
