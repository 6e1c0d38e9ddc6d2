"""Binary classifier: logistic regression of in and out on features."""

from __future__ import annotations

from sklearn.linear_model import LogisticRegression

from benchmd_ray.benchmarks.ood.methods.formulas import applied, learned
from benchmd_ray.benchmarks.ood.methods.method import (
    Calibration,
    Detector,
    Floats,
    Head,
    Seen,
    State,
    nothing,
)


def _calibrate(state: State, calibration: Calibration, _: Calibration, head: Head) -> State:
    model = LogisticRegression(class_weight="balanced", max_iter=2000)
    return state | learned(model, calibration.seen.features, calibration.out)


def _score(state: State, seen: Seen, head: Head) -> Floats:
    return applied(state, seen.features)


METHOD = Detector(
    "binary-classifier",
    "binary classifier",
    nothing,
    _score,
    "Cao et al., arXiv 2007.04250",
    calibrate=_calibrate,
)
