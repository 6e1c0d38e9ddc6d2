"""Mahalanobis distance to the nearest class, with a covariance for each, as released in 2020."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

RIDGE = 1e-5


def fit(bank: Bank) -> State:
    """Means (classes, width) and roots of precisions (classes, width, width)."""
    f = np.asarray(bank.seen.features, np.float64)
    means, roots = [], []
    for rows in bank.groups().values():
        values, vectors = np.linalg.eigh(np.cov(f[rows].T, bias=True).reshape(f.shape[1], -1))
        means.append(f[rows].mean(axis=0))
        roots.append(vectors / np.sqrt(np.maximum(values, 0) + RIDGE))
    return {"means": np.stack(means), "roots": np.stack(roots)}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    f = np.asarray(seen.features, np.float64)
    classes = zip(state["means"], state["roots"], strict=True)
    return np.asarray(
        np.min([(((f - mean) @ root) ** 2).sum(axis=1) for mean, root in classes], axis=0)
    )


METHOD = Detector(
    "mahalanobis-per-class",
    "Mahalanobis, per class",
    fit,
    _score,
    "Cao et al., arXiv 2007.04250, as released",
)
