"""``benchmd ood``: use-cases, what to hold out, and a detector in front of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmd_ray.cli.group import Command, Commands
from benchmd_ray.cli.options import (
    CATALOG,
    DATA,
    FILE,
    FOLDER,
    MODALITY,
    assigned,
    complete_dataset,
)
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError, count_of

if TYPE_CHECKING:
    from benchmd_ray.storage.location import Location

NOTHING_HELD_OUT = "nothing held out; synthetic faults and unrelated datasets still apply"


@click.group(cls=Commands)
def ood() -> None:
    """Out-of-distribution detection: do detectors notice records that a model cannot judge?

    Start runs as for any benchmark: `benchmd run --catalog IN --also OTHERS --evaluate ood`.
    """


@ood.command("list")
def ood_list() -> None:
    """List the datasets that have use-cases, with held-out conditions and other datasets.

    Synthetic faults, white noise and unrelated datasets apply to every dataset.
    """
    from benchmd_ray.benchmarks.ood.cards import USE_CASES, in_distribution, use_cases

    for name in in_distribution():
        cases = use_cases(name)
        echo(name)
        for case in USE_CASES:
            conditions = ", ".join(cases.hold_out.get(case, ()))
            others = ", ".join(getattr(cases, case))
            if conditions:
                echo(f"  {case}, held out: {conditions}")
            if others:
                echo(f"  {case}, datasets: {others}")
        if not cases.conditions:
            echo(f"  {NOTHING_HELD_OUT}")


@ood.command("detectors")
def ood_detectors() -> None:
    """List the detectors with their publications."""
    from benchmd_ray.benchmarks.ood.methods import detectors

    methods = detectors()
    width = max(map(len, methods))
    for name, method in methods.items():
        learns = ", calibrated on other sets" if method.calibrate else ""
        echo(f"{name:{width}}  {method.source}{learns}")


@ood.command("demo")
@click.option(
    "--out", type=FOLDER, default=Path("ood-demo"), show_default=True, help="Folder for everything."
)
@MODALITY
def ood_demo(out: Path, modalities: tuple[str, ...]) -> None:
    """Run detection on small synthetic data of all modalities: a few minutes on two cores.

    Fails if a control fails: a change that the normalisation removes and a random half of the
    in-distribution patients must not be detected, white noise must be.

    \b
    benchmd ood demo                      # all seven modalities
    benchmd ood demo --modality ecg       # one of them
    """
    from benchmd_ray.benchmarks.ood.demo import demo

    demo(out, echo, modalities)
    echo("The data are synthetic: the numbers only show that everything works.")


@ood.command("build")
@click.argument("name", shell_complete=complete_dataset)
@click.option("--raw", type=FOLDER, required=True, help="Folder with the raw files.")
@click.option("--out", type=CATALOG, required=True, help="Folder of the catalog, or s3://….")
@click.option("--allow-missing", is_flag=True, help="Accept an incomplete download.")
@click.option("--option", "options", multiple=True, callback=assigned, metavar="NAME=VALUE")
@click.option(
    "--two-classes",
    is_flag=True,
    help="Tell normal from abnormal records, as the paper does, instead of the dataset's classes.",
)
def ood_build(
    name: str,
    raw: Path,
    out: Location,
    allow_missing: bool,
    options: dict[str, str],
    two_classes: bool,
) -> None:
    """Build a catalog of NAME that holds out the conditions of its use-cases (`benchmd ood list`).

    `benchmd catalog build --hold-out CONDITION` holds out others, and has all options.
    """
    from benchmd_ray.benchmarks.ood.cards import use_cases
    from benchmd_ray.data.build import build
    from benchmd_ray.data.cards import dataset_card
    from benchmd_ray.data.discovery import conditions_there
    from benchmd_ray.report.catalogs.describe_catalog import describe_catalog

    cases = use_cases(name)
    normal = cases.two_classes or cases.normal
    if two_classes and not normal:
        raise BenchmdError(
            f"the use-cases of {name} do not say which of its records are normal: build without "
            "--two-classes, or add two_classes: [CONDITION] to its card of use-cases."
        )
    if not cases.conditions:
        echo(f"{name}: {NOTHING_HELD_OUT}")
    there = conditions_there(dataset_card(name), raw, options, tuple(cases.conditions))
    if absent := [condition for condition in cases.conditions if condition not in there]:
        echo(f"not held out, as no record in {raw} is known to have it: {', '.join(absent)}")
    catalog = build(
        name,
        raw,
        out,
        hold_out=there,
        two_classes=normal if two_classes else (),
        allow_missing=allow_missing,
        options=options,
    )
    for line in describe_catalog(catalog):
        echo(line)


@ood.command("tune")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--catalog", type=CATALOG, required=True, help="Catalog that it was trained on.")
@click.option(
    "--also",
    type=CATALOG,
    multiple=True,
    help="Other catalogs, or folders of such, to detect (repeatable).",
)
@click.option(
    "--trials",
    type=click.IntRange(2),
    default=20,
    show_default=True,
    help="Number of trials; the first has the papers' hyperparameters.",
)
def ood_tune(run: Path, catalog: Location, also: tuple[Location, ...], trials: int) -> None:
    """Search the hyperparameters of detectors for the network of RUN.

    They are chosen on calibration records: for each set, on the other sets of its use-case. They
    are then compared with the papers' values on records that no trial has seen; a report has both.

    \b
    benchmd ood tune runs/RUN --catalog in/ptb-xl --also catalogs/georgia
    """
    from benchmd_ray.benchmarks.ood import TUNED, tuned_by
    from benchmd_ray.benchmarks.ood.report_rows import tuned_frame
    from benchmd_ray.runs.predictions import read_predictions
    from benchmd_ray.runs.store import read_run, shown
    from benchmd_ray.service.datasets import from_catalogs, read_also
    from benchmd_ray.service.execute import evaluate_run
    from benchmd_ray.settings.definition import Settings

    opened, asked = read_run(run), tuned_by(trials)
    datasets = from_catalogs(also).datasets if also else ()
    read = read_also(asked, from_catalogs((catalog,)).datasets[0], datasets)
    others = tuple(dataset.catalog for dataset in read if dataset.catalog is not None)
    # In this process: trials are what goes to the cluster.
    path = evaluate_run(opened, catalog, Settings(), evaluation=asked, also=others, within=True)
    rows = tuned_frame(read_predictions(path, TUNED.form))
    text = rows.to_string(index=False, float_format="{:.3f}".format, na_rep="")
    for line in text.split("\n"):
        echo(line)
    echo(f"written: {path}")
    echo(f"next: benchmd report {shown(run.parent)}")


@click.command("guard", cls=Command)
@click.argument("run", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--data",
    type=DATA,
    required=True,
    multiple=True,
    help="New data: a catalog, a file, or a folder of files (repeatable).",
)
@click.option(
    "--catalog",
    type=CATALOG,
    help="Catalog that the run was trained on; fits the detector and stores it with the run.",
)
@click.option("--detector", default="", help="Name of the detector (`benchmd ood detectors`).")
@click.option(
    "--out", type=FILE, default=Path("guard.csv"), show_default=True, help="CSV to write."
)
def guard(
    run: Path, data: tuple[Location, ...], catalog: Location | None, detector: str, out: Path
) -> None:
    """Screen new data for the model of RUN, a run or an export: accept or reject each record.

    Records that cannot be read are listed as unreadable, with the reason.

    \b
    benchmd guard runs/RUN --catalog catalogs/ptb-xl --data new/ --out verdicts.csv
    benchmd guard runs/RUN --data newer/ --out more.csv        # fitted before
    """
    import pandas as pd

    from benchmd_ray.benchmarks.ood import guard as guards
    from benchmd_ray.benchmarks.ood.network import Network
    from benchmd_ray.data.batches import Worker
    from benchmd_ray.data.catalog import open_catalog
    from benchmd_ray.evaluation.evaluation import Asked
    from benchmd_ray.files.atomic import replacing
    from benchmd_ray.report.formats import csv_text
    from benchmd_ray.settings.definition import Settings
    from benchmd_ray.training.engine import choose_device

    settings, worker = Settings(), Worker(device=choose_device("auto"))
    if catalog is not None:
        asked = Asked(run, open_catalog(catalog), settings, worker)
        guards.require_trained_on(asked)
        fitted = guards.fit(asked, detector)
        echo(f"fitted: {fitted.detector}, stored in {run / guards.FOLDER}")
    else:
        network = Network.of(run, worker, settings.execution.precision)
        fitted = guards.read_guard(run, network, detector)
    verdicts = list(guards.of_data(fitted, data))
    rows = [
        {
            "data": str(path),
            "record": verdict.record,
            "score": verdict.score,
            "threshold": fitted.threshold,
            "verdict": verdict.word,
            "reason": verdict.reason,
        }
        for path, verdict in verdicts
    ]
    with replacing(out) as partial:
        partial.write_text(csv_text(pd.DataFrame(rows)), "utf-8")
    counts = guards.summary([verdict for _, verdict in verdicts])
    counted = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    if ignored := guards.ignored(fitted, data):
        counted += f"; {count_of(ignored.total(), 'file')} ignored: {', '.join(sorted(ignored))}"
    echo(f"{fitted.detector}, {count_of(len(verdicts), 'record')}: {counted}")
    echo(f"written: {out}")
