"""The report as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from benchmd_ray.files.atomic import replacing, slug
from benchmd_ray.report.document import (
    document,
    figure_parts,
    listed_notes,
    prose,
    terms,
)
from benchmd_ray.report.matrix import matrix_html, matrix_of
from benchmd_ray.report.notes import synthetic
from benchmd_ray.report.page_findings import compared, facts, findings, headlines
from benchmd_ray.report.page_methods import METHODS, published_words, words
from benchmd_ray.report.page_tables import html
from benchmd_ray.report.page_tuning import tuning_sentences
from benchmd_ray.report.table import text_of
from benchmd_ray.report.tables import Declared, declared
from benchmd_ray.scores.metrics import METRICS

if TYPE_CHECKING:
    from benchmd_ray.report.analysis import Analysis
    from benchmd_ray.report.figures_parts import Skipped, Titled

NAME = "report.html"
ABOUT = (
    "How well encoders pretrained by modality-agnostic techniques recognise findings in medical "
    "data, on the dataset that they were trained on and on others that they never saw (BenchMD). "
    "Every number is computed from stored predictions, with a 95 % interval where there are enough "
    "patients for one."
)
TUNING, RAN = "Tuning", "What ran"
"""Headings: of what searches found, with sentences; and of what stands near the end."""


def write_page(
    analysis: Analysis,
    figures: Sequence[Titled],
    folder: Path,
    *,
    title: str = "BenchMD report",
    skipped: Sequence[Skipped] = (),
    refresh: int = 0,
    tables: Sequence[Declared] | None = None,
) -> Path:
    """Write ``report.html``, whole or not at all; the same analysis gives the same bytes.

    The page holds its style, its script, its data and its figures, and its content security policy
    lets nothing be fetched and no other script run.

    Args:
        analysis: What was computed from the runs.
        figures: Drawn from the same analysis; shown by section in their order.
        folder: Where the page is written.
        title: Its heading.
        skipped: Figures that were not drawn, and why.
        refresh: Seconds after which a browser loads it again; 0: never.
        tables: Those of `declared` that are shown; None for all.

    Returns:
        The file.
    """
    path = folder / NAME
    with replacing(path) as partial:
        partial.write_text(
            page(analysis, figures, title=title, skipped=skipped, refresh=refresh, tables=tables),
            "utf-8",
        )
    return path


def page(
    analysis: Analysis,
    figures: Sequence[Titled],
    *,
    title: str = "BenchMD report",
    skipped: Sequence[Skipped] = (),
    refresh: int = 0,
    tables: Sequence[Declared] | None = None,
) -> str:
    """The HTML of a report, see `write_page`."""
    lead = compared(analysis) or ABOUT
    warning = synthetic(analysis.rows)
    parts = _parts(analysis, figures, skipped, declared() if tables is None else tables)
    return document(title, lead, parts, _footer(figures), warning=warning, refresh=refresh)


def _footer(figures: Sequence[Titled]) -> str:
    drawn = ", the figures in figures/ (SVG, PNG; each caption ends with the file's name)"
    return (
        "Made by benchmd report. The tables are next to this page with all digits (CSV; most as "
        f"Markdown and LaTeX too){drawn if figures else ''}."
    )


def _parts(
    analysis: Analysis,
    figures: Sequence[Titled],
    skipped: Sequence[Skipped],
    chosen: Sequence[Declared],
) -> list[tuple[str, str, str]]:
    """Sections of the page: id, heading, HTML."""
    drawn = figure_parts(figures)
    tables, absent = _table_parts(analysis, drawn, chosen)
    late = [(head, *tables.pop(head)) for head in (TUNING, RAN) if head in tables]
    glance, first = _glance(analysis, chosen), _summary(analysis)
    parts = [("summary", "Summary", first)]
    if glance:
        parts = [("main", "Results at a glance", glance)]
        late.insert(0, ("Findings", "findings", first))
    return [
        *parts,
        ("notes", "To know before reading", listed_notes(analysis.notes, "Nothing in particular.")),
        *(
            (f"figures-{place}", f"Figures: {text_of(section)}", shown)
            for place, (section, shown) in enumerate(drawn.items(), start=1)
        ),
        *((slug, head, content) for head, (slug, content) in tables.items()),
        *((slug, head, content) for head, slug, content in late),
        ("methods", "Methods and words", _methods() + _absent(absent) + _not_drawn(skipped)),
    ]


def _table_parts(
    analysis: Analysis, drawn: dict[str, str], chosen: Sequence[Declared]
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Id and HTML of each heading's tables, figures on tuning with them; and what has none."""
    together: dict[str, list[Declared]] = {}
    for each in chosen:
        if each.page is not None and not each.first:
            together.setdefault(each.heading, []).append(each)
    parts, absent = {}, []
    classified = len(analysis.scores) or analysis.rows.empty  # else other evaluations have answers
    for heading, held in together.items():
        made = [(each.name, each.page(analysis)) for each in held if each.page is not None]
        shown = "".join(html(name, table) for name, table in made if table is not None)
        if not shown:
            absent += [f"{heading}: {held[0].nothing}"] if held[0].nothing and classified else []
            continue
        said = tuning_sentences(analysis) if heading == TUNING else []
        content = (listed_notes(said, "") if said else "") + shown
        if heading == TUNING:
            content += drawn.pop(TUNING, "")
        parts[heading] = (slug(heading), content)
    return parts, absent


def _glance(analysis: Analysis, chosen: Sequence[Declared]) -> str:
    """The first screen: the matrix and what the statistics carry; then benchmarks' first tables."""
    matrix = matrix_of(analysis)
    said = "".join(
        f'<li>{prose(sentence)} <a href="#table-{table}">Table</a></li>'
        for sentence, table in headlines(analysis)
    )
    shown = "" if matrix is None else f'{matrix_html(matrix)}<ul class="findings">{said}</ul>\n'
    for each in chosen:
        table = each.page(analysis) if each.first and each.page is not None else None
        shown += "" if table is None else html(each.name, table)
    return shown


def _summary(analysis: Analysis) -> str:
    numbers = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(number)}"
        f'<span class="small">{prose(names)}</span></dd></div>'
        for label, number, names in facts(analysis)
    )
    found = "".join(
        f"<li><b>{escape(topic)}.</b> {prose(' '.join(sentences))}</li>"
        for topic, sentences in (*findings(analysis), (TUNING, tuning_sentences(analysis)))
        if sentences
    )
    return f'<dl class="numbers">{numbers}</dl>\n<ul class="findings">{found}</ul>\n'


def _absent(lines: Sequence[str]) -> str:
    """Why tables are missing."""
    return f"<h3>Tables that had nothing to show</h3>\n{listed_notes(lines, '')}" if lines else ""


def _not_drawn(skipped: Sequence[Skipped]) -> str:
    """Why figures are missing, each reason once."""
    reasons = sorted({text_of(each.reason) for each in skipped})
    if not reasons:
        return ""
    return f"<h3>Figures that had nothing to show</h3>\n{listed_notes(reasons, '')}"


def _methods() -> str:
    metrics = [(metric.title, metric.definition) for metric in METRICS.values()]
    methods = terms([*metrics, *METHODS, *published_words()])
    return f"<p>{prose(ABOUT)}</p>{methods}<h3>Words of the tables</h3>\n{terms(words())}"
