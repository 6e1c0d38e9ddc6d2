"""What a search's plan and result look like: checked whenever they are read, whoever wrote them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.errors import BenchmdError, is_name, shown
from benchmd_ray.files.integrity import Kinds, kinds_fault
from benchmd_ray.settings.definition import Settings, updated
from benchmd_ray.tuning.parameters import (
    KINDS,
    LARGEST,
    MOST_TRIALS,
    MOST_VALUES,
    Parameter,
    fitting_step,
)

PLAN: Kinds = {
    "technique": str,
    "setting": str,
    "sources": list,
    "objectives": list,
    "sampler": str,
    "stopping": str,
    "evaluations": int,
    "choosing": str,
    "seed": int,
    "space": dict,
    "settings": list,
    "device": str,
    "determinants": dict,
}
"""What ``search.json`` holds at least, and its types."""
_SOURCE: Kinds = {
    "modality": str,
    "source": str,
    "policy": str,
    "catalog": str,
    "inner": str,
    "records": dict,
    "patients": dict,
}
_NAMES = ("modality", "source", "policy")
"""What a source is called by."""
_COUNTS: Kinds = {"train": int, "validation": int}
_RESULT: Kinds = {
    "best": int,
    "value": (int, float),
    "first_value": (int, float, type(None)),
    "decision": (dict, type(None)),
    "counts": dict,
    "seconds": (int, float),
    "device_hours": (int, float),
    "importance": dict,
    "front": list,
    "settings": list,
}
_DECISION: Kinds = {
    "number": int,
    "finalists": list,
    "start": (int, float),
    "expected": (int, float),
}
_FINALIST: Kinds = {
    "number": int,
    "score": (int, float),
    "error": (int, float),
    "difference": (int, float),
    "low": (int, float),
}
PAIRED = (-1, 2)
"""Ends of a mean score that is made comparable with the start's: it may leave 0 to 1."""
COUNTS = ("number", "evaluations", "fresh_evaluations")
MOST_POINTS = 3_000_000
"""Points of all curves of one table, at most."""
_PARAMETER: Kinds = {"kind": str, "default": (bool, object)}


def plan_fault(plan: Mapping[str, Any]) -> str:
    """What in ``search.json`` is not as a search writes it; empty where nothing is."""
    sources, settings = plan["sources"], plan["settings"]
    if not sources or len(sources) != len(settings):
        return (
            f"it has {len(sources)} sources and {len(settings)} settings, expected one or more, "
            "and as many"
        )
    if not plan["objectives"] or not plan["space"]:
        return "it has no objective, or nothing that is searched"
    names = (plan["technique"], plan["setting"], *plan["objectives"], *plan["space"])
    if any(not is_name(name) for name in names):
        return "its technique, setting, an objective or a searched setting is not a plain name"
    if any(not is_name(plan[name]) for name in ("sampler", "stopping", "choosing", "device")):
        return "its sampler, stopping, choosing or device is not a plain name"
    if plan["evaluations"] < 1:
        return f"its trials have {plan['evaluations']} evaluations"
    faults = chain(
        map(_source_fault, sources),
        map(_settings_fault, settings),
        (_parameter_fault(name, about) for name, about in plan["space"].items()),
    )
    return next(filter(None, faults), "")


def _source_fault(about: Any) -> str:
    if fault := kinds_fault(about, _SOURCE, "a source"):
        return fault
    if any(not is_name(about[name]) for name in _NAMES):
        return "a source has a modality, name or policy that is not a plain name"
    for what in ("records", "patients"):
        if fault := kinds_fault(about[what], _COUNTS, f"{what} of a source"):
            return fault
        if not all(0 <= about[what][fold] < 2**53 for fold in _COUNTS):
            return f"{what} of a source are {shown(about[what])}, expected counts"
    return ""


def _settings_fault(settings: Any) -> str:
    if not isinstance(settings, dict):
        return f"its settings are {shown(settings)}, expected names and values"
    try:
        updated(Settings(), settings)
    except BenchmdError as error:
        return f"its settings cannot be used: {error}".rstrip(".")
    return ""


