"""Maximum softmax probability: −max p.

Of a multi-label task −max over labels of max(p, 1 − p): how sure the network is of its surest
label.
"""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.formulas import probabilities
from benchmd_ray.benchmarks.ood.methods.method import Detector, Floats, Head, Seen, State, nothing


def score(_: State, seen: Seen, head: Head) -> Floats:
    """(records,)."""
    p = probabilities(seen.logits, head.exclusive)
    return np.asarray(-(p if head.exclusive else np.maximum(p, 1 - p)).max(axis=1))


METHOD = Detector(
    "msp",
    "probability threshold",
    nothing,
    score,
    "Hendrycks and Gimpel, ICLR 2017",
)
