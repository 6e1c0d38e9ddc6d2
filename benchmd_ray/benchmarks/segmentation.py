"""Scores of segmentations: DSC of each class with its interval over patients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.scores.resampling import group_multiplicities
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.support import Basis, effective
from benchmd_ray.training.predictions import Predictions

Floats = npt.NDArray[np.float64]
Where = tuple[str, str, str]
"""Split, method, and class, or `MEAN`."""
METRIC = "dsc"
MEAN = "mean"
"""In place of a class: the mean of the classes' values."""


@dataclass(frozen=True, eq=False)
class Measured:
    """DSC of one class, or the mean over classes, on one split."""

    value: float
    """Mean over the cases whose reference has the class; NaN without any."""
    draws: Floats
    """(resamples,): the same of whole patients drawn with replacement."""
    basis: Basis
    """The patients that it rests on."""
    records: int
    """Cases of the split."""
    patients: int
    """Patients of the split."""
    cases: int
    """Cases whose reference has the class, or any class."""


def measured(predictions: Predictions, resamples: int) -> dict[Where, Measured]:
    """DSC of the model and of the baseline, split by split: each class, and their mean.

    Args:
        predictions: Of the evaluation ``segmentation``.
        resamples: Of the bootstrap over patients. Draws are the same for all methods and runs that
            have the same patients.
    """
    frame = predictions.table.to_pandas()
    return {
        (str(split), str(method), name): one
        for (split, method), own in frame.groupby(["split", "method"], sort=True)
        for name, one in _measured(own, predictions.task.foreground, resamples)
    }


def score_rows(predictions: Predictions, resamples: int) -> pd.DataFrame:
    """Score rows of `measured`.

    Args:
        predictions: Of the evaluation ``segmentation``.
        resamples: Of the bootstrap over patients.
    """
    rows = [
        {
            "split": split,
            "method": method,
            "scored": predictions.task.scored,
            "class": name,
            **row_of([one]),
        }
        for (split, method, name), one in measured(predictions, resamples).items()
    ]
    return pd.DataFrame(rows)


def row_of(seeds: list[Measured]) -> dict[str, object]:
    """Value, interval and counts of one seed or of several, pooled.

    Args:
        seeds: Of the same cases.
    """
    first = seeds[0]
    pooled = pooled_seeds([one.value for one in seeds], [one.draws for one in seeds], first.basis)
    return {
        "metric": METRIC,
        "value": pooled.mean,
        "low": pooled.low,
        "high": pooled.high,
        "caution": pooled.caution,
        "records": first.records,
        "patients": first.patients,
        "positives": first.cases,
        "effective": first.basis.fewest,
    }


def _measured(
    own: pd.DataFrame, classes: tuple[str, ...], resamples: int
) -> Iterator[tuple[str, Measured]]:
    """Of one method on one split."""
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
    sizes = len(place), len(names)
    mean = float(point[scored].mean()) if scored.any() else np.nan
    whole = Basis(effective(np.bincount(place)), counts)
    over = draws[:, scored].mean(axis=1)
    yield MEAN, Measured(mean, over, whole, *sizes, int(known.any(axis=1).sum()))
    for column, name in enumerate(classes):
        basis = Basis(patients[column], ())
        one = draws[:, column]
        yield name, Measured(point[column], one, basis, *sizes, int(known[:, column].sum()))


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
