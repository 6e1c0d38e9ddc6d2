"""The metrics: AUROC as BenchMD scores it, and six more to read next to it.

AUROC and average precision (AUPRC) are one-vs-rest, with an unweighted mean over classes (BenchMD
v2, section 4). A class that a split cannot score (no positive or no negative among its known
targets) is excluded from the mean and named, never replaced by a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import BenchmdError, unknown_name
from benchmd_ray.modality.tasks import EXCLUSIVE, TaskKind
from benchmd_ray.scores import ranking, sums
from benchmd_ray.scores.sums import Floats, Targets

_ROUNDING = 1e-6
"""Tolerance for scores outside [0, 1]: scores of merged classes are sums of probabilities."""


@dataclass(frozen=True)
class Values:
    """A metric of one split."""

    mean: float
    """Over all classes, see `Metric.definition`; NaN when nothing could be scored."""
    per_class: tuple[float, ...]
    """One value per class, in the order of the columns; NaN where a class could not be scored."""
    unscored: tuple[int, ...]


@dataclass(frozen=True)
class Metric:
    """What a metric is, for readers and for the bootstrap."""

    title: str
    higher_is_better: bool
    definition: str
    """One or two sentences, for a report."""
    how: ranking.Ranked | sums.Sums
    """How to compute it, with and without row weights."""
    least: float = 5
    """Effective patients that an interval needs on the rarer side of each class (see `support`). 0
    where rows of all classes weigh alike; more where few rows raise the metric, so that its
    interval would miss the truth; infinite for a metric that never has an interval.
    """


def metric(name: str, targets: npt.ArrayLike, scores: npt.ArrayLike, task: TaskKind) -> Values:
    """A metric over all classes and for each class against the rest.

    Args:
        name: One of `METRICS`.
        targets: (rows, classes), integers: 1, 0, or -1 for unknown, which is masked per class.
        scores: (rows, classes), probabilities; for AUROC and AUPRC any score where higher means
            more likely positive.
        task: As `Task.kind`.

    Raises:
        BenchmdError: The name or task is unknown, the arrays do not fit together, a score is not
            finite or not a probability where one is needed, or a single-label row has two
            positives.
    """
    how, labels, finite = checked_metric(name, targets, scores, task)
    if isinstance(how, ranking.Ranked):
        return _ranked_values(how.per_class(labels, finite))
    values = how.values(sums.totals_of(how, labels, finite, task)[None], task)[0]
    return _values(float(values[0]), values[1:])


def checked_metric(
    name: str, targets: npt.ArrayLike, scores: npt.ArrayLike, task: TaskKind
) -> tuple[ranking.Ranked | sums.Sums, Targets, Floats]:
    """How to compute a metric, and its arguments, checked (see `metric`)."""
    if name not in METRICS:
        raise unknown_name("metric", name, METRICS)
    if task not in get_args(TaskKind):
        raise unknown_name("task", task, get_args(TaskKind))
    how = METRICS[name].how
    labels, finite = checked_predictions(targets, scores)
    if isinstance(how, sums.Sums):
        several = np.count_nonzero((labels == 1).sum(axis=1) > 1) if task in EXCLUSIVE else 0
        if several:
            raise BenchmdError(
                f"{several} of {len(labels)} rows have several positive classes, but the task is "
                "single-label: expected at most one 1 in a row of targets"
            )
        if how.needs_probabilities:
            finite = _probabilities_only(finite, METRICS[name].title)
    return how, labels, finite


def _probabilities_only(scores: Floats, title: str) -> Floats:
    outside = (scores < -_ROUNDING) | (scores > 1 + _ROUNDING)
    if outside.any():
        raise BenchmdError(
            f"{title} needs probabilities, but {np.count_nonzero(outside.any(axis=1))} of "
            f"{len(scores)} rows have a score outside [0, 1], the first {scores[outside][0]:.6g}: "
            "turn logits into scores with `probabilities`"
        )
    return np.clip(scores, 0.0, 1.0)


def _ranked_values(per_class: Floats) -> Values:
    scored = per_class[~np.isnan(per_class)]
    return _values(float(scored.mean()) if scored.size else float("nan"), per_class)


def _values(mean: float, per_class: Floats) -> Values:
    unscored = tuple(np.flatnonzero(np.isnan(per_class)).tolist())
    return Values(mean, tuple(per_class.tolist()), unscored)


def auroc(
    targets: npt.ArrayLike,
    scores: npt.ArrayLike,
    of_class: Callable[[Targets, Floats], float] = ranking.auroc,
) -> Values:
    """AUROC of each class and its unweighted mean (BenchMD v2, section 4).

    Targets and scores are as in `metric`; ``of_class`` computes the AUROC of one class from its
    known targets and scores, both (rows,).
    """
    return _ranked_values(_each_class(of_class, targets, scores))


def auroc_per_class(targets: npt.ArrayLike, scores: npt.ArrayLike) -> Floats:
    """AUROC of each class against the rest, (classes,); NaN where a side is empty."""
    return _each_class(ranking.auroc, targets, scores)


def average_precision_per_class(targets: npt.ArrayLike, scores: npt.ArrayLike) -> Floats:
    """Average precision of each class, (classes,); NaN where a side is empty."""
    from sklearn.metrics import average_precision_score  # a second, which most processes can spare

    return _each_class(average_precision_score, targets, scores)


def _each_class(
    score_class: Callable[..., float], targets: npt.ArrayLike, scores: npt.ArrayLike
) -> Floats:
    known_targets, finite_scores = checked_predictions(targets, scores)
    values = np.full(known_targets.shape[1], np.nan)
    for index, (target, score) in enumerate(zip(known_targets.T, finite_scores.T, strict=True)):
        is_known = target >= 0
        positives = np.count_nonzero(target == 1)
        if 0 < positives < np.count_nonzero(is_known):
            values[index] = score_class(target[is_known], score[is_known])
    return values


def probabilities(logits: npt.ArrayLike, task: TaskKind) -> npt.NDArray[np.float64]:
    """Scores from logits, (rows, classes): softmax over classes, or the sigmoid of each label.

    In float64 without overflow. For logits above about 37 the sigmoid rounds to 1, so their scores
    are tied.
    """
    values = _finite(logits, "logits")
    if task in EXCLUSIVE:
        shifted = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
    if task == "multi-label":
        return np.asarray(np.exp(-np.logaddexp(0.0, -values)))
    raise unknown_name("task", task, get_args(TaskKind))


def require_scorable(targets: npt.ArrayLike, classes: Sequence[str], where: str) -> None:
    """Refuse targets (rows, classes) if no class has both a positive and a negative.

    ``where`` names the dataset and split in the message.
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
        BenchmdError: The shapes differ, a target is not 1, 0 or -1, or a score is not finite.
    """
    values, finite_scores = _checked_targets(targets), _finite(scores, "scores")
    if values.shape != finite_scores.shape:
        raise BenchmdError(
            f"targets have shape {values.shape} and scores {finite_scores.shape}, expected the "
            "same (rows, classes)"
        )
    return values, finite_scores


def checked_groups(groups: npt.ArrayLike, rows: int) -> npt.NDArray[np.intp]:
    """Index of each row's patient among the sorted patients, (rows,)."""
    patients = np.asarray(groups)
    if patients.shape != (rows,):
        raise BenchmdError(
            f"groups have shape {patients.shape}, expected ({rows},): the patient of each row"
        )
    return np.unique(patients, return_inverse=True)[1]


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


