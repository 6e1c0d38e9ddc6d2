import math

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import norm, t

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.comparison import holm
from benchmd_ray.scores.metrics import metric
from benchmd_ray.scores.resampling import group_multiplicities, resampled
from benchmd_ray.scores.seeds import (
    OverSeeds,
    difference_over_seeds,
    pooled_seeds,
    unpaired_difference,
)
from benchmd_ray.scores.support import Basis, support

PATIENTS = 60
SHARES = group_multiplicities(PATIENTS, range(300)) / PATIENTS
BASIS = Basis(PATIENTS, ())


def one_study(rng, seeds, *, patient=1.0, between=0.0, own=0.0, truth=0.0):
    """Differences and paired resamples of a metric that is a mean over patients, small numbers.

    `patient` is the standard error that all seeds share, `own` that of each seed's own errors on
    the patients, `between` the standard deviation of the seeds' expected values; in hundredths.
    """
    of_patient = rng.normal(0, patient, PATIENTS) + rng.normal(0, own, (seeds, PATIENTS))
    rows = truth + rng.normal(0, between, (seeds, 1)) + of_patient * math.sqrt(PATIENTS)
    return rows.mean(axis=1) / 100, rows @ SHARES.T / 100


def ends(pooled):
    return pooled.low, pooled.high


def coverage(seeds, trials=600, **mix):
    """Share of studies whose intervals hold the truth: pooled, patients only, seeds only."""
    rng = np.random.default_rng(seeds)
    held = np.zeros(3)
    for _ in range(trials):
        values, draws = one_study(rng, seeds, **mix)
        found = difference_over_seeds(values, draws, BASIS)
        low, high = ends(difference_over_seeds([values.mean()], [draws.mean(axis=0)], BASIS))
        half = t.ppf(0.975, seeds - 1) * values.std(ddof=1) / math.sqrt(seeds)
        held += [found.low <= 0 <= found.high, low <= 0 <= high, abs(found.value) <= half]
    return held / trials


def obuchowski_rockette(values, draws):
    """Slow reference: variances of patients and seeds, loop by loop, and Cochran & Cox's t."""
    seeds, covariances = len(values), []
    for i in range(seeds):
        for j in range(i):
            products = (draws[i] - np.mean(draws[i])) * (draws[j] - np.mean(draws[j]))
            covariances.append(sum(products) / (len(products) - 1))
    between = sum((v - np.mean(values)) ** 2 for v in values) / (seeds - 1) / seeds
    least = sum((draws.mean(axis=0) - draws.mean()) ** 2) / (draws.shape[1] - 1)
    patients = max(0, np.mean(covariances), least - between)
    weighted = patients * t.ppf(0.975, PATIENTS - 1) + between * t.ppf(0.975, seeds - 1)
    return weighted / math.sqrt(patients + between)


def test_mean_and_sd_are_those_over_seeds():
    values, draws = one_study(np.random.default_rng(0), 4, own=0.3, truth=60)
    found = pooled_seeds(values, draws, BASIS)
    assert found.mean == pytest.approx(sum(values) / 4)
    assert found.sd == pytest.approx(math.sqrt(sum((v - values.mean()) ** 2 for v in values) / 3))
    assert found.seeds == 4
    assert found.low < found.mean < found.high
    assert found.caution == ""


def test_one_seed_has_students_interval_from_the_bootstraps_spread():
    values, draws = one_study(np.random.default_rng(1), 1, patient=0.1, truth=60)
    half = t.ppf(0.975, PATIENTS - 1) * np.std(draws[0], ddof=1)
    found = pooled_seeds(values, draws, BASIS)
    (value,) = values
    around = logit(value) + np.array([-1, 1]) * half / (value * (1 - value))
    assert ends(found) == pytest.approx(tuple(expit(around)), abs=2e-4)
    assert math.isnan(found.sd)
    tested = difference_over_seeds(values - 0.6, draws - 0.6, BASIS)
    assert ends(tested) == pytest.approx((value - 0.6 - half, value - 0.6 + half))
    assert tested.p == pytest.approx(
        2 * t.sf(abs(value - 0.6) / np.std(draws[0], ddof=1), PATIENTS - 1)
    )


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("between", [2.0, 0.0])  # with 0 the patients' part is the larger one
def test_width_is_that_of_reader_studies(seeds, between):
    values, draws = one_study(np.random.default_rng(seeds), seeds, between=between, own=0.5)
    if not between:
        values = values.mean() + 0.2 * (values - values.mean())
    found = difference_over_seeds(values, draws, BASIS)
    half = obuchowski_rockette(values, draws)
    assert ends(found) == pytest.approx((values.mean() - half, values.mean() + half))


