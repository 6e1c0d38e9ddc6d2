"""KL matching: the smallest divergence of p from the mean p of a predicted class."""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from benchmd_ray.benchmarks.ood.methods.formulas import probabilities
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State


def _fit(bank: Bank) -> State:
    """Mean probabilities of the records predicted as each class: (predicted classes, classes)."""
    p = probabilities(bank.seen.logits, True)
    guess = p.argmax(axis=1)
    return {"means": np.stack([p[guess == label].mean(axis=0) for label in np.unique(guess)])}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    p = probabilities(seen.logits, True)
    least = np.finfo(np.float64).tiny  # a softmax of float64 may be 0
    means = np.maximum(state["means"], least)
    apart = -entr(p).sum(axis=1)[:, None] - p @ np.log(means).T
    return np.asarray(np.maximum(apart.min(axis=1), 0))  # rounding may give less


METHOD = Detector(
    "kl-matching",
    "KL matching",
    _fit,
    _score,
    "Hendrycks et al., ICML 2022",
    exclusive_only=True,
)
