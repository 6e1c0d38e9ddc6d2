import math

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import beta, binomtest, norm, t

from benchmd_ray.scores.intervals import (
    Estimate,
    StandardError,
    difference_interval,
    equality_p,
    independent_difference,
    value_interval,
)


def one(se, df):
    return StandardError(se, ((se**2, df),))


def normal(value, se, draws=999):
    """Draws of a value that have exactly a normal distribution's quantiles."""
    return value + se * norm.ppf((np.arange(draws) + 0.5) / draws)


def on_logits(value, half):
    return tuple(expit(logit(value) + np.array([-half, half])))


@pytest.mark.parametrize("df", [1, 4, 19.5, 1e6])
def test_one_part_is_students_t(df):
    error = one(0.02, df)
    assert error.half == pytest.approx(0.02 * t.ppf(0.975, df))
    for distance in (0.0, 0.013, -0.05):
        assert error.p(distance) == pytest.approx(2 * t.sf(abs(distance) / 0.02, df))
    assert difference_interval(0.1, error) == pytest.approx(
        (max(-1, 0.1 - error.half), min(1, 0.1 + error.half))
    )


def test_two_parts_have_cochran_and_coxs_quantile():
    """Their test of two means with other variances: Cochran & Cox 1957, section 4.14."""
    parts = ((0.0004, 19.0), (0.0009, 2.0))
    error = StandardError(math.sqrt(0.0013), parts)
    expected = (0.0004 * t.ppf(0.975, 19) + 0.0009 * t.ppf(0.975, 2)) / 0.0013
    assert error.quantile(0.05) == pytest.approx(expected)
    assert t.ppf(0.975, 19) < error.quantile(0.05) < t.ppf(0.975, 2)
    assert StandardError(0.02, ((0.0004, 7.0), (0.0, 1.0))).quantile(0.05) == pytest.approx(
        t.ppf(0.975, 7)
    )


@pytest.mark.parametrize("distance", [0.0, 0.01, 0.06, 0.1, 0.4])
def test_p_is_where_the_interval_would_reach_zero(distance):
    error = StandardError(math.sqrt(0.0013), ((0.0004, 19.0), (0.0009, 2.0)))
    p = error.p(distance)
    assert error.se * error.quantile(p) == pytest.approx(distance, abs=1e-8)
    low, high = difference_interval(distance, error)
    assert (p < 0.05) == (not low <= 0 <= high)
    assert error.p(-distance) == p


def test_p_is_as_small_as_students_t_says():
    """A floor, times the number of tests by Holm, would hide every difference among many."""
    assert one(0.001, 50).p(0.0) == 1
    for distance, df in ((0.02, 50), (0.2, 50), (0.9, 1e6)):
        expected = 2 * t.sf(distance / 0.001, df)
        assert one(0.001, df).p(distance) == pytest.approx(expected, rel=1e-6)
    two = StandardError(math.sqrt(0.0013), ((0.0004, 190.0), (0.0009, 20.0)))
    reached = 0.4 / two.se
    assert 2 * t.sf(reached, 190) < two.p(0.4) < 2 * t.sf(reached, 20) < 1e-8


def test_the_interval_of_a_value_is_on_the_logit_scale():
    value, se = 0.7, 0.003
    low, high = value_interval(value, one(se, 12), normal(value, se), 13)
    half = t.ppf(0.975, 12) * se / (value * (1 - value))
    assert (low, high) == pytest.approx(on_logits(value, half), abs=1e-5)
    value, se = 0.93, 0.03
    low, high = value_interval(value, one(se, 12), normal(value, se).clip(0, 1), 13)
    assert value - low > high - value  # the near end leaves less room
    mirrored = value_interval(1 - value, one(se, 12), 1 - normal(value, se).clip(0, 1), 13)
    assert mirrored == pytest.approx((1 - high, 1 - low))


def test_skewed_resamples_widen_the_interval_to_their_spread_in_logits():
    value, draws = 0.95, normal(0.95, 0.03).clip(0, 0.9999)
    se = float(draws.std(ddof=1))
    low, high = value_interval(value, one(se, 12), draws, 13)
    middle = logit(np.quantile(draws, [norm.cdf(-1), norm.cdf(1)]))
    half = t.ppf(0.975, 12) * (middle[1] - middle[0]) / 2
    assert half > 1.1 * t.ppf(0.975, 12) * se / (value * (1 - value))
    assert (low, high) == pytest.approx(on_logits(value, half))