def test_seeds_that_do_not_vary_leave_the_patients_interval():
    (value,), (draws,) = one_study(np.random.default_rng(2), 1, truth=70)
    found = pooled_seeds([value] * 3, [draws] * 3, BASIS)
    assert ends(found) == pytest.approx(ends(pooled_seeds([value], [draws], BASIS)))
    assert found.sd == pytest.approx(0, abs=1e-12)


def test_interval_is_never_narrower_than_that_of_the_patients():
    rng = np.random.default_rng(3)
    for _ in range(100):
        values, draws = one_study(rng, 3, own=1.0)
        found = difference_over_seeds(values, draws, BASIS)
        patients = difference_over_seeds([values.mean()], [draws.mean(axis=0)], BASIS)
        assert found.low <= patients.low + 1e-12
        assert found.high >= patients.high - 1e-12


@pytest.mark.slow
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
def test_coverage_is_at_least_nominal_where_patients_and_seeds_vary(seeds, mix):
    assert coverage(seeds, **mix)[0] >= 0.93


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_coverage_where_seeds_vary_far_more_than_patients(seeds):
    """With Satterthwaite's degrees of freedom two seeds hold the truth in 87 of 100 studies."""
    found, patients_only, _ = coverage(seeds, trials=1500, patient=0.2, between=1.0, own=0.1)
    assert 0.93 <= found <= 0.97
    assert patients_only < 0.7


@pytest.mark.parametrize("seeds", [3, 5])
def test_each_part_by_itself_is_too_narrow(seeds):
    found, patients_only, seeds_only = coverage(seeds, patient=1.0, between=1.5, own=0.3)
    assert found >= 0.93
    assert patients_only < found - 0.03
    assert seeds_only < found - 0.03
    assert coverage(seeds, patient=1.0, between=0.2, own=0.1)[2] < 0.6


def test_coverage_of_auroc():
    """Patients' scores from seeds of other separations; the truth is the mean over seeds."""
    rng = np.random.default_rng(7)
    truth = norm.cdf(rng.normal(1.2, 0.25, 200_000) / math.sqrt(2)).mean()
    held, single, trials = 0, 0, 60
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
        basis = support(target, np.arange(80)).basis("auroc")
        found, one = (pooled_seeds(values[:n], draws[:n], basis) for n in (3, 1))
        held += found.low <= truth <= found.high
        single += one.low <= truth <= one.high
    assert held / trials >= 0.9
    assert single < held


def test_p_agrees_with_the_interval():
    rng = np.random.default_rng(8)
    for truth in np.linspace(-4, 4, 60):
        values, draws = one_study(rng, 3, between=0.5, own=0.3, truth=truth)
        found = difference_over_seeds(values, draws, BASIS)
        outside = abs(found.value) > obuchowski_rockette(values, draws)
        assert (found.p < 0.05) == outside


def test_seeds_that_agree_by_chance_do_not_make_p_smaller():
    """Less spread between seeds than patients themselves cause: the patients' variance counts."""
    _, draws = one_study(np.random.default_rng(11), 3, own=1.0)
    se = np.std(draws.mean(axis=0), ddof=1)
    found = difference_over_seeds([0.02, 0.02, 0.02], draws, BASIS)
    assert found.p == pytest.approx(2 * t.sf(0.02 / se, PATIENTS - 1))


def test_p_holds_its_level_and_has_no_floor():
    rng = np.random.default_rng(9)
    p = []
    for _ in range(400):
        values, draws = one_study(rng, 3, between=0.8, own=0.3)
        p.append(difference_over_seeds(values, draws, BASIS).p)
    assert 0.005 < np.mean(np.array(p) < 0.05) < 0.07
    values, draws = one_study(rng, 5, truth=50.0)
    assert 0 < difference_over_seeds(values, draws, BASIS).p < 1e-5


