"""One run on one split of a dataset: its predictions, their metrics and resamples.

Rows are sorted by unit, so that runs on the same records have the same order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

from benchmd_ray._version import __version__
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.files.cache import used
from benchmd_ray.files.integrity import is_whole, replacing_hashed
from benchmd_ray.modality.tasks import Task, TaskKind
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.index import Index
from benchmd_ray.runs.predictions import (
    CLASSIFIED,
    Predictions,
    parsed_predictions,
    read_predictions,
    task_of,
)
from benchmd_ray.runs.store import Run
from benchmd_ray.scores.metrics import metric
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
    how: Mapping[str, object], compute: Callable[[], pa.Table], fits: Callable[[pa.Table], bool]
) -> pa.Table:
    """The result of ``compute``, from the cache if it was computed before.

    Args:
        how: What the result depends on, next to versions and code; JSON-serialisable.
        compute: Computes the result.
        fits: Whether a cached table has the form of a result; otherwise it is computed again.
    """
    path = cache_folder() / "report" / f"{_name(how)}.arrow"
    if is_whole(path):
        with suppress(pa.ArrowException, OSError):
            content = pa.BufferReader(path.read_bytes())
            table = feather.read_table(content, use_threads=False)  # far faster than Parquet
            table.validate(full=True)
            if fits(table):
                used(path)
                return table
    result = compute()  # not computed yet, or damaged
    with suppress(OSError, BenchmdError):  # the folder is read-only or full
        _keep(path, result)
    return result


def _name(how: Mapping[str, object]) -> str:
    text = json.dumps([_code(), __version__, np.__version__, how], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _code() -> str:
    package, whole = resources.files("benchmd_ray"), hashlib.sha256()
    for name in CODE:
        whole.update(package.joinpath(name).read_bytes())
    return whole.hexdigest()


def _keep(path: Path, result: pa.Table) -> None:
    with replacing_hashed(path) as partial:
        feather.write_feather(result, str(partial), compression="uncompressed")


Floats = npt.NDArray[np.float64]

THREADS = 8
"""Most threads over all predictions; NumPy runs in parallel in them."""


class Units(NamedTuple):
    """What is scored of a split: CT scans with all their windows, otherwise records."""

    targets: npt.NDArray[np.int8]
    """(units, classes)."""
    scores: Floats
    """(units, classes)."""
    about: pd.DataFrame
    """unit_id, group_id and metadata of each unit."""


class Facts(NamedTuple):
    """What a report needs of units so often that the index has it."""

    content: str
    """Hash of targets, scores and patients."""
    rows: str
    """Hash of catalog, units, patients and targets: equal if the scored records are."""
    size: int
    positives: tuple[int, ...]
    """By class."""
    support: Support


class Ends(NamedTuple):
    """95 % intervals of a metric, columns as in `Scored.resampled`."""

    low: Sequence[float]
    high: Sequence[float]
    caution: Sequence[str]


@dataclass(frozen=True, eq=False)
class Scored:
    """Predictions of a run for one split of a dataset."""

    run: Run
    about: Mapping[str, str]
    """Description of the dataset in the predictions (`runs.predictions.DESCRIPTION`)."""
    split: str
    classes: tuple[str, ...]
    read: Callable[[], Units]
    """Its units; of unchanged predictions they are only read when this is called first."""
    known: Facts | None = None
    whole: Mapping[str, Floats] = field(default_factory=dict)
    """By metric: the value over all units, (1 + classes,), the mean over classes first."""
    resampled: Mapping[str, Floats] = field(default_factory=dict)
    """By metric: (resamples, 1 + classes). For a metric without an interval there are none:
    (0, 1 + classes).
    """
    intervals: Mapping[str, Ends] = field(default_factory=dict)
    """By metric."""
    parts: tuple[Scored, ...] = ()
    """Of a cross-validation: the results of its folds, each by a model of its own."""
    folds: npt.NDArray[np.intp] | None = None
    """(units,): the fold of each, where ranks are compared within folds only."""

    @property
    def models(self) -> tuple[Scored, ...]:
        """The results of single models that it is made of."""
        return self.parts or (self,)

    @property
    def targets(self) -> npt.NDArray[np.int8]:
        return self.read().targets

    @property
    def scores(self) -> Floats:
        return self.read().scores

    @property
    def units(self) -> pd.DataFrame:
        return self.read().about

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
    def facts(self) -> Facts:
        """What is known of its units, or computed."""
        return self.known or _facts(self)

    @property
    def support(self) -> Support:
        """Effective numbers of its patients."""
        return self.facts.support

    @property
    def patients(self) -> int:
        return self.support.patients

    def people(self) -> Iterator[str]:
        """Patients of its units; of results on the same records they are read once."""
        yield from _people(_SameRows(self.facts.rows, self))

    def pooled(self, metric: str, column: int = 0) -> Pooled:
        """A metric with its interval, over all classes (column 0) or for a class."""
        ends, value = self.intervals[metric], float(self.whole[metric][column])
        low, high, caution = ends.low[column], ends.high[column], ends.caution[column]
        return Pooled(value, math.nan, low, high, 1, caution)


@dataclass(frozen=True)
class _SameRows:
    rows: str
    result: Scored = field(compare=False)


@lru_cache(maxsize=64)
def _people(of: _SameRows) -> list[str]:
    people: list[str] = of.result.units["group_id"].tolist()
    return people


def _facts(result: Scored) -> Facts:
    targets, scores, about = result.read()
    folds = () if result.folds is None else (result.folds,)
    names = [about[name].tolist() for name in ("unit_id", "group_id")]
    rows = json.dumps([result.about["catalog"], *names]).encode()
    return Facts(
        content=_hash(targets, scores, result.groups, *folds),
        rows=hashlib.sha256(rows + np.ascontiguousarray(targets).tobytes()).hexdigest(),
        size=len(targets),
        positives=tuple((targets == 1).sum(axis=0).tolist()),
        support=support(targets, result.groups),
    )


def _hash(*arrays: npt.NDArray[Any]) -> str:
    """Hash of arrays with their types and shapes; no version, as the index has it."""
    about = [[array.dtype.str, array.shape] for array in arrays]
    whole = hashlib.sha256(json.dumps(about).encode())
    for array in arrays:
        whole.update(np.ascontiguousarray(array).data)
    return whole.hexdigest()


class Read(NamedTuple):
    """Predictions as results without metrics, and notes on files that cannot be read."""

    scored: list[Scored]
    """Without metrics."""
    skipped: list[str]
    """A note on each file that cannot be read."""


def read_scored(run: Run, index: Index | None = None) -> Read:
    """All predictions of a finished run; with an index, unchanged ones are read when needed."""
    scored, skipped = [], []
    for path in predictions_of(run.folder):
        if path.parent.name != CLASSIFIED.evaluation:
            continue
        try:
            scored += _of_file(run, path, index)
        except BenchmdError as error:
            skipped.append(f"Skipped: {error}")
    return Read(scored, skipped)


def _of_file(run: Run, path: Path, index: Index | None) -> list[Scored]:
    fresh: list[Scored] = []

    def read() -> dict[str, Any]:
        predictions = read_predictions(path)
        fresh.extend(of_predictions(run, predictions))
        facts = {result.split: _plain(result.facts) for result in fresh}
        return {"about": predictions.description, "facts": facts}

    if index is None:
        read()
        return fresh
    known = index.known(run.folder, path.relative_to(run.folder).as_posix(), read)
    return fresh or [
        _unread(run, path, known["about"], split, _as_facts(facts))
        for split, facts in known["facts"].items()
    ]


def _plain(facts: Facts) -> dict[str, Any]:
    return facts._asdict() | {"support": asdict(facts.support)}


def _as_facts(plain: Mapping[str, Any]) -> Facts:
    return Facts(**_tuples({**plain, "support": Support(**_tuples(plain["support"]))}))


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()}


def _unread(run: Run, path: Path, about: Mapping[str, str], split: str, known: Facts) -> Scored:
    """A split of predictions that the index knows."""

    def read() -> Units:
        result = _of_split(run, parsed_predictions(path), split)
        if result.facts.content != known.content:
            raise BenchmdError(f"{path} was changed during the report. Make the report again.")
        return result.read()

    return Scored(run, about, split, task_of(about["task"]).classes, cache(read), known)


def of_predictions(run: Run, predictions: Predictions) -> list[Scored]:
    """The predictions of a run for a dataset, split by split, without metrics."""
    return [_of_split(run, predictions, split) for split in predictions.splits]


def _of_split(run: Run, predictions: Predictions, split: str) -> Scored:
    targets, scores, about = predictions.scored_split(split)
    order = np.argsort(about["unit_id"].to_numpy(dtype=np.str_), kind="stable")
    units = Units(targets[order], scores[order], about.iloc[order].reset_index(drop=True))
    return Scored(run, predictions.description, split, predictions.classes, lambda: units)


def measured(results: Sequence[Scored], metrics: Sequence[str], resamples: int) -> list[Scored]:
    """The same predictions with metrics and resamples, which are cached (`kept`)."""
    most = min(THREADS, usual_threads())
    threads = max(1, most // max(1, len(results)))  # a few large predictions share several threads
    with ThreadPoolExecutor(most) as pool:
        return list(
            pool.map(lambda result: _measured(result, metrics, resamples, threads), results)
        )


def _measured(result: Scored, metrics: Sequence[str], resamples: int, threads: int) -> Scored:
    how = {"units": result.facts.content, "task": result.task, "metrics": list(metrics)}
    stored = kept(
        {**how, "resamples": resamples},
        lambda: _compute(result, metrics, resamples, threads),
        lambda table: _fits(table, metrics, len(result.classes), resamples),
    )
    whole, resampled_of, intervals, columns = {}, {}, {}, 1 + len(result.classes)
    values = stored["value"].to_numpy().reshape(len(metrics), columns)
    ends = [stored[name].to_pylist() for name in Ends._fields]
    draws = stored["draws"].combine_chunks()
    starts, drawn = draws.offsets.to_numpy(), draws.values.to_numpy()
    for place, name in enumerate(metrics):
        rows = slice(place * columns, (place + 1) * columns)
        of_metric = drawn[starts[rows.start] : starts[rows.stop]]
        whole[name] = values[place]
        resampled_of[name] = of_metric.reshape(columns, -1).T
        intervals[name] = Ends(*(part[rows] for part in ends))
    return replace(
        result, known=result.facts, whole=whole, resampled=resampled_of, intervals=intervals
    )


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
