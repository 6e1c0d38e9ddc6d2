"""Detectors by the pretraining that a network started from: no label was ever used."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.gaussian import fitted, nearest_mean
from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Detector,
    Floats,
    Head,
    Seen,
    State,
    nothing,
)
from benchmd_ray.benchmarks.ood.methods.neighbours import NEIGHBOURS, fit_knn, knn

NAME = "pretrained"
"""Quantity: features of the pretrained encoder, as it was before the transfer."""


def _mae_loss(_: State, seen: Seen, head: Head) -> Floats:
    """Mean loss over fixed masks, the same for all records; `ood.network` computes it."""
    return np.asarray(seen.more["mae loss"], np.float64).reshape(len(seen))


def _before(seen: Seen) -> Seen:
    return Seen(seen.more[NAME], seen.logits)


def _fit_knn(bank: Bank, *, neighbours: int = NEIGHBOURS) -> State:
    return fit_knn(Bank(_before(bank.seen), bank.targets, bank.head), neighbours=neighbours)


def _knn(state: State, seen: Seen, head: Head) -> Floats:
    return knn(state, _before(seen), head)


def _fit_gaussian(bank: Bank) -> State:
    return fitted(bank.seen.more[NAME], {"all": np.arange(len(bank.seen))})


def _gaussian(state: State, seen: Seen, head: Head) -> Floats:
    return nearest_mean(state, seen.more[NAME])


MAE_LOSS = Detector(
    "mae-loss",
    "MAE reconstruction",
    nothing,
    _mae_loss,
    "the objective of He et al., CVPR 2022",
    needs=("mae loss",),
)
METHODS = (
    Detector(
        "pretrained-knn",
        "pretrained KNN",
        _fit_knn,
        _knn,
        "Sun et al., ICML 2022, before the transfer",
        needs=(NAME,),
    ),
    Detector(
        "pretrained-mahalanobis",
        "pretrained Mahalanobis",
        _fit_gaussian,
        _gaussian,
        "Sehwag, Chiang and Mittal, ICLR 2021, with one cluster",
        needs=(NAME,),
    ),
)
