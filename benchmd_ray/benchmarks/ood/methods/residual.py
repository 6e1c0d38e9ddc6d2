"""Residual: the part of a feature vector outside the space that most training features fill.

The origin is where the head gives its logits without their bias: −W⁺ b. The space has half as many
dimensions as there are records at most, lest nothing of the records it is fitted on is outside.
"""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

FLAT = 1e-6
"""Of the largest singular value of a head: weights in float32 say nothing below that."""


def dimensions(width: int, records: int) -> int:
    """Of the principal space, as in the paper; half of the width of narrow features."""
    paper = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    return max(1, min(paper, records // 2))


def fit(bank: Bank, *, share: float = 1.0) -> State:
    """The origin (width,), and a basis of the residual space (width, dimensions)."""
    head = bank.head
    origin = -np.linalg.pinv(head.weight, rcond=FLAT) @ head.bias
    moved = np.asarray(bank.seen.features, np.float64) - origin
    _, vectors = np.linalg.eigh(moved.T @ moved / len(moved))
    width = len(origin)
    kept = max(1, round(share * dimensions(width, len(moved))))
    return {"origin": origin, "basis": vectors[:, : max(1, width - kept)]}


def score(state: State, seen: Seen, head: Head) -> Floats:
    """(records,)."""
    moved = np.asarray(seen.features, np.float64) - state["origin"]
    return np.asarray(np.linalg.norm(moved @ state["basis"], axis=1))


METHOD = Detector("residual", "residual", fit, score, "Wang et al., CVPR 2022")
