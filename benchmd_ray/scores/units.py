"""Pooling of rows to scored units, such as the windows of a CT scan to the scan (decision D5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmd_ray.modality.tasks import UNKNOWN


class Units:
    """Which unit each row of a split belongs to."""

    first: npt.NDArray[np.int64]
    """(units,) the first row of each, ascending: the order of the units."""

    def __init__(self, names: Sequence[str] | npt.NDArray[np.str_]) -> None:
        _, first, member = np.unique(
            np.asarray(names, np.str_), return_index=True, return_inverse=True
        )
        by_name = np.argsort(first)
        place = np.empty(len(first), np.int64)
        place[by_name] = np.arange(len(first))
        self.first = first[by_name]
        self._rows = np.argsort(place[member], kind="stable")
        counts = np.bincount(place[member], minlength=len(first))
        self._starts = np.cumsum(counts) - counts

    def targets(self, targets: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """(units, classes): 1 if any row is positive, else -1 if any is unknown, else 0."""
        rows = np.asarray(targets, np.int8)
        positive, unknown = self._any(rows == 1), self._any(rows == UNKNOWN)
        return np.where(positive, 1, np.where(unknown, UNKNOWN, 0)).astype(np.int8)

    def scores(self, scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """(units, classes): the maximum over a unit's rows."""
        rows = np.asarray(scores, np.float64)
        if len(self.first) == len(rows):
            return rows
        pooled: npt.NDArray[np.float64] = np.maximum.reduceat(rows[self._rows], self._starts)
        return pooled

    def _any(self, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        if len(self.first) == len(rows):
            return rows
        pooled: npt.NDArray[np.bool_] = np.logical_or.reduceat(rows[self._rows], self._starts)
        return pooled
