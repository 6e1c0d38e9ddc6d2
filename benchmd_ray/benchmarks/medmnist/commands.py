"""``benchmd medmnist``: from one of its files to a tuned model; scores next to the published."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmd_ray.cli.allowed import ALLOW
from benchmd_ray.cli.group import Commands
from benchmd_ray.cli.options import ADDRESS, CPUS, FILE, FOLDER, GPUS, HELD, STORE, TFLOPS
from benchmd_ray.cli.report import RESAMPLES, print_report, print_table
from benchmd_ray.cli.tune import print_searches
from benchmd_ray.console.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(cls=Commands)
def medmnist() -> None:
    """Tune on a file of MedMNIST v2, and score runs next to its published results.

    MedMNIST has 18 open datasets of small images and volumes.

    Its files can also be used like any dataset: `benchmd catalog build`, then `run` and `tune`
    with `--bench medmnist`.
    """


@medmnist.command("tune")
@click.argument("files", type=click.Path(path_type=Path, exists=True), nargs=-1, metavar="FILE...")
@click.option(
    "--out", type=FOLDER, default=Path("medmnist"), show_default=True, help="Folder for everything."
)
@click.option(
    "--start",
    "starts",
    multiple=True,
    metavar="NETWORK[-SIZE]",
    help="Baseline that a search starts from (repeatable: a search each, of the datasets that it "
    "fits); else resnet18, for volumes resnet18-3d.",
)
@click.option(
    "--small",
    is_flag=True,
    help="Narrow networks and few epochs: minutes on a laptop. Such a baseline is not MedMNIST's.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="A.B=VALUE",
    help="Change one setting of the start; `benchmd settings` lists them all.",
)
@click.option("--space", type=FILE, help="YAML file of your own search space.")
@HELD
@click.option(
    "--technique",
    "techniques",
    multiple=True,
    help="Technique that is searched (repeatable), such as scratch. Default: all that fit.",
)
@click.option("--trials", type=click.IntRange(1), help="Trials of each search.")
@click.option("--hours", type=float, help="Wall-clock hours of each search. Default: 20 trials.")
@click.option(
    "--single",
    is_flag=True,
    help="Also train start and choice on all labels, once for each --seed.",
)
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    default=(0,),
    show_default=True,
    help="Seed of the search; of several (repeatable) the others are for --single.",
)
@click.option(
    "--any-md5", is_flag=True, help="Accept a file that is not an official one; results say so."
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be searched, for how long, and stop; without FILE, of all datasets.",
)
@GPUS
@TFLOPS
@ADDRESS
@ALLOW
@CPUS
def tune_files(
    files: tuple[Path, ...],
    *,
    out: Path,
    address: str | None,
    cpus: int | None,
    dry_run: bool,
    gpus: int | None,
    tflops: float | None,
    **asked: Any,
) -> None:
    """Tune on FILE, such as breastmnist.npz: catalog, search, training and report.

    Several files, or the files of a folder, are searched one after the other.

    The search tries random kernels, published encoders whose weights are on this machine, and
    networks from scratch, from the baseline on, on folds of the training and validation splits.
    The fold models of the baseline and of the choice are then averaged, and each scores the test
    split once. The same command resumes an interrupted one.

    \b
    benchmd medmnist tune breastmnist.npz --small
    benchmd medmnist tune pathmnist.npz --trials 60 --start resnet18-224
    benchmd medmnist tune FOLDER --start resnet18 --start resnet50 --start resnet18-acs
    benchmd medmnist tune --dry-run --gpus 8 --cpus 64
    """
    from benchmd_ray.benchmarks.medmnist.files import built, cards_of, file_tunings, usual_cards
    from benchmd_ray.service.tune_and_train import search_and_train

    if not files and not dry_run:
        raise click.UsageError("name a FILE, or add --dry-run.")
    if gpus is not None and not dry_run:
        raise click.UsageError("--gpus goes with --dry-run: nothing was started.")
    any_md5, store = asked.pop("any_md5"), out / "runs"
    if asked["trials"] is None and asked["hours"] is None:
        asked["trials"] = 20
    files_by_dataset = cards_of(files, echo) if files else {}
    chosen = [card for card, _ in files_by_dataset.values()] if files_by_dataset else usual_cards()
    tunings = file_tunings(chosen, None if dry_run else out / "catalogs", **asked)
    if dry_run:
        asked_for = [tuning for _, tuning in tunings]
        machine = {"address": address, "cpus": cpus, "gpus": gpus, "tflops": tflops}
        to_run = "To search, name a FILE and leave --dry-run out."
        print_searches(asked_for, store, machine, to_run)
        return
    # All catalogs first, which takes minutes: a file that is refused ends it before any search.
    for name in dict.fromkeys(card.name for card, _ in tunings):
        card, file = files_by_dataset[name]
        built(card, file.parent, out / "catalogs" / name, echo, any_md5=any_md5, cpus=cpus)
    whole = True
    for _, tuning in tunings:
        whole &= search_and_train(tuning, store, say=echo, address=address, cpus=cpus)
    print_report([store], out / "report")
    echo()
    _print_scores([store], out / "scores")
    if not whole:
        sys.exit(1)


@medmnist.command("report")
@click.argument("paths", type=STORE, nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--out", type=FOLDER, help="Write the tables and MedMNIST's standard result files there."
)
@RESAMPLES
def scores(paths: tuple[Path, ...], out: Path | None, resamples: int) -> None:
    """Score RUNS (run folders or stores) on MedMNIST, next to the published results.

    AUC and ACC of the test split are those of MedMNIST's evaluator, with intervals; seeds are
    pooled.

    \b
    benchmd medmnist report runs
    benchmd medmnist report runs --out medmnist
    """
    _print_scores(paths, out, resamples)


def _print_scores(paths: Sequence[Path], out: Path | None, resamples: int = 1000) -> None:
    from benchmd_ray.benchmarks.medmnist.report import TABLES, notes, run_frame, write
    from benchmd_ray.report.analysis import analyse_stores

    analysis = analyse_stores(paths, resamples=resamples, curves=False)
    frame = run_frame(analysis)
    for table in TABLES:
        if table.printed is not None:
            print_table(table.printed(analysis))
    echo()
    for note in notes(analysis, frame):
        echo(note)
    if out is not None:
        for path in write(analysis, out):
            echo(f"written: {path}")
