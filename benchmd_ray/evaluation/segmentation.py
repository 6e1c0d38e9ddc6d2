"""DSC of each class with its interval over patients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.runs.predictions import Predictions
from benchmd_ray.scores.resampling import resampled_means
from benchmd_ray.scores.seeds import pooled_seeds
from benchmd_ray.scores.sums import mean_over_classes, ratio
from benchmd_ray.scores.support import Basis, effective

Floats = npt.NDArray[np.float64]
Where = tuple[str, str, str]
"""Split, method, and class, or `MEAN`."""
METRIC = "dsc"
MEAN = "mean"
"""Replaces the class for the mean over classes."""


@dataclass(frozen=True, eq=False)
class ClassDice:
    """DSC of one class, or the mean over classes, on one split."""

    value: float
    """Mean over the cases whose reference has the class; NaN without any."""
    draws: Floats
    """(resamples,): the value in resamples of patients."""
    basis: Basis
    records: int
    """Cases of the split."""
    patients: int
    cases: int
    """Cases whose reference has the class, or any class."""


def measured(predictions: Predictions, resamples: int) -> dict[Where, ClassDice]:
    """DSC of the model and of the baseline by split: each class, and their mean.

    Bootstrap draws are the same for all methods and runs with the same patients.
    """
    frame = predictions.table.to_pandas()
    return {
        (str(split), str(method), name): score
        for (split, method), rows in frame.groupby(["split", "method"], sort=True)
        for name, score in _measured(rows, predictions.task.foreground, resamples)
    }


def score_rows(predictions: Predictions, resamples: int) -> pd.DataFrame:
    rows = [
        {"split": split, "method": method, "class": name, **row_of([score])}
        for (split, method, name), score in measured(predictions, resamples).items()
    ]
    return pd.DataFrame(rows).assign(scored=predictions.task.scored)


def row_of(seeds: list[ClassDice]) -> dict[str, object]:
    """Value, interval and counts, pooled over one or several seeds."""
    first = seeds[0]
    values, draws = [seed.value for seed in seeds], [seed.draws for seed in seeds]
    pooled = pooled_seeds(values, draws, first.basis)
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
    rows: pd.DataFrame, classes: tuple[str, ...], resamples: int
) -> Iterator[tuple[str, ClassDice]]:
    table = rows.pivot(index="record_id", columns="class", values="dsc")[list(classes)]
    cases = rows.drop_duplicates("record_id").set_index("record_id").loc[table.index]
    names, place = np.unique(cases["group_id"].to_numpy(dtype=np.str_), return_inverse=True)
    values = table.to_numpy(dtype=np.float64)
    scored = ~np.isnan(values)
    draws = resampled_means(values, place, resamples=resamples)
    point = ratio(np.where(scored, values, 0.0).sum(axis=0), scored.sum(axis=0))
    patients = [effective(np.bincount(place[column])) for column in scored.T]
    counts = tuple(n for n, some in zip(patients, scored.any(axis=0), strict=True) if some)
    sizes = len(place), len(names)
    whole = Basis(effective(np.bincount(place)), counts)
    value, over = float(mean_over_classes(point)), mean_over_classes(draws)
    yield MEAN, ClassDice(value, over, whole, *sizes, int(scored.any(axis=1).sum()))
    for c, name in enumerate(classes):
        basis, cases_with = Basis(patients[c], ()), int(scored[:, c].sum())
        yield name, ClassDice(float(point[c]), draws[:, c], basis, *sizes, cases_with)
