"""Binary classifier: logistic regression of in and out on features."""

from __future__ import annotations

from sklearn.linear_model import LogisticRegression

from benchmd_ray.benchmarks.ood.methods.linear import applied, learned
from benchmd_ray.benchmarks.ood.methods.method import (
    Calibration,
    Floats,
    Head,
    Method,
    Seen,
    State,
    nothing,
)


def calibrate(state: State, calibration: Calibration, _: Calibration, head: Head) -> State:
    """Learn the direction."""
    model = LogisticRegression(class_weight="balanced", max_iter=2000)
    return state | learned(model, calibration.seen.features, calibration.out)


def score(state: State, seen: Seen, head: Head) -> Floats:
    """(records,): log odds."""
    return applied(state, seen.features)


METHOD = Method(
    "binary-classifier",
    "binary classifier",
    nothing,
    score,
    "Cao et al., arXiv 2007.04250",
    calibrate=calibrate,
)
