"""Logistic regression with a penalty chosen by folds, against scikit-learn's."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from benchmd_ray.data.splits import balanced_folds, rarest_class
from benchmd_ray.training.logistic import FOLDS, PENALTIES, USUAL, fit_head


def made(rows=90, width=200, classes=3, seed=0):
    draws = np.random.default_rng(seed)
    features = draws.normal(size=(rows, width)).astype(np.float32) * draws.uniform(0.1, 5, width)
    label = (features[:, :classes] / features[:, :classes].std(axis=0)).argmax(axis=1)
    label = np.where(draws.uniform(size=rows) < 0.2, draws.integers(0, classes, rows), label)
    patients = np.array([f"p{row // 2}" for row in range(rows)])
    return features.astype(np.float32), label, patients


def standardised(features, of=None):
    of = features if of is None else of
    return (features.astype(float) - of.mean(axis=0, dtype=float)) / of.std(axis=0, dtype=float)


def peer(rows, label, penalty):
    """scikit-learn's with this objective: mean loss + penalty · mean squared norm · |w|² / 2."""
    norm = (rows**2).sum(axis=1).mean()
    return LogisticRegression(C=1 / (len(rows) * penalty * norm), tol=1e-8, max_iter=5000).fit(
        rows, label
    )


@pytest.mark.parametrize(("rows", "width"), [(90, 200), (90, 12)])
def test_the_solution_is_that_of_scikit_learn_at_the_chosen_penalty(rows, width):
    features, label, patients = made(rows, width)
    head = fit_head(features, np.eye(3, dtype=np.int8)[label], patients, "single-label", 0)
    logits = features @ head.weight.T + head.bias
    expected = peer(standardised(features), label, head.penalty)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        odds / odds.sum(axis=1, keepdims=True),
        expected.predict_proba(standardised(features)),
        atol=2e-3,
    )


def test_the_penalty_is_the_best_on_folds_of_whole_patients():
    features, label, patients = made(60, 40, seed=1)
    targets = np.eye(3, dtype=np.int8)[label]
    rows = standardised(features)
    losses = np.zeros(len(PENALTIES))
    for held_out in balanced_folds(patients, rarest_class(targets == 1), FOLDS, 0):
        kept = np.setdiff1d(np.arange(len(rows)), held_out)
        assert not set(patients[kept]) & set(patients[held_out])
        for index, penalty in enumerate(PENALTIES):
            fitted = peer(rows[kept], label[kept], penalty)
            probabilities = fitted.predict_proba(rows[held_out])
            losses[index] += log_loss(
                label[held_out], probabilities, labels=[0, 1, 2], normalize=False
            )
    head = fit_head(features, targets, patients, "single-label", 0)
    assert head.penalty == PENALTIES[int(losses.argmin())]
    assert head.penalty not in (PENALTIES[0], PENALTIES[-1])


def test_unknown_labels_play_no_part():
    features, label, patients = made(classes=2, width=8)
    targets = np.eye(2, dtype=np.int8)[label]
    targets[::3, 0] = -1
    head = fit_head(features, targets, patients, "multi-label", 0)
    rows = standardised(features)
    norm = (rows**2).sum(axis=1).mean()
    for column in range(2):
        known = targets[:, column] >= 0
        # of all rows, so that the mean loss weighs the penalty alike
        fitted = LogisticRegression(C=1 / (len(rows) * head.penalty * norm), tol=1e-8).fit(
            rows[known], targets[known, column]
        )
        logits = features @ head.weight[column] + head.bias[column]
        np.testing.assert_allclose(logits, fitted.decision_function(rows), atol=5e-3)


def test_a_constant_feature_has_no_weight_and_breaks_nothing():
    features, label, patients = made(width=10)
    features[:, 4] = 7.0
    head = fit_head(features, np.eye(3, dtype=np.int8)[label], patients, "single-label", 0)
    assert np.isfinite(head.weight).all()
    np.testing.assert_allclose(head.weight[:, 4], 0, atol=1e-9)


def test_labels_of_one_patient_have_the_usual_penalty():
    features, label, _ = made(rows=12)
    patients = np.full(12, "p")
    head = fit_head(features, np.eye(3, dtype=np.int8)[label], patients, "single-label", 0)
    assert head.penalty == USUAL


@pytest.mark.parametrize("each", [1, 2, 3])
def test_few_labels_of_each_class_have_as_many_folds(each):
    features, label, _ = made(rows=60, width=8)
    rows = np.concatenate([np.flatnonzero(label == one)[:each] for one in range(3)])
    patients = np.arange(len(rows)).astype(str)
    targets = np.eye(3, dtype=np.int8)[label[rows]]
    head = fit_head(features[rows], targets, patients, "single-label", 0)
    assert np.isfinite(head.weight).all()
    assert np.isfinite(head.bias).all()


def test_a_class_without_a_training_record_breaks_nothing():
    features, label, patients = made(classes=3, width=8)
    targets = np.eye(4, dtype=np.int8)[label]  # the fourth is never positive
    for task in ("single-label", "multi-label"):
        head = fit_head(features, targets, patients, task, 0)
        logits = features @ head.weight.T + head.bias
        assert np.isfinite(logits).all()
        assert (logits[:, 3] < logits.max(axis=1)).all()
