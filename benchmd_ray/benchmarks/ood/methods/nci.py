"""NCI: −the part of a centred feature vector along the weights of the predicted class.

The paper's second term, a share of |f|₁ that is tuned on records of both kinds, is 0 at first.
"""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State


def _fit(bank: Bank, *, share: float = 0.0) -> State:
    mean = bank.seen.features.mean(axis=0, dtype=np.float64)
    return {"mean": mean, "share": np.array(share)}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    f = np.asarray(seen.features, np.float64)
    centred = f - state["mean"]
    weights = head.weight[np.asarray(seen.logits).argmax(axis=1)]
    length = np.linalg.norm(centred, axis=1)
    along = (centred * weights).sum(axis=1) / np.where(length == 0, 1, length)
    return np.asarray(-along - state["share"] * np.abs(f).sum(axis=1))


METHOD = Detector("nci", "NCI", _fit, _score, "Liu and Qin, CVPR 2025")