def test_strong_differences_among_many_are_all_significant_after_holm():
    """As of 36 detectors in two use-cases: 2 / (resamples + 1) times 72 would be above 0.05."""
    rng, p = np.random.default_rng(3), []
    for number in range(72):
        values, draws = one_study(rng, 3, truth=30.0 if number < 60 else 0.0)
        p.append(difference_over_seeds(values, draws, BASIS).p)
    corrected = holm(p)
    assert (corrected[:60] < 0.05).all()
    assert (corrected[60:] > 0.05).sum() >= 10


def test_what_does_not_vary_has_no_interval_and_no_p():
    found = pooled_seeds([0.5, 0.5], [np.full(9, 0.5)] * 2, BASIS)
    assert (found.mean, found.sd) == (0.5, 0)
    assert np.isnan(ends(found)).all()
    assert found.caution == "no interval: the resamples do not differ"
    for value in (0.0, 0.2):
        tested = difference_over_seeds([value] * 2, [np.full(9, value)] * 2, BASIS)
        assert tested.value == value
        assert np.isnan([*ends(tested), tested.p]).all()
        assert tested.caution == "no interval, no p: the resamples do not differ"
    spread = difference_over_seeds([0.4, 0.6], [np.full(9, 0.4), np.full(9, 0.6)], BASIS)
    assert spread.high == pytest.approx(min(1, 0.5 + t.ppf(0.975, 1) * 0.1))


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_class_that_is_separated_perfectly_has_an_interval(seeds):
    """Every resample is 1 too; for 12 patients in a row see Clopper & Pearson."""
    basis = Basis(80, (12,))
    found = pooled_seeds([1.0] * seeds, [np.ones(50)] * seeds, basis)
    assert ends(found) == pytest.approx((0.025 ** (1 / 12), 1.0))
    assert found.high - found.low > 0.2


def test_interval_is_cut_to_the_metrics_range():
    found = pooled_seeds([0.9, 0.99], [np.full(9, 0.9), np.full(9, 0.99)], BASIS)
    assert 0.9 < found.high <= 1
    assert 0 < found.low < 0.9
    tested = difference_over_seeds([-0.3, 0.6], [np.full(9, -0.3), np.full(9, 0.6)], BASIS)
    assert ends(tested) == (-1, 1)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("basis", "interval", "p", "caution"),
    [
        (Basis(9, ()), False, False, "no interval, no p: 9 patients"),
        (Basis(19, ()), True, False, "no p: 19 patients"),
        (Basis(20, ()), True, True, ""),
        (Basis(60, (4,)), False, False, "no interval, no p: 4 patients on the rarer side"),
        (
            Basis(60, (9,)),
            True,
            False,
            "no p, rough interval: 9 patients on the rarer side",
        ),
        (Basis(60, (10,)), True, True, ""),
        (
            Basis(15, (5,)),
            True,
            False,
            "no p: 15 patients; rough interval: 5 patients on the rarer side",
        ),
        (Basis(60, (), math.inf), False, False, "no interval, no p: few records raise the metric"),
    ],
)  # fmt: skip
def test_few_patients_have_no_interval_and_no_p(seeds, basis, interval, p, caution):
    values, draws = one_study(np.random.default_rng(4), seeds, truth=60)
    found = difference_over_seeds(values, draws, basis)
    assert found.value == pytest.approx(values.mean())
    assert (not math.isnan(found.low), not math.isnan(found.p)) == (interval, p)
    assert found.caution == caution
    pooled = pooled_seeds(values, draws, basis)
    assert (not math.isnan(pooled.low)) == interval
    if basis.no_interval:
        assert pooled.caution == f"no interval: {basis.no_interval}"


def test_the_p_of_an_exact_test_needs_patients_but_no_interval():
    values, draws = one_study(np.random.default_rng(5), 1)
    found = difference_over_seeds(values, draws, Basis(60, (2, 40)), exact=0.03)
    assert found.p == 0.03
    assert math.isnan(found.low)
    assert found.caution.startswith("no interval: 1 of 2 classes has fewer than 5 patients")
    only = difference_over_seeds(values, draws, Basis(60, (2,)), exact=0.03)
    assert math.isnan(only.p)
    assert only.caution == "no interval, no p: 2 patients on the rarer side"
    few = difference_over_seeds(values, draws, Basis(19, (9,)), exact=0.03)
    assert math.isnan(few.p)
    assert few.caution == "no p: 19 patients; rough interval: 9 patients on the rarer side"


