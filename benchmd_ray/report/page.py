"""The report as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from benchmd_ray.files.atomic import replacing, slug
from benchmd_ray.report.document import (
    Section,
    document,
    figure_parts,
    listed_notes,
    prose,
    render,
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
    "data, on the dataset they were trained on and on unseen target datasets (BenchMD). Every "
    "number is computed from stored predictions, with a 95 % interval where there are enough "
    "patients."
)
TUNING, RUNS = "Tuning", "Runs"
"""Headings of sections with sentences, and near the end."""


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

    Args:
        analysis: What was computed from the runs.
        figures: Figures of this analysis, shown by section in their order.
        folder: Where the page is written.
        title: Heading.
        skipped: Figures that were not drawn, and why.
        refresh: Seconds after which a browser reloads it; 0: never.
        tables: Those of `declared` that are shown; None for all.
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
    files = ", figures in figures/ (SVG, PNG; each caption ends with the file's name)"
    return (
        "Written by benchmd report. Tables with all digits are next to this page (CSV; most as "
        f"Markdown and LaTeX too){files if figures else ''}."
    )


def _parts(
    analysis: Analysis,
    figures: Sequence[Titled],
    skipped: Sequence[Skipped],
    chosen: Sequence[Declared],
) -> list[Section]:
    drawn = figure_parts(figures)
    tables, absent = _table_parts(analysis, drawn, chosen)
    late = [tables.pop(head) for head in (TUNING, RUNS) if head in tables]
    glance, summary = _glance(analysis, chosen), _summary(analysis)
    parts = [("summary", "Summary", summary)]
    if glance:
        parts = [("main", "Results at a glance", glance)]
        late.insert(0, ("findings", "Findings", summary))
    reasons = sorted({text_of(figure.reason) for figure in skipped})
    methods = [
        *((metric.title, metric.definition) for metric in METRICS.values()),
        *METHODS,
        *published_words(),
    ]
    return [
        *parts,
        ("notes", "Notes", listed_notes(analysis.notes, "None.")),
        *(
            (f"figures-{place}", f"Figures: {section}", images)
            for place, (section, images) in enumerate(drawn.items(), start=1)
        ),
        *tables.values(),
        *late,
        (
            "methods",
            "Methods and definitions",
            Markup("<p>{}</p>").format(prose(ABOUT))
            + terms(methods)
            + Markup("<h3>Terms in the tables</h3>\n")
            + terms(words())
            + listed_notes(absent, heading="Empty tables")
            + listed_notes(reasons, heading="Figures not drawn"),
        ),
    ]


def _table_parts(
    analysis: Analysis, drawn: dict[str, Markup], chosen: Sequence[Declared]
) -> tuple[dict[str, Section], list[str]]:
    """The section of each heading's tables, those on tuning with figures; and empty tables."""
    headings: dict[str, list[Declared]] = {}
    for declared_table in chosen:
        if declared_table.page is not None and not declared_table.first:
            headings.setdefault(declared_table.heading, []).append(declared_table)
    sections, absent = dict[str, Section](), list[str]()
    classified = len(analysis.scores) or analysis.rows.empty  # else other evaluations have answers
    for heading, declarations in headings.items():
        content = _tables_html(analysis, declarations)
        if not content:
            if (nothing := declarations[0].nothing) and classified:
                absent.append(f"{heading}: {nothing}")
            continue
        if heading == TUNING:
            content = listed_notes(tuning_sentences(analysis)) + content
            content += drawn.pop(TUNING, Markup())
        sections[heading] = (slug(heading), heading, content)
    return sections, absent


def _tables_html(analysis: Analysis, declarations: Sequence[Declared]) -> Markup:
    """Tables with rows."""
    tables = [(one.name, one.page(analysis)) for one in declarations if one.page is not None]
    return Markup().join(html(name, table) for name, table in tables if table is not None)


def _glance(analysis: Analysis, chosen: Sequence[Declared]) -> Markup:
    """The first screen: the matrix with headlines, then benchmarks' first tables."""
    matrix = matrix_of(analysis)
    glance = Markup()
    if matrix is not None:
        sentences = headlines(analysis)
        glance = render("glance.html", matrix=matrix_html(matrix), headlines=sentences)
    return glance + _tables_html(analysis, [table for table in chosen if table.first])


def _summary(analysis: Analysis) -> Markup:
    """What the report covers, and findings by topic."""
    topics = [*findings(analysis), (TUNING, tuning_sentences(analysis))]
    return render(
        "summary.html",
        facts=facts(analysis),
        findings=[(topic, sentences) for topic, sentences in topics if sentences],
    )
