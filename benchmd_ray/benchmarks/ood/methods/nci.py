"""NCI: −the part of a centred feature vector along the weights of the predicted class.

The paper's second term, a share of |f|₁ that is tuned on records of both kinds, is left at 0.
"""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Bank, Floats, Head, Method, Seen, State


def fit(bank: Bank) -> State:
    """The mean of the features."""
    return {"mean": bank.seen.features.mean(axis=0, dtype=np.float64)}


def score(state: State, seen: Seen, head: Head) -> Floats:
    """(records,)."""
    centred = np.asarray(seen.features, np.float64) - state["mean"]
    weights = head.weight[np.asarray(seen.logits).argmax(axis=1)]
    length = np.linalg.norm(centred, axis=1)
    return np.asarray(-(centred * weights).sum(axis=1) / np.where(length == 0, 1, length))


METHOD = Method("nci", "NCI", fit, score, "Liu and Qin, CVPR 2025")
