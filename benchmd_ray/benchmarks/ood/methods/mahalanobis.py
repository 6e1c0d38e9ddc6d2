"""Mahalanobis distance to the nearest class, with one covariance for all classes.

The covariance is shrunk (Ledoit and Wolf), as records may be fewer than features.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.covariance import ledoit_wolf

from benchmd_ray.benchmarks.ood.methods.method import Bank, Floats, Head, Method, Seen, State


def root_precision(centred: Floats) -> Floats:
    """A square root of the inverse covariance of rows around 0: (width, width)."""
    covariance, _ = ledoit_wolf(centred, assume_centered=True)
    values, vectors = np.linalg.eigh(covariance)
    least = max(float(values.max()) * 1e-10, 1e-30)
    return np.asarray(vectors / np.sqrt(np.maximum(values, least)))


def fitted(features: npt.ArrayLike, groups: dict[str, npt.NDArray[np.intp]]) -> State:
    """Means of the classes (classes, width), and the root of the shared precision."""
    f = np.asarray(features, np.float64)
    means = np.stack([f[rows].mean(axis=0) for rows in groups.values()])
    centred = [f[rows] - mean for rows, mean in zip(groups.values(), means, strict=True)]
    root = root_precision(np.concatenate(centred))
    return {"means": means @ root, "root": root}


def nearest(state: State, features: npt.ArrayLike) -> Floats:
    """(records,): squared distance to the nearest mean."""
    white = np.asarray(features, np.float64) @ state["root"]
    return np.asarray(
        np.min([((white - mean) ** 2).sum(axis=1) for mean in state["means"]], axis=0)
    )


def fit(bank: Bank) -> State:
    """See `fitted`."""
    return fitted(bank.seen.features, bank.groups())


def score(state: State, seen: Seen, head: Head) -> Floats:
    """(records,)."""
    return nearest(state, seen.features)


METHOD = Method("mahalanobis", "Mahalanobis", fit, score, "Lee et al., NeurIPS 2018")
