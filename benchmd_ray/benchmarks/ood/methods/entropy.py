"""Entropy of the predicted classes: −Σ p log p; of labels the sum of their binary entropies."""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from benchmd_ray.benchmarks.ood.methods.formulas import probabilities
from benchmd_ray.benchmarks.ood.methods.method import Detector, Floats, Head, Seen, State, nothing


def _score(_: State, seen: Seen, head: Head) -> Floats:
    p = probabilities(seen.logits, head.exclusive)
    entropy = entr(p) if head.exclusive else entr(p) + entr(1 - p)
    return np.asarray(entropy.sum(axis=1))


METHOD = Detector("entropy", "entropy", nothing, _score, "Hendrycks and Gimpel, ICLR 2017")