@pytest.mark.parametrize("seeds", [1, 3])
def test_what_cannot_be_scored_has_no_interval(seeds):
    found = pooled_seeds([0.7] * seeds, [np.full(9, np.nan)] * seeds, BASIS)
    assert found.mean == pytest.approx(0.7)
    assert np.isnan(ends(found)).all()
    tested = difference_over_seeds([0.7] * seeds, [np.full(9, np.nan)] * seeds, BASIS)
    assert np.isnan([*ends(tested), tested.p]).all()
    unscored = pooled_seeds([math.nan] * seeds, [np.ones(9)] * seeds, BASIS)
    assert np.isnan([unscored.mean, *ends(unscored)]).all()
    assert unscored.caution == ""
    gap = difference_over_seeds([math.nan] * seeds, [np.ones(9)] * seeds, BASIS)
    assert np.isnan([gap.value, *ends(gap), gap.p]).all()
    assert gap.caution == ""


def test_one_resample_says_nothing():
    assert np.isnan(ends(pooled_seeds([0.7, 0.8], [[0.7], [0.8]], BASIS))).all()
    assert np.isnan(ends(pooled_seeds([0.7], [[0.7]], BASIS))).all()


def test_resamples_that_a_seed_could_not_score_are_skipped():
    values, draws = one_study(np.random.default_rng(10), 3, between=0.5, truth=60)
    broken = draws.copy()
    broken[1, ::3] = np.nan
    kept = np.arange(draws.shape[1]) % 3 > 0
    assert pooled_seeds(values, broken, BASIS) == pooled_seeds(values, draws[:, kept], BASIS)


def test_what_does_not_fit_is_refused():
    with pytest.raises(BenchmdError, match=r"values have shape \(0,\), expected \(seeds,\), at le"):
        pooled_seeds([], [], BASIS)
    with pytest.raises(BenchmdError, match=r"shapes \[\(3,\), \(2,\)\] for 2 seeds, expected"):
        pooled_seeds([1, 2], [[1, 2, 3], [1, 2]], BASIS)
    with pytest.raises(BenchmdError, match=r"shapes \[\(2,\)\] for 2 seeds"):
        pooled_seeds([1, 2], [[1, 2]], BASIS)


def test_seeds_whose_errors_are_their_own_do_not_blow_the_interval_up():
    """Weak models share no errors: their spread is patient sampling, which the draws know."""
    rng = np.random.default_rng(9)
    for _ in range(50):
        values, draws = one_study(rng, 2, patient=0.0, own=1.0)
        values = values.mean() + np.array([-0.0005, 0.0005])
        found = difference_over_seeds(values, draws, BASIS)
        patients = difference_over_seeds([values.mean()], [draws.mean(axis=0)], BASIS)
        assert found.high - found.low < 1.05 * (patients.high - patients.low)
    assert coverage(2, patient=0.0, own=1.0)[0] >= 0.93


def over_seeds(rng, sizes, shifts):
    """AUROC of seeds that detect a class by these shifts, on positive and negative patients."""
    targets = np.repeat([1, 0], sizes)[:, None].astype(np.int8)
    patients, shared = np.arange(len(targets)), rng.normal(size=targets.shape)
    seeds = [
        norm.cdf(math.sqrt(0.7) * shared + math.sqrt(0.3) * rng.normal(size=targets.shape) + shift)
        for shift in np.multiply.outer(shifts, targets)
    ]
    draws = [
        resampled("auroc", targets, one, patients, "multi-label", resamples=100, threads=1)[:, 0]
        for one in seeds
    ]
    values = [metric("auroc", targets, one, "multi-label").mean for one in seeds]
    return OverSeeds.of(values, draws, support(targets, patients).basis("auroc"))


