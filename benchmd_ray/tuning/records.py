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
from benchmd_ray.tuning.families import FAMILY, name_of_family
from benchmd_ray.tuning.record_form import (
    LISTS,
    ResultForm,
    plan_fault,
    result_fault,
    trials_fault,
)

FORMAT = 6
STATES = ("complete", "stopped", "failed", "unfinished")
"""``complete``: the trial has all evaluations that it earned; ``stopped``: within its first."""
NUMERIC = ("float", "log float", "int", "log int")
SCORED = pa.list_(pa.struct([("evaluation", pa.int64()), ("value", pa.float64())]))
CURVE = pa.list_(pa.struct([("step", pa.int64()), ("value", pa.float64())]))
COLUMNS: dict[str, pa.DataType] = {
    "number": pa.int64(),
    FAMILY: pa.string(),
    "state": pa.string(),
    "reason": pa.string(),
    "value": pa.float64(),
    "error": pa.float64(),
    "evaluations": pa.int64(),
    "last_value": pa.float64(),
    "step": pa.int64(),
    "steps": pa.int64(),
    "seconds": pa.float64(),
    "device_hours": pa.float64(),
    "started": pa.string(),
    "finished": pa.string(),
    "scores": SCORED,
    "curve": CURVE,
}
"""Columns of ``trials.parquet`` that every search has.

``reason``: why a trial failed. ``value``: mean score of its ``evaluations`` on the validation
records, paired with the start's (`ladder.paired_mean`); ``error``: the standard error of its mean
difference to the start (for the start: of its mean). ``scores``: of each evaluation; the choice
follows from these (`ladder.chosen`). ``last_value``, ``step``: the last report of the first
evaluation, of ``steps`` (epochs, pretraining steps, or modalities). ``seconds``, ``device_hours``:
total over all attempts. ``started``, ``finished``: ISO time, UTC.
"""
REQUIRED = ("number", FAMILY, "state", "evaluations", "seconds", "device_hours", "started")
SpaceForm = Mapping[str, Mapping[str, Any]]
"""A search space as in ``search.json``."""
SCORE_OF = "score:"
"""Prefix of the columns with scores by modality in a search over several."""


@dataclass(frozen=True)
class FamilyRecord:
    technique: str
    setting: str
    space: Mapping[str, Mapping[str, Any]]
    """By setting: kind, range and default (the value at the family's start)."""
    settings: tuple[Mapping[str, Any], ...]
    """Settings of the family's start, one per source."""

    @property
    def name(self) -> str:
        return name_of_family(self.technique, self.setting)


