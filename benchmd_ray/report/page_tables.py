"""Tables of the HTML report: the first rows as plain HTML, all rows as data for the script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

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
"""Rows that stand in the HTML itself, so that the page says something without a script too."""


def html(name: str, table: Table) -> str:
    """A table with its controls, its first rows and its data; its name is unique on the page."""
    content = [_content(column) for column in table.columns]
    rows = _first_rows(table, content)
    seen = [pair for pair in zip(table.columns, content, strict=True) if not pair[0].required]
    body = "".join(
        f"<tr>{''.join(_cell(column, data, row) for column, data in seen)}</tr>"
        for row in rows[:FIRST]
    )
    heads = "".join(_head(column) for column, _ in seen)
    count = _count(table, content, len(rows))
    data = _safe({"rows": table.rows, "columns": content})
    name = escape(name)
    return f"""<div class="table" data-table id="table-{name}">
<form class="controls" hidden>{_controls(name, table, content)}</form>
<p class="count" role="status">{count}</p>
<div class="scroll" role="region" tabindex="0" aria-labelledby="caption-{name}">
<table><caption id="caption-{name}"><span>{escape(text_of(table.caption))}</span></caption>
<thead><tr>{heads}</tr></thead>
<tbody>{body}</tbody></table>
</div>
<p class="more">{_more(len(rows))}</p>
<script type="application/json">{data}</script>
</div>
"""


def _count(table: Table, content: Sequence[dict[str, Any]], rows: int) -> str:
    """How many rows are shown, and what was chosen; the script says it in the same words."""
    whole = f"{table.rows:,} row{'' if table.rows == 1 else 's'}"
    chosen = [
        f"{column.title} {data['levels'][code]}"
        for column, data in zip(table.columns, content, strict=True)
        if column.filtered and (code := _chosen(column, data)) is not None
    ]
    shown = whole if rows == table.rows else f"{rows:,} of {whole}"
    return escape(f"{shown}: {', '.join(chosen)}" if chosen else shown)


def _more(rows: int) -> str:
    if rows <= FIRST:
        return ""
    return f"The first {FIRST} of {rows:,} rows; the others need JavaScript, or the CSV files."


def _first_rows(table: Table, content: Sequence[dict[str, Any]]) -> list[int]:
    """Rows that are shown before anything is chosen."""
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
    """Values of a column for the script: texts as codes of sorted levels, numbers rounded."""
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


def _cell(column: Column, data: dict[str, Any], row: int) -> str:
    if column.kind == "text":
        return f"<td>{escape(data['levels'][data['codes'][row]])}</td>"
    number = data["values"][row]
    value = shown(number, column.kind, column.digits)
    if column.kind not in ("interval", "change") or number is None:
        return f'<td class="n">{escape(value)}</td>'
    ends = [shown(data[end][row], column.kind, column.digits) for end in ("low", "high")]
    span = "" if data["low"][row] is None else f" <span>[{', '.join(ends)}]</span>"
    mark = ""
    if column.kind == "change" and data["differs"][row]:
        worse = bool(data["worse"]) and data["worse"][row]
        mark = f"{' up' if number > 0 else ' down'} {'gain' if (number > 0) != worse else 'loss'}"
    return f'<td class="n{mark}"><b>{value}</b>{span}</td>'


def _head(column: Column) -> str:
    title = f' title="{escape(column.about)}"' if column.about else ""
    kind = "" if column.kind == "text" else ' class="n"'
    return f'<th scope="col"{kind}{title}>{escape(column.title)}</th>'


def _controls(name: str, table: Table, content: Sequence[dict[str, Any]]) -> str:
    """A text box, and a select for each column that rows are chosen by."""
    parts = [_labelled(name, "search", "Search", 'input type="search"')]
    for place, (column, data) in enumerate(zip(table.columns, content, strict=True)):
        if not column.filtered or (len(data["levels"]) < 2 and not column.required):
            continue
        options = [] if column.required else ['<option value="">all</option>']
        chosen = _chosen(column, data)
        options += [
            f'<option value="{code}"{" selected" if code == chosen else ""}>'
            f"{escape(level)}</option>"
            for code, level in enumerate(data["levels"])
        ]
        select = f'select data-column="{place}"'
        parts.append(
            _labelled(name, str(place), column.title, select, f"{''.join(options)}</select>")
        )
    return "".join([*parts, '<button type="reset">Reset</button>'])


def _labelled(table: str, place: str, label: str, control: str, content: str = "") -> str:
    name = f"{table}-{place}"
    return (
        f'<span><label for="{name}">{escape(label)}</label>'
        f'<{control} id="{name}" autocomplete="off">{content}</span>'
    )


def _safe(content: Any) -> str:
    """JSON that cannot end the script element that it is in."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
