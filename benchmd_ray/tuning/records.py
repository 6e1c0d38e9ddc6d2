"""Files of a search: its plan, its trials and, once one is complete, its result.

A search is stored in ``<store>/searches/<name>/``: ``search.json`` (what is searched),
``trials.parquet`` (one row per trial, see `trials_schema`) and ``result.json``, which is missing
until a trial has a score. `read_search` validates them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from benchmd_ray.errors import BenchmdError, is_name, shown, unknown_name
from benchmd_ray.files.atomic import digest
from benchmd_ray.files.integrity import (
    OF,
    Damaged,
    StoredItems,
    read_hashed_json,
    require_hash,
    require_of,
)
from benchmd_ray.files.parquet import read_table
from benchmd_ray.runs.files import RESULT, SEARCH, SEARCHES, TRIALS
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.tuning.confirm import LEVEL
from benchmd_ray.tuning.record_form import PlanForm, plan_fault, result_fault, trials_fault

FORMAT = 4
STATES = ("complete", "stopped", "failed", "unfinished")
"""``complete``: the trial has all evaluations; ``stopped``: it earned no further ones."""
NUMERIC = ("float", "log float", "int", "log int")
COST = "device_hours"
"""The second objective, in searches that minimise it."""
CURVE = pa.list_(pa.struct([("step", pa.int64()), ("value", pa.float64())]))
COLUMNS: dict[str, pa.DataType] = {
    "number": pa.int64(),
    "state": pa.string(),
    "reason": pa.string(),
    "value": pa.float64(),
    "error": pa.float64(),
    "evaluations": pa.int64(),
    "fresh_value": pa.float64(),
    "fresh_evaluations": pa.int64(),
    "difference": pa.float64(),
    "difference_low": pa.float64(),
    "last_value": pa.float64(),
    "step": pa.int64(),
    "steps": pa.int64(),
    "seconds": pa.float64(),
    "device_hours": pa.float64(),
    "started": pa.string(),
    "finished": pa.string(),
    "curve": CURVE,
}
"""Columns of ``trials.parquet`` that every search has.

``reason``: why a trial failed. ``value``: mean score of its ``evaluations`` on the validation
records, paired with the start's (`racing.paired`); ``error``: the standard error of its mean
difference to the start (for the start: of its mean). ``fresh_value``: mean of a finalist's
``fresh_evaluations`` after the race; ``difference``, ``difference_low``: the mean difference of
these to the start, and the lower bound that decides (`confirm`). ``last_value``, ``step``: the last
report of the first evaluation, of ``steps`` (epochs, pretraining steps, or modalities).
``seconds``, ``device_hours``: total over all attempts. ``started``, ``finished``: ISO time, UTC.
"""
REQUIRED = (
    *("number", "state", "evaluations", "fresh_evaluations"),
    *("seconds", "device_hours", "started"),
)
SCORE_OF = "score:"
"""Prefix of the columns with scores by modality in a search over several."""
RULE = (
    "a trial replaces the start if the one-sided lower bound of its mean difference to the start "
    f"over fresh evaluations is above 0 (level {LEVEL:g} over all compared trials and all looks at "
    "them, by patients, seeds and cuts); if several do, the one with the largest difference"
)
"""The rule of choice (`tuning.confirm`), for readers of results."""


@dataclass(frozen=True, eq=False)
class SearchRecord:
    folder: Path
    technique: str
    setting: str
    sources: tuple[Mapping[str, Any], ...]
    """modality, source, policy, digests of catalog and inner catalog, records and patients of the
    inner catalog's two splits; several entries for a universal search."""
    objectives: tuple[str, ...]
    """``auroc`` or ``dsc``, and maybe ``device_hours``."""
    sampler: str
    stopping: str
    evaluations: int
    choosing: str
    seed: int
    space: Mapping[str, Mapping[str, Any]]
    """By setting: kind, range and default (the value of trial 0)."""
    settings: tuple[Mapping[str, Any], ...]
    """Settings of trial 0, the start, one per source."""
    device: str
    given: int
    """Number of trials after the first that came from a portfolio."""
    taught: tuple[str, ...]
    trials: pd.DataFrame
    """One row per trial in order of number: `COLUMNS`, each searched setting, and in a universal
    search the score of each modality. ``curve`` holds tuples of (step, value).
    """
    result: Mapping[str, Any] | None
    """``result.json``; None if missing."""

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of trials by state, for all of `STATES`."""
        return {state: int((self.trials["state"] == state).sum()) for state in STATES}

    def _stated(self, name: str, default: Any) -> Any:
        return default if self.result is None else self.result[name]

    @property
    def best(self) -> int | None:
        """Number of the chosen trial; 0 if the start is kept."""
        return self._stated("best", None)  # type: ignore[no-any-return]

    @property
    def value(self) -> float:
        """Objective of the chosen trial; NaN without a result."""
        return float(self._stated("value", math.nan))

    @property
    def first_value(self) -> float:
        """Objective of the start; NaN if it is not complete."""
        value = self._stated("first_value", None)
        return math.nan if value is None else float(value)

    @property
    def decision(self) -> Mapping[str, Any] | None:
        """`tuning.confirm.Decision` as plain values; None if no fresh evaluation decided."""
        return self._stated("decision", None)  # type: ignore[no-any-return]

    @property
    def finalists(self) -> Sequence[Mapping[str, Any]]:
        """`tuning.confirm.Finalist` of each trial that was compared with the start."""
        return () if self.decision is None else self.decision["finalists"]

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the search; NaN without a result."""
        return float(self._stated("seconds", math.nan))

    @property
    def device_hours(self) -> float:
        return float(self._stated("device_hours", self.trials["device_hours"].sum()))

    @property
    def shared_seconds(self) -> float:
        """Seconds of the pretrainings that all trials share; NaN without a result."""
        return math.nan if self.result is None else float(self.result.get("shared_seconds", 0))

    @property
    def first_reason(self) -> str:
        """Why the first failed trial failed; empty if none did."""
        reasons = self.trials.loc[self.trials["state"] == "failed", "reason"].dropna()
        return "" if reasons.empty else str(reasons.iloc[0])

    @property
    def importance(self) -> dict[str, float]:
        """Importance of each searched setting, the largest first; empty if unknown."""
        return dict(
            sorted(self._stated("importance", {}).items(), key=lambda pair: (-pair[1], pair[0]))
        )

    @property
    def importance_reason(self) -> str:
        """Why the importance is unknown."""
        if self.result is None:
            return "no trial is complete"
        return str(self.result.get("importance_reason", "the search gave none"))

    @property
    def front(self) -> tuple[int, ...]:
        """Trials that no other beats in both score and device hours."""
        return tuple(self._stated("front", ()))

    def start(self, modality: str, source: str, policy: str) -> Settings | None:
        """Settings of trial 0 for a source; None for a source that was not searched on."""
        for about, settings in zip(self.sources, self.settings, strict=True):
            if (about["modality"], about["source"], about["policy"]) == (modality, source, policy):
                return updated(Settings(), settings)
        return None


