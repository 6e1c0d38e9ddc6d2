"""Commands for single runs: ``pretrain``, ``transfer``, ``evaluate``, ``predict``, ``export``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmd_ray.cli.allowed import ALLOW
from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import (
    CATALOG,
    FILE,
    FOLDER,
    STORE,
    UPSTREAM,
    complete_dataset,
    complete_technique,
    execution_options,
)
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError, count_of

if TYPE_CHECKING:
    from benchmd_ray.storage.location import Location


@main.command()
@click.option(
    "--catalog",
    "paths",
    type=CATALOG,
    multiple=True,
    required=True,
    help="Catalog to pretrain on (repeatable: one pretraining on all, of the same signals).",
)
@click.option(
    "--technique",
    required=True,
    shell_complete=complete_technique,
    help="e-mix, shed, mae or random-kernels; for images also imagenet, imagenet+mae or "
    "hf:FOLDER (a transformers model); encoder:NAME (see `benchmd encoder list`); "
    "package.module:name (your own method); "
    "model:package.module:function (your own encoder).",
)
@click.option(
    "--weights",
    type=FILE,
    help="ImageNet weights (model.safetensors of timm's ViT-Tiny). Default: downloaded.",
)
@execution_options
def pretrain(
    *,
    paths: tuple[Location, ...],
    technique: str,
    weights: Path | None,
    store: Path,
    settings_file: Path | None,
    assignments: tuple[str, ...],
    address: str | None,
) -> None:
    """Pretrain an encoder on a source's training split, without labels.

    Several catalogs are pretrained on as one; of a target all records are read, and it is then
    not scored by what starts from the encoder. Prints the run's folder.

    \b
    benchmd pretrain --catalog catalogs/ptb-xl --technique mae
    benchmd pretrain --catalog catalogs/ptb-xl --technique mae --set execution.workers=8
    benchmd pretrain --catalog catalogs/georgia --catalog catalogs/cpsc --technique mae
    benchmd pretrain --catalog catalogs/mimic-cxr --technique imagenet \\
        --weights model.safetensors
    """
    from benchmd_ray.runs.store import shown
    from benchmd_ray.service.execute import base_settings, pretrain_run
    from benchmd_ray.settings.definition import load_settings
    from benchmd_ray.ssl import technique_named
    from benchmd_ray.ssl.brought import own_encoder

    technique_named(technique)
    base = base_settings(paths, technique, own_encoder(technique))
    settings = load_settings(settings_file, assignments, base)
    run = pretrain_run(technique, paths, store, settings, address=address, weights=weights)
    if file := run.description.get("weights"):
        skipped = ", ".join(file["skipped"]) or "nothing"
        echo(f"from {file['file']}, without: {skipped}", err=True)
    echo(shown(run.folder))


@main.command()
@click.option("--catalog", "path", type=CATALOG, required=True, help="Catalog of the source.")
@click.option(
    "--from",
    "upstream",
    type=UPSTREAM,
    metavar="RUN",
    help="Folder of a pretraining run, on this catalog or another one of such signals, or one that "
    "`benchmd export` wrote; an external encoder: encoder:NAME (`benchmd encoder list`), "
    "hf:FOLDER (a transformers model) or module:function (your own); or random-kernels. "
    "Default: from scratch.",
)
@click.option(
    "--target", "targets", type=CATALOG, multiple=True, help="Catalog to score, not trained on."
)
@execution_options
def transfer(
    *,
    path: Location,
    upstream: Path | str | None,
    targets: tuple[Location, ...],
    store: Path,
    settings_file: Path | None,
    assignments: tuple[str, ...],
    address: str | None,
) -> None:
    """Train on the source's labels; score its validation split and the targets.

    Prints the run's folder.

    \b
    benchmd transfer --catalog catalogs/ptb-xl --from runs/pretrain-… --target catalogs/georgia
    benchmd transfer --catalog catalogs/ptb-xl --set transfer.mode=finetune \\
        --set transfer.labels=small
    benchmd transfer --catalog catalogs/mimic-cxr --from hf:models/vit --set transfer.mode=knn
    """
    from benchmd_ray.runs.store import shown
    from benchmd_ray.service.execute import transfer_run, transfer_settings
    from benchmd_ray.settings.definition import load_settings

    settings = load_settings(settings_file, assignments, transfer_settings(path, upstream))
    run = transfer_run(path, store, settings, upstream=upstream, targets=targets, address=address)
    echo(shown(run.folder))


@main.command()
@click.argument("run", type=STORE)
@click.option("--catalog", "paths", type=CATALOG, multiple=True, required=True, help="Catalogs.")
@click.option(
    "--evaluation",
    default="",
    metavar="NAME",
    help="Evaluation, such as robustness. Default: classification, or segmentation of masks.",
)
@click.option("--set", "assignments", multiple=True, metavar="A.B=VALUE", help="Change a setting.")
@click.option(
    "--address", help="Predict on the Ray cluster at this address. Default: in this process."
)
@ALLOW
def evaluate(
    run: Path,
    paths: tuple[Location, ...],
    evaluation: str,
    assignments: tuple[str, ...],
    address: str | None,
) -> None:
    """Score catalogs with the finished transfer RUN and write its predictions.

    \b
    benchmd evaluate runs/RUN --catalog catalogs/georgia
    benchmd evaluate runs/RUN --catalog catalogs/ptb-xl --evaluation robustness
    """
    from benchmd_ray.evaluation.registry import evaluation_named
    from benchmd_ray.runs.predictions import shared_in
    from benchmd_ray.runs.store import read_run
    from benchmd_ray.service.execute import evaluate_run
    from benchmd_ray.settings.definition import load_settings

    asked = evaluation_named(evaluation) if evaluation else None
    opened = read_run(run)
    settings = load_settings(assignments=assignments, base=opened.settings)
    for path in paths:
        written = evaluate_run(opened, path, settings, address=address, evaluation=asked)
        echo(written)
        if text := shared_in(written):
            echo(f"note: {text}", err=True)


@main.command()
@click.argument("run", type=STORE)
@click.argument(
    "files", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True, metavar="FILES…"
)
@click.option(
    "--out", type=FILE, default=Path("predictions.csv"), show_default=True, help="CSV to write."
)
@click.option(
    "--card",
    default="",
    metavar="NAME",
    shell_complete=complete_dataset,
    help="Dataset whose card says how files are read. Default: that of the run's source.",
)
@ALLOW
def predict(run: Path, files: tuple[Path, ...], out: Path, card: str) -> None:
    """Predict the class of raw FILES, or of all files in folders, by the model of RUN.

    RUN is a finished transfer, an export or the folder of a search, whose models predict as one.
    Files are read and preprocessed as by a build. The CSV has a row for each record (for each scan
    if scans are scored) with its class and probabilities, and the verdict of the detector that
    `benchmd guard` fitted, if any. Files that cannot be read are listed with the reason. Files with
    a record in each row (`rows` in the card) need no class; IDs in a first column are kept.

    \b
    benchmd predict runs/transfer-… new/1.png new/2.png
    benchmd predict model new/ --out predictions.csv
    """
    from collections import Counter

    from benchmd_ray.export.averaged_runs import classifier_of
    from benchmd_ray.files.atomic import replacing
    from benchmd_ray.report.formats import csv_text

    _require_no_loss(out, run, files)
    frame = classifier_of([run]).predict_files(
        files, card=card, say=lambda line: echo(f"note: {line}", err=True)
    )
    with replacing(out) as partial:
        partial.write_text(csv_text(frame), "utf-8")
    is_read = frame["record"].notna()
    counts = Counter(frame["class"][is_read].replace("", "none"))
    parts = [f"{count:,} {name}" for name, count in counts.most_common()]
    if "verdict" in frame:
        parts.append(f"{int((frame['verdict'] == 'reject').sum()):,} rejected by the detector")
    if unread := int((~is_read).sum()):
        unit = "row" if "row" in frame else "file"
        parts.append(f"{count_of(unread, unit)} not predicted")
    echo(f"{count_of(int(is_read.sum()), 'record')}: {', '.join(parts)}")
    echo(f"written: {out}")


def _require_no_loss(out: Path, run: Path, files: Sequence[Path]) -> None:
    """Refuse to write predictions over a raw file, a part of the run or a device."""
    place = out.resolve()
    if place.exists() and (
        not place.is_file() or any(of.resolve() in (place, *place.parents) for of in (run, *files))
    ):
        raise BenchmdError(
            f"--out {out} exists, and is among the files to predict or in the run, or is no plain "
            "file: nothing was written. Choose another --out, such as a new file elsewhere."
        )


@main.command()
@click.argument("runs", type=STORE, nargs=-1, required=True)
@click.option(
    "--out", type=FOLDER, required=True, help="Folder to write, which must be empty or not exist."
)
@click.option("--torch-export", is_flag=True, help="Add model.pt2, which needs PyTorch only.")
@click.option("--onnx", is_flag=True, help="Add model.onnx (needs the extra onnx).")
@click.option(
    "--catalog",
    type=CATALOG,
    help="Compare model.pt2 and model.onnx with the model on records of this catalog. Default: on "
    "seeded noise.",
)
@ALLOW
def export(
    runs: tuple[Path, ...],
    out: Path,
    catalog: Location | None,
    *,
    torch_export: bool,
    onnx: bool,
) -> None:
    """Export the model of the finished RUN: weights, config.json and a model card.

    The folder has the layout of the Hugging Face hub. Its card states the data with their licences,
    the scores with their intervals, and the limitations. Several RUNS of one setting, or the
    folder of a search for the models that it delivers, become one model: the average of their
    probabilities.

    \b
    benchmd export runs/transfer-… --out model
    benchmd export runs/searches/tune-… --out model
    benchmd export runs/transfer-… --out model --torch-export --onnx --catalog catalogs/ptb-xl
    """
    from benchmd_ray.export.averaged_runs import exported_runs
    from benchmd_ray.export.model import export_run

    programs = {"torch_export": torch_export, "onnx": onnx}
    done = export_run(exported_runs(runs), out, catalog=catalog, **programs)
    for program in done.programs:
        echo(f"{program.file} {program.checked}")
    echo(f"written: {done.folder}")
