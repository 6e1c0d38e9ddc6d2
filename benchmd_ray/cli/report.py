"""Commands that read finished runs: ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import FOLDER


@main.command()
@click.argument("paths", type=FOLDER, nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--out", type=FOLDER, default=Path("report"), show_default=True, help="Folder for the tables."
)
def report(paths: tuple[Path, ...], out: Path) -> None:
    """Print the results table of RUNS (run folders or stores) and write it as CSV and Markdown."""
    from benchmd_ray.results.store import runs

    print_report(runs(list(paths)), out)


def print_report(found: Any, out: Path) -> None:
    """Print the results table of runs and write it into a folder."""
    from benchmd_ray.results import tables

    cells = tables.all_cells(found)
    click.echo(tables.text(tables.display_frame(cells)))
    click.echo()
    for note in [*tables.notes(cells), *tables.unfinished(found)]:
        click.echo(note)
    for path in tables.write_tables(cells, out):
        click.echo(f"written: {path}")
