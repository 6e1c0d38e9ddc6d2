"""Scores of runs and trials of searches for W&B; reasons of failures are not sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmd_ray.evaluation.evaluation import Evaluation
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.report.frames import frame_of_parts
from benchmd_ray.report.names import RowName
from benchmd_ray.report.rows import score_rows, whole_rows
from benchmd_ray.report.scored import measured, of_predictions
from benchmd_ray.runs.files import SEARCHES, TRIALS
from benchmd_ray.runs.predictions import CLASSIFIED, predictions_path, read_predictions
from benchmd_ray.runs.store import read_run
from benchmd_ray.tuning.families import FAMILY
from benchmd_ray.tuning.ladder import paired_mean
from benchmd_ray.tuning.records import SCORE_OF, SearchRecord, read_trials

RESAMPLES = 200
"""Resamples for the intervals in W&B; the report has more."""
ABOUT = ("modality", "provenance")
"""Fields of a search that are sent with each trial."""
RESULTS = {
    "value": "score",
    "error": "score_error",
    "evaluations": "evaluations",
    "last_value": "last_score",
    "step": "step",
    "steps": "steps",
    "seconds": "seconds",
    "device_hours": "device_hours",
}
"""Columns of a trial that are results, with their names in W&B."""
UNSENT = ("number", FAMILY, "state", "reason", "started", "finished", "curve", "scores")
"""Columns that are neither results nor settings; only the first three of them are sent."""
PAIRED_MEAN = "paired_mean"
"""Name of a trial's mean score, paired with the start's, after each of its evaluations."""

OF = ("method", "regime", "use_case", "group")
"""Columns of score rows for scores of something other than the network itself."""
Row = Mapping[str, Any]


def tell_scores(wandb_run: Any, folder: Path, dataset: str, evaluation: str) -> None:
    """Send scores of each split to the summary, and of each class to a table."""
    import wandb

    rows = _score_rows(folder, dataset, evaluations()[evaluation])
    for row in rows:
        if row["class"] == "mean" and row["group"] in ("", "all"):
            what = [row["use_case"], row["method"], row["regime"].replace("none", "")]
            parts = [dataset, row["split"], *filter(None, what), row["metric"]]
            prefix = "/".join(parts)
            ends = {f"{prefix}_{end}": row[end] for end in ("low", "high")}
            wandb_run.summary.update({prefix: row["value"], **ends})
            if row["contamination"]:
                summary = {f"{dataset}/{row['split']}/contamination": row["contamination"]}
                wandb_run.summary.update(summary)
    of = [name for name in OF if any(row[name] for row in rows)]
    names: list[str | int] = ["dataset", "split", *of, "metric", "class", "value", "low", "high"]
    data: list[Iterable[Any]] = [[row[name] for name in names] for row in rows]
    wandb_run.log({f"scores/{named(dataset, evaluation)}": wandb.Table(columns=names, data=data)})


def named(dataset: str, evaluation: str) -> str:
    """Name of a dataset, with the evaluation unless it is the default one."""
    return dataset if evaluation == CLASSIFIED.evaluation else f"{dataset}/{evaluation}"


def _score_rows(folder: Path, dataset: str, evaluation: Evaluation) -> list[Any]:
    """Score rows of predictions; for a classification only AUROC."""
    path = predictions_path(folder, dataset, evaluation.name)
    predictions = read_predictions(path, evaluation.form)
    if evaluation.scores is not None:
        scored = evaluation.scores(predictions, RESAMPLES)
        return whole_rows(scored.assign(dataset=dataset)).to_dict("records")
    results = measured(of_predictions(read_run(folder), predictions), ("auroc",), RESAMPLES)
    parts = [score_rows(result, RowName("", "")) for result in results]
    return frame_of_parts("rows", parts).to_dict("records")


def shown_of_search(search: str, about: Mapping[str, Any]) -> dict[str, Any]:
    return {"search": search, **{name: about[name] for name in ABOUT if name in about}}


def settings_of(trial: Row) -> dict[str, Any]:
    """The searched settings that were active in a trial."""
    return {
        name: plain
        for name, value in trial.items()
        if name not in UNSENT and name not in RESULTS and not name.startswith(SCORE_OF)
        if (plain := _plain(value)) is not None
    }


def trial_config(trial: Row) -> dict[str, Any]:
    """A trial's number, family and settings as configuration; W&B allows no dots in names."""
    settings = {name.replace(".", "_"): value for name, value in settings_of(trial).items()}
    return {"trial": int(trial["number"]), FAMILY: trial[FAMILY], **settings}


