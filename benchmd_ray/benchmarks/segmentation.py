"""Score rows of a segmentation: DSC of each class with its interval over patients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.scores.resampling import group_multiplicities
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.support import Basis, effective
from benchmd_ray.training.predictions import Predictions

Floats = npt.NDArray[np.float64]


def score_rows(predictions: Predictions, resamples: int) -> pd.DataFrame:
    """Rows of the model and of the baseline, split by split: each class, and their mean.

    The value of a class is the mean over the cases whose reference has it; ``mean`` is the mean of
    the classes' values. Intervals are of whole patients drawn with replacement.

    Args:
        predictions: Of the evaluation ``segmentation``.
        resamples: Of the bootstrap over patients.
    """
    frame = predictions.table.to_pandas()
    rows: list[dict[str, object]] = []
    for (split, method), own in frame.groupby(["split", "method"], sort=True):
        shared = {"split": split, "method": method, "scored": predictions.task.scored}
        rows += [shared | row for row in _rows(own, predictions.task.foreground, resamples)]
    return pd.DataFrame(rows)


def _rows(
    own: pd.DataFrame, classes: tuple[str, ...], resamples: int
) -> Iterator[dict[str, object]]:
    """Rows of one method on one split."""
    table = own.pivot(index="record_id", columns="class", values="dsc")[list(classes)]
    cases = own.drop_duplicates("record_id").set_index("record_id").loc[table.index]
    names, place = np.unique(cases["group_id"].to_numpy(dtype=np.str_), return_inverse=True)
    weights = group_multiplicities(len(names), range(resamples)).astype(np.float64)[:, place]
    values = table.to_numpy(dtype=np.float64)
    known = ~np.isnan(values)
    draws = _means(weights, values, known)
    point = _means(np.ones((1, len(values))), values, known)[0]
    scored = ~np.isnan(point)
    patients = [effective(np.bincount(place[column])) for column in known.T]
    counts = tuple(n for n, is_in in zip(patients, scored, strict=True) if is_in)
    whole = Basis(effective(np.bincount(place)), counts)
    mean = float(point[scored].mean()) if scored.any() else np.nan
    yield _row("mean", mean, draws[:, scored].mean(axis=1), whole, known.any(axis=1), place)
    for column, name in enumerate(classes):
        basis = Basis(patients[column], ())
        yield _row(name, point[column], draws[:, column], basis, known[:, column], place)


def _means(weights: Floats, values: Floats, known: npt.NDArray[np.bool_]) -> Floats:
    """Mean of each class over the cases that have it, NaN without one.

    Args:
        weights: (draws, cases).
        values: (cases, classes), NaN where unknown.
        known: Where they are not NaN.

    Returns:
        (draws, classes).
    """
    total = weights @ known.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(weights @ np.where(known, values, 0.0) / total)


def _row(
    name: str,
    value: float,
    draws: Floats,
    basis: Basis,
    known: npt.NDArray[np.bool_],
    place: npt.NDArray[np.intp],
) -> dict[str, object]:
    pooled = pooled_seeds([value], [draws], basis)
    return {
        "metric": "dsc",
        "class": name,
        "value": pooled.mean,
        "low": pooled.low,
        "high": pooled.high,
        "caution": pooled.caution,
        "records": len(place),
        "patients": len(np.unique(place)),
        "positives": int(known.sum()),
        "effective": basis.fewest,
    }
