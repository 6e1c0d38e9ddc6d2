"""The report as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from matplotlib.figure import Figure

from benchmd_ray.files import replacing
from benchmd_ray.progress import progress
from benchmd_ray.results.canvas import styled
from benchmd_ray.results.report.page_findings import facts, findings
from benchmd_ray.results.report.page_methods import METHODS, published_words, words
from benchmd_ray.results.report.page_tables import html
from benchmd_ray.results.report.page_tuning import tuning_sentences
from benchmd_ray.results.report.table import text_of
from benchmd_ray.results.report.tables import Declared, declared
from benchmd_ray.scores.metrics import METRICS

if TYPE_CHECKING:
    from benchmd_ray.results.report.analysis import Analysis
    from benchmd_ray.results.report.figures_parts import Titled

NAME = "report.html"
ABOUT = (
    "How well encoders pretrained by modality-agnostic techniques recognise findings in medical "
    "data, on the dataset that they were trained on and on others that they never saw (BenchMD). "
    "Every number is computed from stored predictions, with a 95 % interval where there are enough "
    "patients for one."
)
HYPHENATED = re.compile(r"\b\w{1,12}(?:-\w{1,12}){1,2}\b")
LEAD = 40
"""Characters before a colon that are the word that a note is about."""
TUNING, RAN = "Tuning", "What ran"
"""Headings: of what searches found, with sentences; and of what stands near the end."""
PIXELS = 96
"""CSS pixels of an inch."""


def write_page(
    analysis: Analysis, figures: Sequence[Titled], folder: Path, *, title: str = "BenchMD report"
) -> Path:
    """Write ``report.html``, whole or not at all; the same analysis gives the same bytes.

    The page holds its style, its script, its data and its figures, and its content security policy
    lets nothing be fetched and no other script run.

    Args:
        analysis: What was computed from the runs.
        figures: Drawn from the same analysis; shown by section in their order.
        folder: Where the page is written.
        title: Its heading.

    Returns:
        The file.
    """
    path = folder / NAME
    with replacing(path) as partial:
        partial.write_text(page(analysis, figures, title=title), "utf-8")
    return path


def page(analysis: Analysis, figures: Sequence[Titled], *, title: str = "BenchMD report") -> str:
    """The HTML of a report."""
    parts = _parts(analysis, figures)
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
<title>{escape(text_of(title))}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#summary">To the content</a>
<div class="page">
<header>
<h1>{escape(text_of(title))}</h1>
<p class="lead">{_prose(ABOUT)}</p>
</header>
<nav aria-label="Contents"><h2>Contents</h2><ol>{contents}</ol></nav>
<main>
{body}</main>
<footer>{_footer(figures)}</footer>
</div>
<script>{script}</script>
</body>
</html>
"""


def _footer(figures: Sequence[Titled]) -> str:
    drawn = ", the figures in figures/ (SVG, PNG; each caption ends with the file's name)"
    return (
        "Made by benchmd report. The tables are next to this page with all digits (CSV; most as "
        f"Markdown and LaTeX too){drawn if figures else ''}."
    )


def _parts(analysis: Analysis, figures: Sequence[Titled]) -> list[tuple[str, str, str]]:
    """Sections of the page: id, heading, HTML."""
    drawn = _figure_parts(figures)
    tables = _table_parts(analysis, drawn)
    late = [(head, *tables.pop(head)) for head in (TUNING, RAN) if head in tables]
    return [
        ("summary", "Summary", _summary(analysis)),
        ("notes", "To know before reading", _list(analysis.notes, "Nothing in particular.")),
        *((slug, head, content) for head, (slug, content) in tables.items()),
        *(
            (f"figures-{place}", f"Figures: {text_of(section)}", shown)
            for place, (section, shown) in enumerate(drawn.items(), start=1)
        ),
        *((slug, head, content) for head, slug, content in late),
        ("methods", "Methods and words", _methods()),
    ]


