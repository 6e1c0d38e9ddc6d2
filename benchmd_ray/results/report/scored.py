"""One run on one split of one dataset: its predictions, their metrics and resamples.

Rows are sorted by unit, so that two runs on the same records have them in the same order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.evaluation.intervals import resampled
from benchmd_ray.evaluation.metrics import Values, metric
from benchmd_ray.evaluation.predict import read_predictions
from benchmd_ray.modalities import MODALITIES, Task
from benchmd_ray.results.store import Run

Floats = npt.NDArray[np.float64]

THREADS = 2
"""Resampling is numpy's work, which threads share."""


@dataclass(frozen=True, eq=False)
class Scored:
    """Predictions of one run for one split of one dataset."""

    run: Run
    about: Mapping[str, str]
    """What the predictions say of the dataset (`evaluation.predict.DESCRIPTION`)."""
    split: str
    classes: tuple[str, ...]
    targets: npt.NDArray[np.int8]
    """(units, classes)."""
    scores: Floats
    """(units, classes)."""
    units: pd.DataFrame
    """unit_id, group_id and metadata of each unit."""
    values: Mapping[str, Values]
    """By metric, of all units."""
    resampled: Mapping[str, Floats]
    """By metric: (resamples, 1 + classes), the mean over classes first."""

    @cached_property
    def groups(self) -> npt.NDArray[np.intp]:
        """Number of each unit's patient among the sorted patients: as good as the name, faster."""
        names = self.units["group_id"].to_numpy(dtype=np.str_)
        return np.unique(names, return_inverse=True)[1]

    @property
    def dataset(self) -> str:
        """The dataset that is scored."""
        return self.about["dataset"]

    @property
    def task(self) -> Task:
        """Its modality's task."""
        return MODALITIES[self.about["modality"]].task

    @cached_property
    def patients(self) -> int:
        """How many there are."""
        return int(self.units["group_id"].nunique())

    @cached_property
    def rows_digest(self) -> str:
        """Hash of units, patients and targets: equal for runs that scored the same records."""
        names = json.dumps([self.units["unit_id"].tolist(), self.units["group_id"].tolist()])
        content = names.encode() + np.ascontiguousarray(self.targets).tobytes()
        return hashlib.sha256(content).hexdigest()

    @property
    def whole(self) -> Mapping[str, Floats]:
        """By metric: the values of all units as `resampled` has them, (1 + classes,)."""
        return {name: np.array([v.mean, *v.per_class]) for name, v in self.values.items()}


def read_scored(run: Run) -> list[Scored]:
    """All that a finished run has predicted, without metrics.

    Raises:
        BenchmdError: A file holds no predictions.
    """
    found = []
    for path in sorted((run.folder / "predictions").glob("*.parquet")):
        predictions = read_predictions(path)
        for split in predictions.splits:
            targets, scores, _ = predictions.of_split(split)
            units = predictions.units_of_split(split)
            order = np.argsort(units["unit_id"].to_numpy(dtype=np.str_), kind="stable")
            found.append(
                Scored(
                    run=run,
                    about=predictions.description,
                    split=split,
                    classes=predictions.classes,
                    targets=targets[order],
                    scores=scores[order],
                    units=units.iloc[order].reset_index(drop=True),
                    values={},
                    resampled={},
                )
            )
    return found


def measured(found: Sequence[Scored], metrics: Sequence[str], resamples: int) -> list[Scored]:
    """The same predictions with metrics and resamples, each computed once."""

    def measure(work: tuple[Scored, str]) -> tuple[Values, Floats]:
        one, name = work
        drawn = resampled(
            name,
            one.targets,
            one.scores,
            one.groups,
            one.task,
            resamples=resamples,
            threads=1,
        )
        return metric(name, one.targets, one.scores, one.task), drawn

    with ThreadPoolExecutor(THREADS) as threads:
        results = list(threads.map(measure, product(found, metrics)))
    shares = (results[i : i + len(metrics)] for i in range(0, len(results), len(metrics)))
    return [
        replace(
            one,
            values={name: value for name, (value, _) in zip(metrics, share, strict=True)},
            resampled={name: drawn for name, (_, drawn) in zip(metrics, share, strict=True)},
        )
        for one, share in zip(found, shares, strict=True)
    ]
