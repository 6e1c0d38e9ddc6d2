import math

import numpy as np
import pytest
from scipy.stats import norm, t

from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.comparison import bootstrap_p
from benchmd_ray.evaluation.intervals import group_multiplicities, interval, resampled
from benchmd_ray.evaluation.metrics import metric
from benchmd_ray.evaluation.seeds import difference_over_seeds, pooled_seeds

PATIENTS = 60
SHARES = group_multiplicities(PATIENTS, range(300)) / PATIENTS


def one_study(rng, seeds, *, patient=1.0, between=0.0, own=0.0, truth=0.0):
    """Values and paired resamples of a metric that is a mean over patients.

    `patient` is the standard error that all seeds share, `own` that of each seed's own errors on
    the patients, `between` the standard deviation of the seeds' expected values.
    """
    of_patient = rng.normal(0, patient, PATIENTS) + rng.normal(0, own, (seeds, PATIENTS))
    rows = truth + rng.normal(0, between, (seeds, 1)) + of_patient * math.sqrt(PATIENTS)
    return rows.mean(axis=1), rows @ SHARES.T


def coverage(seeds, trials=600, **mix):
    """Share of studies whose intervals hold the truth: pooled, patients alone, seeds alone."""
    rng = np.random.default_rng(seeds)
    held = np.zeros(3)
    for _ in range(trials):
        values, draws = one_study(rng, seeds, **mix)
        found = pooled_seeds(values, draws)
        low, high = interval(draws.mean(axis=0))
        half = t.ppf(0.975, seeds - 1) * found.sd / math.sqrt(seeds)
        held += [found.low <= 0 <= found.high, low <= 0 <= high, abs(found.mean) <= half]
    return held / trials


def obuchowski_rockette(values, draws, level=0.95):
    """Slow reference: half-width by the standard error and degrees of freedom of Hillis 2007.

    Loop by loop, for seeds × the variance of the mean, which the patients' own part bounds below.
    """
    seeds, covariances = len(values), []
    for i in range(seeds):
        for j in range(i):
            products = (draws[i] - np.mean(draws[i])) * (draws[j] - np.mean(draws[j]))
            covariances.append(sum(products) / (len(products) - 1))
    square = sum((v - np.mean(values)) ** 2 for v in values) / (seeds - 1)
    patients = sum((draws.mean(axis=0) - draws.mean()) ** 2) / (draws.shape[1] - 1)
    numerator = max(square + seeds * max(0, np.mean(covariances)), seeds * patients)
    df = numerator**2 / (square**2 / (seeds - 1))
    return t.ppf((1 + level) / 2, df) * math.sqrt(numerator / seeds)


def test_mean_and_sd_are_those_over_seeds():
    values, draws = one_study(np.random.default_rng(0), 4, own=0.3)
    found = pooled_seeds(values, draws)
    assert found.mean == pytest.approx(sum(values) / 4)
    assert found.sd == pytest.approx(math.sqrt(sum((v - values.mean()) ** 2 for v in values) / 3))
    assert found.seeds == 4
    assert found.low < found.mean < found.high


def test_one_seed_has_the_percentile_interval():
    values, draws = one_study(np.random.default_rng(1), 1)
    found = pooled_seeds(values, draws)
    assert (found.low, found.high) == interval(draws[0])
    assert math.isnan(found.sd)
    tested = difference_over_seeds(values, draws)
    assert (tested.value, tested.low, tested.high) == (found.mean, found.low, found.high)
    assert tested.p == bootstrap_p(draws[0])


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("between", [2.0, 0.0])  # with 0 the patients' part is the larger one
def test_width_is_that_of_reader_studies(seeds, level, between):
    """The width is Hillis's but for the shape of the bootstrap."""
    values, draws = one_study(np.random.default_rng(seeds), seeds, between=between, own=0.5)
    if not between:
        values = values.mean() + 0.2 * (values - values.mean())
    found = pooled_seeds(values, draws, level=level)
    low, high = interval(draws.mean(axis=0), level)
    normal = norm.ppf((1 + level) / 2) * np.std(draws.mean(axis=0), ddof=1)
    half = obuchowski_rockette(values, draws, level)
    assert half > normal
    assert found.low == pytest.approx(low - (half - normal))
    assert found.high == pytest.approx(high + (half - normal))


