"""Score rows: one line for every metric and class of every run on every split.

They are the long table that all else in a report is made of or stands next to. Those of
classifications come from stored predictions, those of other evaluations from the evaluation, and a
benchmark may bring some that no run has made, such as published ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmd_ray.data.provenance import together
from benchmd_ray.errors import BenchmdError, count_of, first_line
from benchmd_ray.evaluation.registry import benchmarks, evaluations, published_for
from benchmd_ray.report.frames import FRAMES, frame
from benchmd_ray.report.scored import Scored
from benchmd_ray.runs.files import predictions_of
from benchmd_ray.runs.predictions import CLASSIFIED, read_predictions
from benchmd_ray.runs.store import Run

Row = dict[str, Any]


class Beside(NamedTuple):
    """A published AUROC next to a result."""

    value: float
    source: str
    """Where it is from."""
    unlike: str | None
    """Why the two cannot be compared; None where they can."""


def beside(one: Scored, protocol: str) -> Beside | None:
    """What was published of a result, if anything.

    Args:
        one: The result.
        protocol: The run's protocol, as `protocols` names it.
    """
    run = one.run.description
    found = published_for(one.dataset, run["setting"], run["technique"])
    if found is None or found[0].published is None:
        return None
    published, value = found[0].published, found[1]
    unlike = published.unlike(
        protocol,
        run["source"],
        one.about["role"],
        split=one.split,
        options=_options(one.run, one.dataset, one.about),
        raw=(_raw(one.about), tuple(run["raw"])),
    )
    if _provenance(run, one.about) == "synthetic":
        unlike = "synthetic data"
    return Beside(value, published.source, unlike)


def key_of(one: Scored, protocol: str) -> dict[str, str]:
    """What names a result, by the columns of `frames.KEY`."""
    about, run = one.about, one.run.description
    return {
        "modality": about["modality"],
        "source": run["source"],
        "dataset": one.dataset,
        "role": about["role"],
        "split": one.split,
        "policy": about["policy"],
        "setting": run["setting"],
        "technique": run["technique"],
        "protocol": protocol,
    }


def score_rows(one: Scored, protocol: str) -> Iterator[Row]:
    """Rows of a measured result: each metric over all classes (``mean``) and of each class."""
    near = beside(one, protocol)
    published = near is not None and near.unlike is None
    shared = {
        "evaluation": CLASSIFIED.evaluation,
        **dict.fromkeys(("method", "regime", "use_case", "group"), ""),
        **key_of(one, protocol),
        "seed": one.run.description["seed"],
        "records": len(one.targets),
        "scored": one.predicted.scored,
        "patients": one.patients,
        **_of_catalog(one.run, one.dataset, one.about),
        "unlike": "" if near is None or near.unlike is None else near.unlike,
        "run": one.run.folder.name,
    }
    positives = (one.targets == 1).sum(axis=0)
    for metric in one.values:
        for column, name in enumerate(("mean", *one.classes)):
            value = one.pooled(metric, column)
            first = (metric, column) == ("auroc", 0)
            yield {
                **shared,
                "metric": metric,
                "class": name,
                "value": value.mean,
                "low": value.low,
                "high": value.high,
                "caution": value.caution,
                "positives": int(positives[column - 1] if column else positives.sum()),
                "effective": one.support.rarer[column - 1] if column else one.support.effective,
                "paper": near.value if first and near and published else np.nan,
                "published_in": near.source if first and near else "",
            }


def other_rows(
    found: Sequence[Run], protocol: Mapping[Path, str], resamples: int
) -> tuple[pd.DataFrame, list[str]]:
    """Rows of all evaluations of runs but the classification, and notes on what was skipped."""
    parts, notes, known = [frame("rows", ())], [], evaluations()
    seen: set[tuple[str, str, str]] = set()
    for run in found:
        for path in predictions_of(run.folder) if run.finished else ():
            name = path.parent.name
            if name == CLASSIFIED.evaluation:
                continue
            if (run.digest, name, path.stem) in seen:  # the same run in another store
                continue
            seen.add((run.digest, name, path.stem))
            try:
                evaluation = known.get(name)
                if evaluation is None or evaluation.scores is None:
                    raise BenchmdError(f"{path}: no benchmark here has the evaluation {name}.")
                predictions = read_predictions(path, evaluation.form)
                said = _said(run, predictions.description) | {"protocol": protocol[run.folder]}
                scores = partial(evaluation.scores, predictions, resamples)
                parts.append(_rows_of(f"the evaluation {name} of {path}", scores, said))
            except BenchmdError as error:
                notes.append(f"Skipped: {error}")
    return pd.concat(parts, ignore_index=True), notes


def brought_rows(datasets: Collection[str]) -> tuple[pd.DataFrame, list[str]]:
    """Rows that benchmarks bring for these datasets, which no run has made, and notes."""
    parts, notes = [frame("rows", ())], []
    for each in benchmarks().values():
        if each.rows is None:
            continue
        try:
            parts.append(_rows_of(f"the benchmark {each.name}", partial(each.rows, datasets), {}))
        except BenchmdError as error:
            notes.append(f"Skipped: {error}")
    return pd.concat(parts, ignore_index=True), notes


def _rows_of(
    whose: str, make: Callable[[], pd.DataFrame], said: Mapping[str, object]
) -> pd.DataFrame:
    """Score rows that code from outside makes, whole.

    Raises:
        BenchmdError: It fails, or they are of another form.
    """
    try:
        return whole_rows(pd.DataFrame({**make(), **said}))
    except Exception as error:  # whatever a module of the user does
        raise BenchmdError(
            f"{whose} gives no score rows ({type(error).__name__}: {first_line(error)})."
        ) from error


def _said(run: Run, about: Mapping[str, str]) -> dict[str, object]:
    """What names the rows of an evaluation, whatever it says itself."""
    said = run.description
    return {
        **{name: about[name] for name in ("evaluation", "modality", "dataset", "role", "policy")},
        **{name: said[name] for name in ("source", "setting", "technique", "seed")},
        **_of_catalog(run, about["dataset"], about),
        "run": run.folder.name,
    }


def whole_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with all columns of the long table: NaN, 0 or nothing where they have none.

    Raises:
        BenchmdError: A column is none of it, or of another type.
    """
    columns = FRAMES["rows"]
    if others := sorted(set(map(str, rows.columns)) - columns.keys()):
        raise BenchmdError(
            f"score rows have the column {others[0]}, expected some of: {', '.join(columns)}."
        )
    empty = {"str": "", "float64": np.nan, "int64": 0}
    made = {name: rows.get(name, empty[kind]) for name, kind in columns.items()}
    try:
        return pd.DataFrame(made, index=rows.index).astype(columns)
    except (TypeError, ValueError) as error:
        raise BenchmdError(f"score rows have a column of another type: {error}.") from error


