"""Score rows: one for every metric and class of every run on every split.

Rows of classifications are computed from stored predictions, others come from their evaluation. A
benchmark may add rows without a run, such as published ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmd_ray.data.provenance import together
from benchmd_ray.errors import BenchmdError, count_of, first_line
from benchmd_ray.evaluation.registry import benchmarks, evaluations, published_for
from benchmd_ray.report.contamination import contamination
from benchmd_ray.report.contamination import together as contaminations
from benchmd_ray.report.frames import FRAMES, Part, frame
from benchmd_ray.report.names import RowName
from benchmd_ray.report.scored import Ends, Scored
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.predictions import CLASSIFIED, SHARED, read_predictions, shared_text
from benchmd_ray.runs.store import Run

Row = dict[str, Any]


class Beside(NamedTuple):
    """A published AUROC next to a result."""

    value: float
    source: str
    """Source of the number."""
    unlike: str | None
    """Why the two cannot be compared; None where they can."""


def beside(result: Scored, protocol: str) -> Beside | None:
    """The published number for a result, if any."""
    run = result.run.description
    published_entry = published_for(result.dataset, run["setting"], run["technique"])
    if published_entry is None or published_entry[0].published is None:
        return None
    published, value = published_entry[0].published, published_entry[1]
    unlike = published.unlike(
        protocol,
        run["source"],
        result.about["role"],
        split=result.split,
        options=_options(result.run, result.dataset, result.about),
        raw=(_raw(result.about), tuple(run["raw"])),
    )
    if _provenance(run, result.about) == "synthetic":
        unlike = "synthetic data"
    return Beside(value, published.source, unlike)


def key_of(result: Scored, row: RowName) -> dict[str, str]:
    """The key of a result, by the columns of `frames.KEY`."""
    about, run = result.about, result.run.description
    return {
        "modality": about["modality"],
        "source": run["source"],
        "dataset": result.dataset,
        "role": about["role"],
        "split": result.split,
        "policy": about["policy"],
        "setting": run["setting"],
        **row._asdict(),
    }


def contamination_of(result: Scored) -> str:
    """What of the scored records the pretrainings of its models saw, each of its own."""
    texts = (contamination(m.run, m.about, m.people()) for m in result.models)
    return contaminations(texts)


def score_rows(result: Scored, row: RowName) -> Part:
    """Rows of a measured result: each metric over all classes (``mean``) and of each class."""
    near = beside(result, row.protocol)
    is_published = near is not None and near.unlike is None
    shared = {
        "evaluation": CLASSIFIED.evaluation,
        **dict.fromkeys(("method", "regime", "use_case", "group"), ""),
        **key_of(result, row),
        "seed": result.run.description["seed"],
        "records": result.facts.size,
        "scored": result.predicted.scored,
        "patients": result.patients,
        **_of_catalog(result.run, result.dataset, result.about),
        "unlike": "" if near is None or near.unlike is None else near.unlike,
        "contamination": contamination_of(result),
        "run": result.run.folder.name,
    }
    metrics, names, positives = [*result.whole], ("mean", *result.classes), result.facts.positives
    paper = np.full((len(metrics), len(names)), np.nan)
    sources = np.full(paper.shape, "", object)
    if near and "auroc" in metrics:
        first = metrics.index("auroc"), 0
        paper[first], sources[first] = near.value if is_published else np.nan, near.source
    ends = [result.intervals[metric] for metric in metrics]
    columns: dict[str, Any] = {
        "metric": [metric for metric in metrics for _ in names],
        "class": names * len(metrics),
        "value": np.concatenate([result.whole[metric] for metric in metrics]),
        **{name: [*chain(*(getattr(e, name) for e in ends))] for name in Ends._fields},
        "positives": (sum(positives), *positives) * len(metrics),
        "effective": (result.support.effective, *result.support.rarer) * len(metrics),
        "paper": paper.ravel(),
        "published_in": sources.ravel(),
    }
    return shared, columns


def other_rows(
    runs: Sequence[Run], names: Mapping[Path, RowName], resamples: int
) -> tuple[pd.DataFrame, list[str]]:
    """Rows of all evaluations except classification, and notes on what was skipped."""
    parts, notes, known_evaluations = [frame("rows", ())], [], evaluations()
    seen: set[tuple[str, str, str]] = set()
    for run in runs:
        for path in predictions_of(run.folder) if run.finished else ():
            name = path.parent.name
            if name == CLASSIFIED.evaluation:
                continue
            if (run.digest, name, path.stem) in seen:  # the same run in another store
                continue
            seen.add((run.digest, name, path.stem))
            try:
                evaluation = known_evaluations.get(name)
                if evaluation is None or evaluation.scores is None:
                    raise BenchmdError(f"{path}: no benchmark here has the evaluation {name}.")
                predictions = read_predictions(path, evaluation.form)
                shared = _said(run, predictions.description) | names[run.folder]._asdict()
                columns = predictions.table.column_names
                patients = "group_id" in columns and predictions.table["group_id"].to_pylist()
                text = contamination(run, predictions.description, patients or ())
                shared |= {"contamination": text}
                scores = partial(evaluation.scores, predictions, resamples)
                parts.append(_rows_of(f"the evaluation {name} of {path}", scores, shared))
            except BenchmdError as error:
                notes.append(f"Skipped: {error}")
    return pd.concat(parts, ignore_index=True), notes


def brought_rows(datasets: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """Rows without a run that benchmarks add for these datasets, and notes."""
    parts, notes = [frame("rows", ())], []
    for benchmark in benchmarks().values():
        if benchmark.rows is None:
            continue
        try:
            parts.append(
                _rows_of(f"the benchmark {benchmark.name}", partial(benchmark.rows, datasets), {})
            )
        except BenchmdError as error:
            notes.append(f"Skipped: {error}")
    return pd.concat(parts, ignore_index=True), notes


def _rows_of(
    whose: str, make: Callable[[], pd.DataFrame], shared: Mapping[str, object]
) -> pd.DataFrame:
    """Validated score rows from code outside the package.

    Raises:
        BenchmdError: The code fails, or its rows are invalid.
    """
    try:
        return whole_rows(pd.DataFrame({**make(), **shared}))
    except Exception as error:  # a user's module may raise anything
        raise BenchmdError(
            f"{whose} gives no score rows ({type(error).__name__}: {first_line(error)})."
        ) from error


def _said(run: Run, about: Mapping[str, str]) -> dict[str, object]:
    """Columns that identify the rows of an evaluation; they override the rows' own values."""
    description = run.description
    return {
        **{name: about[name] for name in ("evaluation", "modality", "dataset", "role", "policy")},
        **{name: description[name] for name in ("source", "setting", "seed")},
        **_of_catalog(run, about["dataset"], about),
        "run": run.folder.name,
    }


