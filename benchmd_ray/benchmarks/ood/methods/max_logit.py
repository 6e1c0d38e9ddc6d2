"""Maximum logit: −max z."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Floats, Head, Method, Seen, State, nothing


def score(_: State, seen: Seen, head: Head) -> Floats:
    """(records,)."""
    return np.asarray(-np.asarray(seen.logits, np.float64).max(axis=1))


METHOD = Method("max-logit", "max logit", nothing, score, "Hendrycks et al., ICML 2022")
