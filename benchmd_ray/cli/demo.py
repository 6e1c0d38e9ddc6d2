"""``benchmd demo``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import ADDRESS, FOLDER, MODALITY
from benchmd_ray.cli.report import print_report
from benchmd_ray.console.terminal import echo

NEXT = """\
made: {out}/catalogs of raw files in {out}/raw, runs in {out}/runs
open: {out}/report/report.html
next: benchmd list {out}/runs                                the runs, their state and score
      benchmd catalog new NAME --from FOLDER                 data of your own (docs/own_data.md)
      benchmd bench list                                     open benchmarks (`bench show NAME`)
      benchmd run --dry-run                                  the paper's benchmark, and for how long
      benchmd submit -- run --catalog … --store …            on a cluster (docs/cluster.md)"""
"""Last lines of the demo; at most ten in total with the lines before."""


@main.command()
@click.option(
    "--out", type=FOLDER, default=Path("demo"), show_default=True, help="Folder for everything."
)
@MODALITY
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All seven modalities, one pretraining on two workers by Ray Train and DeepSpeed.",
)
@ADDRESS
def demo(out: Path, modalities: tuple[str, ...], everything: bool, address: str | None) -> None:
    """Run the benchmark on small synthetic data, in three minutes on two cores.

    From raw files to a report: pretraining, transfer and evaluation on other hospitals; for the
    first modality (with --all, ECG) also a search of settings and out-of-distribution detection.

    \b
    benchmd demo                      # ECG
    benchmd demo --modality cxr       # another modality, searched instead of ECG
    benchmd demo --all                # all seven, in some minutes more
    """
    from benchmd_ray.service.demo import USUAL
    from benchmd_ray.service.demo import demo as run_demo

    if everything and modalities:
        raise click.UsageError("--all includes all modalities: omit --modality.")
    chosen = () if everything else modalities or USUAL
    whole = run_demo(out, echo, address, chosen, on_ray=everything)
    if not whole:
        sys.exit(1)
    print_report([out / "runs"], out / "report", brief=True)  # includes modalities of earlier calls
    echo()
    for line in NEXT.splitlines():
        echo(line.format(out=out))
