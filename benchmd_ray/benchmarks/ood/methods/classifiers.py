"""Detectors that separate in from out by a linear model of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Calibration,
    Detector,
    Floats,
    Head,
    Seen,
    State,
    nothing,
)
from benchmd_ray.benchmarks.ood.methods.neighbours import nearest

_regression = partial(LogisticRegression, class_weight="balanced", max_iter=2000)
_machine = partial(LinearSVC, class_weight="balanced", max_iter=20_000, random_state=0)
Read = Callable[[Seen], npt.NDArray[np.float32]]
"""What a model reads of records: (records, quantities)."""
FEATURE_KNN_NAME = "feature-knn"


def _learned(model: Any, values: npt.ArrayLike, out: npt.NDArray[np.bool_]) -> State:
    """What a model learns of standardised values (records, quantities).

    The direction (quantities,) and the offset are for the values as they are.
    """
    x = np.asarray(values, np.float64)
    mean, spread = x.mean(axis=0), x.std(axis=0)
    spread = np.where(spread == 0, 1, spread)
    model.fit((x - mean) / spread, out)
    direction = model.coef_[0] / spread
    return {"direction": direction, "offset": np.array(model.intercept_[0] - mean @ direction)}


def _calibrate(
    state: State,
    calibration: Calibration,
    _: Calibration,
    head: Head,
    *,
    model: Callable[[], Any],
    read: Read,
) -> State:
    return state | _learned(model(), read(calibration.seen), calibration.out)


def _score(state: State, seen: Seen, head: Head, *, read: Read) -> Floats:
    """(records,): above 0 is more likely out."""
    return np.asarray(np.asarray(read(seen), np.float64) @ state["direction"] + state["offset"])


def _linear(
    name: str,
    title: str,
    source: str,
    model: Callable[[], Any],
    read: Read,
    fit: Callable[..., State] = nothing,
    **more: Any,
) -> Detector:
    calibrate = partial(_calibrate, model=model, read=read)
    score = partial(_score, read=read)
    return Detector(name, title, fit, score, source, calibrate=calibrate, **more)


def fit_features(bank: Bank) -> State:
    return {"features": np.asarray(bank.seen.features, np.float32)}


def nearest_feature(state: State, seen: Seen, head: Head) -> npt.NDArray[np.float32]:
    """Distance to the nearest: (records, 1)."""
    return nearest(state["features"], seen.features, 1).astype(np.float32)


BINARY = _linear(
    "binary-classifier",
    "binary classifier",
    "Cao et al., arXiv 2007.04250",
    _regression,
    lambda seen: seen.features,
)
SCORE_SVM = _linear(
    "score-svm", "score SVM", "Shafaei et al., BMVC 2019", _machine, lambda seen: seen.logits
)
FEATURE_KNN = _linear(
    FEATURE_KNN_NAME,
    "feature KNN",
    "Cao et al., arXiv 2007.04250, as released",
    _machine,
    lambda seen: seen.more[FEATURE_KNN_NAME],
    fit=fit_features,
    once=nearest_feature,
)
