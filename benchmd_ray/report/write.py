"""A report on disk: its tables, figures and page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmd_ray.console.progress import progress
from benchmd_ray.errors import count_of
from benchmd_ray.report.analysis import Analysis
from benchmd_ray.report.canvas import write_listed
from benchmd_ray.report.figures_parts import Titled
from benchmd_ray.report.matrix import NAME, matrix_of
from benchmd_ray.report.page import write_page
from benchmd_ray.report.report_figures import Which, draw
from benchmd_ray.report.table_files import write_tables
from benchmd_ray.report.tables import declared, main_table


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
        say: Takes a line for the user.
        refresh: Seconds after which a browser reloads the page; 0: never.
        sent: A folder for the same report without anything of a single record, for W&B.
    """
    first = main_table(analysis).name if matrix_of(analysis) is None else NAME
    written = write_tables(analysis, out)
    say(f"written: {len(written)} files of tables in {out}, first {out / first}.csv")
    drawn, skipped = draw(analysis, which=figures, resamples=analysis.resamples)
    _write_figures(drawn, out / "figures")
    if drawn:
        others = f"; {len(skipped)} had nothing to show, the page says why" if skipped else ""
        say(f"written: {count_of(len(drawn), 'figure')} in {out / 'figures'}{others}")
    page = write_page(analysis, drawn, out, skipped=skipped, refresh=refresh)
    say(f"written: {page}")
    if sent is not None:
        analysis = replace(analysis, notes=_sent_notes(analysis.notes))
        tables = [table for table in declared() if table.aggregate]
        aggregate = [each for each in drawn if each.aggregate]
        write_tables(analysis, sent, tables)
        _write_figures(aggregate, sent / "figures")
        write_page(analysis, aggregate, sent, tables=tables)
    return page


def _sent_notes(notes: Sequence[str]) -> list[str]:
    """Notes without those on what could not be read, which name paths and perhaps records."""
    kept = [note for note in notes if not note.startswith("Skipped:")]
    if count := len(notes) - len(kept):
        kept.append(f"Not sent: {count_of(count, 'note')} on what could not be read.")
    return kept


def _write_figures(drawn: Sequence[Titled], folder: Path) -> None:
    """Write figures, and delete those of an earlier report."""
    display = progress("figures", len(drawn), "figures") if drawn else None
    named = [(each.name, each.figure) for each in drawn]
    write_listed(named, folder, display.update if display else lambda done: None)
    if display is not None:
        display.close()
