"""Deep nearest neighbours: the distance to the k-th nearest, of features of length 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.formulas import unit
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State
from benchmd_ray.benchmarks.ood.methods.neighbours import nearest

BLOCK = 4096
NEIGHBOURS = 50
"""At most; a tenth of the records where that is less."""


def units(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Features of length 1, (records, width), made in blocks: a bank may have a million records."""
    scaled = np.array(features, np.float32)
    for start in range(0, len(scaled), BLOCK):
        scaled[start : start + BLOCK] = unit(scaled[start : start + BLOCK])
    return scaled


def fit(bank: Bank, *, neighbours: int = NEIGHBOURS) -> State:
    """The records' features of length 1, and how many neighbours are counted."""
    count = max(1, min(neighbours, len(bank.seen) // 10))
    return {"features": units(bank.seen.features), "k": np.array(count)}


def score(state: State, seen: Seen, head: Head) -> Floats:
    """(records,), within 0 and 2."""
    return nearest(state["features"], units(seen.features), int(state["k"]))[:, -1]


METHOD = Detector("knn", "deep KNN", fit, score, "Sun et al., ICML 2022")
