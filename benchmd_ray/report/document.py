"""A self-contained HTML page: Jinja2 templates, escaping, its figures, notes and definitions."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from benchmd_ray.console.progress import progress
from benchmd_ray.report.canvas import svg_of
from benchmd_ray.report.table import text_of

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
    """Jinja2 with autoescaping of all but `Markup`; folders are cut from paths."""
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
    """HTML of a file in ``templates``; every value that is not `Markup` is escaped."""
    return Markup(_environment().get_template(template).render(values))


def prose(text: str) -> Markup:
    """Text whose numbers keep their unit and whose names do not break at a hyphen."""
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
) -> str:
    """The HTML of a self-contained page: no network, no other file, no other script.

    Args:
        title: Heading.
        lead: What it is about, plain text.
        sections: In their order.
        footer: Plain text.
        warning: What a reader must not miss, plain text.
        refresh: Seconds after which a browser reloads it; 0: never.
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
    )


def listed_notes(lines: Sequence[str], nothing: str = "", *, heading: str = "") -> Markup:
    """Notes as a list, the topic before a colon in bold; ``nothing`` if there are none."""
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


def figure_parts(figures: Sequence[Titled]) -> dict[str, Markup]:
    """The HTML of each section's figures, numbered throughout."""
    sections: dict[str, Markup] = {}
    display = progress("page", len(figures), "figures") if figures else None
    for number, titled in enumerate(figures, start=1):
        sections[titled.section] = sections.get(titled.section, Markup()) + _figure(titled, number)
        if display is not None:
            display.update(number)
    if display is not None:
        display.close()
    return sections


def _figure(titled: Titled, number: int) -> Markup:
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

    As an image its ids and styles cannot clash with other figures'. Text stays text: sharp in
    print and a third of the size of outlines; without DejaVu Sans another sans-serif is used.
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
