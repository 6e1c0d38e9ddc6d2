import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores.metrics import (
    auroc,
    auroc_per_class,
    probabilities,
    require_scorable,
)
from benchmd_ray.scores.units import Units


def pair_auroc(target, score):
    """Slow reference: the share of (positive, negative) pairs in the right order."""
    won = pairs = 0.0
    for positive in score[target == 1]:
        for negative in score[target == 0]:
            won += 1.0 if positive > negative else 0.5 if positive == negative else 0.0
            pairs += 1
    return won / pairs if pairs else np.nan


def random_predictions(seed, rows=60, classes=4, levels=8):
    """Targets with unknowns and scores with many ties."""
    rng = np.random.default_rng(seed)
    targets = rng.choice([1, 0, -1], size=(rows, classes), p=[0.3, 0.5, 0.2]).astype(np.int8)
    return targets, rng.integers(0, levels, (rows, classes)) / levels


@pytest.mark.parametrize("levels", [1, 2, 8, 10_000])
@pytest.mark.parametrize("rows", [2, 5, 60])
def test_agrees_with_counting_pairs(rows, levels):
    for seed in range(5):
        targets, scores = random_predictions(seed, rows, levels=levels)
        expected = [pair_auroc(t, s) for t, s in zip(targets.T, scores.T, strict=True)]
        np.testing.assert_allclose(auroc_per_class(targets, scores), expected, atol=1e-12)


def test_closed_forms():
    targets = np.array([[1], [1], [0], [0]], np.int8)
    for scores, expected in (
        ([4, 3, 2, 1], 1.0),
        ([1, 2, 3, 4], 0.0),
        ([1, 1, 1, 1], 0.5),
        ([4, 2, 3, 1], 0.75),
        ([4, 2, 2, 1], 0.875),
    ):
        assert auroc_per_class(targets, np.array(scores, float)[:, None]) == pytest.approx(expected)


def test_unknown_targets_are_masked_for_their_class_only():
    targets, scores = random_predictions(0)
    masked = targets.copy()
    masked[:20, 1] = -1
    got, full = auroc_per_class(masked, scores), auroc_per_class(targets, scores)
    np.testing.assert_array_equal(got[[0, 2, 3]], full[[0, 2, 3]])
    assert got[1] == pytest.approx(pair_auroc(targets[20:, 1], scores[20:, 1]))


def test_score_of_an_unknown_target_does_not_count():
    targets, scores = random_predictions(1)
    moved = np.where(targets == -1, 1e6, scores)
    np.testing.assert_array_equal(auroc_per_class(targets, moved), auroc_per_class(targets, scores))


@pytest.mark.parametrize("only", [0, 1, -1])
def test_class_without_positives_is_not_scored(only):
    targets, scores = random_predictions(2)
    targets[:, 2] = only
    result = auroc(targets, scores)
    assert result.unscored == (2,)
    assert np.isnan(result.per_class[2])
    others = [result.per_class[i] for i in (0, 1, 3)]
    assert result.mean == pytest.approx(np.mean(others))


def test_no_scorable_class_has_no_mean():
    result = auroc(np.zeros((3, 2), np.int8), np.zeros((3, 2)))
    assert np.isnan(result.mean)
    assert result.unscored == (0, 1)
    assert auroc(np.empty((0, 2), np.int8), np.empty((0, 2))).unscored == (0, 1)


def test_mean_is_unweighted():
    rng = np.random.default_rng(0)
    targets = np.eye(3, dtype=np.int8)[rng.choice(3, 300, p=[0.9, 0.08, 0.02])]
    result = auroc(targets, rng.random((300, 3)))
    assert result.unscored == ()
    assert result.mean == pytest.approx(np.mean(result.per_class))


def test_row_order_does_not_matter():
    targets, scores = random_predictions(3)
    order = np.random.default_rng(0).permutation(len(targets))
    np.testing.assert_array_equal(
        auroc_per_class(targets, scores), auroc_per_class(targets[order], scores[order])
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused(bad):
    targets, scores = random_predictions(4)
    scores[[7, 9], 1] = bad
    with pytest.raises(
        BenchmdError, match=r"scores are not finite in 2 of 60 rows, first in row 7"
    ):
        auroc_per_class(targets, scores)
    with pytest.raises(BenchmdError, match=r"logits are not finite in 2 of 60 rows"):
        probabilities(scores, "multi-label")


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(BenchmdError, match=r"targets have shape \(3, 2\) and scores \(3, 1\)"):
        auroc(np.zeros((3, 2), np.int8), np.zeros((3, 1)))
    with pytest.raises(
        BenchmdError, match=r"targets have shape \(3,\), expected \(rows, classes\)"
    ):
        auroc(np.zeros(3, np.int8), np.zeros((3, 1)))
    with pytest.raises(BenchmdError, match=r"scores have shape \(3,\), expected \(rows, classes\)"):
        auroc(np.zeros((3, 1), np.int8), np.zeros(3))
    with pytest.raises(BenchmdError, match=r"targets hold 2 in 1 of 2 rows, expected 1, 0, or -1"):
        auroc(np.array([[2], [1]]), np.zeros((2, 1)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 40), st.integers(1, 12))
def test_negated_scores_give_one_minus_auroc(seed, rows, levels):
    targets, scores = random_predictions(seed, rows, levels=levels)
    np.testing.assert_allclose(
        auroc_per_class(targets, -scores), 1 - auroc_per_class(targets, scores), atol=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([np.exp, np.arctan, lambda s: 3 * s - 7]))
def test_monotone_transform_changes_nothing(seed, transform):
    targets, scores = random_predictions(seed)
    np.testing.assert_allclose(
        auroc_per_class(targets, transform(scores)), auroc_per_class(targets, scores), atol=1e-12
    )


def loop_pooled(units, targets, scores):
    """Slow reference: unit by unit, class by class."""
    first, pooled_targets, pooled_scores = [], [], []
    for unit in dict.fromkeys(units):
        rows = [row for row, own in enumerate(units) if own == unit]
        first.append(rows[0])
        columns = [set(column) for column in targets[rows].T.tolist()]
        pooled_targets.append([1 if 1 in c else -1 if -1 in c else 0 for c in columns])
        pooled_scores.append([max(column) for column in scores[rows].T.tolist()])
    return first, pooled_targets, pooled_scores


def pool(names, targets, scores):
    units = Units(names)
    return units.first, units.targets(targets), units.scores(scores)


def windows(seed, rows, scans, classes):
    """Windows of scans in any order, their targets with unknowns, their scores."""
    rng = np.random.default_rng(seed)
    units = [f"scan {number}" for number in rng.integers(0, scans, rows)]
    targets, _ = random_predictions(seed, rows, classes)
    return units, targets, rng.normal(size=(rows, classes))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 12), st.integers(1, 3))
