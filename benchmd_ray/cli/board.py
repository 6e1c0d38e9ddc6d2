"""``benchmd pack`` and ``benchmd board``: bundles of predictions, boards of recomputed scores."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from benchmd_ray.cli.group import main
from benchmd_ray.cli.options import CATALOG, EXISTING, FILE, FOLDER, STORE
from benchmd_ray.cli.report import RESAMPLES
from benchmd_ray.console.terminal import echo
from benchmd_ray.errors import BenchmdError, count_of

BOARD = click.option(
    "--board",
    "board",
    required=True,
    metavar="NAME|FILE",
    help="Key of the board, by which records are hashed: a file, or a name, which anybody can "
    "guess.",
)
DIGESTS = "File of `benchmd board digest`: the official records, patients and labels."


@main.command()
@click.argument("stores", type=STORE, nargs=-1, required=True)
@click.option("--out", type=FOLDER, required=True, help="Bundle: a folder that does not exist.")
@BOARD
@click.option("--submitter", required=True, metavar="NAME", help="Name that the board shows.")
@click.option("--title", default="", help="A sentence on what it is.")
@click.option("--licence", default="", help="Terms of the predictions, such as CC-BY-4.0.")
@click.option(
    "--dataset", "datasets", multiple=True, metavar="NAME", help="Only this one (repeatable)."
)
@click.option(
    "--detection",
    is_flag=True,
    help="Add the scores of detectors (--evaluate ood), for a board that scores them.",
)
@click.option(
    "--key", type=EXISTING, help="Private Ed25519 key (PEM) to sign with. Needs the extra board."
)
@click.option("--yes", is_flag=True, help="You have read what leaves, and want it written.")
def pack(
    stores: tuple[Path, ...], *, out: Path, board: str, key: Path | None, yes: bool, **choice: Any
) -> None:
    """Pack the transfers of STORES into a bundle, from which others compute their scores.

    It has the scores of each record with its keyed hash, and what made them; it has no labels,
    patients, signals or weights. What leaves is listed, and written with --yes.

    \b
    benchmd pack runs --out bundle --board ecg-2026 --submitter "A lab" --yes
    benchmd pack runs --out bundle --board board.key --submitter "A lab" --key me.pem --yes
    """
    from benchmd_ray.board.keys import board_key
    from benchmd_ray.board.pack import pack_stores

    for line in pack_stores(stores, out, board_key(board), key_file=key, keep=yes, **choice):
        echo(line)
    echo(f"written: {out}" if yes else "Nothing was written. If all of this may leave, add --yes.")


@main.group()
def board() -> None:
    """Make a board: every score is computed from bundles of predictions and official labels."""


@board.command("digest")
@click.argument("catalogs", type=CATALOG, nargs=-1, required=True)
@BOARD
@click.option("--out", type=FILE, required=True, help="Parquet file to write.")
@click.option(
    "--subgroups",
    is_flag=True,
    help="Add age bands and sexes, for scores of subgroups. Such a file cannot be published.",
)
@click.option(
    "--detection",
    is_flag=True,
    help="Add the records on which detectors of models trained on CATALOGS are scored.",
)
@click.option(
    "--also",
    type=CATALOG,
    multiple=True,
    metavar="PATH",
    help="With --detection: catalogs of other datasets, as for `benchmd run` (repeatable).",
)
def board_digest(
    catalogs: tuple[Path, ...],
    *,
    board: str,
    out: Path,
    subgroups: bool,
    detection: bool,
    also: tuple[Path, ...],
) -> None:
    """Write the digests of official CATALOGS: which records are scored, their patients and labels.

    Names are hashed by the board's key; labels are as they are. Each dataset is scored on its test
    split, or where it has none on its validation split.

    \b
    benchmd board digest catalogs/georgia catalogs/cpsc --board ecg-2026 --out official.parquet
    """
    from benchmd_ray.board.keys import PUBLIC, board_key
    from benchmd_ray.board.official import read_official, write_digests
    from benchmd_ray.data.catalog import open_catalog
    from benchmd_ray.service.scored import detected_records

    if also and not detection:
        raise click.UsageError("--also goes with --detection.")
    opened = [open_catalog(path) for path in catalogs]
    if out.exists():
        raise BenchmdError(f"{out} exists: nothing was written. Choose another --out.")
    detections = detected_records(catalogs, also) if detection else {}
    cases = (case for of in detections.values() for case in of.records["use_case"].to_pylist())
    if detection and not any(cases):
        raise BenchmdError(
            "no dataset has a set out of distribution that can be scored: name other datasets by "
            "--also, as for `benchmd run --evaluate ood`."
        )
    key = board_key(board)
    write_digests(opened, key, out, subgroups=subgroups, detections=detections)
    official = read_official(out)
    for name, dataset in official.datasets.items():
        patients = count_of(dataset.patients, "patient")
        sizes = [count_of(len(dataset.records), "record"), patients]
        if detection:
            sets = sum((dataset.detected.counts if dataset.detected else {}).values())
            sizes.append(f"{count_of(sets, 'set')} out of distribution")
        if subgroups:
            sizes.append(f"groups by {' and '.join(dataset.subgroups) or 'nothing'}")
        classes = "; ".join(dataset.about.task.classes)
        echo(f"{name} ({dataset.about.split}): {', '.join(sizes)}: {classes}")
    if key.public:
        echo(PUBLIC)
    echo(f"written: {out}, {out.stat().st_size:,} bytes, with labels: {official.sha256}")


@board.command("build")
@click.argument("bundles", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True)
@click.option("--catalog-digests", "digests", type=EXISTING, required=True, help=DIGESTS)
@click.option("--out", type=FOLDER, required=True, help="Folder of the site.")
@click.option("--title", default="Board", show_default=True, help="Heading of the site.")
@RESAMPLES
@click.option(
    "--publish-labels", is_flag=True, help="Add the digests, so that anybody can verify the site."
)
@click.option(
    "--submitters",
    type=EXISTING,
    help="File with a public key and a name on each line: others cannot submit by these names.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 if a bundle is refused.")
def board_build(
    bundles: tuple[Path, ...],
    *,
    digests: Path,
    out: Path,
    title: str,
    resamples: int,
    publish_labels: bool,
    submitters: Path | None,
    strict: bool,
) -> None:
    """Score BUNDLES, compare them, and write a site of static pages.

    Nothing that a bundle says of scores is read. Bundles that cannot be taken are refused with the
    reason. Unchanged ones are taken from this machine's cache. The pages need no server.

    \b
    benchmd board build bundles/* --catalog-digests official.parquet --out site
    """
    from benchmd_ray.board.build import board_of
    from benchmd_ray.board.content import FLAGS
    from benchmd_ray.board.official import read_official
    from benchmd_ray.board.site import require_site, write_site
    from benchmd_ray.board.submitters import read_submitters
    from benchmd_ray.console.progress import progress

    require_site(out)
    keys = {} if submitters is None else read_submitters(submitters)
    with closing(progress("board", len(bundles), "bundles")) as display:
        made = board_of(
            bundles,
            read_official(digests),
            title=title,
            resamples=resamples,
            submitters=keys,
            done=display.update,
        )
    data = write_site(made, out, labels=digests if publish_labels else None)
    for entry in data["entries"]:
        if entry["flag"] in FLAGS:
            echo(f"{entry['flag']}: {entry['name']} of {entry['whose']}, see {entry['page']}")
    for each in made.refused:
        echo(f"refused: {each.name}: {each.reason}")
    echo(f"written: {out / 'index.html'}, {count_of(len(data['entries']), 'entry')}")
    if strict and made.refused:
        sys.exit(1)


@board.command("verify")
@click.argument("site", type=FOLDER)
@click.option(
    "--catalog-digests", "digests", type=EXISTING, help=f"{DIGESTS} Default: those in SITE."
)
def board_verify(site: Path, *, digests: Path | None) -> None:
    """Compute the SITE of a board again from its bundles, and say what differs.

    \b
    benchmd board verify site
    benchmd board verify site --catalog-digests official.parquet
    """
    from benchmd_ray.board.official import read_official
    from benchmd_ray.board.site import bundles_of, labels_of, verify
    from benchmd_ray.console.progress import progress

    official = read_official(digests or labels_of(site))
    echo(f"official labels{'' if digests else ' that the site publishes'}: {official.sha256}")
    with closing(progress("verify", len(bundles_of(site)), "bundles")) as display:
        differences = list(verify(site, official, display.update))
    for line in differences:
        echo(line)
    if differences:
        raise BenchmdError(f"{site} is not what its bundles give, see above.")
    echo(f"{site} is what its bundles and the official labels give.")