def _parameter_fault(name: str, about: Any) -> str:
    """What is wrong with the description of a searched setting."""
    what = f"the searched setting {shown(name)}"
    if fault := kinds_fault(about, _PARAMETER, what):
        return fault
    if about["kind"] not in KINDS:
        return f"{what} has the kind {shown(about['kind'])}, expected one of {', '.join(KINDS)}"
    if about["kind"] == "choice":
        values = about.get("values")
        plain = isinstance(values, list) and all(map(_is_plain, values))
        if not plain or len(values) > MOST_VALUES or about["default"] not in values:
            return f"{what} has no values to choose, or more than {MOST_VALUES:,}"
        return ""
    ends = about.get("low"), about.get("high")
    if not all(isinstance(end, int | float) and _is_plain(end) for end in ends):
        return f"{what} has no range"
    step = about.get("step")
    if step is not None and not (isinstance(step, int | float) and fitting_step(*ends, step)):
        return f"{what} has the step {shown(step)}"
    parameter = parameter_of(name, about)
    if about["kind"].startswith("log") and not ends[0] > 0:
        return f"{what} has a logarithmic range from {ends[0]}"
    return "" if parameter.holds(about["default"]) else f"{what} has a default outside its range"


def parameter_of(name: str, about: Mapping[str, Any]) -> Parameter:
    """A searched setting as ``search.json`` describes it."""
    if about["kind"] == "choice":
        return Parameter(name, "choice", about["default"], values=tuple(about["values"]))
    ends = about["low"], about["high"]
    return Parameter(name, about["kind"], about["default"], *ends, about.get("step"))


def _is_plain(value: object) -> bool:
    """Whether a value is text, a truth value, null or a number that arrays hold exactly."""
    if isinstance(value, int | float):
        return abs(value) < LARGEST
    return value is None or isinstance(value, str)


def trials_fault(
    table: pa.Table, space: Mapping[str, Mapping[str, Any]], scores: Collection[str]
) -> str:
    """What in ``trials.parquet`` no search writes; empty where nothing is.

    Args:
        table: Of the types that it has to have.
        space: What is searched, as ``search.json`` has it.
        scores: Columns of scores that are made comparable with the start's.
    """
    points = pc.sum(pc.list_value_length(table["curve"])).as_py() or 0
    if len(table) > MOST_TRIALS or points > MOST_POINTS:
        return f"it has {len(table):,} trials and {points:,} points of their curves"
    points = pc.list_flatten(table["curve"])
    if points.null_count or any(pc.struct_field(points, i).null_count for i in range(2)):
        return "a point of a curve is missing"
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
    for name, about in space.items():
        parameter = parameter_of(name, about)
        for value in pc.unique(table[name].drop_null()).to_pylist():
            if not parameter.holds(value):
                return f"a trial has {name} {shown(value)}, expected {parameter.range}"
    return ""


def result_fault(result: Mapping[str, Any], scored: Collection[int]) -> str:
    """What in ``result.json`` is not as a search writes it; empty where nothing is.

    Args:
        result: A JSON object.
        scored: Numbers of the trials that have a score.
    """
    if fault := kinds_fault(result, _RESULT):
        return fault
    for number in (result["best"], *result["front"]):
        if not isinstance(number, int) or isinstance(number, bool) or number not in scored:
            return f"it names trial {shown(number)}, which has no score"
    numbers = (result.get("shared_seconds", 0), *result["importance"].values())
    if not all(isinstance(number, int | float) and _is_plain(number) for number in numbers):
        return "its importance or shared_seconds has a value that is not a finite number"
    faults = chain(
        (_decision_fault(result["decision"], result["best"]),),
        map(_settings_fault, result["settings"]),
    )
    return next(filter(None, faults), "")


def _decision_fault(decision: Any, best: int) -> str:
    """What is wrong with the decision after the fresh evaluations."""
    if decision is None:
        return ""
    if fault := kinds_fault(decision, _DECISION, "its decision"):
        return fault
    if decision["number"] != best:
        return "its decision is for another trial"
    faults = (kinds_fault(finalist, _FINALIST, "a finalist") for finalist in decision["finalists"])
    return next(filter(None, faults), "")
