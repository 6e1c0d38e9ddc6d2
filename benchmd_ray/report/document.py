"""A self-contained HTML page from Jinja2 templates, with figures, notes and definitions."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from benchmd_ray.console.progress import progress
from benchmd_ray.report.canvas import svg_of
from benchmd_ray.report.table import Column, Table, first_level, in_order, rounded, shown, text_of

if TYPE_CHECKING:
    from benchmd_ray.report.figures_parts import Titled

HYPHENATED = re.compile(r"\b\w{1,12}(?:-\w{1,12}){1,2}\b")
TOPIC_LENGTH = 40
"""Longest text before a colon that counts as the topic of a note."""
PIXELS = 96
"""CSS pixels of an inch."""
Section = tuple[str, str, str]
"""Id, heading and HTML as `Markup`; any other text is escaped."""


@cache
def _environment() -> Environment:
    """Jinja2 with autoescaping of everything but `Markup`; paths lose their folders."""
    environment = Environment(
        loader=PackageLoader("benchmd_ray.report"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else text_of(value),
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["prose"] = prose
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def render(template: str, **values: Any) -> Markup:
    """Render a file of ``templates``; every value that is not `Markup` is escaped."""
    return Markup(_environment().get_template(template).render(values))


def prose(text: str) -> Markup:
    """Text that does not break between number and unit, or at the hyphen of a name."""
    escaped = str(escape(text_of(text))).replace(" %", "\N{NO-BREAK SPACE}%")
    return Markup(HYPHENATED.sub(r'<span class="nb">\g<0></span>', escaped))


def document(
    title: str,
    lead: str,
    sections: Sequence[Section],
    footer: str,
    *,
    warning: str = "",
    refresh: int = 0,
    unfolded: int | None = None,
) -> str:
    """The HTML of a self-contained page, which loads nothing else.

    Args:
        title: Heading.
        lead: Introduction, plain text; empty for none.
        sections: In their order.
        footer: Plain text.
        warning: Shown prominently, plain text.
        refresh: Seconds after which a browser reloads it; 0: never.
        unfolded: How many sections are open at first; None for all.
    """
    style, script = _asset("style.css"), _asset("script.js")
    return render(
        "document.html",
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        title=title,
        lead=lead,
        sections=sections,
        footer=footer,
        warning=warning,
        refresh=refresh,
        unfolded=len(sections) if unfolded is None else unfolded,
    )


def listed_notes(lines: Sequence[str], nothing: str = "", *, heading: str = "") -> Markup:
    """Notes as a list, with the topic before a colon in bold; ``nothing`` if there are none."""
    if not lines:
        return none(nothing) if nothing else Markup()
    return render("notes.html", notes=list(map(_topic, lines)), heading=heading)


def _topic(line: str) -> tuple[str, str]:
    topic, colon, text = text_of(line).partition(": ")
    return (topic, text) if colon and len(topic) <= TOPIC_LENGTH else ("", line)


def none(why: str) -> Markup:
    """What is shown in place of an empty section."""
    return Markup('<p class="none">{}</p>\n').format(why)


def terms(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Terms and their definitions."""
    return render("terms.html", terms=pairs)


def figure_parts(figures: Sequence[Titled], apart: int = 0) -> dict[str, Markup]:
    """The HTML of each section's figures, numbered consecutively; ``apart`` are under ``""``."""
    sections: dict[str, Markup] = {}
    display = progress("page", len(figures), "figures") if figures else None
    for number, titled in enumerate(figures, start=1):
        section = titled.section if number > apart else ""
        sections[section] = sections.get(section, Markup()) + figure_part(titled, number)
        if display is not None:
            display.update(number)
    if display is not None:
        display.close()
    return sections


def figure_part(titled: Titled, number: int) -> Markup:
    """The HTML of a figure."""
    width, height = (round(float(inch) * PIXELS) for inch in titled.figure.get_size_inches())
    return render(
        "figure.html",
        number=number,
        image=_data_uri(titled.figure),
        width=width,
        height=height,
        name=titled.name,
        title=titled.title,
        caption=titled.caption,
        folded=titled.folded,
    )


def _data_uri(figure: Figure) -> Markup:
    """A figure as a data URI.

    In an image, ids and styles cannot clash with those of other figures. Text is not converted to
    outlines, so it is sharp in print and a third of the size; without DejaVu Sans the browser uses
    another sans-serif font.
    """
    svg = svg_of(figure)
    return Markup(f"data:image/svg+xml,{quote(svg[svg.index('<svg') :], safe=' /:;=,.-()')}")


def _asset(name: str) -> str:
    assets = resources.files("benchmd_ray.report") / "page_assets"
    return (assets / name).read_text("utf-8").strip()


def _policy(style: str, script: str) -> Markup:
    """Content security policy: only this style and this script, only embedded images."""
    return Markup(
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


FIRST = 100
"""Rows in the HTML itself, so that the page is useful without its script."""


class HtmlCell(NamedTuple):
    text: str
    style: str = ""
    """CSS classes."""
    span: str = ""
    """An interval."""
    bold: bool = False
    link: str = ""


def html(name: str, table: Table) -> Markup:
    """A table with its controls, first rows and data; its name must be unique on the page."""
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
    """How many rows are shown and which values are chosen, worded as in the script."""
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
    """Code of the text that is chosen by default, if any."""
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
            **({"links": list(column.links)} if column.links else {}),
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
        link = column.links[row] if column.links else ""
        return HtmlCell(data["levels"][data["codes"][row]], link=link)
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
    """Filter columns: position, title, texts, the chosen text, whether required."""
    return [
        (place, column.title, data["levels"], _chosen(column, data), column.required)
        for place, (column, data) in enumerate(zip(table.columns, content, strict=True))
        if column.filtered and (len(data["levels"]) > 1 or column.required)
    ]
