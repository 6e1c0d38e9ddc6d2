"""ASH-S: the energy after a record's small features are cut and the others enlarged."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.formulas import cut, free_energy
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

PERCENTILE = 65
"""Of a record's features, above which they count as active."""


def _fit(_: Bank, *, percentile: float = PERCENTILE) -> State:
    return {"percentile": np.array(percentile)}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    f = np.asarray(seen.features, np.float64)
    kept = np.where(f >= cut(f, float(state["percentile"])), f, 0.0)
    whole, active = f.sum(axis=1, keepdims=True), kept.sum(axis=1, keepdims=True)
    share = whole / np.where(active == 0, 1, active)
    logits = (kept * np.exp(share)) @ head.weight.T + head.bias
    return -free_energy(logits, head.exclusive)


METHOD = Detector("ash", "ASH", _fit, _score, "Djurisic et al., ICLR 2023", non_negative=True)
