"""ViM: the residual, scaled to the size of logits, minus the energy's log Σ exp z."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods import residual
from benchmd_ray.benchmarks.ood.methods.formulas import free_energy
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

LEAST = 1e-6
"""Of a mean residual, as a share of the mean length: rounding leaves one of a flat space, too."""


def _fit(bank: Bank, *, share: float = 1.0) -> State:
    state = residual.fit(bank, share=share)
    length = float(residual.score(state, bank.seen, bank.head).mean())
    moved = np.asarray(bank.seen.features, np.float64) - state["origin"]
    length = max(length, LEAST * float(np.linalg.norm(moved, axis=1).mean()))
    largest = float(np.asarray(bank.seen.logits, np.float64).max(axis=1).mean())
    return state | {"scale": np.array(abs(largest) / length if length > 0 else 0.0)}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    length = residual.score(state, seen, head)
    return np.asarray(state["scale"] * length - free_energy(seen.logits, head.exclusive))


METHOD = Detector("vim", "ViM", _fit, _score, "Wang et al., CVPR 2022")
