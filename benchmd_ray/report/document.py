"""An HTML page that needs nothing else: its frame, its figures, its lists and its terms."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import quote

from matplotlib.figure import Figure

from benchmd_ray.console.progress import progress
from benchmd_ray.report.canvas import svg_of
from benchmd_ray.report.table import text_of

if TYPE_CHECKING:
    from benchmd_ray.report.figures_parts import Titled

HYPHENATED = re.compile(r"\b\w{1,12}(?:-\w{1,12}){1,2}\b")
LEAD = 40
"""Characters before a colon that are the word that a note is about."""
PIXELS = 96
"""CSS pixels of an inch."""
Section = tuple[str, str, str]
"""Id, heading and HTML."""


def document(
    title: str,
    lead: str,
    parts: Sequence[Section],
    footer: str,
    *,
    warning: str = "",
    refresh: int = 0,
) -> str:
    """The HTML of a page.

    It holds its style, its script, its data and its figures, and its content security policy lets
    nothing be fetched and no other script run.

    Args:
        title: Its heading.
        lead: What it is about, plain text.
        parts: Its sections.
        footer: Plain text.
        warning: What a reader must not miss, plain text; empty: nothing.
        refresh: Seconds after which a browser loads it again; 0: never.
    """
    again = f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else ""
    banner = f'<p class="banner" role="note">{prose(warning)}</p>\n' if warning else ""
    contents = "".join(f'<li><a href="#{name}">{escape(head)}</a></li>' for name, head, _ in parts)
    body = "".join(
        f'<section id="{name}" aria-labelledby="head-{name}"><h2 id="head-{name}">{escape(head)}'
        f"</h2>\n{content}</section>\n"
        for name, head, content in parts
    )
    style, script = _asset("style.css"), _asset("script.js")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
{again}<title>{escape(text_of(title))}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#{parts[0][0]}">To the content</a>
<div class="page">
<header>
<h1>{escape(text_of(title))}</h1>
{banner}<p class="lead">{prose(lead)}</p>
</header>
<nav aria-label="Contents"><h2>Contents</h2><ol>{contents}</ol></nav>
<main>
{body}</main>
<footer>{footer}</footer>
</div>
<script>{script}</script>
</body>
</html>
"""


def listed_notes(lines: Sequence[str], nothing: str) -> str:
    """Notes as a list, the word that each is about in bold; what is said where there are none."""
    if not lines:
        return none(nothing)
    return f"<ul>{''.join(f'<li>{_led(line)}</li>' for line in lines)}</ul>\n"


def _led(line: str) -> str:
    """A note, with the word that it is about in bold."""
    word, colon, said = text_of(line).partition(": ")
    if not colon or len(word) > LEAD:
        return prose(line)
    return f"<b>{prose(word)}:</b> {prose(said)}"


def prose(text: str) -> str:
    """Text whose numbers keep their unit, and whose names are not broken at a hyphen."""
    escaped = escape(text_of(text)).replace(" %", "\N{NO-BREAK SPACE}%")
    return HYPHENATED.sub(r'<span class="nb">\g<0></span>', escaped)


def none(why: str) -> str:
    """What stands where there is nothing to show."""
    return f'<p class="none">{escape(why)}</p>\n'


def figure_parts(figures: Sequence[Titled]) -> dict[str, str]:
    """The HTML of each section's figures, in their order, figures numbered throughout."""
    together: dict[str, list[str]] = {}
    display = progress("page", len(figures), "figures") if figures else None
    for number, titled in enumerate(figures, start=1):
        together.setdefault(titled.section, []).append(_figure(titled, number))
        if display is not None:
            display.update(number)
    if display is not None:
        display.close()
    return {section: "".join(shown) for section, shown in together.items()}


def _figure(titled: Titled, number: int) -> str:
    width, height = (round(float(inch) * PIXELS) for inch in titled.figure.get_size_inches())
    shown = (
        f'<figure id="figure-{number}"><img src="{_data_uri(titled.figure)}" '
        f'alt="{escape(text_of(titled.title))}" width="{width}" height="{height}">'
        f"<figcaption><b>Figure {number}.</b> {prose(titled.caption)} "
        f"<code>{escape(text_of(titled.name))}</code></figcaption></figure>\n"
    )
    if not titled.folded:
        return shown
    return f"<details><summary>{prose(titled.title)}</summary>{shown}</details>\n"


def _data_uri(figure: Figure) -> str:
    """A figure as an image within the page.

    As an image, and not as elements of the page, its ids and styles cannot meet those of other
    figures. Its letters stay text, which prints sharper than outlines and takes a third of their
    size; without DejaVu Sans they are of another sans-serif.
    """
    svg = svg_of(figure)
    return f"data:image/svg+xml,{quote(svg[svg.index('<svg') :], safe=' /:;=,.-()')}"


def terms(pairs: Sequence[tuple[str, str]]) -> str:
    """Words and what they mean."""
    said = "".join(f"<dt>{escape(name)}</dt><dd>{prose(text)}</dd>" for name, text in pairs)
    return f'<dl class="terms">{said}</dl>\n'


def _asset(name: str) -> str:
    """A file of the page, without whitespace around."""
    assets = resources.files("benchmd_ray.report") / "page_assets"
    return (assets / name).read_text("utf-8").strip()


def _policy(style: str, script: str) -> str:
    """Content security policy: only this style and this script, images within the page."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