def test_seeds_that_do_not_vary_leave_the_patients_interval():
    (value,), (draws,) = one_study(np.random.default_rng(2), 1)
    found = pooled_seeds([value] * 3, [draws] * 3)
    assert (found.low, found.high) == pytest.approx(interval(draws))
    assert found.sd == pytest.approx(0, abs=1e-12)


def test_interval_is_never_narrower_than_that_of_the_patients():
    rng = np.random.default_rng(3)
    for _ in range(100):
        values, draws = one_study(rng, 3, own=1.0)
        found = pooled_seeds(values, draws)
        low, high = interval(draws.mean(axis=0))
        assert found.low <= low
        assert found.high >= high


@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "mix",
    [
        {"patient": 1.0, "between": 0.0, "own": 0.3},
        {"patient": 1.0, "between": 0.5, "own": 0.3},
        {"patient": 1.0, "between": 1.0, "own": 0.3},
        {"patient": 0.5, "between": 0.3, "own": 1.0},
    ],
)
def test_coverage_is_about_nominal_where_patients_and_seeds_vary(seeds, mix):
    assert 0.915 <= coverage(seeds, **mix)[0] <= 0.99


@pytest.mark.parametrize(("seeds", "least"), [(2, 0.85), (3, 0.9), (5, 0.92)])
def test_coverage_where_seeds_vary_far_more_than_patients(seeds, least):
    """The limit that the module names: two seeds hardly show how much seeds vary."""
    found, patients_alone, _ = coverage(seeds, patient=0.2, between=1.0, own=0.1)
    assert least <= found <= 0.97
    assert patients_alone < 0.7


@pytest.mark.parametrize("seeds", [3, 5])
def test_each_source_alone_is_too_narrow(seeds):
    found, patients_alone, seeds_alone = coverage(seeds, patient=1.0, between=1.5, own=0.3)
    assert found >= 0.92
    assert patients_alone < found - 0.03
    assert seeds_alone < found - 0.03
    assert coverage(seeds, patient=1.0, between=0.2, own=0.1)[2] < 0.6


def test_coverage_of_auroc():
    """Patients' scores from seeds of other separations; the truth is the mean over seeds."""
    rng = np.random.default_rng(7)
    truth = norm.cdf(rng.normal(1.2, 0.25, 200_000) / math.sqrt(2)).mean()
    held, alone, trials = 0, 0, 60
    for _ in range(trials):
        target = rng.integers(0, 2, (80, 1))
        shared = rng.normal(0, math.sqrt(0.6), (80, 1))
        values, draws = [], []
        for separation in rng.normal(1.2, 0.25, 3):
            score = separation * target + shared + rng.normal(0, math.sqrt(0.4), (80, 1))
            values.append(metric("auroc", target, score, "multi-label").mean)
            draws.append(
                resampled("auroc", target, score, np.arange(80), "multi-label", resamples=200)[:, 0]
            )
        found = pooled_seeds(values, draws)
        held += found.low <= truth <= found.high
        alone += interval(draws[0])[0] <= truth <= interval(draws[0])[1]
    assert held / trials >= 0.88
    assert alone < held


def test_p_agrees_with_the_interval():
    rng = np.random.default_rng(8)
    for truth in np.linspace(-4, 4, 60):
        values, draws = one_study(rng, 3, between=0.5, own=0.3, truth=truth)
        found = difference_over_seeds(values, draws)
        outside = abs(found.value) > obuchowski_rockette(values, draws)
        assert (found.p < 0.05) == outside


def test_seeds_that_agree_by_chance_do_not_make_p_smaller():
    """Less spread between seeds than patients alone cause: the patients' variance counts."""
    _, draws = one_study(np.random.default_rng(11), 3, own=1.0)
    se = np.std(draws.mean(axis=0), ddof=1)
    found = difference_over_seeds([2.0, 2.0, 2.0], draws)
    assert found.p == pytest.approx(2 * norm.sf(2 / se))


