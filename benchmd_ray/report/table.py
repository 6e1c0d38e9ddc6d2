"""A table as data, and its values and rows as text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

DASH = "–"
MINUS = "−"
PATH = re.compile(r"(?<![\w./:])(?:file://|~|[A-Za-z]:)?[/\\](?:[^\s/\\:;,'\"<>()]+[/\\])+")

Kind = Literal["text", "integer", "number", "signed", "interval", "change", "p"]


@dataclass(frozen=True)
class Column:
    title: str
    values: Sequence[Any]
    kind: Kind = "text"
    """``interval`` and ``change`` show value, low and high; ``change`` with a sign, and marked
    where it differs from zero."""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    differs: Sequence[bool] = ()
    """For a ``change``: whether a test shows that it is not zero."""
    worse: Sequence[bool] = ()
    """For a ``change``: whether a value above zero is a loss; empty if it is a gain in all rows."""
    digits: int = 3
    order: tuple[str, ...] = ()
    """Texts in sorting order; other texts follow alphabetically."""
    about: str = ""
    """Description, shown with the header."""
    filtered: bool = False
    """Whether readers filter rows by it."""
    chosen: str = ""
    """The value chosen by default; empty: all rows are shown."""
    links: Sequence[str] = ()
    """For a text: the page next to this one that each value leads to; empty for none."""
    required: bool = False
    """Whether one value must always be chosen; it is shown above the table instead of in each
    row.
    """


@dataclass(frozen=True)
class Table:
    caption: str
    columns: tuple[Column, ...]

    @property
    def rows(self) -> int:
        return len(self.columns[0].values)


def text_of(value: object) -> str:
    """A value as text without the folders of a path: reports leave the machine.

    ``see /home/ada/runs/transfer-1`` is ``see transfer-1``.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    return PATH.sub("", str(value))


def shown(value: Any, kind: Kind, digits: int = 3) -> str:
    """A number as readers see it; the page's script formats it in the same way."""
    number = rounded(value, kind, digits)
    if number is None:
        return DASH
    if kind == "integer":
        return f"{number:,}".replace("-", MINUS)
    if kind == "p" and number < 10**-digits:
        return f"<{10**-digits:.{digits}f}"
    sign = "+" if kind in ("signed", "change") else ""
    return f"{number:{sign if number else ''}.{digits}f}".replace("-", MINUS)


def rounded(value: Any, kind: Kind, digits: int = 3) -> float | int | None:
    """A number rounded to the digits shown, so that sorting follows what is seen."""
    if value is None or not math.isfinite(value):
        return None
    if kind == "integer":
        return round(float(value))
    if kind == "p" and value < 10**-digits:
        return float(f"{value:.3g}")
    return round(float(value), digits) + 0.0  # + 0.0 turns −0.0 into 0.0


def constant(columns: Sequence[Column]) -> tuple[tuple[Column, ...], str]:
    """Drop text columns that are equal in all rows, and state their values in a sentence."""
    alone = [
        c
        for c in columns
        if c.kind == "text" and not c.required and len(c.values) > 1 and len(set(c.values)) == 1
    ]
    kept = tuple(c for c in columns if c not in alone)
    if not alone or not kept:
        return tuple(columns), ""
    text = ", ".join(f"{c.title} {text_of(c.values[0])}" for c in alone)
    return kept, f" In all rows: {text}."


def first_level(column: Column) -> str:
    """The text chosen by default in a required column."""
    levels = in_order(column)
    return column.chosen if column.chosen in levels else levels[0]


def in_order(column: Column) -> list[str]:
    """The distinct texts of a column in sorting order, missing ones last."""
    places = {name: i for i, name in enumerate(column.order)}
    texts = {text_of(value) for value in column.values}
    return sorted(texts, key=lambda t: (t == DASH, places.get(t, len(places)), t))


def cell_text(column: Column, row: int) -> str:
    """A cell as readers see it: ``0.712 [0.690, 0.731]``."""
    if column.kind == "text":
        return text_of(column.values[row])
    value = shown(column.values[row], column.kind, column.digits)
    if column.kind not in ("interval", "change") or column.values[row] is None:
        return value
    low, high = (shown(ends[row], column.kind, column.digits) for ends in (column.low, column.high))
    return value if low == DASH else f"{value} [{low}, {high}]"


def plain(table: Table) -> tuple[pd.DataFrame, str]:
    """A table as texts, and its caption.

    Only rows with the default value of required columns are kept, which the caption states.
    """
    rows, caption = list(range(table.rows)), table.caption
    for column in table.columns:
        if column.required:
            chosen = first_level(column)
            rows = [row for row in rows if text_of(column.values[row]) == chosen]
            caption += f" {column.title.capitalize()}: {chosen}."
    texts = {
        column.title: [cell_text(column, row) for row in rows]
        for column in table.columns
        if not column.required
    }
    return pd.DataFrame(texts), caption
