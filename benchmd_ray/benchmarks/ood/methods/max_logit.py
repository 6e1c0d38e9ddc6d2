"""Maximum logit: −max z."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Detector, Floats, Head, Seen, State, nothing


def _score(_: State, seen: Seen, head: Head) -> Floats:
    return np.asarray(-np.asarray(seen.logits, np.float64).max(axis=1))


METHOD = Detector("max-logit", "max logit", nothing, _score, "Hendrycks et al., ICML 2022")
