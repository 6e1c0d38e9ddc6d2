"""Tables of the page: the first rows as HTML, all rows as data for the script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from benchmd_ray.report.document import render
from benchmd_ray.report.table import (
    Column,
    Table,
    first_level,
    in_order,
    rounded,
    shown,
    text_of,
)

FIRST = 100
"""Rows that are in the HTML itself, so that the page is of use without a script."""


class HtmlCell(NamedTuple):
    """A cell of the HTML."""

    text: str
    style: str = ""
    """CSS classes."""
    span: str = ""
    """An interval."""
    bold: bool = False


def html(name: str, table: Table) -> Markup:
    """A table with its controls, first rows and data; its name is unique on the page."""
    content = [_content(column) for column in table.columns]
    rows = _first_rows(table, content)
    visible = [pair for pair in zip(table.columns, content, strict=True) if not pair[0].required]
    return render(
        "table.html",
        name=name,
        caption=table.caption,
        count=_count(table, content, len(rows)),
        selects=_selects(table, content),
        columns=[column for column, _ in visible],
        rows=[[_cell(column, data, row) for column, data in visible] for row in rows[:FIRST]],
        total=len(rows),
        data={"rows": table.rows, "columns": content},
    )


def _count(table: Table, content: Sequence[dict[str, Any]], rows: int) -> str:
    """How many rows are shown and what is chosen, worded as in the script."""
    whole = f"{table.rows:,} row{'' if table.rows == 1 else 's'}"
    chosen = [
        f"{column.title} {data['levels'][code]}"
        for column, data in zip(table.columns, content, strict=True)
        if column.filtered and (code := _chosen(column, data)) is not None
    ]
    count = whole if rows == table.rows else f"{rows:,} of {whole}"
    return f"{count}: {', '.join(chosen)}" if chosen else count


def _first_rows(table: Table, content: Sequence[dict[str, Any]]) -> list[int]:
    rows = list(range(table.rows))
    for column, data in zip(table.columns, content, strict=True):
        chosen = _chosen(column, data)
        if chosen is not None:
            rows = [row for row in rows if data["codes"][row] == chosen]
    return rows


def _chosen(column: Column, data: dict[str, Any]) -> int | None:
    """Code of the text that is chosen at first, if any."""
    levels = data.get("levels", [])
    if column.chosen and column.chosen in levels:
        return int(levels.index(column.chosen))
    return int(levels.index(first_level(column))) if column.required else None


def _content(column: Column) -> dict[str, Any]:
    """A column for the script: texts as codes of sorted levels, numbers rounded."""
    if column.kind == "text":
        texts, levels = [text_of(value) for value in column.values], in_order(column)
        codes = {level: code for code, level in enumerate(levels)}
        return {
            "title": column.title,
            "kind": "text",
            "hidden": column.required,
            "levels": levels,
            "codes": [codes[text] for text in texts],
        }
    parts = {"values": column.values}
    if column.kind in ("interval", "change"):
        parts |= {"low": column.low, "high": column.high}
    tested = {}
    if column.kind == "change":
        tested = {
            "differs": list(map(bool, column.differs)),
            "worse": list(map(bool, column.worse)),
        }
    return {
        "title": column.title,
        "kind": column.kind,
        "digits": column.digits,
        **{
            name: [rounded(value, column.kind, column.digits) for value in part]
            for name, part in parts.items()
        },
        **tested,
    }


def _cell(column: Column, data: dict[str, Any], row: int) -> HtmlCell:
    if column.kind == "text":
        return HtmlCell(data["levels"][data["codes"][row]])
    number = data["values"][row]
    value = shown(number, column.kind, column.digits)
    if column.kind not in ("interval", "change") or number is None:
        return HtmlCell(value, "n")
    ends = [shown(data[end][row], column.kind, column.digits) for end in ("low", "high")]
    span = "" if data["low"][row] is None else f"[{', '.join(ends)}]"
    style = "n"
    if column.kind == "change" and data["differs"][row]:
        is_loss = (number > 0) == (bool(data["worse"]) and data["worse"][row])
        style += f" {'up' if number > 0 else 'down'} {'loss' if is_loss else 'gain'}"
    return HtmlCell(value, style, span, bold=True)


def _selects(
    table: Table, content: Sequence[dict[str, Any]]
) -> list[tuple[int, str, list[str], int | None, bool]]:
    """Columns that rows are chosen by: place, title, texts, the chosen one, whether required."""
    return [
        (place, column.title, data["levels"], _chosen(column, data), column.required)
        for place, (column, data) in enumerate(zip(table.columns, content, strict=True))
        if column.filtered and (len(data["levels"]) > 1 or column.required)
    ]
