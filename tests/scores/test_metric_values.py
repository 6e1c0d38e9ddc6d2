"""Each metric against scikit-learn or its definition, class by class, row by row."""

import numpy as np
import pytest
from sklearn import metrics as sk

from benchmd_ray.errors import BenchmdError
from benchmd_ray.scores import sums
from benchmd_ray.scores.metrics import METRICS, metric

TASKS = ("single-label", "multi-label")


def predictions(task, seed=0, *, rows=80, classes=4, unknown=True):
    """Targets, some of them unknown, and probabilities in eighths: many ties, many at 0.5."""
    rng = np.random.default_rng(seed)
    if task == "single-label":
        targets = np.eye(classes, dtype=np.int8)[rng.integers(0, classes, rows)]
        eighths = rng.multinomial(8, rng.dirichlet(np.ones(classes), rows))
    else:
        targets = (rng.random((rows, classes)) < 0.4).astype(np.int8)
        eighths = rng.integers(0, 9, (rows, classes))
    if unknown:
        targets[rng.random(targets.shape) < 0.15] = -1
        targets[rng.random(rows) < 0.1] = -1
    return targets, eighths / 8


def calibration_error(target, score):
    """Slow reference: bin by bin."""
    error = 0.0
    for number in range(15):
        above = score >= number / 15
        below = score <= 1 if number == 14 else score < (number + 1) / 15
        rows = above & below
        if rows.any():
            error += rows.mean() * abs(target[rows].mean() - score[rows].mean())
    return error


def of_class(name, target, score, decided):
    """Slow reference for one class against the rest."""
    known = target >= 0
    target, score, decided = target[known], score[known], decided[known]
    present = set(target.tolist())
    lacking = {"f1": 1 not in present, "accuracy": not present, "brier": not present}
    lacking["calibration_error"] = not present
    if lacking.get(name, len(present) < 2):
        return np.nan
    if name == "calibration_error":
        return calibration_error(target, score)
    of_decisions = {
        "accuracy": sk.accuracy_score,
        "balanced_accuracy": sk.balanced_accuracy_score,
        "f1": lambda t, d: sk.f1_score(t, d, zero_division=0),
    }
    if name in of_decisions:
        return of_decisions[name](target, decided)
    of_scores = {
        "auroc": sk.roc_auc_score,
        "auprc": sk.average_precision_score,
        "brier": lambda t, s: sk.brier_score_loss(t, s, pos_label=1),
    }
    return of_scores[name](target, score)


def reference(name, targets, scores, task):
    """The value over all classes, then each class: (1 + classes,)."""
    chosen = scores.argmax(axis=1)
    decided = np.eye(scores.shape[1])[chosen] if task == "single-label" else scores >= 0.5
    columns = zip(targets.T, scores.T, decided.T, strict=True)
    each = np.array([of_class(name, *column) for column in columns])
    mean = each[~np.isnan(each)].mean() if not np.isnan(each).all() else np.nan
    rows = (targets == 1).any(axis=1)
    if task == "single-label" and name in ("accuracy", "balanced_accuracy"):
        true = targets[rows].argmax(axis=1)
        of_all = sk.accuracy_score if name == "accuracy" else recalled
        mean = of_all(true, chosen[rows]) if rows.any() else np.nan
    return np.array([mean, *each])


def recalled(true, chosen):
    return sk.recall_score(true, chosen, labels=np.unique(true), average="macro", zero_division=0)


def got(name, targets, scores, task):
    values = metric(name, targets, scores, task)
    return np.array([values.mean, *values.per_class])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", METRICS)
def test_agrees_with_scikit_learn(name, task):
    for seed in range(6):
        for rows in (1, 3, 80):
            for unknown in (False, True):
                given = *predictions(task, seed, rows=rows, unknown=unknown), task
                expected = reference(name, *given)
                np.testing.assert_allclose(got(name, *given), expected, atol=1e-12)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", METRICS)
def test_agrees_with_scikit_learn_on_more_rows_than_are_worked_on_at_a_time(name, task):
    given = *predictions(task, rows=2 * sums.BLOCK_ROWS + 7), task
    np.testing.assert_allclose(got(name, *given), reference(name, *given), atol=1e-12)


def test_single_label_means_are_scikit_learn_s_own():
    targets, scores = predictions("single-label", 3, rows=200, unknown=False)
    true, chosen = targets.argmax(axis=1), scores.argmax(axis=1)
    for name, expected in (
        ("accuracy", sk.accuracy_score(true, chosen)),
        ("balanced_accuracy", sk.balanced_accuracy_score(true, chosen)),
        ("f1", sk.f1_score(true, chosen, average="macro")),
        ("auroc", sk.roc_auc_score(true, scores, multi_class="ovr")),
        ("auprc", sk.average_precision_score(targets, scores)),
        ("brier", sk.brier_score_loss(true, scores, labels=range(4), scale_by_half=False) / 4),
    ):
        assert metric(name, targets, scores, "single-label").mean == pytest.approx(expected)


def test_closed_forms():
    targets = np.array([[1], [0], [1], [0]], np.int8)
    scores = np.full((4, 1), 0.9)
    for name, expected in (
        ("accuracy", 0.5),
        ("balanced_accuracy", 0.5),
        ("f1", 2 / 3),
        ("brier", (0.01 + 0.81) / 2),
        ("calibration_error", 0.4),
        ("auroc", 0.5),
        ("auprc", 0.5),
    ):
        assert metric(name, targets, scores, "multi-label").mean == pytest.approx(expected)


