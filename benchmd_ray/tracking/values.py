"""Scores of runs and trials of searches for W&B; reasons of failures are not sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmd_ray.evaluation.evaluation import Evaluation
from benchmd_ray.evaluation.registry import evaluations
from benchmd_ray.report.names import RowName
from benchmd_ray.report.rows import score_rows, whole_rows
from benchmd_ray.report.scored import measured, of_predictions
from benchmd_ray.runs.files import SEARCHES, TRIALS
from benchmd_ray.runs.predictions import CLASSIFIED, predictions_path, read_predictions
from benchmd_ray.runs.store import read_run
from benchmd_ray.tuning.records import SCORE_OF, read_trials

RESAMPLES = 200
"""Resamples for the intervals in W&B; the report has more."""
ABOUT = ("technique", "setting", "modality", "provenance")
"""Fields of a search that are sent with each trial."""
RESULTS = {
    "value": "score",
    "error": "score_error",
    "evaluations": "evaluations",
    "fresh_value": "fresh_score",
    "fresh_evaluations": "fresh_evaluations",
    "difference": "difference_to_start",
    "difference_low": "difference_to_start_low",
    "last_value": "last_score",
    "step": "step",
    "steps": "steps",
    "seconds": "seconds",
    "device_hours": "device_hours",
}
"""Columns of a trial that are results, with their names in W&B."""
UNSENT = ("number", "state", "reason", "started", "finished", "curve")
"""Columns that are neither results nor settings; only number, state and curve of them are sent."""
CURVE = "inner_validation_score"
"""Name of the score on the search's validation records after each step."""

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
    return [row for result in results for row in score_rows(result, RowName("", ""))]


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
    """A trial's number and settings as configuration; W&B allows no dots in names."""
    settings = {name.replace(".", "_"): value for name, value in settings_of(trial).items()}
    return {"trial": int(trial["number"]), **settings}


def tell_trial(wandb_run: Any, trial: Row) -> None:
    """Send a trial's curve to the history, and its outcome to the summary."""
    curve = trial.get("curve")
    for point in () if curve is None else curve:
        wandb_run.log({CURVE: _plain(point["value"])}, step=int(point["step"]))
    wandb_run.summary.update({"state": trial["state"], **_results(trial)})


def tell_search(wandb_run: Any, trials: Sequence[Row]) -> None:
    """Send all trials of a search as a table, with counts and the highest score as summary."""
    import wandb

    settings = dict.fromkeys(name for trial in trials for name in settings_of(trial))
    results = dict.fromkeys(name for trial in trials for name in _results(trial))
    columns: list[str | int] = ["trial", "state", *settings, *results]
    rows = [
        {"trial": int(t["number"]), "state": t["state"], **settings_of(t), **_results(t)}
        for t in trials
    ]
    data: list[Iterable[Any]] = [[row.get(str(name)) for name in columns] for row in rows]
    table = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
    wandb_run.log({"trials": table})
    states = [row["state"] for row in trials]
    wandb_run.summary.update({f"trials/{state}": states.count(state) for state in set(states)})
    if scored := [row for row in rows if "score" in row]:
        best = max(scored, key=lambda row: (row["score"], -row["trial"]))
        highest = {"highest_score": best["score"], "highest_score_trial": best["trial"]}
        wandb_run.summary.update(highest)


def trials_of(store: Path, search: str, reported: Iterable[Row]) -> list[Row]:
    """Trials by number: those on disk, including earlier sessions, and the reported ones.

    Trials on disk take precedence, as the table is rewritten with fresh evaluations.
    """
    path = store / SEARCHES / search / TRIALS
    stored = read_trials(path).to_pylist() if path.is_file() else []
    rows = {int(row["number"]): row for row in (*reported, *stored)}
    return [rows[number] for number in sorted(rows)]


def _results(trial: Row) -> dict[str, Any]:
    named = {title: _plain(trial.get(name)) for name, title in RESULTS.items()}
    for name, value in trial.items():
        if name.startswith(SCORE_OF):
            named[f"score/{name.removeprefix(SCORE_OF)}"] = _plain(value)
    return {name: value for name, value in named.items() if value is not None}


def _plain(value: Any) -> Any:
    """Convert NumPy scalars to Python values, and NaN to None."""
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and math.isnan(plain) else plain
