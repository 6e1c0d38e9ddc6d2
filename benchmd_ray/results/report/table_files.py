"""The tables of a report as files: CSV with all digits, Markdown and LaTeX as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmd_ray.files import replacing
from benchmd_ray.results.report.analysis import Analysis
from benchmd_ray.results.report.table import Table, plain
from benchmd_ray.results.report.tables import declared
from benchmd_ray.results.written import csv_text, latex, markdown

MAIN = "auroc"
"""The table that the notes stand below."""


def file_names() -> frozenset[str]:
    """Names of all files that `write_tables` may write."""
    kinds = [(one.name, ("csv", "md", "tex") if one.printed else ("csv",)) for one in declared()]
    return frozenset(f"{name}.{kind}" for name, held in kinds for kind in held)


def write_tables(analysis: Analysis, folder: Path) -> list[Path]:
    """Write every table with rows: as CSV, and where it is printed as Markdown and LaTeX.

    The notes stand below the main table, ``auroc``.

    Returns:
        The files written, the main table's first.
    """
    contents: dict[str, str] = {}
    for each in declared():
        data = each.data(analysis)
        if not len(data):
            continue
        contents[f"{each.name}.csv"] = csv_text(data)
        table = each.printed(analysis) if each.printed else None
        if table is not None:
            contents |= _printed(each.name, table, analysis.notes if each.name == MAIN else ())
    for name in file_names() - contents.keys():  # of an earlier report, which had such rows
        (folder / name).unlink(missing_ok=True)
    for name, content in contents.items():
        with replacing(folder / name) as partial:
            partial.write_text(content, "utf-8")
    return [folder / name for name in contents]


def _printed(name: str, table: Table, notes: Sequence[str]) -> dict[str, str]:
    shown, caption = plain(table)
    lines = [caption, "", markdown(shown)]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    label = f"tab:{name.replace('_', '-')}"
    return {
        f"{name}.md": "\n".join(lines) + "\n",
        f"{name}.tex": latex(shown, caption, label, notes),
    }