def with_predictions(found: Sequence[Run]) -> list[Run]:
    """Finished runs with predictions.

    Raises:
        BenchmdError: There are none.
    """
    chosen = [run for run in found if run.finished and predictions_of(run.folder)]
    if not chosen:
        raise BenchmdError(
            f"of {count_of(len(found), 'run')} none is finished and has predictions. Run "
            "`benchmd transfer` first: it evaluates the source and the targets that it is given."
        )
    return chosen


def unfinished(found: Sequence[Run]) -> list[str]:
    """Names the runs that are skipped because they are not finished."""
    names = [run.folder.name for run in found if not run.finished]
    return [f"Not finished, skipped: {', '.join(names)}."] if names else []


def _of_catalog(run: Run, dataset: str, about: Mapping[str, str]) -> Row:
    """What a row says of the raw files behind it, for notes."""
    raw = _raw(about)
    return {
        "raw_records": raw[0],
        "raw_expected": raw[1],
        "provenance": _provenance(run.description, about),
        "options": "; ".join(_options(run, dataset, about)),
        "warnings": "; ".join(
            f"{count_of(count, 'record')}: {warning}"
            for warning, count in json.loads(about["warnings"]).items()
        ),
    }


def _provenance(run: Mapping[str, Any], about: Mapping[str, str]) -> str:
    """Of a result: the weaker of what it was trained and scored on."""
    return together(run["provenance"], about["provenance"])


def _raw(about: Mapping[str, str]) -> tuple[int, int]:
    return int(about["raw_records"]), int(about["raw_expected"])


def _options(run: Run, dataset: str, about: Mapping[str, str]) -> tuple[str, ...]:
    """Chosen options of the builds of the source and of the dataset that is scored."""
    chosen: dict[str, Mapping[str, str]] = {
        run.description["source"]: run.description["options"],
        dataset: json.loads(about["options"]),
    }
    return tuple(
        f"{dataset}: {name}={value}"
        for dataset, options in chosen.items()
        for name, value in options.items()
    )
