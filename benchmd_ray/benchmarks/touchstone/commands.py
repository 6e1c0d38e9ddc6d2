"""``benchmd segment``: segmentations are scored from files, and algorithms compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmd_ray.cli.group import Commands
from benchmd_ray.cli.options import CPUS, FOLDER

if TYPE_CHECKING:
    from benchmd_ray.benchmarks.touchstone.files import Outcome

PATH = click.Path(path_type=Path, exists=True)
SHOWN = 10
"""Quarantined cases that are printed."""


@click.group(cls=Commands)
def segment() -> None:
    """Segmentation: score predictions against references, from files."""


@segment.command("score")
@click.argument("predictions", type=PATH)
@click.argument("labels", type=PATH)
@click.option(
    "--task", "task_name", required=True, metavar="TASK", help="Task, or its card's path."
)
@click.option("--out", type=FOLDER, required=True, help="Folder for the scores.")
@click.option("--name", default="", help="The algorithm's name in tables; else the folder's.")
@click.option(
    "--tolerance",
    default="",
    metavar="MM",
    help="Of surface Dice: mm, or a preset of the task's card; else the card's own.",
)
@click.option("--predictions-layout", default="", metavar="NAME", help="Which label is what there.")
@click.option("--labels-layout", default="", metavar="NAME", help="The same of LABELS.")
@click.option(
    "--resample", is_flag=True, help="Put predictions on the reference's grid (nearest neighbour)."
)
@click.option(
    "--command",
    metavar="COMMAND",
    help="Predict by this, with {input} and {output} in it, instead of reading predictions: then "
    "PREDICTIONS are images.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="Limit of COMMAND for a case.",
)
@click.option(
    "--memory",
    type=click.FloatRange(0.1),
    default=8.0,
    show_default=True,
    metavar="GIB",
    help="Limit of COMMAND for a case.",
)
@click.option(
    "--gpus", type=click.FloatRange(0), default=0.0, show_default=True, help="Of COMMAND, a case."
)
@click.option("--address", help="Work on the Ray cluster at this address; else embedded.")
@CPUS
def score_files(
    predictions: Path,
    labels: Path,
    task_name: str,
    out: Path,
    name: str,
    tolerance: str,
    predictions_layout: str,
    labels_layout: str,
    resample: bool,
    command: str | None,
    seconds: float,
    memory: float,
    gpus: float,
    address: str | None,
    cpus: int | None,
) -> None:
    """Score PREDICTIONS against LABELS: Dice, surface Dice (NSD), HD95 and volumes of each class.

    Both are folders, with a file for each case, or a folder for each case with a file for each
    class (NIfTI, NRRD, DICOM). The same command resumes, and scores what is new.

    \b
    benchmd segment score unet/ labels/ --task abdomen9 --labels-layout abdomenatlas --out unet-run
    benchmd segment score images/ labels/ --task spleen --out run \\
        --command "docker run --rm --network none -v /data:/data IMAGE {input} {output}"
    """
    from benchmd_ray.benchmarks.touchstone.files import Asked, score
    from benchmd_ray.benchmarks.touchstone.submission import Submission
    from benchmd_ray.benchmarks.touchstone.tasks import task_named

    submission = None
    if command is not None:
        submission = Submission(command, seconds, int(memory * 2**30), gpus)
    asked = Asked(
        task=task_named(task_name),
        predictions=predictions,
        labels=labels,
        out=out,
        tolerance=tolerance,
        layouts=(labels_layout, predictions_layout),
        resample=resample,
        name=name,
        submission=submission,
    )
    outcome = score(asked, address=address, cpus=cpus or 1, say=click.echo)
    _print(outcome, out)
    if not outcome.manifest.cases:
        sys.exit(1)


def _print(outcome: Outcome, out: Path) -> None:
    from benchmd_ray.benchmarks.touchstone.cases import SCORES, read_scored
    from benchmd_ray.errors import count_of

    manifest, frame = outcome.manifest, read_scored(out)
    width = max(len("class"), *map(len, manifest.classes))
    click.echo(
        f"{manifest.algorithm}, {manifest.task}, {count_of(len(manifest.cases), 'case')}; n: cases "
        "whose reference has the class"
    )
    click.echo(f"{'class':{width}}     n    DSC    NSD        HD95 median  missed  spurious")
    for name in manifest.classes:
        own = frame[frame["class"] == name]
        there = own[own["code"].isin(["both", "missed"])]
        counts = own["code"].value_counts()
        tolerance = f"@{manifest.tolerance[name]:g}mm"
        dsc, nsd = there["dsc"].mean(), there["nsd"].mean()
        click.echo(
            f"{name:{width}} {len(there):>5} {dsc:>6.3f} {nsd:>6.3f} "
            f"{tolerance:7} {there['hd95'].median():>8.2f} mm {counts.get('missed', 0):>7} "
            f"{counts.get('spurious', 0):>9}"
        )
    overlapping = sum(bool(one["overlapping"]) for one in manifest.cases.values())
    if overlapping:
        click.echo(
            f"masks overlap in {count_of(overlapping, 'case')}: each class is scored from its own"
        )
    if manifest.with_network:
        cases = count_of(len(manifest.with_network), "case")
        click.echo(f"the command had network on {cases}: the system does not let users cut it")
    for name, reason in list(outcome.quarantined.items())[:SHOWN]:
        click.echo(f"quarantined: {name}: {reason}")
    if (more := len(outcome.quarantined) - SHOWN) > 0:
        click.echo(f"and {count_of(more, 'other')}, see {out / 'quarantine.json'}")
    click.echo(f"written: {out / SCORES}")
