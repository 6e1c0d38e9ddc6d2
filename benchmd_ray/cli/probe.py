"""``benchmd probe``: cheap probes of encoders side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmd_ray.cli.allowed import ALLOW
from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import (
    CATALOG,
    CPUS,
    FOLDER,
    SET,
    SETTINGS,
    STORE,
    WEIGHTS,
    complete_technique,
)
from benchmd_ray.console.terminal import echo

if TYPE_CHECKING:
    from benchmd_ray.service.probe import Encoding


@main.command()
@click.option(
    "--encoder",
    "techniques",
    multiple=True,
    required=True,
    shell_complete=complete_technique,
    help="An encoder, as `benchmd run --technique` takes it (repeatable): random-kernels, mae "
    "(pretrained first), hf:FOLDER, model:package.module:name, scratch, …",
)
@click.option(
    "--catalog",
    "catalogs",
    type=CATALOG,
    multiple=True,
    required=True,
    metavar="PATH",
    help="A catalog, or a folder of catalogs, of any modality (repeatable).",
)
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    default=(0, 1, 2),
    help="Seed that draws few labels (repeatable); encoders are of the first. Default: 0, 1, 2.",
)
@click.option(
    "--skip-unfit", is_flag=True, help="Skip catalogs whose signal an encoder does not take."
)
@click.option(
    "--store", type=STORE, default=Path("probes"), show_default=True, help="Folder of the runs."
)
@click.option(
    "--out", type=FOLDER, default=Path("report"), show_default=True, help="Folder for the report."
)
@click.option("--dry-run", is_flag=True, help="Show what would be encoded, then stop.")
@WEIGHTS
@CPUS
@SETTINGS
@SET
@ALLOW
def probe(
    *,
    techniques: tuple[str, ...],
    skip_unfit: bool,
    store: Path,
    out: Path,
    dry_run: bool,
    cpus: int | None,
    settings_file: Path | None,
    assignments: tuple[str, ...],
    **options: Any,
) -> None:
    """Compare encoders by linear evaluation, nearest neighbours and few labels.

    Each encoder reads each record of a catalog once, whatever number of probes and labels. What is
    there is not repeated: one encoder more costs only its own work. Heads are logistic regression.

    \b
    benchmd probe --encoder random-kernels --encoder mae --catalog catalogs
    benchmd probe --encoder hf:models/dinov2-small --encoder scratch \\
        --catalog catalogs/ptb-xl --catalog catalogs/nih-cxr-ap --skip-unfit --dry-run
    """
    from benchmd_ray.service.dry_run import resources_of, status
    from benchmd_ray.service.probe import encodings, probe_choice, probe_plan, require_room
    from benchmd_ray.service.schedule import run_plan
    from benchmd_ray.settings.definition import read_changes

    choice = probe_choice(techniques, read_changes(settings_file, assignments), **options)
    plan = probe_plan(choice, store, skip_unfit=skip_unfit)
    state = status(plan, store, weights=choice.weights)
    left = encodings(plan, choice, state.done)
    if dry_run:
        from benchmd_ray.service.dry_run import estimate_plan

        resources = resources_of(None, cpus, None)
        for line in [*_encodings(left), "", *estimate_plan(plan, resources, state).lines()]:
            echo(line)
        return
    require_room(plan, store, left, state.done)
    for note in plan.notes:
        echo(f"note: {note}", err=True)
    outcome = run_plan(plan, store, say=echo, weights=choice.weights, cpus=cpus)
    for line in outcome.lines():
        echo(line)
    if runs := {item.name: outcome.folders.get(item.name) for item in plan.items}:
        _report([folder for folder in dict.fromkeys(runs.values()) if folder is not None], out)
    if not outcome.whole:
        echo("run the same command again to retry the failed runs; the rest is not repeated")
        sys.exit(1)


def _encodings(left: list[Encoding]) -> list[str]:
    """A table of what is encoded."""
    import pandas as pd

    from benchmd_ray.console.progress import duration
    from benchmd_ray.report.formats import aligned

    if not left:
        return ["Nothing is encoded: all probes are done."]
    rows = [
        {
            "encoder": e.encoder,
            "catalog": e.catalog,
            "records": f"{e.records:,}",
            "time": duration(e.seconds),
        }
        for e in left
    ]
    return ["Encoded once, unless their features are stored already:", *aligned(pd.DataFrame(rows))]


def _report(folders: list[Path], out: Path) -> None:
    from benchmd_ray.report.analysis import analyse_stores
    from benchmd_ray.report.formats import aligned
    from benchmd_ray.report.probes import probe_legend, probe_table, write_probes

    if not folders:
        return
    analysis = analyse_stores(folders, resamples=1000, curves=False)
    for line in aligned(probe_table(analysis)):
        echo(line)
    if meaning := probe_legend(analysis):
        echo(meaning)
    for path in write_probes(analysis, out):
        echo(f"written: {path}")
