"""Conversion of plain values from files to the types of dataclasses, validated by pydantic."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import TypedDict

from benchmd_ray.errors import BenchmdError, FieldError, is_name, shown, unknown_name

PLAIN = (bool, int, float, str, type(None))
LARGEST = 2**63 - 1
"""The largest whole number of 64 bits."""

MAX_DEPTH = 100
"""Most levels of lists and mappings; YAML texts have fewer."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a pair, which no UTF-8 file can hold."""
LINE = re.compile(r", line \d+(?=[:.]|$)")

TYPES = {
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number"),
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "none_required": "null",
    "list_type": "a list",
    "dict_type": "an object",
}
"""What a form expects, by the type of pydantic's error."""

EXPECTED = TYPES | {
    "dict_type": "names with values",
    **dict.fromkeys(("list_type", "tuple_type"), "a list such as [0.5, 0.75]"),
}
"""What people are told to write, by the type of pydantic's error."""

UNKNOWN = "unexpected_keyword_argument"

types_of: Any = functools.cache(typing.get_type_hints)
"""Types of a dataclass's fields, by name."""
_adapter: Any = functools.cache(TypeAdapter)


Path = Sequence[str | int]
"""Keys and indices from a value to a nested one."""


def typed(kind: Any, value: Any, where: str) -> Any:
    """Convert ``value`` to ``kind``, strictly: numbers, texts and truth values are never converted.

    Args:
        kind: bool, int, float, str, a Literal, one of these or None; a list, tuple or dict of
            these (dict[str, PlainValue] for any names); or a dataclass, for a mapping.
        value: A plain value, or lists and mappings of plain values.
        where: Name of the value, for messages, such as ``setting pretrain.steps``.

    Raises:
        BenchmdError: It has another type, is NaN, infinite or beyond 64 bits, or is a mapping with
            an unknown key or without a required one.
    """
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e4 steps
    for path, reason in _not_json(value):
        raise BenchmdError(f"{_Place(kind, value, where, path)} {reason}.")
    try:
        # JSON's strict mode takes lists for tuples and mappings for dataclasses
        return _adapter(kind).validate_json(json.dumps(value), strict=True, extra="forbid")
    except ValidationError as error:
        # an unknown key explains more than the key that is missing instead
        first = min(error.errors(), key=lambda fault: fault["type"] != UNKNOWN)
        raise _explained(kind, value, where, first) from None
    except BenchmdError as error:  # of a dataclass's own check, which names no field
        raise BenchmdError(f"{where}: {error}") from error


