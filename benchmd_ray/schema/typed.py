"""Plain values of YAML files as the types that dataclasses declare."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from benchmd_ray.errors import BenchmdError, FieldError, is_name, shown, unknown_name

PLAIN = (bool, int, float, str, type(None))
LARGEST = 2**63 - 1
"""The largest whole number of 64 bits."""

LINE = re.compile(r", line \d+(?=[:.]|$)")

types_of: Any = functools.cache(typing.get_type_hints)
"""Types of a dataclass's fields, by name."""


def typed(kind: Any, value: Any, where: str) -> Any:
    """``value`` as ``kind``.

    Args:
        kind: bool, int, float, str, a Literal, one of these or None; a list, tuple or dict of
            these (of dict[str, Any]: of plain values); or a dataclass, for a mapping.
        value: A plain value, or lists and mappings of such.
        where: Name of the value, for messages, such as ``setting pretrain.steps``.

    Raises:
        BenchmdError: It is of another type, NaN, infinite or beyond 64 bits, or a mapping with an
            unknown key or without one that has no default.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (part for part in inner if part is not types.NoneType)
        return None if value is None else typed(kind, value, where)
    if origin is Literal:
        for choice in inner:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
        raise unknown_name(f"value of {where}:", str(value), map(str, inner))
    if origin is dict:
        return _mapping(inner, value, where)
    if origin in (list, tuple):
        if isinstance(value, list | tuple):
            return origin(typed(inner[0], item, where) for item in value)
        raise BenchmdError(f"{where} is {shown(value)}, expected a list such as [0.5, 0.75].")
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, where)
    return _scalar(kind, value, where)


def _mapping(inner: tuple[Any, Any], value: Any, where: str) -> dict[Any, Any]:
    key_kind, kind = inner
    if not isinstance(value, Mapping):
        raise BenchmdError(f"{where} is {shown(value)}, expected names with values.")
    if kind is Any and not all(isinstance(item, PLAIN) for item in value.values()):
        raise BenchmdError(f"{where} is {shown(value)}, expected names with plain values.")
    return {
        typed(key_kind, key, f"a name in {_within(where, value, key)}"): (
            item
            if kind is Any
            else typed(kind, item, _within(where, value, key, f".{_plain(key)}"))
        )
        for key, item in value.items()
    }


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    kinds = types_of(kind)
    if not isinstance(value, Mapping):
        raise BenchmdError(f"{where} is {shown(value)}, expected the keys {', '.join(kinds)}.")
    for key in value:
        if key not in kinds:
            raise unknown_name(f"key in {_within(where, value, key)}:", str(key), kinds)
    for field in dataclasses.fields(kind):
        missing = dataclasses.MISSING
        if field.name not in value and field.default is field.default_factory is missing:
            raise BenchmdError(f"{where} is incomplete: {field.name} is missing.")
    fields = {
        key: typed(kinds[key], item, _within(where, value, key, f": {key}"))
        for key, item in value.items()
    }
    try:
        return kind(**fields)
    except BenchmdError as error:  # of its own checks, which do not know where it is from
        if isinstance(error, FieldError):
            where = _within(where, value, error.field, f": {error.field}")
        raise BenchmdError(f"{where}: {error}") from error


def line_of(content: Any, *keys: str) -> str:
    """``, line 7`` of a key, or of a key in its value, for a message; empty where not known."""
    line = ""
    for key in keys:
        lines = getattr(content, "lines", {})
        line = f", line {lines[key]}" if key in lines else line
        content = content.get(key) if isinstance(content, Mapping) else None
    return line


def _plain(key: object) -> str:
    """A key for a message: a file may hold anything."""
    return str(key) if is_name(str(key)) else shown(key)


def _within(where: str, content: Any, key: Any, name: str = "") -> str:
    """A place with a name in it; the line of the key, where there is one, replaces the place's."""
    line = line_of(content, key)
    return f"{LINE.sub('', where) if line else where}{name}{line}"


def _scalar(kind: Any, value: Any, where: str) -> Any:
    scalar: Any = value
    if kind is float and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            scalar = float(value)  # YAML 1.1 reads 1e-4 as a string
    elif kind is int and isinstance(value, float) and value.is_integer():
        scalar = int(value)
    if kind is str and isinstance(value, bool | int | float):
        why = " (unquoted, yes, no, on and off are truth values)" if isinstance(value, bool) else ""
        raise BenchmdError(f"{where} is {value}, expected text: write it in quotes{why}.")
    if not isinstance(scalar, kind) or isinstance(scalar, bool) != (kind is bool):
        raise BenchmdError(f"{where} is {shown(value)}, expected a value of type {kind.__name__}.")
    if kind is float and not math.isfinite(scalar):
        raise BenchmdError(f"{where} is {shown(value)}, expected a finite number.")
    if kind is int and abs(scalar) > LARGEST:
        raise BenchmdError(f"{where} is {shown(value)}, expected a number of 64 bits.")
    return scalar