def test_calibration_is_judged_bin_by_bin():
    targets = np.array([[1], [1], [0], [0]], np.int8)
    apart = np.array([[0.7], [0.7], [0.3], [0.3]])  # two bins, each 0.3 off
    together = np.array([[0.51], [0.52], [0.48], [0.49]])  # one bin, right on average
    assert metric("calibration_error", targets, apart, "multi-label").mean == pytest.approx(0.3)
    assert metric("calibration_error", targets, together, "multi-label").mean == pytest.approx(0)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("task", TASKS)
def test_score_of_an_unknown_target_does_not_count(name, task):
    targets, scores = predictions(task, 1, unknown=False)
    targets[:20] = -1
    moved = scores.copy()
    moved[:20] = 1 - moved[:20]
    np.testing.assert_array_equal(got(name, targets, moved, task), got(name, targets, scores, task))
    np.testing.assert_allclose(
        got(name, targets, scores, task), got(name, targets[20:], scores[20:], task), atol=1e-12
    )


@pytest.mark.parametrize("name", METRICS)
def test_class_that_cannot_be_scored_is_named_and_excluded_of_the_mean(name):
    targets, scores = predictions("multi-label", 2)
    others = [0, 1, 3]
    for only in (1, 0, -1):
        targets[:, 2] = only
        values = metric(name, targets, scores, "multi-label")
        ranked = name in ("auroc", "auprc", "balanced_accuracy")
        lost = only == -1 or ranked or (name == "f1" and only == 0)
        assert values.unscored == ((2,) if lost else ())
        assert np.isnan(values.per_class[2]) == lost
        if lost:
            without = metric(name, targets[:, others], scores[:, others], "multi-label")
            assert values.mean == pytest.approx(without.mean)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("task", TASKS)
def test_nothing_to_score_has_no_mean(name, task):
    for rows in (0, 3):
        values = metric(name, np.full((rows, 2), -1, np.int8), np.full((rows, 2), 0.5), task)
        assert np.isnan(values.mean)
        assert values.unscored == (0, 1)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("task", TASKS)
def test_row_order_does_not_matter(name, task):
    targets, scores = predictions(task, 4)
    order = np.random.default_rng(0).permutation(len(targets))
    np.testing.assert_allclose(
        got(name, targets[order], scores[order], task), got(name, targets, scores, task), atol=1e-12
    )


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("task", TASKS)
def test_the_better_side_is_the_one_that_is_said(name, task):
    targets, _ = predictions(task, 5, unknown=False)
    best, worst = metric(name, targets, targets, task), metric(name, targets, 1 - targets, task)
    assert (best.mean > worst.mean) == METRICS[name].higher_is_better
    assert best.mean == pytest.approx(float(METRICS[name].higher_is_better))


def test_the_first_of_equal_classes_is_decided():
    targets = np.array([[1, 0], [0, 1]], np.int8)
    scores = np.full((2, 2), 0.5)
    values = metric("balanced_accuracy", targets, scores, "single-label")
    assert values.mean == 0.5
    assert metric("f1", targets, scores, "single-label").per_class == pytest.approx((2 / 3, 0))


def test_a_row_without_a_known_class_counts_for_its_known_zeros_only():
    targets = np.array([[1, 0, 0], [0, -1, -1]], np.int8)
    scores = np.array([[0.6, 0.2, 0.2], [0.6, 0.2, 0.2]])
    values = metric("accuracy", targets, scores, "single-label")
    assert values.mean == 1
    assert values.per_class == (0.5, 1, 1)


def test_merged_classes_may_sum_to_a_little_more_than_one():
    targets, scores = np.array([[1], [0]], np.int8), np.array([[1 + 1e-15], [-1e-15]])
    for name in ("brier", "calibration_error"):
        assert metric(name, targets, scores, "multi-label").mean == 0


def test_what_does_not_fit_is_refused():
    targets, scores = predictions("multi-label")
    with pytest.raises(BenchmdError, match=r"unknown metric 'acuracy'. Did you mean 'accuracy'"):
        metric("acuracy", targets, scores, "multi-label")
    with pytest.raises(BenchmdError, match=r"unknown task 'multilabel'. Did you mean 'multi-lab"):
        metric("auroc", targets, scores, "multilabel")
    with pytest.raises(BenchmdError, match=r"targets have shape \(80, 4\) and scores \(79, 4\)"):
        metric("f1", targets, scores[1:], "multi-label")
    for name, title in (("brier", "Brier score"), ("calibration_error", "Calibration error")):
        with pytest.raises(
            BenchmdError, match=rf"{title} needs probabilities, but 1 of 80 .* the first 1.5: turn"
        ):
            metric(name, targets, np.where(np.arange(80)[:, None] == 7, 1.5, scores), "multi-label")
    targets[:] = np.eye(4)[0]
    targets[5, 2] = 1
    with pytest.raises(BenchmdError, match=r"^1 of 80 rows have several positive classes"):
        metric("accuracy", targets, scores, "single-label")


def test_each_metric_says_what_it_is():
    assert len({m.title for m in METRICS.values()}) == len(METRICS) == 7
    assert all(m.definition.endswith(".") for m in METRICS.values())
