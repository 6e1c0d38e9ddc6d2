"""The command that writes a run's model for others: ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmd_ray.cli.allowed import ALLOW
from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import CATALOG, FOLDER, STORE
from benchmd_ray.console.terminal import echo

if TYPE_CHECKING:
    from benchmd_ray.storage.location import Location


@main.command()
@click.argument("run", type=STORE)
@click.option("--out", type=FOLDER, required=True, help="Folder to write, empty or not there.")
@click.option("--torch-export", is_flag=True, help="Add model.pt2, which needs PyTorch only.")
@click.option("--onnx", is_flag=True, help="Add model.onnx (needs the extra onnx).")
@click.option(
    "--catalog",
    type=CATALOG,
    help="Compare model.pt2 and model.onnx with the model on records of this catalog; else on "
    "seeded noise.",
)
@ALLOW
def export(
    run: Path, out: Path, catalog: Location | None, *, torch_export: bool, onnx: bool
) -> None:
    """Write the model of the finished RUN for others: weights, config.json and a model card.

    The folder is laid out as the Hugging Face hub has it. Its card states the data with their
    licences, the scores with their intervals, and the limits.

    \b
    benchmd export runs/transfer-… --out model
    benchmd export runs/transfer-… --out model --torch-export --onnx --catalog catalogs/ptb-xl
    """
    from benchmd_ray.export.model import export_run
    from benchmd_ray.runs.store import read_run

    done = export_run(read_run(run), out, catalog=catalog, torch_export=torch_export, onnx=onnx)
    for each in done.programs:
        echo(f"{each.file} {each.checked}")
    echo(f"written: {done.folder}")
