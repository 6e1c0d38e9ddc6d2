"""``benchmd catalog``: build catalogs and inspect them."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import (
    ADDRESS,
    CATALOG,
    FILE,
    FOLDER,
    JSON,
    Real,
    complete_dataset,
    print_json,
    raw_options,
)
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.modality.card_folders import DEFAULT_FOLDER  # of the standard library only

if TYPE_CHECKING:
    from benchmd_ray.storage.location import Location


@main.group()
def catalog() -> None:
    """Build catalogs from raw datasets, and inspect them."""


@catalog.command("list")
@JSON
def catalog_list(*, as_json: bool) -> None:
    """List the datasets that have a card: by modality, sources first, then collections.

    For the terms of access and details see `benchmd catalog show NAME`.
    """
    from benchmd_ray.data.cards import broken_cards, cards
    from benchmd_ray.modality.card_folders import broken_packages
    from benchmd_ray.modality.modalities import broken_modalities
    from benchmd_ray.report.catalogs.describe import list_cards

    if as_json:
        print_json([asdict(card) for card in cards().values()])
    else:
        for line in list_cards(cards().values()):
            echo(line)
    broken = dict.fromkeys([*broken_packages().values(), *broken_modalities().values()])
    for why in (*broken, *broken_cards().values()):
        echo(f"broken: {why}", err=True)


@catalog.command("show")
@click.argument("name", shell_complete=complete_dataset)
@click.option(
    "--figures",
    type=FOLDER,
    help="Also draw the catalog into this folder (PNG, SVG): class balance, people, examples.",
)
@click.option(
    "--croissant",
    "as_croissant",
    is_flag=True,
    help="Print a catalog's Croissant metadata (JSON-LD), for a file in its folder.",
)
@JSON
def catalog_show(name: str, figures: Path | None, *, as_croissant: bool, as_json: bool) -> None:
    """Show the dataset NAME, or the catalog in the folder (or at the address in a bucket) NAME.

    For a dataset: what to download, from where and on which terms, the layout of its folder, and
    the resulting catalog. For a catalog: its content.

    \b
    benchmd catalog show ptb-xl
    benchmd catalog show catalogs/ptb-xl --figures figures/ptb-xl
    benchmd catalog show catalogs/ptb-xl --croissant > catalogs/ptb-xl/croissant.json
    """
    from benchmd_ray.data.catalog import Catalog, open_catalog
    from benchmd_ray.report.catalogs.describe import named, show

    if as_croissant:
        from benchmd_ray.data.croissant import croissant

        described = named(name)
        if not isinstance(described, Catalog):
            raise BenchmdError(
                f"{name} is a dataset, and Croissant metadata are of a catalog: name the folder of "
                "one, see `benchmd catalog build`; a folder of the same name is ./NAME."
            )
        print_json(croissant(described))
    elif as_json:
        described = named(name)
        print_json(described.manifest if isinstance(described, Catalog) else asdict(described))
    else:
        for line in show(name, figures is not None):
            echo(line)
    if figures is not None:
        from benchmd_ray.report.catalogs.figures import write_figures
        from benchmd_ray.storage.location import location

        opened = open_catalog(location(name), folds=True)
        for path in write_figures(opened, figures):
            echo(f"written: {path}")
        terms = opened.card.licence or "not stated in its card"
        echo(f"the examples are records; the dataset's terms: {terms}")


@catalog.command("new")
@click.argument("name")
@click.option("--from", "folder", type=FOLDER, required=True, help="Folder with the raw files.")
@click.option(
    "--out", type=FOLDER, default=DEFAULT_FOLDER, show_default=True, help="Folder of cards."
)
@click.option(
    "--croissant", type=FILE, help="Croissant file of the dataset: title, licence, citation, page."
)
def catalog_new(name: str, folder: Path, out: Path, croissant: Path | None) -> None:
    """Write a draft card for your dataset NAME, guessed from its folder.

    \b
    benchmd catalog new skin --from raw/skin
    benchmd catalog build skin --raw raw/skin --out catalogs/skin
    """
    from benchmd_ray.data.new_card import new_card

    paths, guess = new_card(name, folder, out, croissant)
    for path in paths:
        echo(f"written: {path}")
    for what in guess.guessed:
        echo(f"guessed: {what}")
    for what in guess.unknown:
        echo(f"not known: {what}")
    for what in guess.cautions:
        echo(f"CAUTION: {what}")
    if guess.inside:
        echo(f"note: the files are in {folder / guess.inside}, which is the --raw to name")
    cards = "" if out == DEFAULT_FOLDER else f" --cards {out}"
    raw = folder / guess.inside
    echo(f"next: benchmd catalog build {name}{cards} --raw {raw} --out catalogs/{name}")


@catalog.command("build")
@click.argument("name", shell_complete=complete_dataset)
@click.option(
    "--out", type=CATALOG, required=True, help="Folder of the catalog, or s3://BUCKET/PREFIX."
)
@raw_options
@click.option(
    "--allow-missing", is_flag=True, help="Accept another number of records than the card expects."
)
@click.option(
    "--max-quarantined",
    type=Real(0, 1),
    default=0.01,
    show_default=True,
    help="Largest accepted share of unreadable records.",
)
@click.option(
    "--retry-quarantined",
    is_flag=True,
    help="Read unreadable files again, together with all files of their shards.",
)
@click.option("--cpus", type=click.IntRange(1), default=None, help="CPUs of an embedded Ray.")
@ADDRESS
def catalog_build(name: str, raw: Path, out: Location, cpus: int | None, **options: Any) -> None:
    """Build a catalog of the dataset NAME, or the missing part of it.

    \b
    benchmd catalog build ptb-xl --raw ~/data/ptb-xl --out catalogs/ptb-xl
    benchmd catalog build mimic-cxr --raw ~/data/mimic-cxr --out catalogs/mimic-cxr \\
        --option images=all
    benchmd catalog build ptb-xl --raw /shared/ptb-xl --out s3://lab/catalogs/ptb-xl
    """
    from benchmd_ray.data.build import build
    from benchmd_ray.report.catalogs.describe_catalog import describe_catalog

    for line in describe_catalog(build(name, raw, out, cpus=cpus or 1, **options)):
        echo(line)


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
    for path in files_to_fetch(raw, card, chosen(card, **options)):
        echo(path)


@catalog.command("get")
@click.argument("name", shell_complete=complete_dataset)
@click.option("--out", type=FOLDER, default=".", show_default=True, help="Folder of the file.")
def catalog_get(name: str, out: Path) -> None:
    """Download the file of the open dataset NAME, and check it by the MD5 in its card.

    Those are the datasets of MedMNIST; for others see `benchmd catalog show NAME`.

    \b
    benchmd catalog get breastmnist --out raw
    """
    from benchmd_ray.data.cards import dataset_card
    from benchmd_ray.data.download import download, open_file

    path = download(open_file(dataset_card(name)), out, echo)
    raw = shlex.quote(str(path.parent))
    echo(f"build it: benchmd catalog build {name} --raw {raw} --out catalogs/{name}")


@catalog.command("locate")
@click.argument("name", shell_complete=complete_dataset)
@click.argument("records", nargs=-1, required=True, metavar="RECORD_ID...")
@raw_options
def catalog_locate(name: str, records: tuple[str, ...], raw: Path, **options: Any) -> None:
    """Print the raw files of records of the dataset NAME, found by listing the raw folder again.

    If a dataset's file names identify patients, its catalogs contain no file names.

    \b
    benchmd catalog locate ptb-xl --raw ~/data/ptb-xl HR00001 HR00002
    """
    from benchmd_ray.data.discovery import locate

    for record, path in locate(name, raw, records, **options).items():
        echo(f"{record}  {path}")


@catalog.command("verify")
@click.argument("path", type=CATALOG)
@click.option("--near", is_flag=True, help="Look for records that look alike, too.")
@click.option(
    "--against", type=CATALOG, help="Look for records that look like those of this catalog, too."
)
def catalog_verify(path: Location, near: bool, against: Location | None) -> None:
    """Check every shard of the catalog at PATH, and its counts against the card.

    Exits with 1 when the catalog is damaged. Records that look alike, such as resized copies, are
    only named; 100,000 records take minutes.

    \b
    benchmd catalog verify catalogs/ham10000 --near --against catalogs/bcn20000
    """
    from benchmd_ray.data.catalog import open_catalog
    from benchmd_ray.data.folds import sentence
    from benchmd_ray.data.near import near_duplicates
    from benchmd_ray.data.verify import verify

    opened = open_catalog(path, folds=True)
    result = verify(opened)
    for note in result.notes:
        echo(f"note: {note}")
    for fault in result.faults:
        echo(f"fault: {fault}", err=True)
    if result.faults:
        sys.exit(1)
    notes = near_duplicates(opened) if near else []
    if against is not None:
        notes += near_duplicates(opened, open_catalog(against, folds=True))
    for note in notes:
        echo(f"note: {note}")
    if "folds" in opened.manifest:
        echo(sentence(opened))
    shards = len(opened.manifest["shards"])
    echo(f"{path}: {opened.dataset}, {shards} shards, digest {opened.digest[:16]}: whole")


@catalog.command("export")
@click.argument("path", type=CATALOG)
@click.option("--out", type=FILE, required=True, help="HDF5 file to write.")
def catalog_export(path: Location, out: Path) -> None:
    """Write the catalog at PATH as one HDF5 file, with labels and build information.

    \b
    benchmd catalog export catalogs/lndb --out lndb.h5
    """
    from benchmd_ray.data.catalog import open_catalog
    from benchmd_ray.data.hdf5 import export_hdf5

    opened = open_catalog(path)
    export_hdf5(opened, out)
    rows = sum(split["records"] for split in opened.manifest["splits"].values())
    echo(f"{out}: {opened.dataset}, {count_of(rows, 'record')}, digest {opened.digest[:16]}")


@catalog.command("import")
@click.argument("file", type=FILE)
@click.option("--out", type=FOLDER, required=True, help="Folder of the catalog.")
def catalog_import(file: Path, out: Path) -> None:
    """Make a catalog from FILE, written by `benchmd catalog export`, with the same records.

    \b
    benchmd catalog import lndb.h5 --out catalogs/lndb
    """
    from benchmd_ray.data.hdf5 import import_hdf5
    from benchmd_ray.report.catalogs.describe_catalog import describe_catalog

    for line in describe_catalog(import_hdf5(file, out)):
        echo(line)
