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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmd_ray.errors import BenchmdError
from benchmd_ray.results.report.kept import kept
from benchmd_ray.results.store import Run
from benchmd_ray.run_files import PREDICTIONS
from benchmd_ray.scores.metrics import Values, metric
from benchmd_ray.scores.resampling import resampled, usual_threads
from benchmd_ray.scores.support import Support, support
from benchmd_ray.tasks import Task, TaskKind
from benchmd_ray.training.predictions import read_predictions
from benchmd_ray.typed import typed

Floats = npt.NDArray[np.float64]

THREADS = 8
"""Most at once, over all predictions: it is numpy's work, which threads share."""


@dataclass(frozen=True, eq=False)
class Scored:
    """Predictions of one run for one split of one dataset."""

    run: Run
    about: Mapping[str, str]
    """What the predictions say of the dataset (`training.predictions.DESCRIPTION`)."""
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
    """By metric: (resamples, 1 + classes), the mean over classes first. None of a metric without an
    interval, of which they would not be used: (0, 1 + classes)."""

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
    def task(self) -> TaskKind:
        """Kind of its task."""
        return self.predicted.kind

    @cached_property
    def predicted(self) -> Task:
        """Its task, of the dataset's classes."""
        task: Task = typed(Task, json.loads(self.about["task"]), "task")
        return task

    @cached_property
    def support(self) -> Support:
        """Its patients, counted."""
        return support(self.targets, self.groups)

    @property
    def patients(self) -> int:
        """How many there are."""
        return self.support.patients

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


class Read(NamedTuple):
    """What a run has predicted."""

    scored: list[Scored]
    """Without metrics."""
    skipped: list[str]
    """A note on each file that cannot be read."""


def read_scored(run: Run) -> Read:
    """All that a finished run has predicted."""
    found, skipped = [], []
    for path in sorted((run.folder / PREDICTIONS).glob("*.parquet")):
        try:
            predictions = read_predictions(path)
        except BenchmdError as error:
            skipped.append(f"Skipped: {error}")
            continue
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
    return Read(found, skipped)


def measured(found: Sequence[Scored], metrics: Sequence[str], resamples: int) -> list[Scored]:
    """The same predictions with metrics and resamples, each computed once (`kept`)."""
    most = min(THREADS, usual_threads())
    each = max(1, most // max(1, len(found)))  # a few large ones have several
    with ThreadPoolExecutor(most) as pool:
        return list(pool.map(lambda one: _measured(one, metrics, resamples, each), found))


def _measured(one: Scored, metrics: Sequence[str], resamples: int, threads: int) -> Scored:
    inputs: dict[str, npt.NDArray[Any]] = {
        "targets": one.targets,
        "scores": one.scores,
        "groups": one.groups,
    }
    how = {"task": one.task, "metrics": list(metrics), "resamples": resamples}
    held = kept(
        inputs,
        how,
        lambda: _compute(one, metrics, resamples, threads),
        lambda arrays: _fits(arrays, metrics, len(one.classes), resamples),
    )
    values = {}
    for name in metrics:
        mean, *per_class = held[f"{name} values"].tolist()
        unscored = tuple(np.flatnonzero(held[f"{name} unscored"]).tolist())
        values[name] = Values(mean, tuple(per_class), unscored)
    return replace(one, values=values, resampled={name: held[name] for name in metrics})


def _fits(
    arrays: Mapping[str, Floats], metrics: Sequence[str], classes: int, resamples: int
) -> bool:
    """Whether arrays have the names and shapes that `_compute` gives."""
    columns, shapes = 1 + classes, {name: array.shape for name, array in arrays.items()}
    return len(shapes) == 3 * len(metrics) and all(
        shapes.get(f"{name} values") == (columns,)
        and shapes.get(f"{name} unscored") == (classes,)
        and shapes.get(name) in ((0, columns), (resamples, columns))
        for name in metrics
    )


def _compute(
    one: Scored, metrics: Sequence[str], resamples: int, threads: int
) -> dict[str, Floats]:
    """By metric: resamples, values of all units as `Scored.whole` has them, unscored classes."""
    made = {}
    for name in metrics:
        whole = metric(name, one.targets, one.scores, one.task)
        made[f"{name} values"] = np.array([whole.mean, *whole.per_class])
        made[f"{name} unscored"] = np.isin(np.arange(len(one.classes)), whole.unscored) * 1.0
        columns = 1 + len(one.classes)
        made[name] = np.empty((0, columns))
        if not all(one.support.basis(name, column).no_interval for column in range(columns)):
            made[name] = resampled(
                name,
                one.targets,
                one.scores,
                one.groups,
                one.task,
                resamples=resamples,
                threads=threads,
            )
    return made
