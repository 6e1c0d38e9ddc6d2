"""AUROC of a detector that tells records out of distribution from those in it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from benchmd_ray.scores.ranking import rank, weighted_auroc
from benchmd_ray.scores.resampling import group_multiplicities

Floats = npt.NDArray[np.float64]


def resampled_detection(
    out: npt.ArrayLike, scores: npt.ArrayLike, patients: npt.ArrayLike, resamples: int
) -> Floats:
    """AUROC over resamples of patients, (resamples,).

    Patients of in and of out are drawn apart; one with records of both kinds is drawn once for
    both.

    Args:
        out: (records,): whether a record is out of distribution.
        scores: (records,): larger is more out.
        patients: (records,): the patient of each, of any sortable type.
        resamples: Their number.
    """
    kinds, names = np.asarray(out, np.int8), np.asarray(patients)
    inside, outside = np.unique(names[kinds == 0]), np.unique(names[kinds == 1])
    if len(np.intersect1d(inside, outside)):
        every, place = np.unique(names, return_inverse=True)
        weights = _drawn(len(every), resamples, 0)
    else:
        of_out = len(inside) + np.searchsorted(outside, names)
        place = np.where(kinds == 0, np.searchsorted(inside, names), of_out)
        drawn = [_drawn(len(group), resamples, n) for n, group in enumerate((inside, outside))]
        weights = np.concatenate(drawn, axis=1)
    ranking = rank(kinds, np.asarray(scores, np.float64), place.astype(np.intp))
    return weighted_auroc(ranking, weights)


@lru_cache(maxsize=16)
def _drawn(patients: int, resamples: int, seed: int) -> npt.NDArray[np.int32]:
    return group_multiplicities(patients, range(resamples), seed=seed)
