"""ROC and calibration curves of each class, for figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.metrics import roc_curve

from benchmd_ray.report.frames import FRAMES, frame
from benchmd_ray.report.pools import Pool
from benchmd_ray.scores.sums import BINS

POINTS = 200
"""Most points of a ROC curve."""
Floats = npt.NDArray[np.float64]
Points = dict[str, npt.NDArray[np.generic]]
"""Columns of a curve, all of one length."""
Curve = Callable[[npt.NDArray[np.int8], Floats], Points]


def roc_frame(pools: Sequence[Pool]) -> pd.DataFrame:
    """ROC curves of every class and seed, at most `POINTS` points each."""
    return _curves("roc", pools, _roc)


def calibration_frame(pools: Sequence[Pool]) -> pd.DataFrame:
    """Mean score and share of positives in the bins of the metric ``calibration_error``."""
    return _curves("calibration", pools, _calibration)


def _curves(name: str, pools: Sequence[Pool], curve: Curve) -> pd.DataFrame:
    rows = [row for pool in pools for row in _of_pool(pool, curve)]
    if not rows:
        return frame(name, [])
    lengths = [len(next(iter(points.values()))) for _, points in rows]
    columns = {  # of all curves at once: a frame of each would take most of a report's time
        column: np.repeat([about[column] for about, _ in rows], lengths)
        if column in rows[0][0]
        else np.concatenate([points[column] for _, points in rows])
        for column in FRAMES[name]
    }
    return pd.DataFrame(columns).astype(FRAMES[name])


def _of_pool(pool: Pool, curve: Curve) -> Iterator[tuple[dict[str, Any], Points]]:
    for seed, member in zip(pool.seeds, pool.members, strict=True):
        for index, name in enumerate(member.classes):
            target, score = member.targets[:, index], member.scores[:, index]
            is_labelled = target >= 0
            if 0 < np.count_nonzero(target == 1) < np.count_nonzero(is_labelled):
                points = curve(target[is_labelled], score[is_labelled])
                yield {**pool.key, "class": name, "seed": seed}, points


def _roc(target: npt.NDArray[np.int8], score: Floats) -> Points:
    fpr, tpr, _ = roc_curve(target, score)
    if len(fpr) > POINTS:
        # evenly along the curve, whose length in this sense is at most 2
        along = fpr + tpr
        places = np.searchsorted(along, np.linspace(0, along[-1], POINTS))
        places = np.unique(np.append(places, (0, len(fpr) - 1)))[: len(fpr)]
        fpr, tpr = fpr[places], tpr[places]
    return {"fpr": fpr, "tpr": tpr}


def _calibration(target: npt.NDArray[np.int8], score: Floats) -> Points:
    place = np.minimum((np.clip(score, 0, 1) * BINS).astype(np.intp), BINS - 1)
    count = np.bincount(place, minlength=BINS)
    bins = np.flatnonzero(count)
    return {
        "predicted": np.bincount(place, score, minlength=BINS)[bins] / count[bins],
        "observed": np.bincount(place, target, minlength=BINS)[bins] / count[bins],
        "count": count[bins],
    }
