"""Entropy of the mean prediction of several networks, or of one with dropout."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.special import entr

from benchmd_ray.benchmarks.ood.methods.method import (
    Floats,
    Head,
    Method,
    Seen,
    State,
    nothing,
    probabilities,
)


def score(_: State, seen: Seen, head: Head, *, quantity: str) -> Floats:
    """(records,), in nats, from logits (records, members, classes)."""
    logits = seen.more[quantity]
    members = [probabilities(logits[:, each], head.exclusive) for each in range(logits.shape[1])]
    p = np.mean(members, axis=0)
    entropy = entr(p) if head.exclusive else entr(p) + entr(1 - p)
    return np.asarray(entropy.sum(axis=1))


METHODS = tuple(
    Method(name, title, nothing, partial(score, quantity=quantity), source, needs=(quantity,))
    for name, title, quantity, source in (
        (
            "deep-ensemble",
            "deep ensemble",
            "ensemble logits",
            "Lakshminarayanan et al., NeurIPS 2017",
        ),
        ("mc-dropout", "MC dropout", "dropout logits", "Gal and Ghahramani, ICML 2016"),
    )
)
