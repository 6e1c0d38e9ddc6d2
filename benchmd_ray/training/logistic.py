"""A linear head by logistic regression, whose L2 penalty is chosen by folds of the training labels.

No validation record plays a part. The penalty is a multiple of the features' mean squared norm, so
that the same candidates serve few features and many (Hoerl and Kennard's ridge, for logistic loss).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax

from benchmd_ray.data.splits import balanced_folds, rarest_class
from benchmd_ray.modality.tasks import EXCLUSIVE, UNKNOWN, TaskKind

Floats = npt.NDArray[np.float64]
Targets = npt.NDArray[np.int8]
"""(rows, classes): 1, 0 or -1 (unknown)."""
Loss = Callable[[Floats], tuple[float, Floats]]
PENALTIES = tuple(10.0**exponent for exponent in range(0, -7, -1))
"""Candidates, the strongest first: each fit starts from the one before."""
USUAL = 0.001
"""Penalty where the labels are of too few patients for folds."""
FOLDS = 5
LIMITS = {"maxiter": 500, "ftol": 1e-9, "gtol": 1e-6}
"""Where L-BFGS stops."""


@dataclass(frozen=True)
class LinearHead:
    """Logits of features x are ``x @ weight.T + bias``."""

    weight: Floats
    """(classes, width)."""
    bias: Floats
    """(classes,)."""
    penalty: float
    """The chosen candidate of `PENALTIES`."""


def fit_head(
    features: npt.NDArray[np.float32],
    targets: Targets,
    patients: npt.NDArray[np.str_],
    task: TaskKind,
    seed: int,
) -> LinearHead:
    """The head of features (rows, width); folds are of whole patients, with classes in balance.

    Single-label minimises the cross-entropy, multi-label the binary one over the known labels.
    """
    shift, scale = _standardisation(features)
    rows = (features - shift) / scale
    rotated, back = _rotated(rows)
    penalty = _chosen_penalty(rotated, targets, patients, task, seed)
    values = _path(rotated, targets, task, penalty)[-1]
    weight = (back @ values[:-1]).T / scale
    return LinearHead(weight, values[-1] - weight @ shift, penalty)


def _standardisation(features: npt.NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each feature, (width,); 1 for a constant one."""
    mean, sd = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
    return mean, np.where(sd > 1e-6 * np.abs(mean) + 1e-12, sd, 1.0)


def _rotated(rows: Floats) -> tuple[Floats, Floats]:
    """Rows along their principal axes, and the way back, (width, dimensions).

    The penalised solution is in the span of the rows, and a rotation leaves the penalty as it is:
    of more features than rows, as many dimensions as rows are enough.
    """
    if len(rows) >= rows.shape[1]:
        back: Floats = np.linalg.eigh(rows.T @ rows)[1]
        return rows @ back, back
    u, singular, v = np.linalg.svd(rows, full_matrices=False)
    return u * singular, v.T


def _chosen_penalty(
    rows: Floats, targets: Targets, patients: npt.NDArray[np.str_], task: TaskKind, seed: int
) -> float:
    """The candidate with the smallest loss on the folds that the fits did not see."""
    classes = rarest_class(targets == 1)
    parts = min(FOLDS, len(np.unique(patients)), int(np.bincount(classes).max()))
    if parts < 2:
        return USUAL
    losses = np.zeros(len(PENALTIES))
    for held_out in balanced_folds(patients, classes, parts, seed):
        kept = np.setdiff1d(np.arange(len(rows)), held_out)
        loss = _loss_of(rows[held_out], targets[held_out], task)
        for index, values in enumerate(_path(rows[kept], targets[kept], task)):
            losses[index] += loss(values)[0] * len(held_out)
    return PENALTIES[int(np.argmin(losses))]


def _path(
    rows: Floats, targets: Targets, task: TaskKind, last: float = PENALTIES[-1]
) -> list[Floats]:
    """Weights and, in the last row, biases, (dimensions + 1, classes), down to the last penalty."""
    loss, squares = _loss_of(rows, targets, task), (rows**2).mean(axis=0)
    norm = max(float(squares.sum()), 1e-12)
    values, fits = np.zeros((rows.shape[1] + 1, targets.shape[1])), []
    for penalty in PENALTIES[: PENALTIES.index(last) + 1]:
        values = _minimum(loss, penalty * norm, squares, values)
        fits.append(values)
    return fits


def _minimum(loss: Loss, strength: float, squares: Floats, begin: Floats) -> Floats:
    """Where loss and penalty are least.

    In units of the curvature along each dimension, which is at most a quarter of its mean square
    plus the penalty, all directions are about equally steep: a few steps are enough.
    """
    units = np.append(1 / np.sqrt(squares / 4 + strength), 2.0)[:, None]

    def objective(flat: Floats) -> tuple[float, Floats]:
        values = flat.reshape(begin.shape) * units
        value, gradient = loss(values)
        gradient[:-1] += strength * values[:-1]
        return value + strength * float((values[:-1] ** 2).sum()) / 2, (gradient * units).ravel()

    start = (begin / units).ravel()
    solved = minimize(objective, start, method="L-BFGS-B", jac=True, options=LIMITS)
    minimum: Floats = solved.x.reshape(begin.shape) * units
    return minimum


def _loss_of(rows: Floats, targets: Targets, task: TaskKind) -> Loss:
    """Mean loss of a row and its gradient, both by weights and biases as `_path` has them."""
    count, positive = len(rows), (targets == 1).astype(np.float64)
    known = (targets != UNKNOWN).astype(np.float64)
    with_one = np.concatenate([rows, np.ones((count, 1))], axis=1)

    def single(values: Floats) -> tuple[float, Floats]:
        logs = log_softmax(with_one @ values, axis=1)
        gradient = with_one.T @ (np.exp(logs) - positive) / count
        return -float((logs * positive).sum()) / count, gradient

    def several(values: Floats) -> tuple[float, Floats]:
        logits = with_one @ values
        losses = known * log_expit(np.where(positive == 1, logits, -logits))
        gradient = with_one.T @ (known * (expit(logits) - positive)) / count
        return -float(losses.sum()) / count, gradient

    return single if task in EXCLUSIVE else several