@dataclass(frozen=True, eq=False)
class SearchRecord:
    folder: Path
    families: tuple[FamilyRecord, ...]
    """The first one's start is trial 0."""
    sources: tuple[Mapping[str, Any], ...]
    """modality, source, policy, digests of catalog and first inner catalog, the catalog's sketch,
    records and patients of the inner catalog's two splits; several entries for a universal search.
    """
    metric: str
    """``auroc`` or ``dsc``."""
    sampler: str
    cautious: bool
    seed: int
    device: str
    borrowed: int
    """Number of trials that came from a portfolio."""
    lenders: Mapping[str, str]
    """Sketches of the datasets that these were learned on, by dataset."""
    trials: pd.DataFrame
    """One row per trial in order of number: `COLUMNS`, each searched setting, and in a universal
    search the score of each modality. ``scores`` and ``curve`` hold tuples of pairs.
    """
    is_finished: bool = False
    """Whether it has a result, from which all that follows is."""
    best: int | None = None
    """Number of the chosen trial; 0 if the start is kept."""
    value: float = math.nan
    """Mean score of the chosen trial."""
    first_value: float = math.nan
    """Mean score of the start."""
    optimism: float = math.nan
    """By how much the value is too high for having been the highest."""
    folds: tuple[int, ...] = ()
    """Evaluations whose models are averaged."""
    seconds: float = math.nan
    """Wall-clock seconds of the search."""
    shared_seconds: float = math.nan
    """Seconds of the pretrainings that all trials share."""
    chosen_settings: Sequence[Mapping[str, Any]] = ()
    """Settings of the chosen trial, one per source."""

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of trials by state, for all of `STATES`."""
        return {state: int((self.trials["state"] == state).sum()) for state in STATES}

    @property
    def chosen(self) -> FamilyRecord | None:
        """Family of the chosen trial; None without a result."""
        return None if self.best is None else self.family_of(self.best)

    def family_of(self, number: int) -> FamilyRecord:
        """Family of a trial."""
        names = [family.name for family in self.families]
        row = self.trials.loc[self.trials["number"] == number, FAMILY]
        return self.families[names.index(row.iloc[0])]

    @property
    def device_hours(self) -> float:
        return math.fsum(self.trials["device_hours"])

    @property
    def first_reason(self) -> str:
        """Why the first failed trial failed; empty if none did."""
        reasons = self.trials.loc[self.trials["state"] == "failed", "reason"].dropna()
        return "" if reasons.empty else str(reasons.iloc[0])

    def start(self, modality: str, source: str, policy: str) -> Settings | None:
        """Settings of trial 0 for a source; None for a source that was not searched on."""
        for about, settings in zip(self.sources, self.families[0].settings, strict=True):
            if (about["modality"], about["source"], about["policy"]) == (modality, source, policy):
                return updated(Settings(), settings)
        return None


def trials_schema(spaces: Sequence[SpaceForm], modalities: Sequence[str] = ()) -> pa.Schema:
    """Columns of ``trials.parquet``.

    ``spaces`` are those of the families, as in ``search.json``; a universal search has a column of
    scores per modality.
    """
    fields = [pa.field(name, kind, nullable=name not in REQUIRED) for name, kind in COLUMNS.items()]
    types: dict[str, set[pa.DataType]] = {}
    for space in spaces:
        for name, about in space.items():
            types.setdefault(name, set()).add(_column_type(name, about))
    # Families may search a setting as whole numbers and as others.
    fields += [
        pa.field(name, kinds.pop() if len(kinds) == 1 else pa.float64())
        for name, kinds in types.items()
    ]
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
    for name in (name for family in plan["families"] for name in family["space"]):
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
    families = tuple(
        FamilyRecord(
            family["technique"], family["setting"], family["space"], (*family["settings"],)
        )
        for family in plan["families"]
    )
    trials = _read_trials(folder / TRIALS, families, modalities)
    named = {name: plan[name] for name in ("metric", "sampler", "cautious", "seed", "device")}
    return SearchRecord(
        folder=folder,
        families=families,
        sources=tuple(plan["sources"]),
        borrowed=len(plan["determinants"]["portfolio"]),
        lenders=plan["lenders"],
        trials=trials,
        **named,
        **_read_result(folder / RESULT, trials, len(plan["sources"])),
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
    path: Path, families: Sequence[FamilyRecord], modalities: Sequence[str]
) -> pd.DataFrame:
    """Trials in order of number; none without the file."""
    schema = trials_schema([family.space for family in families], modalities)
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
    if fault := trials_fault(table, {family.name: family.space for family in families}, scores):
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
    frame = table.drop_columns([*LISTS]).to_pandas()
    for name in LISTS:
        pairs = [
            tuple(tuple(point.values()) for point in points or ())
            for points in table[name].to_pylist()
        ]
        place = [*COLUMNS].index(name)
        frame.insert(place, name, pd.Series(pairs, index=frame.index, dtype="object"))
    ordered: pd.DataFrame = frame.sort_values("number", kind="stable")
    return ordered.reset_index(drop=True)


def _read_result(path: Path, trials: pd.DataFrame, sources: int) -> dict[str, Any]:
    """What a record has of ``result.json``; nothing if it is missing."""
    if not path.is_file():
        return {}
    remedy = _remedy(path.parent)
    result = read_hashed_json(path, remedy, of=path.parent)
    if fault := result_fault(result, set(trials.loc[trials["value"].notna(), "number"]), sources):
        raise Damaged(path, fault, remedy)
    about = {key: result[key] for key in ResultForm.__annotations__ if key in result}
    optimism = math.nan if about["optimism"] is None else about["optimism"]
    settings, folds = about.pop("settings"), tuple(about["folds"])
    changed = {"optimism": optimism, "folds": folds, "chosen_settings": settings}
    return {**about, **changed, "is_finished": True}


def _remedy(folder: Path) -> str:
    return (
        "Run the same `benchmd tune` again, which writes it again from its journal; or move the "
        f"folder {folder} out of the store."
    )
