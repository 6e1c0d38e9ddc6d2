"""Energy: −log Σ exp z; of a multi-label task the joint energy −Σ log(1 + exp z)."""

from __future__ import annotations

from benchmd_ray.benchmarks.ood.methods.method import (
    Floats,
    Head,
    Method,
    Seen,
    State,
    free_energy,
    nothing,
)


def score(_: State, seen: Seen, head: Head) -> Floats:
    """(records,)."""
    return -free_energy(seen.logits, head.exclusive)


METHOD = Method(
    "energy",
    "energy",
    nothing,
    score,
    "Liu et al., NeurIPS 2020; of labels: Wang et al., NeurIPS 2021",
)
