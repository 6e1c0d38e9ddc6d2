import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.comparison import holm
from benchmd_ray.scores.signed_rank import holm_together, ordered_pairs, signed_rank


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
