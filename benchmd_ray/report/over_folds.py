"""Cross-validation: the results of the models of all folds as one, of each setting and seed.

On the source the predictions of all held-out records are pooled, each by the model that was not
trained on its patient. On other datasets the probabilities of the models are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmd_ray.errors import BenchmdError
from benchmd_ray.report.ensembles import averaged, shared_by_any
from benchmd_ray.report.frames import CROSS_VALIDATION, LEAVE_ONE_OUT
from benchmd_ray.report.names import RowName
from benchmd_ray.report.rows import key_of
from benchmd_ray.report.scored import Scored, Units
from benchmd_ray.runs.store import Run


def is_of_fold(run: Run) -> bool:
    """Whether a run is one of a cross-validation."""
    return "held_out_fold" in run.description


def over_folds(
    results: Sequence[Scored], names: Mapping[Path, RowName]
) -> tuple[list[Scored], list[str]]:
    """Results without metrics, over all folds, and notes on those that lack a fold.

    ``results`` are of `is_of_fold` runs; ``names`` as in `pools.pools`.
    """
    together: dict[tuple[Any, ...], dict[int, dict[str, Scored]]] = {}
    for result in results:
        stated, key = held_out_fold(result), key_of(result, names[result.run.folder])
        of_whole = (stated[name] for name in ("catalog", "folds", "leave_one_out"))
        place = (*key.values(), result.run.description["seed"], *of_whole)
        members = together.setdefault(place, {}).setdefault(stated["number"], {})
        members[result.run.digest] = result  # the same run in several stores counts once
    whole, notes = [], []
    for of_fold in together.values():
        runs = [next(iter(of_fold[number].values())) for number in sorted(of_fold)]
        first, folds = runs[0], held_out_fold(runs[0])["folds"]
        about = first.run.description
        where = (
            f"{about['source']} on {first.dataset}, {names[first.run.folder].technique}, "
            f"{about['setting']}, seed {about['seed']}"
        )
        if (done := len(of_fold.keys() & set(range(folds)))) < folds:
            notes.append(
                f"{where}: {done} of {folds} folds are finished, so it is not shown. "
                "`benchmd run` with the catalog that was cut into folds trains the others."
            )
            continue
        if several := [number for number, members in of_fold.items() if len(members) > 1]:
            notes.append(
                f"{where}: fold {several[0]} has several runs that differ only in their "
                "pretraining, so it is not shown."
            )
            continue
        try:
            whole.append(joined(runs))
        except BenchmdError as error:
            notes.append(f"{where}: skipped, {error}")
    return whole, notes


def held_out_fold(result: Scored) -> Mapping[str, Any]:
    """Which fold a run held out."""
    stated: Mapping[str, Any] = result.run.description["held_out_fold"]
    return stated


def joined(runs: Sequence[Scored]) -> Scored:
    """The results of the models of all folds on a dataset as one, without metrics.

    Raises:
        BenchmdError: Predictions on another dataset than the source have no record in common.
    """
    first = runs[0]
    of_source = first.dataset == first.run.description["source"]
    return _pooled(runs) if of_source else averaged(runs, common=True)


def _pooled(runs: Sequence[Scored]) -> Scored:
    """The predictions of all held-out records, without metrics, sorted by unit."""
    first, stated = runs[0], held_out_fold(runs[0])
    units = pd.concat([run.units for run in runs], ignore_index=True)
    if len({run.classes for run in runs}) > 1 or units["unit_id"].duplicated().any():
        raise BenchmdError(
            f"the predictions of the folds of {first.dataset} have different classes, or records "
            "that two folds hold out. Evaluate the runs again with one catalog."
        )
    order = np.argsort(units["unit_id"].to_numpy(dtype=np.str_), kind="stable")
    targets, scores = (
        np.concatenate([getattr(run, name) for run in runs])[order]
        for name in ("targets", "scores")
    )
    pooled = Units(targets, scores, units.iloc[order].reset_index(drop=True))
    folds = np.repeat(
        [held_out_fold(run)["number"] for run in runs], [len(run.units) for run in runs]
    )
    return replace(
        first,
        about={**first.about, **shared_by_any(runs), "catalog": stated["catalog"]},
        split=LEAVE_ONE_OUT if stated["leave_one_out"] else CROSS_VALIDATION,
        read=lambda: pooled,
        known=None,
        parts=tuple(runs),
        folds=None if stated["leave_one_out"] else folds[order],
    )
