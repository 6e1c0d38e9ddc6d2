"""fDBD: −the mean distance to the decision boundaries, in units of the distance to the mean."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State


def _fit(bank: Bank) -> State:
    return {"mean": bank.seen.features.mean(axis=0, dtype=np.float64)}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    f, z = np.asarray(seen.features, np.float64), np.asarray(seen.logits, np.float64)
    best = z.argmax(axis=1)
    gaps = np.abs(z[np.arange(len(z)), best][:, None] - z)
    between = np.linalg.norm(head.weight[:, None] - head.weight[None], axis=2)[best]
    apart = gaps / np.where(between == 0, 1, between)
    others = z.shape[1] - 1
    away = np.linalg.norm(f - state["mean"], axis=1)
    return np.asarray(-apart.sum(axis=1) / others / np.where(away == 0, 1, away))


METHOD = Detector("fdbd", "fDBD", _fit, _score, "Liu and Qin, ICML 2024", exclusive_only=True)
