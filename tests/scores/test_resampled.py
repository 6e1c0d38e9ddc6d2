"""Every metric in every resample, against the metric of rows that are really repeated."""

import numpy as np
import pytest
from test_metric_values import TASKS, predictions, reference

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores import ranking, resampling
from benchmd_ray.scores.metrics import METRICS, metric
from benchmd_ray.scores.resampling import group_multiplicities, resampled
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.support import support

BY_PATIENTS = pytest.mark.parametrize("patients", [80, 25, 3], ids="{} patients".format)
EACH = pytest.mark.parametrize("name", METRICS)
BOTH = pytest.mark.parametrize("task", TASKS)


@pytest.fixture(autouse=True)
def no_kept_draws():
    """Each test makes its own draws."""
    resampling._few_weights.cache_clear()


def patients_of(rows, patients, seed=0):
    """Patients of the rows in no order; all are there."""
    rng = np.random.default_rng(seed)
    numbers = np.append(np.arange(patients), rng.integers(0, patients, rows - patients))
    return np.array([f"p{number:05}" for number in rng.permutation(numbers)])


@EACH
@BOTH
@BY_PATIENTS
def test_agrees_with_scikit_learn_on_repeated_rows(name, task, patients):
    targets, scores = predictions(task, patients)
    if patients == 25:  # hardly a tie
        scores = np.clip(scores + np.random.default_rng(1).normal(0, 0.01, scores.shape), 0, 1)
    groups = patients_of(80, patients)
    names, patient = np.unique(groups, return_inverse=True)
    values = resampled(name, targets, scores, groups, task, resamples=12, seed=5)
    assert values.shape == (12, 5)
    drawn = group_multiplicities(len(names), range(12), seed=5)
    for row, counts in zip(values, drawn, strict=True):
        repeated = np.repeat(np.arange(80), counts[patient])
        expected = reference(name, targets[repeated], scores[repeated], task)
        np.testing.assert_allclose(row, expected, atol=1e-12)


@EACH
@BOTH
def test_agrees_where_patients_lie_in_several_blocks(name, task, monkeypatch):
    targets, scores = predictions(task, rows=300)
    groups = patients_of(300, 40)
    whole = resampled(name, targets, scores, groups, task, resamples=30)
    for block, elements, threads in ((1, 1, 2), (7, 7 * 300, 1), (100, 1000, 3)):
        monkeypatch.setattr(resampling, "BLOCK_ROWS", block)
        monkeypatch.setattr(resampling, "_SUMMED_ELEMENTS", elements)
        monkeypatch.setattr(resampling, "_RANKED_ELEMENTS", elements)
        again = resampled(name, targets, scores, groups, task, resamples=30, threads=threads)
        np.testing.assert_allclose(again, whole, atol=1e-12)


@EACH
def test_patients_drawn_more_often_than_a_byte_holds_are_counted_right(name, monkeypatch):
    given = *predictions("multi-label", 1), patients_of(80, 30), "multi-label"
    expected = resampled(name, *given, resamples=20)

    def often(groups, draws, *, seed):
        return 1000 * group_multiplicities(groups, draws, seed=seed)

    monkeypatch.setattr(resampling, "group_multiplicities", often)
    np.testing.assert_allclose(resampled(name, *given, resamples=20), expected, atol=1e-12)


def test_sums_too_large_for_32_bits_are_counted_right():
    targets, score = np.array([1, 0, 0, 1], np.int8), np.array([0.1, 0.2, 0.3, 0.4])
    ranked = ranking.rank(targets, score, np.arange(4))
    weights = np.full((1, 4), 2**29, np.int32)
    assert ranking.weighted_auroc(ranked, weights) == pytest.approx(0.5)
    assert ranking.weighted_average_precision(ranked, weights) == pytest.approx(0.75)


@EACH
@BOTH
def test_row_order_does_not_matter(name, task):
    targets, scores = predictions(task, 3)
    groups = patients_of(80, 30)
    order = np.random.default_rng(0).permutation(80)
    values = resampled(name, targets, scores, groups, task, resamples=30)
    moved = resampled(name, targets[order], scores[order], groups[order], task, resamples=30)
    np.testing.assert_allclose(moved, values, atol=1e-12)


@EACH
@BOTH
def test_models_on_the_same_patients_are_paired(name, task):
    targets, scores = predictions(task, 4, rows=400, unknown=False)
    groups = patients_of(400, 150)
    other = scores.copy()
    other[:20] = np.random.default_rng(0).permutation(other[:20])
    a, b = (
        resampled(name, targets, given, groups, task, resamples=200)[:, 0]
        for given in (scores, other)
    )
    assert 0 < np.std(a - b) < 0.6 * np.std(a)
    again = resampled(name, targets, scores, groups, task, resamples=200)[:, 0]
    np.testing.assert_array_equal(again, a)


@EACH
def test_first_resamples_are_those_of_fewer(name):
    given = *predictions("single-label", 5), patients_of(80, 30), "single-label"
    many = resampled(name, *given, resamples=30, seed=1)
    np.testing.assert_allclose(resampled(name, *given, resamples=9, seed=1), many[:9], atol=1e-12)
    assert (resampled(name, *given, resamples=9, seed=2) != many[:9]).any()


