"""Reconstruction error of masked parts, by the pretraining that a network started from.

The mean loss over fixed masks, the same for all records; the network computes it (`ood.network`).
"""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Detector, Floats, Head, Seen, State, nothing


def _score(_: State, seen: Seen, head: Head) -> Floats:
    return np.asarray(seen.more["mae loss"], np.float64).reshape(len(seen))


METHOD = Detector(
    "mae-loss",
    "MAE reconstruction",
    nothing,
    _score,
    "the objective of He et al., CVPR 2022",
    needs=("mae loss",),
)