def test_perfect_resamples_count_as_near_to_1_and_not_as_infinite():
    value, draws = 0.96, np.repeat([0.9, 0.95, 0.98, 1.0], [200, 200, 200, 400])
    error = one(float(draws.std(ddof=1)), 12)
    low, high = value_interval(value, error, draws, 13)
    ends = logit(np.array([np.quantile(draws, norm.cdf(-1)), 1 - 0.04 / 4]))
    assert (low, high) == pytest.approx(
        on_logits(value, t.ppf(0.975, 12) * (ends[1] - ends[0]) / 2)
    )


def test_resamples_less_skewed_than_normal_do_not_narrow_it():
    value, se = 0.5, 0.1
    half = t.ppf(0.975, 12) * se / 0.25
    two = np.repeat([0.4, 0.6], 500)
    narrow = np.concatenate([np.full(900, 0.5), np.repeat([0.2, 0.8], 50)])
    for draws in (two, narrow):
        low, high = value_interval(value, one(se, 12), draws, 13)
        assert expit(logit(value) - half) >= low - 1e-12
        assert expit(logit(value) + half) <= high + 1e-12


@pytest.mark.parametrize("value", [1e-4, 0.003, 0.5, 0.9999])
def test_an_interval_stays_between_0_and_1(value):
    low, high = value_interval(value, one(0.2, 4), normal(value, 0.2).clip(0, 1), 5)
    assert 0 <= low < value < high <= 1


@pytest.mark.parametrize("patients", [5, 12, 300])
def test_a_perfect_value_has_clopper_and_pearsons_interval(patients):
    expected = binomtest(patients, patients).proportion_ci(0.95, "exact")
    for error in (one(0.0, 10), StandardError(math.nan, ())):
        assert value_interval(1.0, error, np.ones(9), patients) == pytest.approx(tuple(expected))
        low, high = value_interval(0.0, error, np.zeros(9), patients)
        assert (low, high) == pytest.approx((0, beta.ppf(0.975, 1, patients)))


def test_p_is_found_however_far_a_difference_is_and_few_its_degrees():
    for df in (1.0, 2.0, 3.0, 5.0, 9.0, 11.0, 4999.0):
        error = StandardError(math.sqrt(2.9e-5 + 2.4e-6), ((2.9e-5, 5000.0), (2.4e-6, df)))
        p = [error.p(distance) for distance in (0.0, 0.01, 0.05, 0.2, 0.9)]
        assert p == sorted(p, reverse=True)
        assert 0 < p[-1] < p[0] == 1


def test_independent_values_differ_as_their_own_intervals_say():
    """Zou and Donner's interval by hand; near 1 it is long on one side."""
    draws = normal(0.8, 0.02)
    a, b = (
        Estimate(0.98, one(0.01, 30), normal(0.98, 0.004), 30),
        Estimate(0.8, one(0.02, 60), draws, 60),
    )
    low, high, p = independent_difference(a, b)
    (low_a, high_a), (low_b, high_b) = a.ends(), b.ends()
    assert low == pytest.approx(0.18 - math.hypot(0.98 - low_a, high_b - 0.8))
    assert high == pytest.approx(0.18 + math.hypot(high_a - 0.98, 0.8 - low_b))
    (low_p, _), (_, high_p) = a.ends(p), b.ends(p)
    assert math.hypot(0.98 - low_p, high_p - 0.8) == pytest.approx(0.18, rel=1e-6)
    assert independent_difference(b, a)[2] == pytest.approx(p)
    assert independent_difference(a, a)[2] == 1


def test_equality_of_two_values_is_welchs_t_of_their_logits():
    a = Estimate(0.8, one(0.02, 20), normal(0.8, 0.02), 21)
    b = Estimate(0.7, one(0.03, 50), normal(0.7, 0.03), 51)
    errors = [x.error.se / (x.value * (1 - x.value)) for x in (a, b)]
    z = (logit(0.8) - logit(0.7)) / math.hypot(*errors)
    df = sum(e**2 for e in errors) ** 2 / (errors[0] ** 4 / 20 + errors[1] ** 4 / 50)
    assert equality_p([a, b]) == pytest.approx(2 * t.sf(z, df), rel=0.05)
    assert math.isnan(equality_p([a]))
    assert math.isnan(equality_p([a, Estimate(1.0, one(0.0, 20), np.ones(9), 20)]))


@pytest.mark.parametrize("error", [one(0.0, 10), StandardError(math.nan, ())])
def test_without_an_error_there_is_no_interval(error):
    assert np.isnan(value_interval(0.7, error, np.full(9, 0.7), 30)).all()
    assert np.isnan(difference_interval(0.0, error)).all()
    assert math.isnan(error.p(0.1))


def test_a_difference_is_cut_to_its_range():
    assert difference_interval(0.9, one(0.2, 3)) == pytest.approx(
        (0.9 - 0.2 * t.ppf(0.975, 3), 1.0)
    )