def trials_schema(
    space: Mapping[str, Mapping[str, Any]], modalities: Sequence[str] = ()
) -> pa.Schema:
    """Columns of ``trials.parquet``.

    ``space`` is as in ``search.json``; a universal search has a column of scores per modality.
    """
    fields = [pa.field(name, kind, nullable=name not in REQUIRED) for name, kind in COLUMNS.items()]
    fields += [pa.field(name, _column_type(name, about)) for name, about in space.items()]
    fields += [pa.field(f"{SCORE_OF}{name}", pa.float64()) for name in dict.fromkeys(modalities)]
    return pa.schema(fields)


def _column_type(name: str, about: Mapping[str, Any]) -> pa.DataType:
    kind = about.get("kind")
    if kind in ("float", "log float"):
        return pa.float64()
    if kind in ("int", "log int"):
        return pa.int64()
    if kind != "choice":
        raise unknown_name(f"kind of the searched setting {name}", str(kind), (*NUMERIC, "choice"))
    kinds = {type(value) for value in about.get("values", ())}
    for types, column in (({bool}, pa.bool_()), ({int}, pa.int64())):
        if kinds == types:
            return column
    return pa.float64() if kinds and kinds <= {int, float} else pa.string()


def read_searches(stores: Sequence[Path]) -> StoredItems[SearchRecord]:
    """Searches of stores or run folders; of several copies, the one with the most trials."""
    folders = {
        path.parent.resolve(): None
        for store in stores
        for path in sorted(store.glob(f"{SEARCHES}/*/{SEARCH}"))
    }
    records: dict[str, SearchRecord] = {}
    damaged: dict[Path, str] = {}
    for folder in folders:
        if not is_name(folder.name):
            damaged[folder] = (
                f"{shown(folder.name)} is not a name of a search. Move it out of its store."
            )
            continue
        try:
            record = read_search(folder)
        except (BenchmdError, OSError) as error:
            damaged[folder] = str(error)
            continue
        copy = records.get(record.name)
        if copy is None or len(record.trials) > len(copy.trials):
            records[record.name] = record
    return StoredItems([records[name] for name in sorted(records)], damaged)


