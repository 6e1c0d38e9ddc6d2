"""Deep nearest neighbours: the distance to the k-th nearest, of features of length 1."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Floats,
    Head,
    Method,
    Seen,
    State,
    unit,
)
from benchmd_ray.benchmarks.ood.methods.neighbours import nearest

NEIGHBOURS = 50
"""At most; a tenth of the records where that is less."""


def fit(bank: Bank, *, neighbours: int = NEIGHBOURS) -> State:
    """The records' features of length 1, and how many neighbours are counted."""
    count = max(1, min(neighbours, len(bank.seen) // 10))
    return {"features": unit(bank.seen.features).astype(np.float32), "k": np.array(count)}


def score(state: State, seen: Seen, head: Head) -> Floats:
    """(records,), within 0 and 2."""
    queries = unit(seen.features).astype(np.float32)
    return nearest(state["features"], queries, int(state["k"]))[:, -1]


METHOD = Method("knn", "deep KNN", fit, score, "Sun et al., ICML 2022")
