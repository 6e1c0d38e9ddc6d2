"""Distances in the space of the pretraining that a network started from: no label was ever used."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods import knn, mahalanobis
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

NAME = "pretrained"
"""Quantity: features of the pretrained encoder, as it was before the transfer."""


def _own(seen: Seen) -> Seen:
    return Seen(seen.more[NAME], seen.logits)


def _fit_knn(bank: Bank, *, neighbours: int = knn.NEIGHBOURS) -> State:
    return knn.fit(Bank(_own(bank.seen), bank.targets, bank.head), neighbours=neighbours)


def _score_knn(state: State, seen: Seen, head: Head) -> Floats:
    return knn.score(state, _own(seen), head)


def _fit_gaussian(bank: Bank) -> State:
    return mahalanobis.fitted(bank.seen.more[NAME], {"all": np.arange(len(bank.seen))})


def _score_gaussian(state: State, seen: Seen, head: Head) -> Floats:
    return mahalanobis.nearest(state, seen.more[NAME])


METHODS = (
    Detector(
        "pretrained-knn",
        "pretrained KNN",
        _fit_knn,
        _score_knn,
        "Sun et al., ICML 2022, before the transfer",
        needs=(NAME,),
    ),
    Detector(
        "pretrained-mahalanobis",
        "pretrained Mahalanobis",
        _fit_gaussian,
        _score_gaussian,
        "Sehwag, Chiang and Mittal, ICLR 2021, with one cluster",
        needs=(NAME,),
    ),
)
