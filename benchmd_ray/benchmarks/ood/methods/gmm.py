"""Gaussian mixture: −log density of features by a mixture that is fitted without labels.

Where records are fewer than five to a feature, of their first principal components only.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp
from sklearn.mixture import GaussianMixture

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

RECORDS = 5
RIDGE = 1e-4
"""Added to the variances of the components, whose largest is 1."""


def _fit(bank: Bank) -> State:
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


def _score(state: State, seen: Seen, head: Head) -> Floats:
    """(records,), in nats, but for a constant."""
    x = (np.asarray(seen.features, np.float64) - state["centre"]) @ state["axes"]
    parts = zip(state["weights"], state["means"], state["roots"], strict=True)
    logs = [
        np.log(weight)
        + np.log(np.diagonal(root)).sum()
        - 0.5 * (((x - mean) @ root) ** 2).sum(axis=1)
        for weight, mean, root in parts
    ]
    return -np.asarray(logsumexp(logs, axis=0))


METHOD = Detector("gmm", "Gaussian mixture", _fit, _score, "Lee et al., NeurIPS 2018, as a density")
