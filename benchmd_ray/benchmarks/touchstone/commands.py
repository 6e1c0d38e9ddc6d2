"""``benchmd segment``: segmentations are scored from files, and algorithms compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmd_ray.cli.group import Commands
from benchmd_ray.cli.options import ADDRESS, CPUS, FILE, FOLDER, Real
from benchmd_ray.cli.report import print_table
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError, count_of

if TYPE_CHECKING:
    from benchmd_ray.benchmarks.touchstone.files import ScoreOutcome

PATH = click.Path(path_type=Path, exists=True)
SHOWN = 10
"""Quarantined cases that are printed."""


@click.group(cls=Commands)
def segment() -> None:
    """Score segmentations against references, from files, and compare algorithms."""


@segment.command("score")
@click.argument("predictions", type=PATH)
@click.argument("labels", type=PATH)
@click.option(
    "--task", "task_name", required=True, metavar="TASK", help="Task, or its card's path."
)
@click.option("--out", type=FOLDER, required=True, help="Folder for the scores.")
@click.option("--name", default="", help="Name of the algorithm in tables; default: the folder's.")
@click.option(
    "--tolerance",
    default="",
    metavar="MM",
    help="Tolerance of surface Dice: mm, or a preset of the task's card; default: the card's.",
)
@click.option(
    "--predictions-layout",
    default="",
    metavar="NAME",
    help="Layout of PREDICTIONS: label value → class.",
)
@click.option(
    "--labels-layout", default="", metavar="NAME", help="Layout of LABELS: label value → class."
)
@click.option(
    "--resample", is_flag=True, help="Put predictions on the reference's grid (nearest neighbour)."
)
@click.option(
    "--command",
    metavar="COMMAND",
    help="Predict with this command, which contains {input} and {output}; PREDICTIONS are then "
    "images.",
)
@click.option(
    "--seconds",
    type=Real(1),
    default=600.0,
    show_default=True,
    help="Limit for COMMAND on each case.",
)
@click.option(
    "--memory",
    type=Real(0.1, 2**20),
    default=8.0,
    show_default=True,
    metavar="GIB",
    help="Limit for COMMAND on each case.",
)
@click.option(
    "--gpus", type=Real(0), default=0.0, show_default=True, help="GPUs for COMMAND on each case."
)
@ADDRESS
@CPUS
def score_files(
    *,
    task_name: str,
    labels_layout: str,
    predictions_layout: str,
    command: str | None,
    seconds: float,
    memory: float,
    gpus: float,
    address: str | None,
    cpus: int | None,
    **asked: Any,
) -> None:
    """Score PREDICTIONS against LABELS: Dice, surface Dice (NSD), HD95 and volumes of each class.

    Both are folders, with a file for each case, or a folder for each case with a file for each
    class (NIfTI, NRRD, DICOM). The same command resumes, and scores what is new.

    \b
    benchmd segment score unet/ labels/ --task abdomen9 --labels-layout abdomenatlas --out unet-run
    benchmd segment score images/ labels/ --task spleen --name theirs --out run \\
        --command "docker run --rm --network none -v /data:/data IMAGE {input} {output}"
    """
    from benchmd_ray.benchmarks.touchstone.cases import QUARANTINE
    from benchmd_ray.benchmarks.touchstone.files import LOGS, ScoreRequest, score
    from benchmd_ray.benchmarks.touchstone.submission import Submission
    from benchmd_ray.benchmarks.touchstone.tasks import task_named

    submission, out = None, asked["out"]
    if command is not None and not asked["name"]:
        raise BenchmdError("--command needs --name, the name of the algorithm in tables.")
    if command is not None:
        submission = Submission(command, seconds, int(memory * 2**30), gpus)
    task, layouts = task_named(task_name), (labels_layout, predictions_layout)
    request = ScoreRequest(task=task, layouts=layouts, submission=submission, **asked)
    outcome = score(request, address=address, cpus=cpus or 1, say=echo)
    _print(outcome, out)
    if not outcome.manifest.cases:
        logs = f", what the command printed in {out / LOGS}" if submission else ""
        raise BenchmdError(
            f"none of {count_of(len(outcome.quarantined), 'case')} was scored: the reasons are "
            f"above and in {out / QUARANTINE}{logs}."
        )


def _number(value: float, width: int, digits: int) -> str:
    return f"{'–':>{width}}" if math.isnan(value) else f"{value:>{width}.{digits}f}"


def _print(outcome: ScoreOutcome, out: Path) -> None:
    from benchmd_ray.benchmarks.touchstone.cases import SCORES, read_scored
    from benchmd_ray.benchmarks.touchstone.summaries import PRESENT

    manifest, frame = outcome.manifest, read_scored(out)
    width = max(len("class"), *map(len, manifest.task.classes))
    for name, reason in sorted(outcome.quarantined.items())[:SHOWN]:
        echo(f"quarantined: {name}: {reason}")
    if (more := len(outcome.quarantined) - SHOWN) > 0:
        echo(f"and {count_of(more, 'other')}, see {out / 'quarantine.json'}")
    if not manifest.cases:
        return
    echo(
        f"{manifest.algorithm}, {manifest.task.name}, {count_of(len(manifest.cases), 'case')} "
        f"scored, {len(outcome.quarantined):,} quarantined; n: cases whose reference has the class"
    )
    echo(f"{'class':{width}}     n    DSC    NSD        HD95 median  missed  spurious")
    for name in manifest.task.classes:
        rows = frame[frame["class"] == name]
        there = rows[rows["code"].isin(PRESENT)]
        counts = rows["code"].value_counts()
        tolerance = f"@{manifest.tolerance[name]:g}mm"
        dsc, nsd = there["dsc"].mean(), there["nsd"].mean()
        echo(
            f"{name:{width}} {len(there):>5} {_number(dsc, 6, 3)} {_number(nsd, 6, 3)} "
            f"{tolerance:7} {_number(there['hd95'].median(), 8, 2)} mm "
            f"{counts.get('missed', 0):>7} "
            f"{counts.get('spurious', 0):>9}"
        )
    noted = {
        key: [case[key] for case in manifest.cases.values() if case.get(key)]
        for key in ("overlapping", "without_segment", "warnings")
    }
    cases = {key: count_of(len(values), "case") for key, values in noted.items()}
    if noted["overlapping"]:
        echo(f"masks overlap in {cases['overlapping']}: each class is scored from its own")
    if segments := noted["without_segment"]:
        echo(f"missing segments, scored as empty, in {cases['without_segment']}: {segments[0][0]}")
    if warnings := noted["warnings"]:
        echo(f"unusual files in {cases['warnings']}, such as {warnings[0][0]}")
    if manifest.with_network:
        those = count_of(len(manifest.with_network), "case")
        echo(f"the command had network access on {those}: the system does not let users block it")
    echo(f"written: {out / SCORES}")


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
    help="Also group by this column of the metadata (repeatable).",
)
@click.option(
    "--against",
    type=PATH,
    help="Another test set: a folder as for --scores, or a CSV of means (algorithm,class,mean).",
)
@click.option(
    "--images", type=FOLDER, help="Images of the cases, for pictures of the worst cases of RUNS."
)
@click.option(
    "--seconds-at-most",
    type=Real(0, min_open=True),
    help="Exclude algorithms that take longer for a volume on average.",
)
@click.option(
    "--missing",
    type=click.Choice(["exclude", "zero"]),
    default="exclude",
    show_default=True,
    help="Cases without a score of an algorithm: excluded for all, or counted as missed (DSC 0).",
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
    "--figures",
    type=click.Choice(["main", "none"]),
    default="main",
    show_default=True,
    help="Figures to draw, as SVG and PNG.",
)
@click.option(
    "--out",
    type=FOLDER,
    default=Path("comparison"),
    show_default=True,
    help="Folder for page, tables and figures.",
)
def compare_scores(
    *,
    runs: tuple[Path, ...],
    scores: Path | None,
    metadata: Path | None,
    also: tuple[str, ...],
    against: Path | None,
    images: Path | None,
    missing: str,
    figures: str,
    out: Path,
    **asked: Any,
) -> None:
    """Compare the algorithms of RUNS, folders that `benchmd segment score` wrote.

    Writes comparison.html, which is self-contained, the tables as CSV, and the figures.

    \b
    benchmd segment compare runs/unet runs/swin --metadata meta.csv --out comparison
    benchmd segment compare --scores totalsegmentator_results --metadata metaTotalSeg.csv
    """
    from benchmd_ray.benchmarks.touchstone import report
    from benchmd_ray.benchmarks.touchstone.comparing import compare
    from benchmd_ray.benchmarks.touchstone.joining import completed
    from benchmd_ray.benchmarks.touchstone.layouts import images_of
    from benchmd_ray.benchmarks.touchstone.metadata import read_metadata
    from benchmd_ray.benchmarks.touchstone.report_page import write_comparison
    from benchmd_ray.benchmarks.touchstone.scored import read_against, read_scores

    if also and metadata is None:
        raise BenchmdError("--group names a column of the metadata: add --metadata.")
    read = read_scores(runs, scores)
    comparison = compare(
        completed(read) if missing == "zero" else read,
        metadata=read_metadata(metadata, also) if metadata else None,
        against=read_against(against) if against else None,
        other=against.name if against else "",
        **asked,
    )
    print_table(report.headline(comparison))
    echo()
    for note in comparison.notes:
        echo(note)
    pictures = images_of(images) if images else {}
    for line in write_comparison(comparison, out, pictures, figures=figures != "none"):
        echo(line)
