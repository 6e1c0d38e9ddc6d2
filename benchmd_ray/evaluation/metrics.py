"""AUROC as BenchMD scores it: one class against the rest, unweighted mean over classes.

Source: BenchMD v2, section 4. A class that a split cannot score (no positive or no negative among
its known targets) is left out of the mean and named, never replaced by a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.modalities import UNKNOWN, Task


@dataclass(frozen=True)
class Auroc:
    """AUROC of one split, as fractions in [0, 1]."""

    mean: float
    """Unweighted mean over the classes that could be scored; NaN when there is none."""
    per_class: tuple[float, ...]
    """One value per class, in the modality's order; NaN where a class could not be scored."""
    unscored: tuple[int, ...]
    """Indices of the classes that could not be scored."""


def auroc(targets: npt.ArrayLike, scores: npt.ArrayLike) -> Auroc:
    """AUROC of each class and its unweighted mean (BenchMD v2, section 4).

    Args:
        targets: (rows, classes), integers: 1, 0, or -1 for unknown, which is masked per class.
        scores: (rows, classes), higher means more likely positive; see `probabilities`.

    Raises:
        BenchmdError: The arrays do not fit together, hold other target values, or a score is
            not finite.
    """
    values = auroc_per_class(targets, scores)
    unscored = np.isnan(values)
    return Auroc(
        mean=float("nan") if unscored.all() else float(values[~unscored].mean()),
        per_class=tuple(values.tolist()),
        unscored=tuple(np.flatnonzero(unscored).tolist()),
    )


def auroc_per_class(targets: npt.ArrayLike, scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """AUROC of each class against the rest, (classes,); a tie counts one half.

    NaN where a class has no positive or no negative among its known targets.

    Args:
        targets: (rows, classes), integers: 1, 0, or -1 for unknown, which is masked per class.
        scores: (rows, classes), higher means more likely positive.

    Raises:
        BenchmdError: The arrays do not fit together, hold other target values, or a score is
            not finite.
    """
    known_targets, finite_scores = checked_predictions(targets, scores)
    values = np.full(known_targets.shape[1], np.nan)
    for index, (target, score) in enumerate(zip(known_targets.T, finite_scores.T, strict=True)):
        known = target >= 0
        positives = np.count_nonzero(target == 1)
        if 0 < positives < np.count_nonzero(known):
            values[index] = roc_auc_score(target[known], score[known])
    return values


def pooled(
    units: Sequence[str], targets: npt.ArrayLike, scores: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8], npt.NDArray[np.float64]]:
    """Rows pooled to what is scored: the windows of a CT scan to the scan (decision D5).

    Args:
        units: (rows,) what each row belongs to.
        targets: (rows, classes), 1, 0 or -1 for unknown.
        scores: (rows, classes).

    Returns:
        The first row of each unit (units,), in order of the rows; the units' targets (units,
        classes): 1 if one of its rows is positive, else -1 if one is unknown, else 0; and their
        scores (units, classes): the maximum over its rows.
    """
    target, score = np.asarray(targets, np.int8), np.asarray(scores, np.float64)
    _, first, member = np.unique(np.asarray(units, np.str_), return_index=True, return_inverse=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    member = place[member]
    shape = (len(first), target.shape[1])
    best = np.full(shape, -np.inf)
    np.maximum.at(best, member, score)
    positive, unknown = np.zeros(shape, bool), np.zeros(shape, bool)
    np.logical_or.at(positive, member, target == 1)
    np.logical_or.at(unknown, member, target == UNKNOWN)
    pooled_targets = np.where(positive, 1, np.where(unknown, UNKNOWN, 0)).astype(np.int8)
    return np.sort(first), pooled_targets, best


def probabilities(logits: npt.ArrayLike, task: Task) -> npt.NDArray[np.float64]:
    """Scores from logits: softmax over classes, or the sigmoid of each label.

    Computed in float64 without overflow. The sigmoid rounds to 1 above logits of about 37; such
    scores are tied.

    Args:
        logits: (rows, classes), any floating type.
        task: ``single-label`` for the softmax, ``multi-label`` for the sigmoid.

    Returns:
        (rows, classes), values in [0, 1].

    Raises:
        BenchmdError: The task is unknown, the shape is wrong, or a logit is not finite.
    """
    values = _finite(logits, "logits")
    if task == "single-label":
        shifted = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
    if task == "multi-label":
        return np.asarray(np.exp(-np.logaddexp(0.0, -values)))
    raise unknown_name("task", task, ("single-label", "multi-label"))


def require_scorable(targets: npt.ArrayLike, classes: Sequence[str], where: str) -> None:
    """Refuse targets of which no class has both a positive and a negative.

    Args:
        targets: (rows, classes), integers: 1, 0, or -1 for unknown.
        classes: Names of the classes, in the order of the columns.
        where: What the targets belong to, to begin the message with: a dataset and split.

    Raises:
        BenchmdError: No class can be scored, or names and columns differ in number.
    """
    values = _checked_targets(targets)
    if len(classes) != values.shape[1]:
        raise BenchmdError(
            f"{where}: targets have {values.shape[1]} classes, expected {len(classes)} "
            f"({', '.join(classes)})"
        )
    positive, negative, unknown = (np.count_nonzero(values == v, axis=0) for v in (1, 0, -1))
    if np.any((positive > 0) & (negative > 0)):
        return
    counts = "; ".join(
        f"{name}: {p} positive, {n} negative, {u} unknown"
        for name, p, n, u in zip(classes, positive, negative, unknown, strict=True)
    )
    raise BenchmdError(
        f"{where}: no class has both a positive and a negative among its known targets, so no "
        f"AUROC exists ({counts}). Use a split with more records, or check the class mapping in "
        "the dataset's card."
    )


def checked_predictions(
    targets: npt.ArrayLike, scores: npt.ArrayLike
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float64]]:
    """Targets as int8 and scores as float64, both (rows, classes).

    Raises:
        BenchmdError: The shapes differ or are not two-dimensional, a target is none of 1, 0 and
            -1, or a score is not finite.
    """
    values, finite_scores = _checked_targets(targets), _finite(scores, "scores")
    if values.shape != finite_scores.shape:
        raise BenchmdError(
            f"targets have shape {values.shape} and scores {finite_scores.shape}, expected the "
            "same (rows, classes)"
        )
    return values, finite_scores


def _checked_targets(targets: npt.ArrayLike) -> npt.NDArray[np.int8]:
    values = np.asarray(targets)
    if values.ndim != 2:
        raise BenchmdError(f"targets have shape {values.shape}, expected (rows, classes)")
    valid = (values == 1) | (values == 0) | (values == -1)
    if not valid.all():
        raise BenchmdError(
            f"targets hold {values[~valid][0]!s} in {np.count_nonzero(~valid.all(axis=1))} of "
            f"{len(values)} rows, expected 1, 0, or -1 for unknown"
        )
    return values.astype(np.int8, copy=False)


def _finite(values: npt.ArrayLike, name: str) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2:
        raise BenchmdError(f"{name} have shape {array.shape}, expected (rows, classes)")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise BenchmdError(
            f"{name} are not finite in {np.count_nonzero(~finite)} of {len(array)} rows, first in "
            f"row {np.argmin(finite)}: the model diverged or its input is not finite. Lower the "
            "learning rate, or check the dataset with the catalog's verification."
        )
    return array
