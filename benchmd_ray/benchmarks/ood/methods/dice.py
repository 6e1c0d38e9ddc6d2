"""DICE: the energy with the tenth of the head's weights that contribute most on average."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.formulas import free_energy
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

KEPT = 10


def _fit(bank: Bank, *, kept: float = KEPT) -> State:
    contribution = bank.head.weight * bank.seen.features.mean(axis=0, dtype=np.float64)
    return {"kept": contribution > np.percentile(contribution, 100 - kept)}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    f = np.asarray(seen.features, np.float64)
    logits = f @ (head.weight * state["kept"]).T + head.bias
    return -free_energy(logits, head.exclusive)


METHOD = Detector("dice", "DICE", _fit, _score, "Sun and Li, ECCV 2022", non_negative=True)
