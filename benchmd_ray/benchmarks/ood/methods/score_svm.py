"""Score SVM: a linear support vector machine of in and out on logits."""

from __future__ import annotations

from sklearn.svm import LinearSVC

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
    model = LinearSVC(class_weight="balanced", max_iter=20_000, random_state=0)
    return state | learned(model, calibration.seen.logits, calibration.out)


def _score(state: State, seen: Seen, head: Head) -> Floats:
    return applied(state, seen.logits)


METHOD = Detector(
    "score-svm",
    "score SVM",
    nothing,
    _score,
    "Shafaei et al., BMVC 2019",
    calibrate=_calibrate,
)