def test_p_holds_its_level_and_is_never_below_what_the_resamples_tell():
    rng = np.random.default_rng(9)
    p = []
    for _ in range(400):
        values, draws = one_study(rng, 3, between=0.8, own=0.3)
        p.append(difference_over_seeds(values, draws).p)
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.09
    assert np.mean(np.array(p) < 0.5) == pytest.approx(0.5, abs=0.1)
    values, draws = one_study(rng, 5, truth=50.0)
    assert difference_over_seeds(values, draws).p == pytest.approx(2 / 301)


def test_constant_scores_have_no_width():
    found = pooled_seeds([0.5, 0.5], [np.full(9, 0.5)] * 2)
    assert (found.mean, found.sd, found.low, found.high) == (0.5, 0, 0.5, 0.5)
    assert difference_over_seeds([0.0, 0.0], [np.zeros(9)] * 2).p == 1
    assert difference_over_seeds([0.2, 0.2], [np.full(9, 0.2)] * 2).p == pytest.approx(0.2)
    spread = pooled_seeds([0.4, 0.6], [np.full(9, 0.4), np.full(9, 0.6)])
    assert spread.high - 0.5 == pytest.approx(t.ppf(0.975, 1) * 0.1)


def test_interval_is_cut_to_the_metrics_range():
    found = pooled_seeds([0.9, 0.99], [np.full(9, 0.9), np.full(9, 0.99)], bounds=(0, 1))
    assert found.high == 1
    assert 0 < found.low < 0.9
    tested = difference_over_seeds([-0.3, 0.6], [np.full(9, -0.3), np.full(9, 0.6)], bounds=(-1, 1))
    assert (tested.low, tested.high) == (-1, 1)


@pytest.mark.parametrize("seeds", [1, 3])
def test_what_cannot_be_scored_has_no_interval(seeds):
    found = pooled_seeds([0.7] * seeds, [np.full(9, np.nan)] * seeds)  # as with one patient
    assert found.mean == pytest.approx(0.7)
    assert np.isnan([found.low, found.high]).all()
    tested = difference_over_seeds([0.7] * seeds, [np.full(9, np.nan)] * seeds)
    assert np.isnan([tested.low, tested.high, tested.p]).all()
    unscored = pooled_seeds([math.nan] * seeds, [np.ones(9)] * seeds)
    assert np.isnan([unscored.mean, unscored.low, unscored.high]).all()


def test_one_resample_says_nothing_about_several_seeds():
    found = pooled_seeds([0.7, 0.8], [[0.7], [0.8]])
    assert np.isnan([found.low, found.high]).all()


def test_resamples_that_a_seed_could_not_score_are_left_out():
    values, draws = one_study(np.random.default_rng(10), 3, between=0.5)
    broken = draws.copy()
    broken[1, ::3] = np.nan
    kept = np.arange(draws.shape[1]) % 3 > 0
    assert pooled_seeds(values, broken) == pooled_seeds(values, draws[:, kept])


def test_what_does_not_fit_is_refused():
    with pytest.raises(BenchmdError, match=r"values have shape \(0,\), expected \(seeds,\), at le"):
        pooled_seeds([], [])
    with pytest.raises(BenchmdError, match=r"shapes \[\(3,\), \(2,\)\] for 2 seeds, expected"):
        pooled_seeds([1, 2], [[1, 2, 3], [1, 2]])
    with pytest.raises(BenchmdError, match=r"shapes \[\(2,\)\] for 2 seeds"):
        pooled_seeds([1, 2], [[1, 2]])
    with pytest.raises(BenchmdError, match=r"level must lie between 0 and 1, but got 95"):
        pooled_seeds([1], [[1, 2]], level=95)


def test_seeds_whose_errors_are_their_own_do_not_blow_the_interval_up():
    """Weak models share no errors: their spread is patient sampling, which the draws know."""
    rng = np.random.default_rng(9)
    for _ in range(50):
        values, draws = one_study(rng, 2, patient=0.0, own=1.0)
        values = values.mean() + np.array([-0.05, 0.05])
        found, (low, high) = pooled_seeds(values, draws), interval(draws.mean(axis=0))
        assert found.high - found.low < 1.05 * (high - low)
    assert coverage(2, patient=0.0, own=1.0)[0] >= 0.92
