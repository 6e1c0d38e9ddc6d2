"""Feature KNN: a linear support vector machine on the distance to the nearest features."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.svm import LinearSVC

from benchmd_ray.benchmarks.ood.methods.formulas import applied, learned
from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Calibration,
    Detector,
    Floats,
    Head,
    Seen,
    State,
)
from benchmd_ray.benchmarks.ood.methods.neighbours import nearest


def fit(bank: Bank) -> State:
    return {"features": np.asarray(bank.seen.features, np.float32)}


def once(state: State, seen: Seen, head: Head) -> npt.NDArray[np.float32]:
    """Distance to the nearest: (records, 1)."""
    return nearest(state["features"], seen.features, 1).astype(np.float32)


def _calibrate(state: State, calibration: Calibration, _: Calibration, head: Head) -> State:
    model = LinearSVC(class_weight="balanced", max_iter=20_000, random_state=0)
    return state | learned(model, calibration.seen.more[NAME], calibration.out)


def _score(state: State, seen: Seen, head: Head) -> Floats:
    return applied(state, seen.more[NAME])


NAME = "feature-knn"
METHOD = Detector(
    NAME,
    "feature KNN",
    fit,
    _score,
    "Cao et al., arXiv 2007.04250, as released",
    calibrate=_calibrate,
    once=once,
)
