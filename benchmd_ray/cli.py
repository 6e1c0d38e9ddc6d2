"""Commands: parse, call, print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from click.shell_completion import get_completion_class

from benchmd_ray import __version__
from benchmd_ray.errors import BenchmdError

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


class Commands(click.Group):
    """Prints errors that a user can mend without a traceback, and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BenchmdError as error:
            click.echo(f"error: {error}", err=True)
        except KeyboardInterrupt:
            click.echo("interrupted: the same command goes on where it stopped", err=True)
            ctx.exit(130)
        except OSError as error:  # a full disk, a folder that cannot be written, …
            click.echo(f"error: {error}", err=True)
        ctx.exit(1)


def complete_dataset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of datasets, for the shell."""
    from benchmd_ray.data.cards import cards

    return [name for name in cards() if name.startswith(incomplete)]


def complete_modality(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of modalities, for the shell."""
    from benchmd_ray.modalities import MODALITIES

    return [name for name in MODALITIES if name.startswith(incomplete)]


def complete_technique(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of pretraining techniques, for the shell."""
    from benchmd_ray.ssl import TECHNIQUES

    return [name for name in TECHNIQUES if name.startswith(incomplete)]


def execution_options(command: F) -> F:
    """Options of every command that computes."""
    for option in (
        click.option(
            "--address",
            help="Work on the Ray cluster at this address (auto, host:port); else embedded.",
        ),
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="A.B=VALUE",
            help="Change one setting, after --settings; `benchmd settings` lists them all.",
        ),
        click.option("--settings", "settings_file", type=FILE, help="YAML file of settings."),
        click.option(
            "--store",
            type=FOLDER,
            default=Path("runs"),
            show_default=True,
            help="Folder of all runs; on a cluster, one that all nodes see.",
        ),
    ):
        command = option(command)
    return command


def assigned(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE arguments as a dictionary."""
    for value in values:
        if not value.partition("=")[1] or value.startswith("="):
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE.")
    return dict(value.split("=", 1) for value in values)


def raw_options(command: F) -> F:
    """Options of every command that lists a raw folder."""
    for option in (
        click.option(
            "--option",
            "options",
            multiple=True,
            callback=assigned,
            metavar="NAME=VALUE",
            help="Set an option of the dataset; `benchmd catalog show NAME` lists them.",
        ),
        click.option(
            "--split-table", type=FILE, help="BenchMD's released split table (--policy released)."
        ),
        click.option(
            "--policy",
            default="clean",
            show_default=True,
            help="clean: leak-free splits and labels. released: as BenchMD released them.",
        ),
        click.option("--raw", type=FOLDER, required=True, help="Folder with the raw files."),
    ):
        command = option(command)
    return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """BenchMD: one benchmark of modality-agnostic learning over medical modalities.

    \b
    The way of the data:
      benchmd catalog build   raw files       -> a catalog (Parquet shards, manifest)
      benchmd pretrain        source catalog  -> a pretrained encoder
      benchmd transfer        labels          -> a classifier, scored on source and targets
      benchmd report          predictions     -> the results table

    Settings default to the fixed protocol of the paper. A run is named by the hash of what
    determines it: repeated commands do nothing twice and go on where they were interrupted.

    \b
    Try it without any data:  benchmd demo
    """


@main.group()
def catalog() -> None:
    """Build catalogs from raw datasets, and inspect them."""


@catalog.command("list")
def catalog_list() -> None:
    """List the datasets that have a card: by modality, sources first.

    The terms of access and everything else: `benchmd catalog show NAME`.
    """
    from benchmd_ray.data.cards import cards
    from benchmd_ray.results.describe import list_cards

    click.echo(list_cards(cards().values()))


@catalog.command("show")
@click.argument("name", shell_complete=complete_dataset)
@click.option(
    "--figures",
    type=FOLDER,
    help="Also draw the catalog into this folder (PNG, SVG): class balance, people, examples.",
)
def catalog_show(name: str, figures: Path | None) -> None:
    """Show the dataset NAME, or the catalog in the folder NAME.

    Of a dataset: what to download, from where and on which terms, how its folder must look, and
    what a build makes of it. Of a catalog: what it holds.

    \b
    benchmd catalog show ptb-xl
    benchmd catalog show catalogs/ptb-xl --figures figures/ptb-xl
    """
    from benchmd_ray.results.describe import show

    click.echo(show(name, figures is not None))
    if figures is not None:
        from benchmd_ray.data.catalog import open_catalog
        from benchmd_ray.results.figures import write_figures

        opened = open_catalog(Path(name))
        for path in write_figures(opened, figures):
            click.echo(f"written: {path}")
        click.echo(f"the examples are records; the dataset's terms: {opened.card.licence}")


@catalog.command("build")
@click.argument("name", shell_complete=complete_dataset)
@click.option("--out", type=FOLDER, required=True, help="Folder of the catalog.")
@raw_options
@click.option(
    "--allow-missing", is_flag=True, help="Accept another number of records than the card expects."
)
@click.option(
    "--max-quarantined",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Largest accepted share of unreadable records.",
)
@click.option(
    "--retry-quarantined",
    is_flag=True,
    help="Read files again that could not be read, and what shares a shard with them.",
)
@click.option("--cpus", type=click.IntRange(1), default=None, help="CPUs of an embedded Ray.")
@click.option("--address", help="Work on the Ray cluster at this address; else embedded.")
def catalog_build(name: str, raw: Path, out: Path, cpus: int | None, **options: Any) -> None:
    """Build a catalog of the dataset NAME, or what is missing of it.

    \b
    benchmd catalog build ptb-xl --raw ~/data/ptb-xl --out catalogs/ptb-xl
    benchmd catalog build mimic-cxr --raw ~/data/mimic-cxr --out catalogs/mimic-cxr \\
        --option images=all
    """
    from benchmd_ray.data.build import build
    from benchmd_ray.results.describe import describe_catalog

    click.echo(describe_catalog(build(name, raw, out, cpus=cpus or 1, **options)))


@catalog.command("files")
@click.argument("name", type=click.Choice(["mimic-cxr"]))
@raw_options
def catalog_files(name: str, raw: Path, **options: Any) -> None:
    """Print the image files of NAME that a build reads, from its tables in the folder --raw.

    \b
    benchmd catalog files mimic-cxr --raw ~/data/mimic-cxr > files.txt
    """
    from benchmd_ray.data.cards import dataset_card
    from benchmd_ray.data.datasets.mimic_cxr import files_to_fetch
    from benchmd_ray.data.discovery import chosen

    card = dataset_card(name)
    click.echo("\n".join(files_to_fetch(raw, card, chosen(card, **options))))


@catalog.command("locate")
@click.argument("name", shell_complete=complete_dataset)
@click.argument("records", nargs=-1, required=True, metavar="RECORD_ID...")
@raw_options
def catalog_locate(name: str, records: tuple[str, ...], raw: Path, **options: Any) -> None:
    """Print the raw file of records of the dataset NAME, by listing the raw folder again.

    For datasets whose file names name patients, catalogs hold no file names.

    \b
    benchmd catalog locate ptb-xl --raw ~/data/ptb-xl HR00001 HR00002
    """
    from benchmd_ray.data.locate import locate

    for record, path in locate(name, raw, records, **options).items():
        click.echo(f"{record}  {path}")


@catalog.command("verify")
@click.argument("path", type=FOLDER)
def catalog_verify(path: Path) -> None:
    """Check every shard of the catalog at PATH, and its counts against the card.

    Exits with 1 when the catalog is damaged.
    """
    from benchmd_ray.data.catalog import open_catalog
    from benchmd_ray.data.verify import verify

    opened = open_catalog(path)
    result = verify(opened)
    for note in result.notes:
        click.echo(f"note: {note}")
    for fault in result.faults:
        click.echo(f"fault: {fault}", err=True)
    if result.faults:
        sys.exit(1)
    shards = len(opened.manifest["shards"])
    click.echo(f"{path}: {opened.dataset}, {shards} shards, digest {opened.digest[:16]}: whole")


@catalog.command("export")
@click.argument("path", type=FOLDER)
@click.option("--out", type=FILE, required=True, help="HDF5 file to write.")
def catalog_export(path: Path, out: Path) -> None:
    """Write the catalog at PATH as one HDF5 file, with its labels and how it was built.

    \b
    benchmd catalog export catalogs/lndb --out lndb.h5
    """
    from benchmd_ray.data.catalog import open_catalog
    from benchmd_ray.data.hdf5 import export_hdf5

    opened = open_catalog(path)
    export_hdf5(opened, out)
    rows = sum(held["records"] for held in opened.manifest["splits"].values())
    click.echo(f"{out}: {opened.dataset}, {rows:,} records, digest {opened.digest[:16]}")


@catalog.command("import")
@click.argument("file", type=FILE)
@click.option("--out", type=FOLDER, required=True, help="Folder of the catalog.")
def catalog_import(file: Path, out: Path) -> None:
    """Make a catalog of FILE, which `benchmd catalog export` wrote; its records stay the same.

    \b
    benchmd catalog import lndb.h5 --out catalogs/lndb
    """
    from benchmd_ray.data.hdf5 import import_hdf5
    from benchmd_ray.results.describe import describe_catalog

    click.echo(describe_catalog(import_hdf5(file, out)))


@main.command()
@click.option("--catalog", "path", type=FOLDER, required=True, help="Catalog of the source.")
@click.option(
    "--technique",
    required=True,
    shell_complete=complete_technique,
    help="e-mix, shed or mae; for images also imagenet or imagenet+mae.",
)
@click.option(
    "--weights",
    type=FILE,
    help="ImageNet weights (model.safetensors of timm's ViT-Tiny); else downloaded.",
)
@execution_options
def pretrain(
    path: Path,
    technique: str,
    weights: Path | None,
    store: Path,
    settings_file: Path | None,
    assignments: tuple[str, ...],
    address: str | None,
) -> None:
    """Pretrain an encoder on the source's training split, without labels.

    Prints the run's folder.

    \b
    benchmd pretrain --catalog catalogs/ptb-xl --technique mae
    benchmd pretrain --catalog catalogs/ptb-xl --technique mae --set execution.workers=8
    benchmd pretrain --catalog catalogs/mimic-cxr --technique imagenet \\
        --weights model.safetensors
    """
    from benchmd_ray.service.execute import base_settings, pretrain_run
    from benchmd_ray.settings import load_settings
    from benchmd_ray.ssl import technique_named

    technique_named(technique)
    settings = load_settings(settings_file, assignments, base_settings(path, technique))
    run = pretrain_run(technique, path, store, settings, address, weights=weights)
    if held := run.description.get("weights"):
        left_out = ", ".join(held["left_out"]) or "nothing"
        click.echo(f"from {held['file']}, left out: {left_out}", err=True)
    click.echo(run.folder)


@main.command()
@click.option("--catalog", "path", type=FOLDER, required=True, help="Catalog of the source.")
@click.option(
    "--from", "upstream", type=FOLDER, help="Folder of a pretraining run; else from scratch."
)
@click.option(
    "--target", "targets", type=FOLDER, multiple=True, help="Catalog to evaluate zero-shot."
)
@execution_options
def transfer(
    path: Path,
    upstream: Path | None,
    targets: tuple[Path, ...],
    store: Path,
    settings_file: Path | None,
    assignments: tuple[str, ...],
    address: str | None,
) -> None:
    """Train on the source's labels; score its validation and the targets.

    Prints the run's folder.

    \b
    benchmd transfer --catalog catalogs/ptb-xl --from runs/pretrain-… --target catalogs/georgia
    benchmd transfer --catalog catalogs/ptb-xl --set transfer.mode=finetune \\
        --set transfer.labels=small
    """
    from benchmd_ray.results.store import read_run
    from benchmd_ray.service.execute import base_settings, transfer_run
    from benchmd_ray.settings import load_settings
    from benchmd_ray.ssl import SCRATCH

    technique = SCRATCH if upstream is None else read_run(upstream).description["technique"]
    run = transfer_run(
        path,
        store,
        load_settings(settings_file, assignments, base_settings(path, technique)),
        upstream=upstream,
        targets=targets,
        address=address,
    )
    click.echo(run.folder)


@main.command()
@click.argument("run", type=FOLDER)
@click.option("--catalog", "paths", type=FOLDER, multiple=True, required=True, help="Catalogs.")
@click.option("--set", "assignments", multiple=True, metavar="A.B=VALUE", help="Change a setting.")
@click.option("--address", help="Predict on the Ray cluster at this address; else in this process.")
def evaluate(
    run: Path, paths: tuple[Path, ...], assignments: tuple[str, ...], address: str | None
) -> None:
    """Score catalogs with the finished transfer RUN and write its predictions."""
    from benchmd_ray.results.store import read_run
    from benchmd_ray.service.execute import evaluate_run
    from benchmd_ray.settings import load_settings

    opened = read_run(run)
    settings = load_settings(assignments=assignments, base=opened.settings)
    for path in paths:
        click.echo(evaluate_run(opened, path, settings, address))


@main.command()
@click.argument("paths", type=FOLDER, nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--out", type=FOLDER, default=Path("report"), show_default=True, help="Folder for the tables."
)
def report(paths: tuple[Path, ...], out: Path) -> None:
    """Print the results table of RUNS (run folders or stores) and write it as CSV and Markdown."""
    from benchmd_ray.results.store import runs

    _report(runs(list(paths)), out)


def _report(found: Any, out: Path) -> None:
    from benchmd_ray.results import tables

    cells = tables.all_cells(found)
    click.echo(tables.text(tables.display_frame(cells)))
    click.echo()
    for note in [*tables.notes(cells), *tables.unfinished(found)]:
        click.echo(note)
    for path in tables.write_tables(cells, out):
        click.echo(f"written: {path}")


@main.command()
@click.option(
    "--out", type=FOLDER, default=Path("demo"), show_default=True, help="Folder for everything."
)
@click.option(
    "--modality",
    "modalities",
    multiple=True,
    shell_complete=complete_modality,
    help="Only this modality (repeatable); all seven otherwise.",
)
@click.option("--address", help="Work on the Ray cluster at this address; else embedded.")
def demo(out: Path, modalities: tuple[str, ...], address: str | None) -> None:
    """Run the whole benchmark on small synthetic data, in some minutes on two cores.

    \b
    benchmd demo                      # all seven modalities
    benchmd demo --modality ecg       # one of them
    """
    from benchmd_ray.results.store import runs
    from benchmd_ray.service.demo import demo as run_demo

    run_demo(out, click.echo, address, modalities)
    _report(runs([out / "runs"]), out / "report")  # also the modalities of earlier calls
    click.echo("The data are synthetic: the numbers show that everything works, and nothing else.")


@main.command()
@click.option("--settings", "settings_file", type=FILE, help="YAML file of settings.")
@click.option("--set", "assignments", multiple=True, metavar="A.B=VALUE", help="Change a setting.")
@click.option(
    "--modality",
    "modality_name",
    default="ecg",
    shell_complete=complete_modality,
    show_default=True,
    help="Whose fixed protocol to start from: ldct has another batch size than the others.",
)
def settings(settings_file: Path | None, assignments: tuple[str, ...], modality_name: str) -> None:
    """Print all settings as YAML; without further options these are the fixed protocol's."""
    from benchmd_ray.modalities import modality
    from benchmd_ray.settings import as_dict, fixed_settings, load_settings

    chosen = load_settings(settings_file, assignments, fixed_settings(modality(modality_name)))
    click.echo(yaml.safe_dump(as_dict(chosen), sort_keys=False), nl=False)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a SHELL.

    \b
    bash: eval "$(benchmd completion bash)"
    """
    found = get_completion_class(shell)
    assert found is not None  # the choices are click's own
    click.echo(found(main, {}, "benchmd", "_BENCHMD_COMPLETE").source())


if __name__ == "__main__":
    main()