def _not_json(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Path, str]]:
    """Paths at which a value cannot be represented in JSON, and why."""
    if len(path) > MAX_DEPTH:
        yield path[:1], f"is nested in more than {MAX_DEPTH} levels"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield path, f"has the name {shown(key)}, expected text: write it in quotes"
            elif SURROGATE.search(key):
                yield path, f"has the name {shown(key)}, expected Unicode text"
            yield from _not_json(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _not_json(item, (*path, position))
    elif not isinstance(value, PLAIN):
        yield path, f"is {shown(value)}, expected a plain value"
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, f"is {shown(value)}, expected a finite number"
    elif isinstance(value, int) and abs(value) > LARGEST:
        yield path, f"is {shown(value)}, expected a number of 64 bits"
    elif isinstance(value, str) and SURROGATE.search(value):
        yield path, f"is {shown(value)}, expected Unicode text"


class _Place:
    """A nested value: its type, and its name with the line of its key."""

    def __init__(self, kind: Any, value: Any, where: str, path: Path) -> None:
        self.kind, self.value, self.name = kind, value, where
        for key in path:
            self._enter(key)

    def _enter(self, key: str | int) -> None:
        kind = _without_none(self.kind)
        is_dataclass = dataclasses.is_dataclass(kind)
        if isinstance(key, str):
            line = line_of(self.value, key)
            name = LINE.sub("", self.name) if line else self.name
            self.name = f"{name}{': ' if is_dataclass else '.'}{_key_text(key)}{line}"
        inner = typing.get_args(kind)
        self.kind = types_of(kind).get(key, Any) if is_dataclass else (inner or (Any,))[-1]
        if inner and inner[-1] is Ellipsis:
            self.kind = inner[0]
        try:
            self.value = self.value[key]
        except (KeyError, IndexError, TypeError):
            self.value = None

    def __str__(self) -> str:
        return self.name


def _key_text(key: object) -> str:
    """A key for a message: a file may hold anything."""
    return str(key) if is_name(str(key)) else shown(key)


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return next(part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


def _explained(kind: Any, value: Any, where: str, error: ErrorDetails) -> BenchmdError:
    """Our error for a pydantic error: what, where, what was expected, the nearest name."""
    name, path = error["type"], error["loc"]
    if name in ("missing", UNKNOWN):
        place, key = _Place(kind, value, where, path[:-1]), path[-1]
        if name == "missing":
            return BenchmdError(f"{place} is incomplete: {key} is missing.")
        line = line_of(place.value, str(key))
        scope = f"{LINE.sub('', str(place)) if line else place}{line}"
        return unknown_name(f"key in {scope}:", str(key), types_of(_without_none(place.kind)))
    if path and path[-1] == "[key]":
        above = _Place(kind, value, where, path[:-2])
        key_kind = typing.get_args(_without_none(above.kind))[0]
        return _explained(
            key_kind,
            path[-2],
            f"a name in {above}{line_of(above.value, str(path[-2]))}",
            error | {"loc": ()},
        )
    place = _Place(kind, value, where, path)
    stated, inner = place.value, _without_none(place.kind)
    if name == "literal_error":
        return unknown_name(f"value of {place}:", str(stated), map(str, typing.get_args(inner)))
    if name == "value_error":  # of a dataclass's own check
        cause: Any = error["ctx"]["error"]
        if isinstance(cause, FieldError):
            place = _Place(kind, value, where, (*path, cause.field))
        return BenchmdError(f"{place}: {cause}")
    if name == "expected":
        return BenchmdError(f"{place} is {shown(stated)}, expected {error['msg']}.")
    if name == "string_type" and isinstance(stated, bool | int | float):
        why = " (unquoted, yes, no, on and off are truth values)" * isinstance(stated, bool)
        return BenchmdError(f"{place} is {stated}, expected text: write it in quotes{why}.")
    if name == "dataclass_type":
        expected = f"the keys {', '.join(types_of(inner))}"
    else:
        expected = EXPECTED.get(name) or error["msg"]
    return BenchmdError(f"{place} is {shown(stated)}, expected {expected}.")


def line_of(content: Any, *keys: str) -> str:
    """``, line 7`` of a nested key, for a message; empty if unknown."""
    line = ""
    for key in keys:
        lines = getattr(content, "lines", {})
        line = f", line {lines[key]}" if key in lines else line
        content = content.get(key) if isinstance(content, Mapping) else None
    return line


@functools.cache
def _object_of(items: tuple[tuple[str, Any], ...]) -> Any:
    return TypedDict("Object", dict(items))  # type: ignore[operator]


def form_fault(form: Any, content: object, what: str = "it") -> str:
    """What in a JSON value does not fit a form; empty if nothing.

    Args:
        form: A TypedDict or another type that pydantic validates, or the types of an object's
            values by name; further keys are allowed.
        content: The value.
        what: Its name in the message.
    """
    if isinstance(form, Mapping):
        form = _object_of(tuple(form.items()))
    try:
        _adapter(form).validate_python(content, strict=True)
    except ValidationError as error:
        faults = error.errors()
        path = tuple(key for key in faults[0]["loc"] if key != "[key]")
        name = faults[0]["type"]
        if name == "missing":
            missing = [
                f["loc"][-1] for f in faults if (f["type"], f["loc"][:-1]) == (name, path[:-1])
            ]
            return f"{_within(what, path[:-1])} lacks {', '.join(map(str, missing))}"
        expected = TYPES.get(name) or re.sub("^(Input|String) should (be )?", "", faults[0]["msg"])
        expected = re.sub("^(?=greater|less)", "a number ", expected)
        expected = re.sub("^.* should have (.*?) after validation.*", r"\1", expected)
        return f"{_within(what, path)} is {shown(faults[0]['input'])}, expected {expected}"
    return ""


def _within(what: str, path: Path) -> str:
    """Name of a nested value: ``shards[3].rows``; the whole is ``what``."""
    names = (f"[{key}]" if isinstance(key, int) else f".{_key_text(key)}" for key in path)
    return "".join(names).removeprefix(".") if path and what == "it" else what + "".join(names)


def checked(holds: Callable[[Any], bool], expected: str) -> AfterValidator:
    """A validator that refuses values for which ``holds`` is false, in a form or a dataclass."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise PydanticCustomError("expected", "{expected}", {"expected": expected})
        return value

    return AfterValidator(check)


PlainValue = Annotated[Any, checked(lambda value: isinstance(value, PLAIN), "a plain value")]
Name = Annotated[str, checked(is_name, "a plain name")]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Finite = Annotated[float, Field(gt=-(2.0**63), lt=2.0**63)]
"""Types of values in forms; a `Finite` may be written as a whole number."""
