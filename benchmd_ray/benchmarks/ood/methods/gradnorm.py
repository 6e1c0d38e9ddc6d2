"""GradNorm: −the length of the head's gradient towards a prediction of nothing.

For a linear head it is −|f|₁ · |p − u|₁, where u is the same for all classes; of a label ½.
"""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.formulas import probabilities
from benchmd_ray.benchmarks.ood.methods.method import Detector, Floats, Head, Seen, State, nothing


def _score(_: State, seen: Seen, head: Head) -> Floats:
    p = probabilities(seen.logits, head.exclusive)
    flat = 1 / p.shape[1] if head.exclusive else 0.5
    length = np.abs(np.asarray(seen.features, np.float64)).sum(axis=1)
    return np.asarray(-length * np.abs(p - flat).sum(axis=1))


METHOD = Detector("gradnorm", "GradNorm", nothing, _score, "Huang, Geng and Li, NeurIPS 2021")
