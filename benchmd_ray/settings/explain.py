"""Explanations of settings for people: meaning, range and source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, Literal

from benchmd_ray.errors import unknown_name
from benchmd_ray.schema.ranges import Within, ranges_of
from benchmd_ray.schema.typed import types_of
from benchmd_ray.settings import definition
from benchmd_ray.settings.definition import DROPS, WORKERS, Settings, setting_names

OWN = "of this project"
PAPER = "BenchMD v2, section 4 and appendix B"
SOURCES = {
    "encoder": PAPER,
    "encoder.patch_size": OWN,
    "encoder.network": f"{PAPER}; other networks: this project",
    "encoder.options": OWN,
    "pretrain": PAPER,
    "pretrain.options": OWN,
    "transfer": PAPER,
    **dict.fromkeys(
        (
            *("transfer.augmentation", "transfer.averaging", "transfer.class_balance"),
            *("transfer.embedding_dropout", "transfer.dropout", "transfer.freeze"),
            *("transfer.label_smoothing", "transfer.layer_decay", "transfer.shuffle_labels"),
            "transfer.stochastic_depth",
        ),
        OWN,
    ),
    "execution": OWN,
    "seed": OWN,
    "tuned": OWN,
}
"""Source of the fixed protocol's values, by prefix of a name; the longest prefix counts."""
SPECIAL = {"drops": DROPS, "execution.least_workers": WORKERS}


@cache
def _meanings() -> dict[str, dict[str, str]]:
    """Docstrings of fields, by class and field."""
    meanings: dict[str, dict[str, str]] = {}
    for group in ast.parse(inspect.getsource(definition)).body:
        if not isinstance(group, ast.ClassDef):
            continue
        texts = meanings[group.name] = {}
        for pair in pairwise(group.body):
            match pair:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[name] = " ".join(text.replace("`", "").split())
    return meanings


def meaning(name: str) -> str:
    """Meaning of a setting, with its unit.

    Args:
        name: Its full name, such as ``pretrain.optimiser.lr``.
    """
    group, field = _group(name)
    return _meanings()[group.__name__][field]


def expected(name: str) -> str:
    """Values that a setting can have.

    Args:
        name: Its full name.
    """
    group, field = _group(name)
    kind = types_of(group)[field]
    if typing.get_origin(kind) is Literal:
        return " | ".join(map(str, typing.get_args(kind)))
    special = SPECIAL.get(name) or SPECIAL.get(field)
    return special or str(range_of(name) or _plain(kind))


def range_of(name: str) -> Within | None:
    """The range of a numeric setting, if it has one.

    Args:
        name: Its full name.
    """
    group, field = _group(name)
    return ranges_of(group).get(field)


def _plain(kind: Any) -> str:
    names = {bool: "true | false", str: "a text", float: "a number", int: "a whole number"}
    return names.get(kind, "names with values")


def values(name: str) -> tuple[str, ...]:
    """The values of a setting with fixed choices, for completion; empty for others."""
    group, field = _group(name)
    kind = types_of(group)[field]
    if typing.get_origin(kind) is Literal:
        return tuple(map(str, typing.get_args(kind)))
    return ("true", "false") if kind is bool else ()


def source(name: str) -> str:
    """Source of the fixed protocol's value."""
    groups = [group for group in SOURCES if f"{name}.".startswith(f"{group}.")]
    return SOURCES[max(groups, key=len)]


def _group(name: str) -> tuple[type, str]:
    """The dataclass that has a setting, and the name of its field.

    Raises:
        BenchmdError: There is no such setting.
    """
    group: Any = Settings
    *above, field = name.split(".")
    for part in above:
        group = types_of(group).get(part) if dataclasses.is_dataclass(group) else None
    if not dataclasses.is_dataclass(group) or field not in types_of(group):
        raise unknown_name("setting", name, setting_names())
    return typing.cast(type, group), field


def explained(settings: Settings, width: int = 96) -> Iterator[str]:
    """Lines on each setting: name, value, meaning, allowed values and source.

    Args:
        settings: Settings to explain.
        width: Width of a line.
    """
    for name in setting_names():
        value: Any = settings
        for part in name.split("."):
            value = getattr(value, part)
        yield f"{name} = {_shown(value)}"
        text = f"{meaning(name)} [{expected(name)}; {source(name)}]"
        yield from textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) if value != "" else "''"
