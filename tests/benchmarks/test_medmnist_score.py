"""MedMNIST's AUC, ACC and result files, against plain loops and the official parser's rules."""

import csv
import itertools
import math

import numpy as np
import pandas as pd
import pytest

from benchmd_ray.benchmarks.medmnist.scores import Score, score, write_result
from benchmd_ray.errors import BenchmdError

BINARY, MULTI, ORDINAL = "binary-class", "multi-class", "ordinal-regression"
LABELS = "multi-label"


def pairs_auc(positive, scores):
    """Share of pairs of a positive and a negative that stand in order; a tie counts one half."""
    good, pairs = 0.0, 0
    for (one, a), (other, b) in itertools.product(zip(positive, scores, strict=True), repeat=2):
        if one and not other:
            good, pairs = good + (a > b) + 0.5 * (a == b), pairs + 1
    if not pairs:
        raise ValueError("one class alone")
    return good / pairs


def slow(labels, scores, task):
    """AUC and ACC example by example from MedMNIST's labels, as its evaluator reads them.

    Args:
        labels: (rows,) numbers of classes; (rows, labels) in a multi-label task.
        scores: (rows, classes).
        task: Of the dataset.
    """
    rows, columns = scores.shape
    if task == BINARY:
        right = sum((scores[i, -1] > 0.5) == labels[i] for i in range(rows))
        return pairs_auc(labels == 1, scores[:, -1]), right / rows
    if task == LABELS:
        aucs = [pairs_auc(labels[:, c] == 1, scores[:, c]) for c in range(columns)]
        right = sum(
            (scores[i, c] > 0.5) == labels[i, c] for i in range(rows) for c in range(columns)
        )
        return sum(aucs) / columns, right / (rows * columns)
    aucs = [pairs_auc(labels == c, scores[:, c]) for c in range(columns)]
    right = sum(
        max(range(columns), key=lambda c, i=i: scores[i, c]) == labels[i] for i in range(rows)
    )
    return sum(aucs) / columns, right / rows


def drawn(task, seed, classes, rows, how):
    """Labels and scores of a task; ``how`` says what is odd about the scores."""
    generator = np.random.default_rng([seed, rows])
    if task == LABELS:
        labels = generator.integers(0, 2, (rows, classes))
        labels[0], labels[1] = 0, 1
        scores = generator.random((rows, classes))
    else:
        labels = np.concatenate(
            [np.arange(classes), generator.integers(0, classes, rows - classes)]
        )
        scores = generator.dirichlet(np.ones(classes), rows)
    if how == "ties":
        scores = np.round(scores * 4) / 4  # exactly 0.5 among them
    if how == "constant":
        scores = np.full_like(scores, 0.5)
    if how == "certain":
        scores = np.round(scores)
    return labels, scores


def one_hot(labels, classes):
    return labels if labels.ndim == 2 else np.eye(classes, dtype=int)[labels]


def names(classes):
    return [f"class {c}" for c in range(classes)]


@pytest.mark.parametrize("how", ["random", "ties", "constant", "certain"])
@pytest.mark.parametrize(("task", "classes"), [(BINARY, 2), (MULTI, 7), (ORDINAL, 5), (LABELS, 14)])
def test_auc_and_acc_agree_with_loops_over_examples(task, classes, how):
    for seed, rows in itertools.product(range(3), (classes, 20, 41)):
        labels, scores = drawn(task, seed, classes, rows, how)
        found = score(one_hot(labels, classes), scores, task, names(classes))
        auc, acc = slow(labels, scores, task)
        assert found.auc == pytest.approx(auc, abs=1e-12)
        assert found.acc == pytest.approx(acc, abs=1e-12)
        assert found.unscored == ()


def test_a_score_of_one_half_is_negative_and_a_tie_goes_to_the_first_class():
    half = np.full((2, 2), 0.5)
    assert score([[1, 0], [0, 1]], half, BINARY, names(2)).acc == 0.5
    assert score([[1, 0], [1, 0]], half, BINARY, names(2)).acc == 1
    assert score([[1, 0], [0, 1]], half, MULTI, names(2)).acc == 0.5
    assert score([[1, 1], [0, 0]], half, LABELS, names(2)).acc == 0.5
    assert score([[0, 0], [0, 0]], half, LABELS, names(2)).acc == 1


def test_a_binary_task_is_scored_by_its_last_class_alone():
    scores = np.array([[0.9, 0.2], [0.8, 0.6], [0.1, 0.7]])  # no probabilities of one another
    targets = [[1, 0], [0, 1], [1, 0]]
    assert score(targets, scores, BINARY, names(2)) == Score(0.5, 2 / 3, ())


