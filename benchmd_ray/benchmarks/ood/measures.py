"""Scores of records of both kinds by one detector, compared: metrics and their resamples.

Out is the positive class and a larger score is more out. In and out count the same whatever their
numbers: accuracy is balanced, and average precision weighs each kind a half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.benchmarks.ood.methods.formulas import auroc
from benchmd_ray.benchmarks.ood.methods.method import Floats
from benchmd_ray.scores.detection import Side, resampled_detection
from benchmd_ray.scores.support import Basis, support

ACCEPTED = 0.95
"""Share of in-distribution records that a threshold without other records accepts."""


@dataclass(frozen=True)
class Compared:
    """Scores of records of both kinds by one detector, each record once."""

    inside: pd.DataFrame
    """Of in-distribution records: ``score``, ``group_id`` (the patient) and ``abnormal``."""
    outside: pd.DataFrame
    threshold: float
    alike: pd.DataFrame | None = None
    """In-distribution records that were made as coarse as the others, where these are coarser."""

    @property
    def metrics(self) -> dict[str, float]:
        """What the function `metrics` gives."""
        inside, outside = (rows["score"].to_numpy() for rows in (self.inside, self.outside))
        return metrics(inside, outside, self.threshold)

    @property
    def among_abnormal(self) -> Compared | None:
        """The same with abnormal in-distribution records only; None where there are none."""
        abnormal = self.inside[self.inside["abnormal"].fillna(False).astype(bool)]
        return replace(self, inside=abnormal) if len(abnormal) else None


def metrics(inside: Floats, outside: Floats, threshold: float) -> dict[str, float]:
    """All scores of a detector on records of both kinds, (records,) each.

    ``fpr at 95`` is the share of in that is rejected where 95 % of out are; ``detected at 5`` the
    share of out that is rejected where at most 5 % of in are; ``balanced accuracy`` and
    ``rejected`` (the share of out) are at the threshold.
    """
    out = np.concatenate([np.zeros(len(inside), int), np.ones(len(outside), int)])
    scores = np.concatenate([inside, outside])
    weights = np.where(out == 1, 0.5 / len(outside), 0.5 / len(inside))
    ascending = np.sort(outside)
    most = ascending[int(np.floor(0.05 * len(outside)))]  # 95 % of out score so much or more
    limit = np.sort(inside)[int(np.ceil(0.95 * len(inside))) - 1]
    rejected, accepted = (outside > threshold).mean(), (inside <= threshold).mean()
    return {
        "auroc": auroc(inside, outside),
        "aupr out": _average_precision(out, scores, weights),
        "aupr in": _average_precision(1 - out, -scores, weights),
        "fpr at 95": float((inside >= most).mean()),
        "detected at 5": float((outside > limit).mean()),
        "balanced accuracy": float((rejected + accepted) / 2),
        "rejected": float(rejected),
    }


def _average_precision(kind: npt.NDArray[np.int_], scores: Floats, weights: Floats) -> float:
    """Average precision of weighted records, without interpolation; equal scores are one level."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    positives = np.cumsum((weights * kind)[order])[ends]
    called = np.cumsum(weights[order])[ends]
    return float((np.diff(positives, prepend=0) * positives / called).sum() / positives[-1])


def threshold_of(calibrating: Floats) -> float:
    """The score that 95 % of new in-distribution records do not exceed, on average.

    Of n records that calibrate the ⌈0.95 (n + 1)⌉-th least (conformal prediction: Vovk et al.
    2005), the largest where n is below 19.
    """
    place = int(np.ceil(ACCEPTED * (len(calibrating) + 1)))
    return float(np.sort(calibrating)[min(place, len(calibrating)) - 1])


def resampled_auroc(compared: Compared, resamples: int) -> Floats:
    """AUROC over resamples of patients, (resamples,); see `scores.detection`."""
    draws = resampled_detection(_side(compared.inside), [_side(compared.outside)], resamples)
    return np.ravel(draws)


def _side(rows: pd.DataFrame) -> Side:
    return rows["score"].to_numpy(), rows["group_id"].to_numpy()


def _kinds(compared: Compared) -> npt.NDArray[np.int8]:
    return np.repeat(np.array([0, 1], np.int8), [len(compared.inside), len(compared.outside)])


def basis_of(compared: Compared) -> Basis:
    """The patients that scores rest on."""
    patients = pd.concat([compared.inside["group_id"], compared.outside["group_id"]])
    return support(_kinds(compared)[:, None], patients.to_numpy()).basis("auroc", 1)