def whole_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with all columns of the long table; missing ones are NaN, 0 or empty.

    Raises:
        BenchmdError: A column is unknown or of another type.
    """
    columns = FRAMES["rows"]
    if others := sorted(set(map(str, rows.columns)) - columns.keys()):
        raise BenchmdError(
            f"score rows have the column {others[0]}, expected some of: {', '.join(columns)}."
        )
    empty = {"str": "", "float64": np.nan, "int64": 0}
    columns_whole = {name: rows.get(name, empty[kind]) for name, kind in columns.items()}
    try:
        return pd.DataFrame(columns_whole, index=rows.index).astype(columns)
    except (TypeError, ValueError) as error:
        raise BenchmdError(f"score rows have a column of another type: {error}.") from error


def with_predictions(runs: Sequence[Run]) -> list[Run]:
    """Finished runs with predictions.

    Raises:
        BenchmdError: There are none.
    """
    chosen = [run for run in runs if run.finished and predictions_of(run.folder)]
    if not chosen:
        raise BenchmdError(
            f"of {count_of(len(runs), 'run')} none is finished and has predictions. Run "
            "`benchmd transfer` first: it evaluates the source and the targets that it is given."
        )
    return chosen


def unfinished(runs: Sequence[Run]) -> list[str]:
    """A note on the unfinished runs, which are skipped."""
    names = [run.folder.name for run in runs if not run.finished]
    return [f"Not finished, skipped: {', '.join(names)}."] if names else []


def _of_catalog(run: Run, dataset: str, about: Mapping[str, str]) -> Row:
    """Columns about the raw files behind a row."""
    raw = _raw(about)
    return {
        "raw_records": raw[0],
        "raw_expected": raw[1],
        "provenance": _provenance(run.description, about),
        "options": "; ".join(_options(run, dataset, about)),
        "warnings": "; ".join(_warnings(about)),
    }


def _warnings(about: Mapping[str, str]) -> Iterator[str]:
    if SHARED in about and (text := shared_text(json.loads(about[SHARED]))):
        yield text
    for warning, count in json.loads(about["warnings"]).items():
        yield f"{count_of(count, 'record')}: {warning}"


def _provenance(run: Mapping[str, Any], about: Mapping[str, str]) -> str:
    """The weaker provenance of the training and the scored data of a result."""
    return together(run["provenance"], about["provenance"])


def _raw(about: Mapping[str, str]) -> tuple[int, int]:
    return int(about["raw_records"]), int(about["raw_expected"])


def _options(run: Run, dataset: str, about: Mapping[str, str]) -> tuple[str, ...]:
    """Non-default build options of the source and of the scored dataset."""
    chosen: dict[str, Mapping[str, str]] = {
        run.description["source"]: run.description["options"],
        dataset: json.loads(about["options"]),
    }
    return tuple(
        f"{dataset}: {name}={value}"
        for dataset, options in chosen.items()
        for name, value in options.items()
    )
