"""Writes a report: tables, figures and page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmd_ray.console.progress import progress
from benchmd_ray.errors import count_of
from benchmd_ray.files.atomic import replacing
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.canvas import write_listed
from benchmd_ray.report.figures_parts import Titled
from benchmd_ray.report.formats import csv_text, latex, markdown
from benchmd_ray.report.matrix import NAME, Matrix, matrix_latex, matrix_markdown, matrix_of
from benchmd_ray.report.notes import synthetic
from benchmd_ray.report.page import write_page
from benchmd_ray.report.report_figures import Which, draw
from benchmd_ray.report.table import Table, plain
from benchmd_ray.report.tables import Declared, declared, main_table

KINDS = ("csv", "md", "tex")


def _names(tables: Sequence[Declared]) -> frozenset[str]:
    kinds = [(table.name, ("csv", "md", "tex") if table.printed else ("csv",)) for table in tables]
    return frozenset(f"{name}.{kind}" for name, endings in kinds for kind in endings)


def write_tables(
    analysis: Analysis, folder: Path, tables: Sequence[Declared] | None = None
) -> list[Path]:
    """Write every non-empty table as CSV, and those for print as Markdown and LaTeX.

    The notes go below the main table. ``tables`` are those of `declared`; None for all.
    """
    main = main_table(analysis).name
    warning = synthetic(analysis.rows)
    chosen = declared() if tables is None else tables
    written = write_declared(
        chosen, analysis, folder, main=main, notes=analysis.notes, warning=warning
    )
    return [*_write_matrix(matrix_of(analysis), folder), *written]


def _write_matrix(matrix: Matrix | None, folder: Path) -> list[Path]:
    """Write the matrix; if there is none, delete that of an earlier report."""
    makes = {"csv": lambda m: csv_text(m.frame), "md": matrix_markdown, "tex": matrix_latex}
    if matrix is None:
        for kind in KINDS:
            (folder / f"{NAME}.{kind}").unlink(missing_ok=True)
        return []
    for kind, make in makes.items():
        with replacing(folder / f"{NAME}.{kind}") as partial:
            partial.write_text(make(matrix), "utf-8")
    return [folder / f"{NAME}.{kind}" for kind in makes]


def write_declared(
    tables: Sequence[Declared],
    reported: Any,
    folder: Path,
    *,
    main: str,
    notes: Sequence[str] = (),
    warning: str = "",
) -> list[Path]:
    """Write tables of any data as `write_tables` does.

    Args:
        tables: All tables that the folder may have.
        reported: Data of the tables.
        folder: For the files.
        main: Name of the table with the notes below.
        notes: What a reader must know.
        warning: Last line of every printed table.
    """
    contents: dict[str, str] = {}
    for declaration in tables:
        data = declaration.data(reported)
        if not len(data):
            continue
        contents[f"{declaration.name}.csv"] = csv_text(data)
        table = declaration.printed(reported) if declaration.printed else None
        if table is not None:
            below = [*(notes if declaration.name == main else ()), *filter(None, [warning])]
            contents |= _printed(declaration.name, table, below)
    for name in _names(tables) - contents.keys():  # left from an earlier report
        (folder / name).unlink(missing_ok=True)
    for name, content in contents.items():
        with replacing(folder / name) as partial:
            partial.write_text(content, "utf-8")
    return [folder / name for name in contents]


def _printed(name: str, table: Table, notes: Sequence[str]) -> dict[str, str]:
    texts, caption = plain(table)
    lines = [caption, "", markdown(texts)]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    label = f"tab:{name.replace('_', '-')}"
    return {
        f"{name}.md": "\n".join(lines) + "\n",
        f"{name}.tex": latex(texts, caption, label, notes),
    }


def write_report(
    analysis: Analysis,
    out: Path,
    figures: Which,
    say: Callable[[str], None],
    *,
    refresh: int = 0,
    sent: Path | None = None,
) -> Path:
    """Write tables, figures and page, and return the page.

    Args:
        analysis: What is reported.
        out: The folder.
        figures: Which figures are drawn.
        say: Shows a line to the user.
        refresh: Seconds after which a browser reloads the page; 0: never.
        sent: Folder for a copy of the report with aggregates only, for W&B.
    """
    first = main_table(analysis).name if matrix_of(analysis) is None else NAME
    written = write_tables(analysis, out)
    say(f"written: {len(written)} files of tables in {out}, first {out / first}.csv")
    drawn, skipped = draw(analysis, which=figures, resamples=analysis.resamples)
    write_figures(drawn, out / "figures")
    if drawn:
        others = f"; {len(skipped)} had nothing to show, the page says why" if skipped else ""
        say(f"written: {count_of(len(drawn), 'figure')} in {out / 'figures'}{others}")
    page = write_page(analysis, drawn, out, skipped=skipped, refresh=refresh)
    say(f"written: {page}")
    if sent is not None:
        analysis = replace(analysis, notes=_sent_notes(analysis.notes))
        tables = [table for table in declared() if table.aggregate]
        aggregate = [titled for titled in drawn if titled.aggregate]
        write_tables(analysis, sent, tables)
        write_figures(aggregate, sent / "figures")
        write_page(analysis, aggregate, sent, tables=tables)
    return page


def _sent_notes(notes: Sequence[str]) -> list[str]:
    """Drop the notes on unreadable files, which name paths and perhaps records."""
    kept = [note for note in notes if not note.startswith("Skipped:")]
    if count := len(notes) - len(kept):
        kept.append(f"Not sent: {count_of(count, 'note')} on unreadable files.")
    return kept


def write_figures(drawn: Sequence[Titled], folder: Path) -> None:
    """Write figures, and delete those of an earlier report."""
    display = progress("figures", len(drawn), "figures") if drawn else None
    named = [(titled.name, titled.figure) for titled in drawn]
    write_listed(named, folder, display.update if display else lambda done: None)
    if display is not None:
        display.close()
