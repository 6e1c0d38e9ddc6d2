"""One run on one split of a dataset: its predictions, their metrics and resamples.

Rows are sorted by unit, so that runs on the same records have the same order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmd_ray._version import __version__
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.files.cache import used
from benchmd_ray.files.integrity import Damaged, is_whole, replacing_hashed
from benchmd_ray.files.parquet import read_table
from benchmd_ray.modality.tasks import Task, TaskKind
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.predictions import CLASSIFIED, Predictions, read_predictions, task_of
from benchmd_ray.runs.store import Run
from benchmd_ray.scores.metrics import Values, metric
from benchmd_ray.scores.resampling import metric_over_folds, resampled, usual_threads
from benchmd_ray.scores.seeds import Pooled, pooled_seeds
from benchmd_ray.scores.support import Support, support

CODE = (
    "scores/intervals.py",
    "scores/metrics.py",
    "scores/ranking.py",
    "scores/resampling.py",
    "scores/seeds.py",
    "scores/sums.py",
    "scores/support.py",
    "report/scored.py",
    "modality/tasks.py",
)
"""Source files that define metrics and resamples, and how they are cached."""


def kept(
    inputs: Mapping[str, npt.NDArray[np.generic]],
    how: Mapping[str, object],
    compute: Callable[[], pa.Table],
    fits: Callable[[pa.Table], bool],
) -> pa.Table:
    """The result of ``compute``, from the cache if it was computed before.

    Args:
        inputs: Numeric arrays that the result depends on.
        how: What else it depends on; JSON-serialisable.
        compute: Computes the result.
        fits: Whether a cached table has the form of a result; otherwise it is computed again.
    """
    path = cache_folder() / "report" / f"{_name(inputs, how)}.parquet"
    if is_whole(path):
        with suppress(Damaged):
            table = read_table(path, path, "")
            if fits(table):
                used(path)
                return table
    result = compute()  # not computed yet, or damaged
    with suppress(OSError, BenchmdError):  # the folder is read-only or full
        _keep(path, result)
    return result


def _name(inputs: Mapping[str, npt.NDArray[np.generic]], how: Mapping[str, object]) -> str:
    about = {name: [array.dtype.str, array.shape] for name, array in inputs.items()}
    text = json.dumps([_code(), __version__, np.__version__, about, how], sort_keys=True)
    whole = hashlib.sha256(text.encode())
    for name in sorted(inputs):
        whole.update(np.ascontiguousarray(inputs[name]).data)
    return whole.hexdigest()


@cache
def _code() -> str:
    package, whole = resources.files("benchmd_ray"), hashlib.sha256()
    for name in CODE:
        whole.update(package.joinpath(name).read_bytes())
    return whole.hexdigest()


def _keep(path: Path, result: pa.Table) -> None:
    with replacing_hashed(path) as partial:
        pq.write_table(result, partial, compression="none", use_dictionary=False)


Floats = npt.NDArray[np.float64]

THREADS = 8
"""Most threads over all predictions; NumPy runs in parallel in them."""


@dataclass(frozen=True, eq=False)
class Scored:
    """Predictions of a run for one split of a dataset."""

    run: Run
    about: Mapping[str, str]
    """Description of the dataset in the predictions (`runs.predictions.DESCRIPTION`)."""
    split: str
    classes: tuple[str, ...]
    targets: npt.NDArray[np.int8]
    """(units, classes)."""
    scores: Floats
    """(units, classes)."""
    units: pd.DataFrame
    """unit_id, group_id and metadata of each unit."""
    values: Mapping[str, Values]
    """By metric, over all units."""
    resampled: Mapping[str, Floats]
    """By metric: (resamples, 1 + classes), the mean over classes first. For a metric without an
    interval there are none: (0, 1 + classes).
    """
    intervals: Mapping[tuple[str, int], Pooled] = field(default_factory=dict)
    """By metric and column as in `resampled`: the values with their intervals, if cached."""
    parts: tuple[Scored, ...] = ()
    """Of a cross-validation: the results of its folds, each by a model of its own."""
    folds: npt.NDArray[np.intp] | None = None
    """(units,): the fold of each, where ranks are compared within folds only."""

    @property
    def models(self) -> tuple[Scored, ...]:
        """The results of single models that it is made of."""
        return self.parts or (self,)

    @cached_property
    def groups(self) -> npt.NDArray[np.intp]:
        """Index of each unit's patient among the sorted patients; faster than names."""
        names = self.units["group_id"].to_numpy(dtype=np.str_)
        return np.unique(names, return_inverse=True)[1]

    @property
    def dataset(self) -> str:
        return self.about["dataset"]

    @property
    def task(self) -> TaskKind:
        return self.predicted.kind

    @property
    def predicted(self) -> Task:
        """The predicted task, with the dataset's classes."""
        return task_of(self.about["task"])

    @cached_property
    def support(self) -> Support:
        """Effective numbers of its patients."""
        return support(self.targets, self.groups)

    @property
    def patients(self) -> int:
        return self.support.patients

    @cached_property
    def rows_digest(self) -> str:
        """Hash of catalog, units, patients and targets: equal if the scored records are."""
        units = [self.units[name].tolist() for name in ("unit_id", "group_id")]
        names = json.dumps([self.about["catalog"], *units])
        content = names.encode() + np.ascontiguousarray(self.targets).tobytes()
        return hashlib.sha256(content).hexdigest()

    @cached_property
    def _pooled(self) -> dict[tuple[str, int], Pooled]:
        return {}

    def pooled(self, metric: str, column: int = 0) -> Pooled:
        """A metric with its interval, over all classes (column 0) or for a class."""
        pooled = self.intervals.get((metric, column)) or self._pooled.get((metric, column))
        if pooled is None:
            value, drawn = self.whole[metric][column], self.resampled[metric][:, column]
            pooled = pooled_seeds([float(value)], [drawn], self.support.basis(metric, column))
            self._pooled[metric, column] = pooled
        return pooled

    @cached_property
    def whole(self) -> Mapping[str, Floats]:
        """By metric: the value over all units, (1 + classes,), columns as in `resampled`."""
        return {name: np.array([v.mean, *v.per_class]) for name, v in self.values.items()}


