"""Relative Mahalanobis distance: to the nearest class, minus that to all records together."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods import mahalanobis
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State


def _fit(bank: Bank) -> State:
    everything = {"all": np.arange(len(bank.seen))}
    parts = {"class": bank.groups(), "all": everything}
    return {
        f"{part}/{key}": value
        for part, groups in parts.items()
        for key, value in mahalanobis.fitted(bank.seen.features, groups).items()
    }


def _score(state: State, seen: Seen, head: Head) -> Floats:
    near, overall = (
        mahalanobis.nearest({key: state[f"{part}/{key}"] for key in ("means", "root")}, f)
        for part, f in (("class", seen.features), ("all", seen.features))
    )
    return near - overall


METHOD = Detector("rmd", "relative Mahalanobis", _fit, _score, "Ren et al., arXiv 2106.09022")
