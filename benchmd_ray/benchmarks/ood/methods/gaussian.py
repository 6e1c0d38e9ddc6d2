"""Detectors by Gaussians of features: Mahalanobis distances, and the density of a mixture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp
from sklearn.mixture import GaussianMixture

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

BLOCK = 4096
PER_CLASS_RIDGE = 1e-5
LAYER = "layer "
"""How quantities of layers begin; the features come last."""
RECORDS = 5
"""Of a mixture: the fewest records for each principal component."""
RIDGE = 1e-4
"""Of a mixture: added to the variances of the components, whose largest is 1."""


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


def nearest_mean(state: State, features: npt.ArrayLike) -> Floats:
    """(records,): squared Mahalanobis distance to the nearest mean."""
    white = np.asarray(features, np.float64) @ state["root"]
    return np.asarray(
        np.min([((white - mean) ** 2).sum(axis=1) for mean in state["means"]], axis=0)
    )


def _fit_shared(bank: Bank) -> State:
    """One covariance for all classes, shrunk (Ledoit and Wolf), as records may be few."""
    return fitted(bank.seen.features, bank.groups())


def _shared(state: State, seen: Seen, head: Head) -> Floats:
    return nearest_mean(state, seen.features)


def fit_per_class(bank: Bank) -> State:
    """Means (classes, width) and roots of precisions (classes, width, width)."""
    f = np.asarray(bank.seen.features, np.float64)
    means, roots = [], []
    for rows in bank.groups().values():
        values, vectors = np.linalg.eigh(np.cov(f[rows].T, bias=True).reshape(f.shape[1], -1))
        means.append(f[rows].mean(axis=0))
        roots.append(vectors / np.sqrt(np.maximum(values, 0) + PER_CLASS_RIDGE))
    return {"means": np.stack(means), "roots": np.stack(roots)}


def _per_class(state: State, seen: Seen, head: Head) -> Floats:
    f = np.asarray(seen.features, np.float64)
    classes = zip(state["means"], state["roots"], strict=True)
    return np.asarray(
        np.min([(((f - mean) @ root) ** 2).sum(axis=1) for mean, root in classes], axis=0)
    )


def layers_of(seen: Seen) -> dict[str, npt.NDArray[np.float32]]:
    """Layers in order of name, and then the features."""
    named = {name: values for name, values in sorted(seen.more.items()) if name.startswith(LAYER)}
    return named | {"features": seen.features}


def _fit_layers(bank: Bank) -> State:
    """State of `fitted` for each layer, and the mean distance of its records."""
    state: State = {}
    groups = bank.groups()
    for name, values in layers_of(bank.seen).items():
        layer = fitted(values, groups)
        mean = nearest_mean(layer, values).mean()
        layer["mean"] = np.array(mean if mean > 0 else 1.0)  # layers differ in width
        state |= {f"{name}/{key}": value for key, value in layer.items()}
    return state


def _part(state: State, name: str, *keys: str) -> State:
    return {key: state[f"{name}/{key}"] for key in keys}


def _layers(state: State, seen: Seen, head: Head) -> Floats:
    """Distances in several layers, summed in units of the mean distance in each."""
    total = np.zeros(len(seen))
    for name, values in layers_of(seen).items():
        layer = _part(state, name, "means", "root", "mean")
        total += nearest_mean(layer, values) / float(layer["mean"])
    return total


def _fit_relative(bank: Bank) -> State:
    parts = {"class": bank.groups(), "all": {"all": np.arange(len(bank.seen))}}
    return {
        f"{part}/{key}": value
        for part, groups in parts.items()
        for key, value in fitted(bank.seen.features, groups).items()
    }


def _relative(state: State, seen: Seen, head: Head) -> Floats:
    """Distance to the nearest class, minus that to all records together."""
    near, overall = (
        nearest_mean(_part(state, part, "means", "root"), seen.features)
        for part in ("class", "all")
    )
    return near - overall


def _fit_mixture(bank: Bank) -> State:
    """A mixture fitted without labels, to the first principal components where records are few."""
    f = np.asarray(bank.seen.features, np.float64)
    centre = f.mean(axis=0)
    _, lengths, axes = np.linalg.svd(f - centre, full_matrices=False)
    kept = max(1, min(f.shape[1], len(f) // RECORDS, len(lengths)))
    scale = max(float(lengths[0]) / np.sqrt(len(f)), 1e-12)
    axes = axes[:kept].T / scale
    x = (f - centre) @ axes
    # No more than there are different values, for duplicates have no spread.
    parts = max(1, min(len(bank.groups()), len(x) // (2 * kept), len(np.unique(x[:, 0].round(9)))))
    mixture = GaussianMixture(parts, reg_covar=RIDGE, random_state=0, max_iter=200)
    mixture.fit(x)
    return {
        "centre": centre,
        "axes": axes,
        "weights": mixture.weights_,
        "means": mixture.means_,
        "roots": mixture.precisions_cholesky_,
    }


def _mixture(state: State, seen: Seen, head: Head) -> Floats:
    """−log density in nats, but for a constant."""
    x = (np.asarray(seen.features, np.float64) - state["centre"]) @ state["axes"]
    parts = zip(state["weights"], state["means"], state["roots"], strict=True)
    logs = [
        np.log(weight)
        + np.log(np.diagonal(root)).sum()
        - 0.5 * (((x - mean) @ root) ** 2).sum(axis=1)
        for weight, mean, root in parts
    ]
    return -np.asarray(logsumexp(logs, axis=0))


_LEE = "Lee et al., NeurIPS 2018"
METHODS = (
    Detector("mahalanobis", "Mahalanobis", _fit_shared, _shared, _LEE),
    Detector(
        "mahalanobis-per-class",
        "Mahalanobis, per class",
        fit_per_class,
        _per_class,
        "Cao et al., arXiv 2007.04250, as released",
    ),
    Detector(
        "mahalanobis-layers", "Mahalanobis, layers", _fit_layers, _layers, _LEE, needs=(LAYER,)
    ),
    Detector(
        "rmd", "relative Mahalanobis", _fit_relative, _relative, "Ren et al., arXiv 2106.09022"
    ),
    Detector("gmm", "Gaussian mixture", _fit_mixture, _mixture, f"{_LEE}, as a density"),
)