_CLASSWISE = "each class against the rest, unweighted mean over classes"
METRICS: dict[str, Metric] = {
    "auroc": Metric(
        "AUROC",
        True,
        f"Area under the receiver operating characteristic, ties one half; {_CLASSWISE}.",
        ranking.Ranked(auroc_per_class, ranking.weighted_auroc),
    ),
    "auprc": Metric(
        "AUPRC",
        True,
        "Average precision, the area under the precision-recall curve without interpolation; "
        f"{_CLASSWISE}. A random order has the share of positives. Few positives raise it.",
        ranking.Ranked(average_precision_per_class, ranking.weighted_average_precision),
        least=100,
    ),
    "accuracy": Metric(
        "Accuracy",
        True,
        "Share of right decisions. Single-label: of rows whose highest score is their class's; "
        "a class's own value is that of its decisions against the rest. Multi-label: of labels "
        f"with the decision at {sums.THRESHOLD}, mean over labels.",
        sums.Sums(sums.confusion, sums.accuracy),
        least=0,
    ),
    "balanced_accuracy": Metric(
        "Balanced accuracy",
        True,
        "Single-label: mean recall over the classes present, by the highest score. Multi-label, "
        "and a class's own value: mean of sensitivity and specificity, then over labels.",
        sums.Sums(sums.confusion, sums.balanced_accuracy),
    ),
    "f1": Metric(
        "F1",
        True,
        "Harmonic mean of precision and recall of the decisions, by the highest score or at "
        f"{sums.THRESHOLD}; unweighted mean over the classes with a positive (macro).",
        sums.Sums(sums.confusion, sums.f1),
    ),
    "brier": Metric(
        "Brier score",
        False,
        f"Mean squared difference of probability and target; {_CLASSWISE}.",
        sums.Sums(sums.squared_errors, sums.brier, needs_probabilities=True),
        least=0,
    ),
    "calibration_error": Metric(
        "Calibration error",
        False,
        f"Expected calibration error: {sums.BINS} bins of equal width of a class's probability, "
        "in each the difference of its mean and the share of positives, weighted by rows; "
        f"{_CLASSWISE}. Few rows raise it, so that it has no interval.",
        sums.Sums(sums.binned_gaps, sums.calibration_error, needs_probabilities=True),
        least=math.inf,
    ),
}
