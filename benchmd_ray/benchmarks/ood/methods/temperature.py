"""Temperature scaling: the probability threshold with logits divided by a fitted temperature.

The temperature minimises the negative log-likelihood of validation records.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from benchmd_ray.benchmarks.ood.methods import msp
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

RANGE = (0.05, 20.0)


def _fit(bank: Bank) -> State:
    """The temperature; without validation records that of the records trained on."""
    seen, targets = bank.validation, bank.validation_targets
    if seen is None or targets is None or not len(seen):
        seen, targets = bank.seen, bank.targets
    z, exclusive = np.asarray(seen.logits, np.float64), bank.head.exclusive

    def loss(log_temperature: float) -> float:
        scaled = z / np.exp(log_temperature)
        if exclusive:
            scaled = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
            return -float(scaled[targets == 1].sum())
        return float(np.logaddexp(0, np.where(targets == 1, -scaled, scaled))[targets >= 0].sum())

    optimum = minimize_scalar(loss, bounds=tuple(np.log(RANGE)), method="bounded")
    return {"temperature": np.array(np.exp(optimum.x))}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    logits = np.asarray(seen.logits, np.float64) / state["temperature"]
    return msp.score({}, Seen(seen.features, logits), head)  # type: ignore[arg-type]


METHOD = Detector(
    "temperature",
    "temperature scaling",
    _fit,
    _score,
    "Guo et al., ICML 2017",
)
