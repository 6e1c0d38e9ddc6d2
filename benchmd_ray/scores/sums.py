"""Metrics that are functions of sums over rows: decisions, squared errors, calibration.

A bootstrap then needs only weighted totals of the rows' terms. An unknown target (-1) contributes
nothing to its class. A single-label prediction is the class with the highest score (the first if
several are equal); a multi-label prediction is every label with a score of at least 0.5. A
single-label row without a class is excluded from `accuracy` over all classes and from every recall,
but its known zeros still count for the single classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmd_ray.modality.tasks import EXCLUSIVE, TaskKind

Floats = npt.NDArray[np.float64]
Targets = npt.NDArray[np.int8]

BINS = 15
"""Bins of equal width of the expected calibration error (Guo et al. 2017, section 2)."""
BLOCK_ROWS = 4096
"""Rows whose terms are computed at a time: the terms of all rows would be larger than the
scores.
"""
THRESHOLD = 0.5
"""Score from which a label of a multi-label task counts as predicted."""


@dataclass(frozen=True)
class Sums:
    """A metric as terms of the rows and a function of their totals."""

    terms: Callable[[Targets, Floats, TaskKind], Floats]
    """Terms of the rows, (rows, classes, terms), from targets and scores (rows, classes)."""
    values: Callable[[Floats, TaskKind], Floats]
    """Values (draws, 1 + classes), first over all classes, from totals (draws, classes, terms)."""
    needs_probabilities: bool = False
    """Whether scores outside [0, 1] make no sense."""


def mean_over_classes(values: Floats) -> Floats:
    """Unweighted mean over the last axis, ignoring NaN; NaN if all are."""
    scored = ~np.isnan(values)
    return ratio(np.where(scored, values, 0.0).sum(axis=-1), scored.sum(axis=-1))


def ratio(above: npt.ArrayLike, below: npt.ArrayLike) -> Floats:
    """Quotients, NaN where `below` is 0."""
    numerator, denominator = np.asarray(above), np.asarray(below)
    values = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    np.divide(numerator, denominator, out=values, where=denominator > 0)
    return values


def totals_of(how: Sums, targets: Targets, scores: Floats, task: TaskKind) -> Floats:
    """Totals of the terms over all rows, (classes, terms)."""
    total = how.terms(targets[:0], scores[:0], task).sum(axis=0)
    for first in range(0, len(targets), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        total += how.terms(targets[rows], scores[rows], task).sum(axis=0)
    return np.asarray(total)


def confusion(targets: Targets, scores: Floats, task: TaskKind) -> Floats:
    """True positives, false positives, false negatives and true negatives: (rows, classes, 4)."""
    if task in EXCLUSIVE:
        decided = np.arange(scores.shape[1]) == scores.argmax(axis=1)[:, None]
    else:
        decided = scores >= THRESHOLD
    positive, negative = targets == 1, targets == 0
    kinds = (decided & positive, decided & negative, ~decided & positive, ~decided & negative)
    return np.stack(kinds, axis=-1).astype(np.float64)


def accuracy(totals: Floats, task: TaskKind) -> Floats:
    """Share of correct decisions: over rows (single-label), or of each label and their mean."""
    tp, fp, fn, tn = np.moveaxis(totals, -1, 0)
    per_class = ratio(tp + tn, tp + fp + fn + tn)
    if task in EXCLUSIVE:
        return _with_overall(ratio(tp.sum(axis=1), (tp + fn).sum(axis=1)), per_class)
    return _with_overall(mean_over_classes(per_class), per_class)


def balanced_accuracy(totals: Floats, task: TaskKind) -> Floats:
    """Mean recall of the classes present, or the labels' mean of sensitivity and specificity."""
    tp, fp, fn, tn = np.moveaxis(totals, -1, 0)
    recall = ratio(tp, tp + fn)
    per_class = (recall + ratio(tn, tn + fp)) / 2
    return _with_overall(mean_over_classes(recall if task in EXCLUSIVE else per_class), per_class)


def f1(totals: Floats, task: TaskKind) -> Floats:
    """F1 of the classes with a positive, and its unweighted mean (macro)."""
    tp, fp, fn, _ = np.moveaxis(totals, -1, 0)
    per_class = np.where(tp + fn > 0, ratio(2 * tp, 2 * tp + fp + fn), np.nan)
    return _with_overall(mean_over_classes(per_class), per_class)


def squared_errors(targets: Targets, scores: Floats, task: TaskKind) -> Floats:
    """Squared error of each score and whether its target is known: (rows, classes, 2)."""
    is_known = targets >= 0
    return np.stack((np.where(is_known, (scores - targets) ** 2, 0.0), is_known), axis=-1)


def brier(totals: Floats, task: TaskKind) -> Floats:
    """Mean squared error of each class's probability, and its mean over classes (Brier 1950)."""
    per_class = ratio(totals[..., 0], totals[..., 1])
    return _with_overall(mean_over_classes(per_class), per_class)


def binned_gaps(targets: Targets, scores: Floats, task: TaskKind) -> Floats:
    """Target minus score in the score's bin, then whether it is known: (rows, classes, 16)."""
    is_known = targets >= 0
    terms = np.zeros((*scores.shape, BINS + 1))
    place = np.minimum((scores * BINS).astype(np.intp), BINS - 1)
    gap = np.where(is_known, targets - scores, 0.0)
    np.put_along_axis(terms, place[..., None], gap[..., None], axis=2)
    terms[..., BINS] = is_known
    return terms


def calibration_error(totals: Floats, task: TaskKind) -> Floats:
    """Mean over the bins, weighted by their rows, of |share of positives − mean probability|."""
    per_class = ratio(np.abs(totals[..., :BINS]).sum(axis=-1), totals[..., BINS])
    return _with_overall(mean_over_classes(per_class), per_class)


def _with_overall(overall: Floats, per_class: Floats) -> Floats:
    return np.concatenate((overall[:, None], per_class), axis=1)
