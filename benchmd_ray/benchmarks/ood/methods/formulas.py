"""Formulas that several detectors share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import entr, expit, logsumexp, softmax
from scipy.stats import rankdata

from benchmd_ray.benchmarks.ood.methods.method import Floats


def probabilities(logits: npt.ArrayLike, exclusive: bool) -> Floats:
    """(records, classes): of the one class, which sum to 1, or of each label by itself."""
    z = np.asarray(logits, np.float64)
    return np.asarray(softmax(z, axis=1) if exclusive else expit(z), np.float64)


def entropy(p: Floats, exclusive: bool) -> Floats:
    """(records,): −Σ p log p of the classes; of labels the sum of their binary entropies."""
    return np.asarray((entr(p) if exclusive else entr(p) + entr(1 - p)).sum(axis=1))


def free_energy(logits: npt.ArrayLike, exclusive: bool) -> Floats:
    """(records,): log Σ exp z of the classes; of labels Σ log(1 + exp z), their joint energy."""
    z = np.asarray(logits, np.float64)
    return np.asarray(logsumexp(z, axis=1) if exclusive else np.logaddexp(0, z).sum(axis=1))


def unit(features: npt.ArrayLike) -> Floats:
    """Rows divided by their Euclidean norms; a row of zeros stays as it is."""
    f = np.asarray(features, np.float64)
    norm = np.linalg.norm(f, axis=1, keepdims=True)
    return np.asarray(f / np.where(norm == 0, 1, norm))


def auroc(inside: Floats, outside: Floats) -> float:
    """Share of pairs in which the out record scores more; ties count a half."""
    ranks = rankdata(np.concatenate([inside, outside]))[len(inside) :]
    least = len(outside) * (len(outside) + 1) / 2
    return float((ranks.sum() - least) / (len(inside) * len(outside)))


def drawn(records: int, most: int) -> npt.NDArray[np.intp]:
    """Rows of at most so many records, ascending, drawn by a fixed seed."""
    return np.sort(np.random.default_rng(0).permutation(records)[:most])
