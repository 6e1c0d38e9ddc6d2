"""Distances to training records in another space than that of features, without any label.

In image space (small pictures of the signals), in the codes of an autoencoder or of a variational
one; KNN-1 and KNN-8 of the paper.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.method import Bank, Floats, Head, Method, Seen, State
from benchmd_ray.benchmarks.ood.methods.neighbours import nearest

MOST = 1000
"""Training records that are compared with, drawn by a fixed seed."""


def _flat(seen: Seen, space: str) -> npt.NDArray[np.float32]:
    return seen.more[space].reshape(len(seen), -1)


def fit(bank: Bank, *, space: str) -> State:
    """Some of the records."""
    rows = np.sort(np.random.default_rng(0).permutation(len(bank.seen))[:MOST])
    return {"records": _flat(bank.seen, space)[rows]}


def score(state: State, seen: Seen, head: Head, *, space: str, k: int) -> Floats:
    """(records,): distance to the k-th nearest."""
    return nearest(state["records"], _flat(seen, space), k)[:, -1]


SPACES = {"pixels": "pixel", "autoencoder code": "autoencoder", "vae code": "vae"}
"""Quantities, and what they are called in the names of detectors."""
METHODS = tuple(
    Method(
        f"{name}-knn-{k}",
        f"{name.replace('vae', 'VAE')} KNN-{k}",
        partial(fit, space=space),
        partial(score, space=space, k=k),
        "Shafaei et al., BMVC 2019; Cao et al., arXiv 2007.04250",
        needs=(space,),
    )
    for space, name in SPACES.items()
    for k in (1, 8)
)
