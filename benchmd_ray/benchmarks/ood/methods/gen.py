"""Generalised entropy: Σ over the largest p of (p (1 − p))^0.1."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import (
    Floats,
    Head,
    Method,
    Seen,
    State,
    nothing,
    probabilities,
)

EXPONENT, LARGEST = 0.1, 100
"""The paper's exponent, and how many of the largest probabilities count."""


def score(_: State, seen: Seen, head: Head) -> Floats:
    """(records,)."""
    p = -np.sort(-probabilities(seen.logits, True), axis=1)[:, :LARGEST]
    return np.asarray(((p * (1 - p)) ** EXPONENT).sum(axis=1))


METHOD = Method(
    "gen",
    "generalised entropy",
    nothing,
    score,
    "Liu, Lochman and Zach, CVPR 2023",
    exclusive_only=True,
    head_only=True,
)
