"""OpenMax: the probability of an unknown class, from distances to the mean logits of classes.

The order of the classes is that of Bendale and Boult: the most likely one is revised most. As in
their code all of a class's largest distances are moved far from 0 before the Weibull distribution
is fitted, so that it falls off smoothly below them.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax
from scipy.stats import weibull_min

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

TAIL = 20
"""Largest distances of a class that its Weibull distribution is fitted to."""
EUCLIDEAN = 200.0
"""What the Euclidean part of a distance is divided by, before the cosine part is added."""
MOVED = 10_000.0
"""Where the least of a class's largest distances is moved to."""


def _fit(bank: Bank, *, tail: int = TAIL) -> State:
    """Mean logits of correctly classified records, and a Weibull distribution, of each class."""
    z, width = np.asarray(bank.seen.logits, np.float64), bank.seen.logits.shape[1]
    right = z.argmax(axis=1) == bank.targets.argmax(axis=1)
    means, shapes = np.zeros((width, width)), np.tile([1.0, np.inf, 1.0], (width, 1))
    for name, rows in bank.groups().items():
        members = rows[right[rows]] if right[rows].sum() >= 2 else rows
        means[int(name)] = z[members].mean(axis=0)
        largest = np.sort(_distances(z[members], means[int(name)]))[-tail:]
        shapes[int(name)] = _weibull(largest)
    return {"means": means, "weibull": shapes}


def _distances(z: Floats, mean: Floats) -> Floats:
    norms = np.linalg.norm(z, axis=1) * np.linalg.norm(mean)
    cosine = 1 - (z @ mean) / np.where(norms == 0, 1, norms)
    return np.asarray(np.linalg.norm(z - mean, axis=1) / EUCLIDEAN + cosine)


def _weibull(tail: Floats) -> Floats:
    """Shape, place and scale of the likeliest distribution of the largest distances."""
    least = float(tail.min())
    logs = np.log1p((tail - least) / MOVED)  # the logarithm of MOVED aside
    spread = float(logs.std())
    if spread * MOVED <= 1e-9:  # nothing to fit: a step at the distance that all have
        return np.array([1.0, least, 1e-12])
    u = (logs - logs.mean()) / spread
    # The likelihood is stationary where the mean of u, weighted by exp(k u), is 1 / k. A root lies
    # between: for twenty values of mean 0 and variance 1 the largest is within 1 / √19 and √19.
    k = brentq(lambda k: softmax(k * u) @ u - 1 / k, 0.1, 100)
    log_scale = logs.mean() + (logsumexp(k * u) - np.log(len(u))) * spread / k
    return np.array([k / spread, least - MOVED, MOVED * np.exp(log_scale)])


def _beyond(distances: Floats, shape: float, place: float, scale: float) -> Floats:
    """The distribution's share of smaller distances; 0 of a class without a distribution."""
    if not np.isfinite(place):
        return np.zeros(len(distances))
    with np.errstate(over="ignore"):  # of a distance far beyond: its share is 1
        return np.asarray(weibull_min.cdf(distances, shape, place, scale))


def _score(state: State, seen: Seen, head: Head) -> Floats:
    z = np.asarray(seen.logits, np.float64)
    classes = z.shape[1]
    rank = np.argsort(np.argsort(-z, axis=1), axis=1)
    fitted = zip(state["means"], state["weibull"], strict=True)
    far = np.stack([_beyond(_distances(z, mean), *weibull) for mean, weibull in fitted], axis=1)
    kept = 1 - (classes - rank) / classes * far
    revised = np.column_stack([z * kept, (z * (1 - kept)).sum(axis=1)])
    return np.asarray(softmax(revised, axis=1)[:, -1])


METHOD = Detector(
    "openmax", "OpenMax", _fit, _score, "Bendale and Boult, CVPR 2016", exclusive_only=True
)
