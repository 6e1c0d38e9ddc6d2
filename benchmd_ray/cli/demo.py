"""``benchmd demo``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import FOLDER, MODALITY
from benchmd_ray.cli.report import print_report


@main.command()
@click.option(
    "--out", type=FOLDER, default=Path("demo"), show_default=True, help="Folder for everything."
)
@MODALITY
@click.option("--address", help="Work on the Ray cluster at this address; else embedded.")
def demo(out: Path, modalities: tuple[str, ...], address: str | None) -> None:
    """Run the whole benchmark on small synthetic data, in some minutes on two cores.

    \b
    benchmd demo                      # all seven modalities
    benchmd demo --modality ecg       # one of them
    """
    from benchmd_ray.service.demo import demo as run_demo

    outcome = run_demo(out, click.echo, address, modalities)
    for line in outcome.lines():
        click.echo(line)
    if not outcome.whole:
        sys.exit(1)
    print_report([out / "runs"], out / "report")  # also the modalities of earlier calls
