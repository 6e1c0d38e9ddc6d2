"""Energy: −log Σ exp z; of a multi-label task the joint energy −Σ log(1 + exp z)."""

from __future__ import annotations

from benchmd_ray.benchmarks.ood.methods.formulas import free_energy
from benchmd_ray.benchmarks.ood.methods.method import Detector, Floats, Head, Seen, State, nothing


def _score(_: State, seen: Seen, head: Head) -> Floats:
    return -free_energy(seen.logits, head.exclusive)


METHOD = Detector(
    "energy",
    "energy",
    nothing,
    _score,
    "Liu et al., NeurIPS 2020; of labels: Wang et al., NeurIPS 2021",
)