class Read(NamedTuple):
    """Predictions as results without metrics, and notes on files that cannot be read."""

    scored: list[Scored]
    """Without metrics."""
    skipped: list[str]
    """A note on each file that cannot be read."""


def read_scored(run: Run) -> Read:
    """All predictions of a finished run."""
    scored, skipped = [], []
    for path in predictions_of(run.folder):
        if path.parent.name != CLASSIFIED.evaluation:
            continue
        try:
            predictions = read_predictions(path)
        except BenchmdError as error:
            skipped.append(f"Skipped: {error}")
            continue
        scored += of_predictions(run, predictions)
    return Read(scored, skipped)


def of_predictions(run: Run, predictions: Predictions) -> list[Scored]:
    """The predictions of a run for a dataset, split by split, without metrics."""
    scored = []
    for split in predictions.splits:
        targets, scores, units = predictions.scored_split(split)
        order = np.argsort(units["unit_id"].to_numpy(dtype=np.str_), kind="stable")
        scored.append(
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
    return scored


def measured(results: Sequence[Scored], metrics: Sequence[str], resamples: int) -> list[Scored]:
    """The same predictions with metrics and resamples, which are cached (`kept`)."""
    most = min(THREADS, usual_threads())
    threads = max(1, most // max(1, len(results)))  # a few large predictions share several threads
    with ThreadPoolExecutor(most) as pool:
        return list(
            pool.map(lambda result: _measured(result, metrics, resamples, threads), results)
        )


def _measured(result: Scored, metrics: Sequence[str], resamples: int, threads: int) -> Scored:
    inputs: dict[str, npt.NDArray[Any]] = {
        "targets": result.targets,
        "scores": result.scores,
        "groups": result.groups,
        **({} if result.folds is None else {"folds": result.folds}),
    }
    how = {"task": result.task, "metrics": list(metrics), "resamples": resamples}
    stored = kept(
        inputs,
        how,
        lambda: _compute(result, metrics, resamples, threads),
        lambda table: _fits(table, metrics, len(result.classes), resamples),
    )
    values, resampled_of, columns = {}, {}, 1 + len(result.classes)
    every = stored["value"].to_numpy().reshape(len(metrics), columns)
    for place, name in enumerate(metrics):
        mean, *per_class = every[place].tolist()
        unscored = tuple(np.flatnonzero(np.isnan(per_class)).tolist())
        values[name] = Values(mean, tuple(per_class), unscored)
        draws = stored["draws"].slice(place * columns, columns).combine_chunks()
        resampled_of[name] = draws.flatten().to_numpy().reshape(columns, -1).T
    return replace(result, values=values, resampled=resampled_of, intervals=_intervals(stored))


def _intervals(stored: pa.Table) -> dict[tuple[str, int], Pooled]:
    columns = (stored[name].to_pylist() for name in INTERVAL)
    return {
        (name, column): Pooled(value, math.nan, low, high, 1, caution)
        for name, column, value, low, high, caution in zip(*columns, strict=True)
    }


INTERVAL = ("metric", "column", "value", "low", "high", "caution")
KEPT = pa.schema(
    [
        ("metric", pa.string()),
        ("column", pa.int64()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("caution", pa.string()),
        ("draws", pa.list_(pa.float64())),
    ]
)
"""Columns of the cached scores: each metric over all classes (column 0) and per class, with the
interval of the one model.
"""


def _fits(table: pa.Table, metrics: Sequence[str], classes: int, resamples: int) -> bool:
    """Whether a table has the rows that `_compute` returns."""
    columns = range(1 + classes)
    if not table.schema.equals(KEPT) or any(table[name].null_count for name in KEPT.names):
        return False
    rows = zip(table["metric"].to_pylist(), table["column"].to_pylist(), strict=True)
    if list(rows) != [(metric, column) for metric in metrics for column in columns]:
        return False
    lengths = pc.list_value_length(table["draws"]).to_numpy().reshape(len(metrics), -1)
    whole = pc.list_flatten(table["draws"])
    return not whole.null_count and all(
        len(set(counts)) == 1 and counts[0] in (0, resamples) for counts in lengths.tolist()
    )


def _compute(result: Scored, metrics: Sequence[str], resamples: int, threads: int) -> pa.Table:
    """Values over all units and in resamples, with the columns of `KEPT`."""
    rows: dict[str, list[Any]] = {name: [] for name in KEPT.names}
    columns = 1 + len(result.classes)
    for name in metrics:
        if result.folds is None:
            whole = metric(name, result.targets, result.scores, result.task)
        else:
            about = (result.targets, result.scores, result.task, result.folds)
            whole = metric_over_folds(name, *about)
        drawn = np.empty((0, columns))
        if not all(result.support.basis(name, column).no_interval for column in range(columns)):
            drawn = resampled(
                name,
                result.targets,
                result.scores,
                result.groups,
                result.task,
                resamples=resamples,
                threads=threads,
                folds=result.folds,
            )
        for column, value in enumerate((whole.mean, *whole.per_class)):
            draws, basis = drawn[:, column], result.support.basis(name, column)
            pooled = pooled_seeds([value], [draws], basis)
            row = (name, column, value, pooled.low, pooled.high, pooled.caution, draws)
            for key, content in zip(KEPT.names, row, strict=True):
                rows[key].append(content)
    return pa.table(rows, schema=KEPT)