def _table_parts(analysis: Analysis, drawn: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Id and HTML of each heading's tables; figures on tuning are with them."""
    together: dict[str, list[Declared]] = {}
    for each in declared():
        if each.page is not None:
            together.setdefault(each.heading, []).append(each)
    parts = {}
    for heading, held in together.items():
        made = [(each.name, each.page(analysis)) for each in held if each.page is not None]
        shown = "".join(html(name, table) for name, table in made if table is not None)
        content = shown or (_none(held[0].nothing) if held[0].nothing else "")
        if not content:
            continue
        said = tuning_sentences(analysis) if heading == TUNING else []
        content = (_list(said, "") if said else "") + content
        if heading == TUNING:
            content += drawn.pop(TUNING, "")
        slug = re.sub("[^a-z0-9]+", "-", heading.lower())
        parts[heading] = (slug, content)
    return parts


def _summary(analysis: Analysis) -> str:
    numbers = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(number)}"
        f'<span class="small">{_prose(names)}</span></dd></div>'
        for label, number, names in facts(analysis)
    )
    found = "".join(
        f"<li><b>{escape(topic)}.</b> {_prose(' '.join(sentences))}</li>"
        for topic, sentences in (*findings(analysis), (TUNING, tuning_sentences(analysis)))
        if sentences
    )
    return f'<dl class="numbers">{numbers}</dl>\n<ul class="findings">{found}</ul>\n'


def _list(lines: Sequence[str], nothing: str) -> str:
    if not lines:
        return _none(nothing)
    return f"<ul>{''.join(f'<li>{_led(line)}</li>' for line in lines)}</ul>\n"


def _led(line: str) -> str:
    """A note, with the word that it is about in bold."""
    word, colon, said = text_of(line).partition(": ")
    if not colon or len(word) > LEAD:
        return _prose(line)
    return f"<b>{_prose(word)}:</b> {_prose(said)}"


def _prose(text: str) -> str:
    """Text whose numbers keep their unit, and whose names are not broken at a hyphen."""
    escaped = escape(text_of(text)).replace(" %", "\N{NO-BREAK SPACE}%")
    return HYPHENATED.sub(r'<span class="nb">\g<0></span>', escaped)


def _none(why: str) -> str:
    return f'<p class="none">{escape(why)}</p>\n'


def _figure_parts(figures: Sequence[Titled]) -> dict[str, str]:
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
    return (
        f'<figure id="figure-{number}"><img src="{_data_uri(titled.figure)}" '
        f'alt="{escape(text_of(titled.title))}" width="{width}" height="{height}">'
        f"<figcaption><b>Figure {number}.</b> {_prose(titled.caption)} "
        f"<code>{escape(text_of(titled.name))}</code></figcaption></figure>\n"
    )


def _data_uri(figure: Figure) -> str:
    """A figure as an image within the page.

    As an image, and not as elements of the page, its ids and styles cannot meet those of other
    figures. Its letters stay text, which prints sharper than outlines and takes a third of their
    size; without DejaVu Sans they are of another sans-serif.
    """
    held = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with styled():
        figure.savefig(held, format="svg", metadata=nothing)
    svg = held.getvalue().decode()
    return f"data:image/svg+xml,{quote(svg[svg.index('<svg') :], safe=' /:;=,.-()')}"


def _methods() -> str:
    metrics = [(metric.title, metric.definition) for metric in METRICS.values()]
    methods = _terms([*metrics, *METHODS, *published_words()])
    return f"{methods}<h3>Words of the tables</h3>\n{_terms(words())}"


def _terms(terms: Sequence[tuple[str, str]]) -> str:
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{_prose(said)}</dd>" for name, said in terms)
    return f'<dl class="terms">{pairs}</dl>\n'


def _asset(name: str) -> str:
    """A file of the page, without whitespace around."""
    assets = resources.files("benchmd_ray.results.report") / "page_assets"
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
