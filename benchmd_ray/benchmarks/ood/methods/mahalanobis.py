"""Mahalanobis distance to the nearest class, with one covariance for all classes.

The covariance is shrunk (Ledoit and Wolf), as records may be fewer than features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

BLOCK = 4096


def root_precision(covariance: Floats) -> Floats:
    """A square root of the inverse of a covariance: (width, width)."""
    values, vectors = np.linalg.eigh(covariance)
    least = max(float(values.max()) * 1e-10, 1e-30)
    return np.asarray(vectors / np.sqrt(np.maximum(values, least)))


def shrunk_covariance(
    features: npt.NDArray[np.generic], groups: Sequence[npt.NDArray[np.intp]], means: Floats
) -> Floats:
    """Covariance about the means of groups, (width, width), shrunk as by scikit-learn.

    In blocks, which need a sixth of the memory of ``ledoit_wolf``. Groups are rows of the features
    (records, width), and a record may be in several; means are (groups, width).
    """
    width = features.shape[1]
    scatter, fourth, count = np.zeros((width, width)), 0.0, 0
    for rows, mean in zip(groups, means, strict=True):
        for start in range(0, len(rows), BLOCK):
            gap = features[rows[start : start + BLOCK]] - mean
            scatter += gap.T @ gap
            fourth += float(((gap**2).sum(axis=1) ** 2).sum())
            count += len(gap)
    covariance = scatter / count
    variance = np.trace(covariance) / width
    squares = float((covariance**2).sum())
    delta = (squares - 2 * variance * np.trace(covariance) + width * variance**2) / width
    beta = min((fourth / count - squares) / (width * count), delta)
    share = 0.0 if beta == 0 else beta / delta
    covariance *= 1 - share
    covariance.flat[:: width + 1] += share * variance
    return np.asarray(covariance)


def fitted(features: npt.ArrayLike, groups: dict[str, npt.NDArray[np.intp]]) -> State:
    """Means of the classes (classes, width), and the root of the shared precision."""
    f, rows = np.asarray(features), list(groups.values())
    means = np.stack([_mean(f, members) for members in rows])
    root = root_precision(shrunk_covariance(f, rows, means))
    return {"means": means @ root, "root": root}


def _mean(features: npt.NDArray[np.generic], rows: npt.NDArray[np.intp]) -> Floats:
    blocks = np.array_split(rows, -(-len(rows) // BLOCK))
    total = sum(features[block].sum(axis=0, dtype=np.float64) for block in blocks)
    return np.asarray(total / len(rows))


def nearest(state: State, features: npt.ArrayLike) -> Floats:
    """(records,): squared distance to the nearest mean."""
    white = np.asarray(features, np.float64) @ state["root"]
    return np.asarray(
        np.min([((white - mean) ** 2).sum(axis=1) for mean in state["means"]], axis=0)
    )


def _fit(bank: Bank) -> State:
    return fitted(bank.seen.features, bank.groups())


def _score(state: State, seen: Seen, head: Head) -> Floats:
    return nearest(state, seen.features)


METHOD = Detector("mahalanobis", "Mahalanobis", _fit, _score, "Lee et al., NeurIPS 2018")
