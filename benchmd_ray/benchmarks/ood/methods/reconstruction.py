"""Reconstruction error of masked parts, by the pretraining that a network started from.

The mean loss over fixed masks, the same for all records; the network computes it (`ood.network`).
"""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Floats, Head, Method, Seen, State, nothing


def score(_: State, seen: Seen, head: Head) -> Floats:
    """(records,)."""
    return np.asarray(seen.more["mae loss"], np.float64).reshape(len(seen))


METHOD = Method(
    "mae-loss",
    "MAE reconstruction",
    nothing,
    score,
    "the objective of He et al., CVPR 2022",
    needs=("mae loss",),
)
