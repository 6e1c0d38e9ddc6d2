"""MC dropout: entropy of the mean prediction of several passes with dropout."""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from benchmd_ray.benchmarks.ood.methods.formulas import probabilities
from benchmd_ray.benchmarks.ood.methods.method import Detector, Floats, Head, Seen, State, nothing


def _score(_: State, seen: Seen, head: Head) -> Floats:
    """(records,), in nats, from logits (records, passes, classes)."""
    logits = seen.more["dropout logits"]
    members = [
        probabilities(logits[:, number], head.exclusive) for number in range(logits.shape[1])
    ]
    p = np.mean(members, axis=0)
    entropy = entr(p) if head.exclusive else entr(p) + entr(1 - p)
    return np.asarray(entropy.sum(axis=1))


METHOD = Detector(
    "mc-dropout",
    "MC dropout",
    nothing,
    _score,
    "Gal and Ghahramani, ICML 2016",
    needs=("dropout logits",),
)
