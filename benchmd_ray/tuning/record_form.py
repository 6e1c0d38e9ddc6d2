"""Schemas of a search's plan, trials and result, checked whenever they are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from benchmd_ray.data.sketches import Sketch
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.schema.typed import Count, Finite, Name, form_fault
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.tuning.families import FAMILY, name_of_family
from benchmd_ray.tuning.parameters import LARGEST, MOST_TRIALS, Parameter

PAIRED = (-1, 2)
"""Bounds of a mean score that was made comparable with the start's: it may be outside 0 to 1."""
COUNTS = ("number", "evaluations")
LISTS = ("scores", "curve")
"""Columns with lists of pairs."""
MOST_FAMILIES, MOST_FOLDS = 100, 100
MOST_POINTS = 3_000_000
"""Most points of all curves of a table."""


def _settings_of_this_version(changes: dict[str, Any]) -> dict[str, Any]:
    try:
        updated(Settings(), changes)
    except BenchmdError as error:
        about = {"why": str(error).rstrip(".")}
        raise PydanticCustomError("settings", "settings of this version: {why}", about) from error
    return changes


Changes = Annotated[dict[str, Any], AfterValidator(_settings_of_this_version)]


class Folds(TypedDict):
    """Number of records and patients in the parts of a source's training split."""

    train: Count
    validation: Count


class SourceForm(TypedDict):
    """A source of a search."""

    modality: Name
    source: Name
    policy: Name
    catalog: str
    inner: str
    sketch: Sketch
    records: Folds
    patients: Folds


class Borrowed(TypedDict):
    """Settings that a search got from a portfolio."""

    family: Name
    values: dict[str, Any]
    datasets: list[Name]


class SearchDeterminants(TypedDict):
    """Required determinants of a search."""

    portfolio: list[Borrowed]


class FamilyForm(TypedDict):
    """A family of a search."""

    technique: Name
    setting: Name
    space: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]
    settings: list[Changes]


class PlanForm(TypedDict):
    """Required content of ``search.json``."""

    families: Annotated[list[FamilyForm], Field(min_length=1, max_length=MOST_FAMILIES)]
    sources: Annotated[list[SourceForm], Field(min_length=1)]
    metric: Name
    sampler: Name
    cautious: bool
    seed: Annotated[int, Field(gt=-(2**63), lt=2**63)]
    device: Name
    determinants: SearchDeterminants
    lenders: dict[Name, Sketch]
    """Sketches of the datasets of the portfolio's settings."""


class ResultForm(TypedDict):
    """Required content of ``result.json``."""

    best: Count
    value: Finite
    first_value: Finite
    optimism: Finite | None
    folds: Annotated[list[Count], Field(max_length=MOST_FOLDS)]
    seconds: Finite
    shared_seconds: Finite
    settings: list[Changes]


def plan_fault(plan: Mapping[str, Any]) -> str:
    """What is invalid in ``search.json``; empty if nothing."""
    if fault := form_fault(PlanForm, plan):
        return fault
    sources, lenders = plan["sources"], {*plan["lenders"]}
    if lenders != {
        name for entry in plan["determinants"]["portfolio"] for name in entry["datasets"]
    }:
        return "its lenders are not the datasets of its portfolio"
    for family in plan["families"]:
        if len(sources) != len(family["settings"]):
            return (
                f"it has {len(sources)} sources and {len(family['settings'])} settings of a "
                "family, expected equal numbers"
            )
        try:
            for name, about in family["space"].items():
                parameter_of(name, about)
        except BenchmdError as error:
            return str(error).rstrip(".")
    names = [name_of_family(family["technique"], family["setting"]) for family in plan["families"]]
    return "" if len({*names}) == len(names) else "a family is in it twice"


def parameter_of(name: str, about: Mapping[str, Any]) -> Parameter:
    """A searched setting as ``search.json`` describes it.

    Raises:
        BenchmdError: It has no valid range or a default outside it.
    """
    parameter = Parameter.read(name, about, f"the searched setting {name}")
    if not parameter.holds(parameter.default):
        raise BenchmdError(
            f"the searched setting {name}: the default {shown(parameter.default)} is outside, "
            f"expected {parameter.range}."
        )
    return parameter


def trials_fault(
    table: pa.Table, spaces: Mapping[str, Mapping[str, Mapping[str, Any]]], scores: Collection[str]
) -> str:
    """What is invalid in ``trials.parquet``; empty if nothing.

    Args:
        table: A table whose columns have the right types.
        spaces: The search space of each family as in ``search.json``.
        scores: Columns of scores that were made comparable with the start's.
    """
    points = sum(pc.sum(pc.list_value_length(table[name])).as_py() or 0 for name in LISTS)
    if len(table) > MOST_TRIALS or points > MOST_POINTS:
        return f"it has {len(table):,} trials and {points:,} points of their curves"
    for name in LISTS:
        flat = pc.list_flatten(table[name])
        if flat.null_count or any(pc.struct_field(flat, i).null_count for i in range(2)):
            return f"a point of its column {name} is missing"
    for field in table.schema:
        if not pa.types.is_primitive(field.type) or pa.types.is_boolean(field.type):
            continue
        if pa.types.is_floating(field.type) and pc.any(pc.is_nan(table[field.name])).as_py():
            return f"its column {field.name} has a NaN"
        least, most = pc.min_max(table[field.name]).as_py().values()
        ends = PAIRED if field.name in scores else (-LARGEST, LARGEST)
        if field.name in COUNTS:
            ends = (0, MOST_TRIALS)
        if least is not None and not ends[0] <= least <= most <= ends[1]:
            return f"its column {field.name} has {shown(least)} to {shown(most)}"
    unscored = pc.and_(pc.is_valid(table["value"]), pc.equal(table["evaluations"], 0))
    if pc.any(unscored).as_py():
        return "a trial has a value without an evaluation"
    for family in pc.unique(table[FAMILY]).to_pylist():
        if family not in spaces:
            return f"a trial is of the family {shown(family)}, not of the search"
        rows = table.filter(pc.equal(table[FAMILY], family))
        if fault := _values_fault(rows, spaces[family]):
            return fault
    return ""


def _values_fault(rows: pa.Table, space: Mapping[str, Mapping[str, Any]]) -> str:
    for name, about in space.items():
        parameter = parameter_of(name, about)
        for value in pc.unique(rows[name].drop_null()).to_pylist():
            if not parameter.holds(value):
                return f"a trial has {name} {shown(value)}, expected {parameter.range}"
    return ""


def result_fault(result: Mapping[str, Any], scored: Collection[int], sources: int) -> str:
    """What is invalid in ``result.json``; empty if nothing.

    Args:
        result: A JSON object.
        scored: Numbers of the trials that have a score.
        sources: Number of the search's sources.
    """
    if fault := form_fault(ResultForm, result):
        return fault
    if result["best"] not in scored:
        return f"it names trial {result['best']}, which has no score"
    if len(result["settings"]) != sources:
        return f"it has {len(result['settings'])} settings, expected one for each source: {sources}"
    return ""