@pytest.mark.parametrize(
    ("task", "targets", "unscored"),
    [
        (BINARY, [[1, 0], [1, 0]], ("class 1",)),
        (BINARY, [[0, 1], [0, 1]], ("class 1",)),
        (MULTI, [[1, 0, 0], [0, 1, 0]], ("class 2",)),
        (ORDINAL, [[1, 0, 0], [1, 0, 0]], ("class 0", "class 1", "class 2")),
        (LABELS, [[1, 0, 1], [0, 0, 1]], ("class 1", "class 2")),
    ],
)
def test_a_class_with_one_kind_of_example_alone_has_no_auc_and_is_named(task, targets, unscored):
    columns = len(targets[0])
    scores = np.linspace(0.1, 0.8, 2 * columns).reshape(2, columns)
    found = score(targets, scores, task, names(columns))
    assert math.isnan(found.auc)
    assert found.unscored == unscored
    assert 0 <= found.acc <= 1


@pytest.mark.parametrize(
    ("task", "targets", "scores", "message"),
    [
        ("binary", [[1, 0]], [[0.1, 0.9]], "unknown task 'binary'"),
        (MULTI, [[1, 1]], [[0.1, 0.9]], "row 0, and of 0 others.*expected one class with a 1"),
        (MULTI, [[1, 0], [0, 0]], [[0.1, 0.9]] * 2, "row 1"),
        (LABELS, [[1, 0], [-1, 0]], [[0.1, 0.9]] * 2, "row 1.*1 or 0 for every label"),
        (BINARY, [[1, 0, 0]], [[0.1, 0.9, 0.0]], "3 columns of targets, expected 2"),
        (MULTI, np.zeros((0, 2)), np.zeros((0, 2)), "one row or more"),
        (MULTI, [[1, 0]], [[0.1, math.nan]], "not finite"),
    ],
)
def test_what_is_none_of_medmnist_is_refused(task, targets, scores, message):
    with pytest.raises(BenchmdError, match=message):
        score(targets, scores, task, names(np.shape(targets)[1]))


@pytest.mark.data
def test_labels_of_an_official_file_agree_with_loops(real_data):
    path = real_data / "medmnist" / "breastmnist.npz"
    labels = np.load(path)["test_labels"][:, 0].astype(int)
    scores = np.random.default_rng(0).dirichlet([1, 2], len(labels))
    found = score(np.eye(2, dtype=int)[labels], scores, BINARY, names(2))
    assert (found.auc, found.acc) == pytest.approx(slow(labels, scores, BINARY), abs=1e-12)
    assert len(labels) == 156


def official_parse(path):
    """What the official evaluator takes from a file: its name's parts, and scores by index."""
    dataset, second, *rest = path.name.split("_")
    size, split = (28, second) if second.startswith(("train", "val", "test")) else (second, rest[0])
    run = path.name.split("@")[-1].split(".")[0]
    with path.open(newline="") as file:
        lines = sorted((int(line[0]), *map(float, line[1:])) for line in csv.reader(file))
    return dataset, int(size), split, run, np.array([line[1:] for line in lines])


@pytest.mark.parametrize(
    ("size", "split", "theirs", "name"),
    [
        (28, "test", "test", "octmnist_test_[AUC]0.672_[ACC]0.892@3.csv"),
        (224, "validation", "val", "octmnist_224_val_[AUC]0.672_[ACC]0.892@3.csv"),
    ],
)
def test_the_official_parser_reads_what_was_written(tmp_path, size, split, theirs, name):
    order = np.random.default_rng(1).permutation(9)
    scores = np.random.default_rng(2).dirichlet(np.ones(4), 9)
    rows = pd.DataFrame(scores[order], index=order)  # in the order of a catalog
    found = Score(0.67249, 0.8919, ())
    path = write_result(tmp_path, "octmnist", size, split, "3", found, rows)
    assert path.name == name
    held = official_parse(path)
    assert held[:4] == ("octmnist", size, theirs, "3")
    assert np.array_equal(held[4], scores)  # to the last bit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "oct_mnist"}, "the dataset 'oct_mnist' cannot be part of the name"),
        ({"run": "0.1"}, r"the run '0\.1' cannot be part of the name"),
        ({"split": "val"}, "unknown split 'val'"),
        ({"rows": pd.DataFrame([[0.1], [0.2]], index=[0, 2])}, "every row of MedMNIST's file once"),
        ({"rows": pd.DataFrame([[0.1], [0.2]], index=[1, 1])}, "every row of MedMNIST's file once"),
    ],
)
def test_what_the_official_parser_would_misread_is_not_written(tmp_path, change, message):
    rows = pd.DataFrame([[0.1], [0.2]])
    about = {"dataset": "octmnist", "size": 28, "split": "test", "run": "1", "rows": rows}
    with pytest.raises(BenchmdError, match=message):
        write_result(tmp_path, result=Score(0.5, 0.5, ()), **(about | change))
    assert not list(tmp_path.iterdir())
