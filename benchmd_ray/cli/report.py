"""Commands that read finished runs: ``report`` and ``compare``."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import FOLDER, JSON, STORE, or_runs, print_json, wandb_options
from benchmd_ray.console.terminal import OutputClosed, echo
from benchmd_ray.errors import count_of

if TYPE_CHECKING:
    from benchmd_ray.report.report_figures import Which
    from benchmd_ray.report.table import Table
    from benchmd_ray.tracking.dashboard import Dashboard

FOLLOW_SECONDS = 15
"""Seconds between checks of a report with --follow."""
RESAMPLES = click.option(
    "--resamples",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Resamples of the patients, for the intervals.",
)


@main.command()
@click.argument("paths", type=STORE, nargs=-1, callback=or_runs, metavar="[RUNS]...")
@click.option(
    "--out", type=FOLDER, default=Path("report"), show_default=True, help="Folder for the report."
)
@RESAMPLES
@click.option(
    "--baseline",
    metavar="NAME",
    help="Row or technique that others are compared with, such as 'MAE', 'MAE, linear' or mae; "
    "without it training from scratch.",
)
@click.option(
    "--figures",
    type=click.Choice(["main", "all", "none"]),
    default="main",
    show_default=True,
    help="Figures to draw, as SVG and PNG: main (about twenty), all (also for each dataset and "
    "setting), or none.",
)
@click.option("--follow", is_flag=True, help="Write it again whenever RUNS change, until Ctrl-C.")
@JSON
@wandb_options
def report(
    paths: tuple[Path, ...],
    *,
    out: Path,
    resamples: int,
    baseline: str | None,
    figures: Which,
    follow: bool,
    dashboard: Dashboard,
    as_json: bool,
) -> None:
    """Report on RUNS (run folders or stores): print the main table and write the full report.

    If RUNS is omitted, ./runs is used. The folder gets a self-contained report.html, the tables as
    CSV, Markdown and LaTeX, and the figures. Searches in the stores are included, with tuned runs
    next to the others.

    \b
    benchmd report runs
    benchmd report runs --out report --figures all
    benchmd report runs --baseline imagenet
    benchmd report runs --follow                     # a page that stays open in a browser
    """
    if follow:
        if dashboard.mode != "off":
            raise click.UsageError("a report with --follow is not sent: omit --wandb.")
        if as_json:
            raise click.UsageError("a report that follows never ends: leave --json out.")
        _follow(list(paths), out, resamples=resamples, figures=figures, baseline=baseline)
    wanted: dict[str, Any] = {"resamples": resamples, "figures": figures, "baseline": baseline}
    if dashboard.mode == "off":
        print_report(list(paths), out, **wanted, as_json=as_json)
        return
    from benchmd_ray.tracking.upload import Tracker

    with TemporaryDirectory(prefix="benchmd-") as folder:
        sent = Path(folder)
        synthetic = print_report(list(paths), out, **wanted, as_json=as_json, sent=sent)
        tracker = Tracker(out, dashboard)
        tracker.reported(sent, synthetic=synthetic)
        echo(tracker.closed(), err=as_json)


def print_report(
    paths: list[Path],
    out: Path,
    *,
    resamples: int = 1000,
    baseline: str | None = None,
    figures: Which = "main",
    as_json: bool = False,
    brief: bool = False,
    sent: Path | None = None,
) -> bool:
    """Print the main table of runs and write the report into a folder.

    Unreadable files of a store are skipped and named in the notes.

    Args:
        paths: Runs, and stores of runs and searches.
        out: The folder.
        resamples: Of the patients, for the intervals.
        baseline: Row or technique that others are compared with.
        figures: Which are drawn.
        as_json: Print the main table, the notes and where the page is as JSON, and nothing else.
        brief: Print how many notes there are, not the notes.
        sent: Folder for the part of the report that may be sent to W&B.

    Returns:
        Whether any result is based on synthetic data.
    """
    from benchmd_ray.report.analysis import analyse_stores
    from benchmd_ray.report.matrix import matrix_lines, matrix_of
    from benchmd_ray.report.notes import synthetic
    from benchmd_ray.report.tables import main_table
    from benchmd_ray.report.write import write_report

    curves = figures != "none"
    analysis = analyse_stores(paths, resamples=resamples, curves=curves, baseline=baseline)
    matrix, main, warning = matrix_of(analysis), main_table(analysis), synthetic(analysis.rows)
    write = partial(write_report, analysis, out, figures, sent=sent)
    if as_json:
        frame = main.data(analysis) if matrix is None else matrix.frame
        page, rows = write(partial(echo, err=True)), frame.to_dict("records")
        print_json({"page": page, "main": rows, "notes": analysis.notes})
        return bool(warning)
    try:
        if matrix is not None:
            for line in matrix_lines(matrix):
                echo(line)
        else:
            print_table(main.printed(analysis) if main.printed else None)
            if warning:
                echo(warning)
        echo()
        count = count_of(len(analysis.notes), "note")
        for note in [f"{count} on these results: see the page"] if brief else analysis.notes:
            echo(note)
    except OutputClosed:
        write(lambda line: None)
        raise
    closed: list[OutputClosed] = []

    def say(line: str) -> None:  # a reader that has ended must not end the writing
        try:
            echo(line)
        except OutputClosed as error:
            closed.append(error)

    write((lambda line: None) if brief else say)
    if closed:
        raise closed[0]
    return bool(warning)


def _follow(
    paths: list[Path], out: Path, *, resamples: int, figures: Which, baseline: str | None
) -> NoReturn:
    from benchmd_ray.errors import BenchmdError
    from benchmd_ray.report.analysis import analyse_stores
    from benchmd_ray.report.write import write_report
    from benchmd_ray.service.watching import state_of

    seen, message, analysis = "", "", None
    try:
        while True:
            try:
                state = state_of(paths)
                if state != seen:
                    seen, curves = state, figures != "none"
                    analysis = analyse_stores(
                        paths, resamples=resamples, curves=curves, baseline=baseline
                    )
                    echo(time.strftime("%H:%M:%S"))
                    write_report(analysis, out, figures, echo, refresh=FOLLOW_SECONDS)
            except (BenchmdError, FileNotFoundError) as error:  # missing, or just being written
                if str(error) != message:
                    message = str(error)
                    echo(f"{time.strftime('%H:%M:%S')} waiting: {message}")
            time.sleep(FOLLOW_SECONDS)
    finally:
        if analysis is not None:  # the final page no longer reloads itself
            write_report(analysis, out, figures, echo)


def print_table(table: Table | None) -> None:
    """Print a table, if any, below its caption."""
    from benchmd_ray.report.formats import aligned
    from benchmd_ray.report.table import plain

    if table is not None:
        frame, caption = plain(table)
        for line in (caption, *aligned(frame)):
            echo(line)


@main.command()
@click.argument("paths", type=STORE, nargs=-1, callback=or_runs, metavar="[RUNS]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the comparison of all cells as CSV.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Also show results that are not comparable, and why."
)
@RESAMPLES
def compare(paths: tuple[Path, ...], out: Path | None, everything: bool, resamples: int) -> None:
    """Compare RUNS (run folders or stores) with the paper's results.

    If RUNS is omitted, ./runs is used.

    Each common result is shown with the paper's AUROC, ours with its interval, and whether the
    paper's is inside the interval. Runs with settings other than the fixed protocol's, another
    source or split, and datasets with less than half of their records are not compared.

    \b
    benchmd compare runs
    benchmd compare runs --all --out comparison.csv
    """
    from benchmd_ray.files.atomic import replacing
    from benchmd_ray.report.against_paper import against_paper, comparison, summary
    from benchmd_ray.report.formats import csv_text
    from benchmd_ray.runs.store import read_stores

    stored = read_stores(list(paths))
    frame = against_paper(stored.found, resamples=resamples)
    chosen = frame if everything else frame[frame["reason"] == ""].reset_index(drop=True)
    if len(chosen):
        print_table(comparison(chosen))
        echo()
    for line in summary(frame):
        echo(line)
    if len(chosen) < len(frame):
        echo("Use --all to show results that are not comparable.")
    for note in stored.notes:
        echo(note)
    if out is not None:
        with replacing(out) as partial:
            partial.write_text(csv_text(frame), "utf-8")
        echo(f"written: {out}")