def read_plan(folder: Path) -> dict[str, Any]:
    """``search.json``, validated."""
    if not (folder / SEARCH).is_file():
        raise BenchmdError(
            f"{folder} is not a search (no {SEARCH}). Name a folder that `benchmd tune` printed."
        )
    path, remedy = (
        folder / SEARCH,
        f"Move the folder {folder} out of the store to start the search over.",
    )
    plan = read_hashed_json(path, remedy)
    if plan.get("format") != FORMAT:
        raise BenchmdError(
            f"{folder / SEARCH} has the format {plan.get('format')!r}, expected {FORMAT}: another "
            "version of benchmd wrote it. Read it with that one, or search again."
        )
    if fault := plan_fault(plan):
        raise Damaged(path, fault, remedy)
    if not folder.resolve().name.endswith(f"-{digest(plan['determinants'])[:12]}"):
        raise Damaged(path, "the folder is named for another search", remedy)
    for name in plan["space"]:
        if name in COLUMNS or name.startswith(SCORE_OF):
            why = f"a searched setting is called {name}, as a column of all searches"
            raise Damaged(path, why, remedy)
    return plan


def read_search(folder: Path) -> SearchRecord:
    """Read the folder of a search, which may be running."""
    plan = read_plan(folder)
    modalities = [about["modality"] for about in plan["sources"]]
    if len(modalities) == 1:  # its score is the objective
        modalities = []
    trials = _read_trials(folder / TRIALS, plan["space"], modalities)
    result = _read_result(folder / RESULT, trials)
    if result is not None and COST in plan["objectives"] and not result["front"]:
        raise Damaged(
            folder / RESULT, "it has no trial that is not beaten by another", _remedy(folder)
        )
    tuples, portfolio = ("sources", "objectives", "settings"), plan["determinants"]["portfolio"]
    named: dict[str, Any] = {
        name: tuple(plan[name]) if name in tuples else plan[name]
        for name in PlanForm.__annotations__
        if name != "determinants"
    }
    return SearchRecord(
        folder=folder,
        given=len(portfolio),
        taught=tuple(sorted({name for entry in portfolio for name in entry["datasets"]})),
        trials=trials,
        result=result,
        **named,
    )


def read_trials(path: Path) -> pa.Table:
    """Read ``trials.parquet``, verified by its hash and against its search."""
    remedy = _remedy(path.parent)
    require_hash(path, remedy)
    table = read_table(path, path, remedy)
    stated = (table.schema.metadata or {}).get(OF.encode(), b"")
    require_of(stated.decode("utf-8", "replace"), path.parent, path, remedy)
    return table


def _read_trials(
    path: Path, space: Mapping[str, Mapping[str, Any]], modalities: Sequence[str]
) -> pd.DataFrame:
    """Trials in order of number; none without the file."""
    schema = trials_schema(space, modalities)
    if not path.is_file():
        return _frame(schema.empty_table())
    table, remedy = read_trials(path), _remedy(path.parent)
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise Damaged(path, f"it lacks the columns {', '.join(missing)}", remedy)
    try:
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise Damaged(path, f"its columns are of other types ({error})", remedy) from error
    scores = ["value", *(name for name in schema.names if name.startswith(SCORE_OF))]
    if fault := trials_fault(table, space, scores):
        raise Damaged(path, fault, remedy)
    trials = _frame(table)
    unknown = sorted(set(trials["state"]) - set(STATES))
    if unknown:
        raise unknown_name(f"state of a trial in {path}:", str(unknown[0]), STATES)
    if trials["number"].duplicated().any():
        raise Damaged(path, "a number of a trial appears twice", remedy)
    lacking = trials[(trials["state"] == "complete") & trials["value"].isna()]
    if len(lacking):
        why = f"trial {lacking['number'].iloc[0]} is complete and has no value"
        raise Damaged(path, why, remedy)
    return trials


def _frame(table: pa.Table) -> pd.DataFrame:
    frame = table.drop_columns(["curve"]).to_pandas()
    curves = [
        tuple((point["step"], point["value"]) for point in curve or ())
        for curve in table["curve"].to_pylist()
    ]
    frame.insert(len(COLUMNS) - 1, "curve", pd.Series(curves, index=frame.index, dtype="object"))
    ordered: pd.DataFrame = frame.sort_values("number", kind="stable")
    return ordered.reset_index(drop=True)


def _read_result(path: Path, trials: pd.DataFrame) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    remedy = _remedy(path.parent)
    result = read_hashed_json(path, remedy, of=path.parent)
    if fault := result_fault(result, set(trials.loc[trials["value"].notna(), "number"])):
        raise Damaged(path, fault, remedy)
    return result


def _remedy(folder: Path) -> str:
    return (
        "Run the same `benchmd tune` again, which writes it again from its journal; or move the "
        f"folder {folder} out of the store."
    )
