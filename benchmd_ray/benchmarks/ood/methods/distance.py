"""Distances to training records in image space: small pictures of signals as networks see them."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.formulas import drawn
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State
from benchmd_ray.benchmarks.ood.methods.neighbours import nearest

MOST = 1000
"""Training records that are compared with, drawn by a fixed seed."""


def _flat(seen: Seen) -> npt.NDArray[np.float32]:
    return seen.more["pixels"].reshape(len(seen), -1)


def _fit(bank: Bank) -> State:
    return {"records": _flat(bank.seen)[drawn(len(bank.seen), MOST)]}


def _score(state: State, seen: Seen, head: Head, *, k: int) -> Floats:
    return nearest(state["records"], _flat(seen), k)[:, -1]


METHODS = tuple(
    Detector(
        f"pixel-knn-{k}",
        f"pixel KNN-{k}",
        _fit,
        partial(_score, k=k),
        "Shafaei et al., BMVC 2019; Cao et al., arXiv 2007.04250",
        needs=("pixels",),
    )
    for k in (1, 8)
)
