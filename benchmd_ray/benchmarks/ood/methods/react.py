"""ReAct: the energy after features are clipped at their 90th percentile."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.formulas import free_energy
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

PERCENTILE = 90


def _fit(bank: Bank, *, percentile: float = PERCENTILE) -> State:
    return {"most": np.array(np.percentile(bank.seen.features, percentile))}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    f = np.asarray(seen.features, np.float64)
    logits = np.minimum(f, state["most"]) @ head.weight.T + head.bias
    return -free_energy(logits, head.exclusive)


METHOD = Detector(
    "react", "ReAct", _fit, _score, "Sun, Guo and Li, NeurIPS 2021", non_negative=True
)