@pytest.mark.parametrize(
    ("sizes", "area", "seed_sd"),
    [
        ([(100, 300), (40, 120)], 0.8, 0.0),
        ([(300, 700), (10, 40)], 0.99, 0.0),
        ([(300, 700), (20, 180)], 0.97, 0.0),
        ([(300, 700), (20, 180)], 0.97, 0.15),
    ],
)
def test_a_gap_to_a_small_set_near_1_is_found_by_chance_no_more_often(sizes, area, seed_sd):
    """With Student's t on the values themselves 30 % of the second situation, 13 % of the third."""
    rng, p, draws = np.random.default_rng(0), [], 200
    seeds = 3 if seed_sd else 1
    for _ in range(draws):
        shifts = math.sqrt(2) * norm.ppf(area) + rng.normal(0, seed_sd, seeds)
        sides = [over_seeds(rng, each, shifts) for each in sizes]
        p.append(unpaired_difference(*sides, same_models=True).p)
    assert np.isfinite(p).all()
    assert np.mean(np.array(p) < 0.05) < 0.05 + 2 * math.sqrt(0.05 * 0.95 / draws)


def test_a_gap_that_is_there_has_the_distances_of_both_intervals():
    rng = np.random.default_rng(0)
    a, b = (over_seeds(rng, (60, 200), [shift]) for shift in (2.0, 0.8))
    found = unpaired_difference(a, b, same_models=True)
    one, other = (pooled_seeds(x.values.tolist(), list(x.resampled), x.basis) for x in (a, b))
    assert found.value == pytest.approx(one.mean - other.mean)
    down = math.hypot(one.mean - one.low, other.high - other.mean)
    up = math.hypot(one.high - one.mean, other.mean - other.low)
    assert ends(found) == pytest.approx((found.value - down, found.value + up))
    assert found.p < 0.001
    back = unpaired_difference(b, a, same_models=True)
    assert (back.value, back.p) == pytest.approx((-found.value, found.p))


def test_what_moves_both_sides_of_a_seed_alike_cancels_out_of_a_gap():
    """Of the same models only; else each side has the whole of its seeds' variance."""
    rng, shifts = np.random.default_rng(1), np.array([0.9, 1.3, 1.7])
    a, b = over_seeds(rng, (300, 700), shifts + 0.8), over_seeds(rng, (60, 200), shifts)
    paired, alone = (unpaired_difference(a, b, same_models=same) for same in (True, False))
    assert paired.value == alone.value
    assert alone.low < paired.low < paired.value < paired.high < alone.high
    assert paired.p < 0.05 < alone.p
    of_patients = [pooled_seeds([x.values.mean()], [x.resampled.mean(axis=0)], x.basis)
                   for x in (a, b)]  # fmt: skip
    seeds = t.ppf(0.975, 2) * (a.values - b.values).std(ddof=1) / math.sqrt(3)
    one, other = of_patients
    down = math.hypot(one.mean - one.low, other.high - other.mean, seeds)
    assert paired.low == pytest.approx(paired.value - down)


def test_a_gap_of_sets_that_carry_none_says_why():
    draws = np.random.default_rng(0).normal(0.8, 0.03, (1, 50))

    def of(value, basis):
        return OverSeeds.of([value], list(draws), basis)

    enough = Basis(200, (80,))
    few = unpaired_difference(of(0.8, enough), of(0.7, Basis(8, (4,))), same_models=True)
    assert np.isnan([*ends(few), few.p]).all()
    assert few.caution == "no interval, no p: 8 patients"
    rough = unpaired_difference(of(0.8, enough), of(0.7, Basis(60, (7,))), same_models=True)
    assert rough.low < rough.value < rough.high
    assert np.isnan(rough.p)
    assert rough.caution == "no p, rough interval: 7 patients on the rarer side"
    none = unpaired_difference(of(math.nan, enough), of(0.7, enough), same_models=True)
    assert np.isnan([none.value, *ends(none), none.p]).all()
    assert none.caution == ""


@pytest.mark.parametrize("moved", [1e-16, 1e-13, 1e-11, 1e-10, 1e-8, -1e-10])
def test_a_gap_of_rounding_is_none(moved):
    draws = np.random.default_rng(0).normal(0.8, 0.03, (1, 50))
    a, b = (OverSeeds.of([v], list(draws), Basis(200, ())) for v in (0.8 + moved, 0.8))
    assert unpaired_difference(a, b, same_models=True).p == pytest.approx(1, abs=1e-5)
