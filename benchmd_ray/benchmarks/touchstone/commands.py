"""``benchmd segment``: algorithms compared by their scores of single cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmd_ray.cli.group import Commands
from benchmd_ray.cli.options import FILE, FOLDER
from benchmd_ray.cli.report import print_table
from benchmd_ray.errors import BenchmdError

if TYPE_CHECKING:
    from benchmd_ray.benchmarks.touchstone.contests import Family


@click.group(cls=Commands)
def segment() -> None:
    """Segmentations: scored from files, and whole algorithms compared (Touchstone)."""


@segment.command("compare")
@click.argument("runs", type=FOLDER, nargs=-1, metavar="RUNS...")
@click.option(
    "--scores",
    type=FOLDER,
    help="Instead of RUNS: a folder with ALGORITHM/dsc.csv, as Touchstone releases them.",
)
@click.option("--metadata", type=FILE, help="CSV of the cases, for groups and patients.")
@click.option(
    "--group",
    "also",
    multiple=True,
    metavar="COLUMN",
    help="Make groups by this column of the metadata, too (repeatable).",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True),
    help="Another test set: a folder as for --scores, or a CSV of means (algorithm,class,mean).",
)
@click.option(
    "--seconds-at-most",
    type=click.FloatRange(0, min_open=True),
    help="Exclude algorithms that take longer for a volume on average.",
)
@click.option(
    "--family",
    type=click.Choice(["class", "all"]),
    default="class",
    show_default=True,
    help="Tests that Holm's correction counts together: of each class, or of all classes.",
)
@click.option(
    "--resamples",
    type=click.IntRange(2),
    default=1000,
    show_default=True,
    help="Resamples of the cases, for intervals and ranks.",
)
@click.option(
    "--out",
    type=FOLDER,
    default=Path("comparison"),
    show_default=True,
    help="Folder for page, tables and figures.",
)
def compare_scores(
    runs: tuple[Path, ...],
    scores: Path | None,
    metadata: Path | None,
    also: tuple[str, ...],
    against: Path | None,
    seconds_at_most: float | None,
    family: Family,
    resamples: int,
    out: Path,
) -> None:
    """Compare the algorithms of RUNS, folders that `benchmd segment score` wrote.

    The folder gets comparison.html, which needs nothing else, the tables as CSV, and the figures.

    \b
    benchmd segment compare runs/unet runs/swin --metadata meta.csv --out comparison
    benchmd segment compare --scores totalsegmentator_results --metadata metaTotalSeg.csv
    """
    from benchmd_ray.benchmarks.touchstone import report
    from benchmd_ray.benchmarks.touchstone.comparing import compare
    from benchmd_ray.benchmarks.touchstone.metadata import read_metadata
    from benchmd_ray.benchmarks.touchstone.report_page import write_comparison
    from benchmd_ray.benchmarks.touchstone.scored import read_against, read_scores

    if also and metadata is None:
        raise BenchmdError("--group names a column of the metadata: give --metadata, too.")
    found = read_scores(runs, scores)
    one = compare(
        found,
        metadata=read_metadata(metadata, also) if metadata else None,
        seconds_at_most=seconds_at_most,
        family=family,
        resamples=resamples,
        against=read_against(against) if against else None,
        other=against.name if against else "",
    )
    print_table(report.headline(one))
    click.echo()
    for note in one.notes:
        click.echo(note)
    for line in write_comparison(one, out):
        click.echo(line)
