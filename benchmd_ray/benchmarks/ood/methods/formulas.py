"""Formulas that several detectors share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp, softmax
from scipy.stats import rankdata

from benchmd_ray.benchmarks.ood.methods.method import Floats, State


def probabilities(logits: npt.ArrayLike, exclusive: bool) -> Floats:
    """(records, classes): of the one class, which sum to 1, or of each label by itself."""
    z = np.asarray(logits, np.float64)
    return np.asarray(softmax(z, axis=1) if exclusive else expit(z), np.float64)


def free_energy(logits: npt.ArrayLike, exclusive: bool) -> Floats:
    """(records,): log Σ exp z of the classes; of labels Σ log(1 + exp z), their joint energy."""
    z = np.asarray(logits, np.float64)
    return np.asarray(logsumexp(z, axis=1) if exclusive else np.logaddexp(0, z).sum(axis=1))


def unit(features: npt.ArrayLike) -> Floats:
    """Rows divided by their Euclidean norms; a row of zeros stays as it is."""
    f = np.asarray(features, np.float64)
    norm = np.linalg.norm(f, axis=1, keepdims=True)
    return np.asarray(f / np.where(norm == 0, 1, norm))


def cut(features: Floats, percentile: float) -> Floats:
    """(records, 1): the least of a record's active features, as in the code of ASH and SCALE."""
    place = min(round(features.shape[1] * percentile / 100), features.shape[1] - 1)
    return np.asarray(np.partition(features, place, axis=1)[:, place, None])


def auroc(inside: Floats, outside: Floats) -> float:
    """Share of pairs in which the out record scores more; ties count a half."""
    ranks = rankdata(np.concatenate([inside, outside]))[len(inside) :]
    least = len(outside) * (len(outside) + 1) / 2
    return float((ranks.sum() - least) / (len(inside) * len(outside)))


def drawn(records: int, most: int) -> npt.NDArray[np.intp]:
    """Rows of at most so many records, ascending, drawn by a fixed seed."""
    return np.sort(np.random.default_rng(0).permutation(records)[:most])


def learned(model: Any, values: npt.ArrayLike, out: npt.NDArray[np.bool_]) -> State:
    """What a linear model of scikit-learn learns of standardised values (records, quantities).

    The direction (quantities,) and the offset are for the values as they are.
    """
    x = np.asarray(values, np.float64)
    mean, spread = x.mean(axis=0), x.std(axis=0)
    spread = np.where(spread == 0, 1, spread)
    model.fit((x - mean) / spread, out)
    direction = model.coef_[0] / spread
    return {"direction": direction, "offset": np.array(model.intercept_[0] - mean @ direction)}


def applied(state: State, values: npt.ArrayLike) -> Floats:
    """(records,): above 0 is more likely out."""
    return np.asarray(np.asarray(values, np.float64) @ state["direction"] + state["offset"])