@EACH
@BOTH
def test_resamples_lie_around_the_value(name, task):
    """Their mean is the value up to the bias, which shrinks with the patients."""
    targets, scores = predictions(task, 6, rows=3000)
    values = resampled(name, targets, scores, np.arange(3000), task, resamples=200)
    expected = reference(name, targets, scores, task)
    assert (np.abs(values.mean(axis=0) - expected) < np.maximum(values.std(axis=0), 0.002)).all()
    assert (values.std(axis=0) < 0.03).all()


@EACH
@pytest.mark.parametrize("rows", [0, 1, 12])
def test_one_patient_gives_no_values(name, rows):
    targets = np.resize(np.array([[1], [0]], np.int8), (rows, 1))
    values = resampled(name, targets, targets / 2, np.full(rows, "p"), "multi-label", resamples=4)
    assert values.shape == (4, 2)
    assert np.isnan(values).all()


@EACH
def test_class_lost_in_a_resample_is_excluded_of_its_mean(name):
    targets, scores = predictions("multi-label", 7)
    groups = patients_of(80, 20)
    carried = np.where(groups == groups[0], np.arange(80) % 2, -1)
    targets[:, 1] = carried  # known for one patient only
    values = resampled(name, targets, scores, groups, "multi-label", resamples=100)
    counts = group_multiplicities(20, range(100))[:, sorted(set(groups)).index(groups[0])]
    np.testing.assert_array_equal(np.isnan(values[:, 2]), counts == 0)
    lost = values[counts == 0]
    np.testing.assert_allclose(lost[:, 0], lost[:, [1, 3, 4]].mean(axis=1))


@pytest.mark.parametrize("name", ["auroc", "auprc", "balanced_accuracy"])
@pytest.mark.parametrize("lacking", [0, 1])
def test_class_that_loses_its_negatives_or_positives_is_not_scored(name, lacking):
    targets, scores = predictions("multi-label", 9, unknown=False)
    groups = patients_of(80, 20)
    targets[:, 1] = np.where(groups == groups[0], lacking, 1 - lacking)
    values = resampled(name, targets, scores, groups, "multi-label", resamples=100)
    counts = group_multiplicities(20, range(100))[:, sorted(set(groups)).index(groups[0])]
    np.testing.assert_array_equal(np.isnan(values[:, 2]), counts == 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "truth"), [("accuracy", 0.8), ("brier", 0.8 * 0.01 + 0.2 * 0.81), ("f1", 0.8)]
)
def test_coverage(name, truth):
    """Intervals hold the true value about as often as they say, also with correlated records."""
    rng, held, trials = np.random.default_rng(3), 0, 200
    for trial in range(trials):
        target = rng.integers(0, 2, 120)
        right = rng.random(120) < 0.8
        score = np.where(target == right, 0.9, 0.1)[:, None]
        groups = np.repeat(np.arange(120), 3)
        rows = target[groups, None], score[groups]
        draws = resampled(name, *rows, groups, "multi-label", resamples=200, seed=trial)
        value = metric(name, *rows, "multi-label").mean
        found = pooled_seeds([value], [draws[:, 0]], support(rows[0], groups).basis(name))
        held += found.low <= truth <= found.high
    assert 0.88 <= held / trials <= 0.99


def test_threads_are_those_that_are_said(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert resampling.usual_threads() == 3
    for said in ("", "0", "4,2"):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert resampling.usual_threads() >= 1


def test_an_error_in_a_thread_is_the_caller_s(monkeypatch):
    def broken(groups, draws, *, seed):
        raise RuntimeError("broken draws")

    monkeypatch.setattr(resampling, "group_multiplicities", broken)
    with pytest.raises(RuntimeError, match="broken draws"):
        resampled(
            "f1", *predictions("multi-label"), np.arange(80), "multi-label", resamples=8, threads=2
        )


def test_arguments_that_do_not_fit_are_refused():
    targets, scores = predictions("multi-label")
    given = targets, scores, np.arange(80), "multi-label"
    with pytest.raises(BenchmdError, match=r"unknown metric 'auc'.*Valid: accuracy, auprc"):
        resampled("auc", *given)
    with pytest.raises(BenchmdError, match=r"unknown task 'single'"):
        resampled("f1", *given[:3], "single")
    with pytest.raises(BenchmdError, match=r"groups have shape \(79,\), expected \(80,\)"):
        resampled("f1", targets, scores, np.arange(79), "multi-label")
    with pytest.raises(BenchmdError, match=r"resamples must be at least 1, but got 0"):
        resampled("f1", *given, resamples=0)


@EACH
@BOTH
def test_value_of_every_patient_drawn_once_is_the_metric(name, task, monkeypatch):
    targets, scores = predictions(task, 8)
    once = lambda groups, draws, seed: np.ones((len(draws), groups), np.int32)  # noqa: E731
    monkeypatch.setattr(resampling, "group_multiplicities", once)
    row = resampled(name, targets, scores, patients_of(80, 30), task, resamples=1)[0]
    values = metric(name, targets, scores, task)
    np.testing.assert_allclose(row, [values.mean, *values.per_class], atol=1e-12)
