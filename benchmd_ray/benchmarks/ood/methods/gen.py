"""Generalised entropy: Σ over the largest p of (p (1 − p))^0.1."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.formulas import probabilities
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

EXPONENT, LARGEST = 0.1, 100
"""The paper's exponent, and how many of the largest probabilities count."""


def _fit(_: Bank, *, exponent: float = EXPONENT, largest: int = LARGEST) -> State:
    return {"exponent": np.array(exponent), "largest": np.array(largest)}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    p = -np.sort(-probabilities(seen.logits, True), axis=1)[:, : int(state["largest"])]
    return np.asarray(((p * (1 - p)) ** state["exponent"]).sum(axis=1))


METHOD = Detector(
    "gen",
    "generalised entropy",
    _fit,
    _score,
    "Liu, Lochman and Zach, CVPR 2023",
    exclusive_only=True,
)