def tell_trial(wandb_run: Any, trial: Row, start: Row | None, sent: int = 0) -> None:
    """Send a trial's evaluations after the first ``sent`` as history, and its state as summary."""
    for count, mean in [*enumerate(paired_means(trial, start or trial), start=1)][sent:]:
        wandb_run.log({PAIRED_MEAN: mean}, step=count)
    wandb_run.summary.update({"state": trial["state"], **_results(trial, start)})


def paired_means(trial: Row, start: Row) -> list[float]:
    """Mean score after each evaluation, paired with the start's (`ladder.paired_mean`)."""
    theirs, scores = _scores(start), _scores(trial)
    return [
        paired_mean(dict([*scores.items()][:count]), theirs) for count in range(1, len(scores) + 1)
    ]


def _scores(trial: Row) -> dict[int, float]:
    points = trial.get("scores")
    return {} if points is None else {int(p["evaluation"]): float(p["value"]) for p in points}


def tell_search(wandb_run: Any, trials: Sequence[Row], record: SearchRecord | None) -> None:
    """Send all trials of a search as a table, with counts and the choice as summary."""
    import wandb

    start = start_among(trials)
    rows = [
        {**trial_config(trial), "state": trial["state"], **_results(trial, start)}
        for trial in trials
    ]
    columns: list[str | int] = [*dict.fromkeys(name for row in rows for name in row)]
    data: list[Iterable[Any]] = [[row.get(str(name)) for name in columns] for row in rows]
    table = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
    wandb_run.log({"trials": table})
    states = [row["state"] for row in rows]
    wandb_run.summary.update({f"trials/{state}": states.count(state) for state in set(states)})
    if record is not None and record.chosen is not None:
        choice = {
            "trial": record.best,
            FAMILY: record.chosen.name,
            "score": record.value,
            "start_score": record.first_value,
            "too_high_by": record.optimism,
            "folds": len(record.folds),
        }
        sent = {f"choice/{name}": _plain(value) for name, value in choice.items()}
        wandb_run.summary.update({name: value for name, value in sent.items() if value is not None})


def tell_comparison(wandb_run: Any, rows: pd.DataFrame) -> None:
    """Send the final comparison of a search: choice and start, single models and ensembles.

    ``rows`` are of the frame ``tuned``, or of ``scores`` where the start is kept.
    """
    import wandb

    names: list[str | int] = [name for name in COMPARED if name in rows]
    data: list[Iterable[Any]] = [[*map(_plain, row)] for row in rows[names].to_numpy(object)]
    wandb_run.log({"final": wandb.Table(columns=names, data=data, allow_mixed_types=True)})
    for row in rows.to_dict("records"):
        prefix = f"final/{row['dataset']}/{row['split']}/{row['protocol'].replace(' ', '_')}"
        values = {prefix if name == "value" else f"{prefix}_{name}": row.get(name) for name in SENT}
        plain = {name: _plain(value) for name, value in values.items()}
        wandb_run.summary.update({k: v for k, v in plain.items() if v is not None})


SENT = (
    "value",
    "low",
    "high",
    "start",
    *(f"difference{end}" for end in ("", "_low", "_high")),
    "p",
)
COMPARED = ("dataset", "split", "technique", "setting", "protocol", "start_name", "models", *SENT)
"""Columns of the final comparison; `SENT` are in the summary too."""


def start_among(trials: Iterable[Row]) -> Row | None:
    """The start among the trials of a search."""
    return next((trial for trial in trials if int(trial["number"]) == 0), None)


def trials_of(store: Path, search: str, reported: Iterable[Row]) -> list[Row]:
    """Trials by number: those on disk, including earlier sessions, and the reported ones.

    Trials on disk take precedence, as the table is rewritten with every evaluation.
    """
    path = store / SEARCHES / search / TRIALS
    stored = read_trials(path).to_pylist() if path.is_file() else []
    rows = {int(row["number"]): row for row in (*reported, *stored)}
    return [rows[number] for number in sorted(rows)]


def _results(trial: Row, start: Row | None = None) -> dict[str, Any]:
    named = {title: _plain(trial.get(name)) for name, title in RESULTS.items()}
    if start is not None and None not in (named["score"], start["value"]):
        named["difference_to_start"] = named["score"] - start["value"]
    for name, value in trial.items():
        if name.startswith(SCORE_OF):
            named[f"score/{name.removeprefix(SCORE_OF)}"] = _plain(value)
    return {name: value for name, value in named.items() if value is not None}


def _plain(value: Any) -> Any:
    """Convert NumPy scalars to Python values, and NaN to None."""
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and math.isnan(plain) else plain