def test_windows_of_one_scan_pool_to_one_score(seed, rows, scans, classes):
    units, targets, scores = windows(seed, rows, scans, classes)
    first, pooled_targets, pooled_scores = pool(units, targets, scores)
    expected = loop_pooled(units, targets, scores)
    assert first.tolist() == expected[0]
    assert pooled_targets.tolist() == expected[1]
    assert pooled_scores.tolist() == expected[2]
    assert pooled_targets.dtype == np.int8


def test_a_scan_with_a_positive_window_is_positive_and_else_unknown_where_one_is():
    units = ["b", "a", "b", "a", "c", "b", "c"]
    targets = np.array([[0, 1], [-1, 0], [1, 0], [0, -1], [0, 0], [-1, 0], [0, 0]])
    scores = np.array([[1, 5], [2, 9], [0, 6], [3, 7], [-4, -1], [8, 0], [-3, -2]])
    first, pooled_targets, pooled_scores = pool(units, targets, scores)
    assert first.tolist() == [0, 1, 4]  # b, a, c
    assert pooled_targets.tolist() == [[1, 1], [-1, -1], [0, 0]]
    assert pooled_scores.tolist() == [[8, 6], [3, 9], [-3, -1]]


def test_records_that_are_their_own_units_stay_as_they_are():
    targets, scores = random_predictions(6)
    units = [f"r{row}" for row in np.random.default_rng(6).permutation(60)]
    first, same_targets, same_scores = pool(units, targets, scores)
    np.testing.assert_array_equal(first, np.arange(60))
    np.testing.assert_array_equal(same_targets, targets)
    np.testing.assert_array_equal(same_scores, scores)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 40))
def test_the_order_of_windows_does_not_matter(seed, rows):
    units, targets, scores = windows(seed, rows, 8, 2)
    order = np.random.default_rng(seed).permutation(rows)
    moved = [units[row] for row in order]

    def by_name(units, targets, scores):
        first, *values = pool(units, targets, scores)
        names = [units[row] for row in first]
        return sorted(zip(names, *(value.tolist() for value in values), strict=True))

    assert by_name(units, targets, scores) == by_name(moved, targets[order], scores[order])


LOGITS = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.floats(-1e4, 1e4)
)


@settings(max_examples=60, deadline=None)
@given(LOGITS)
def test_probabilities_are_stable(logits):
    softmax = probabilities(logits, "single-label")
    np.testing.assert_allclose(softmax.sum(axis=1), 1)
    np.testing.assert_allclose(softmax, probabilities(logits + 5.0, "single-label"), atol=1e-9)
    sigmoid = probabilities(logits, "multi-label")
    assert np.all((sigmoid >= 0) & (sigmoid <= 1))
    np.testing.assert_allclose(sigmoid + probabilities(-logits, "multi-label"), 1)


def test_probabilities_agree_with_the_formulas():
    logits = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float16)
    wide = logits.astype(np.float64)
    softmax = probabilities(logits, "single-label")
    assert softmax.dtype == np.float64
    np.testing.assert_allclose(softmax, np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(probabilities(logits, "multi-label"), 1 / (1 + np.exp(-wide)))
    assert probabilities(np.empty((0, 3)), "single-label").shape == (0, 3)


def test_sigmoid_keeps_very_negative_logits_apart():
    low = probabilities(np.array([[-700.0, -600.0, -38.0]]), "multi-label")
    assert np.all(np.diff(low) > 0)


def test_unknown_task_is_refused():
    with pytest.raises(
        BenchmdError, match=r"unknown task 'multilabel'.*Did you mean 'multi-label'"
    ):
        probabilities(np.zeros((1, 1)), "multilabel")


def test_require_scorable():
    classes = ("edema", "atelectasis")
    require_scorable(np.array([[1, 0], [0, 0]], np.int8), classes, "x")
    with pytest.raises(
        BenchmdError,
        match=r"^vindr test: no class .*edema: 2 positive, 0 negative, 1 unknown; "
        r"atelectasis: 0 positive, 3 negative, 0 unknown\)\. Use a split",
    ):
        require_scorable(np.array([[1, 0], [1, 0], [-1, 0]], np.int8), classes, "vindr test")
    with pytest.raises(BenchmdError, match=r"x: targets have 1 classes, expected 2"):
        require_scorable(np.zeros((2, 1), np.int8), classes, "x")
