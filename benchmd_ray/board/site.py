"""A board's site: a folder of static pages with its data and the bundles, and its verification."""

from __future__ import annotations

import filecmp
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from benchmd_ray.board.build import LONGEST, Board, RefusedBundle, board_of, require_some
from benchmd_ray.board.bundle import Bundle, Refused, read_bundle
from benchmd_ray.board.content import content, frame
from benchmd_ray.board.official import read_official
from benchmd_ray.board.pages import pages
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.extensions.parts import package_versions
from benchmd_ray.files.atomic import remove, replacing, write_json
from benchmd_ray.files.integrity import Damaged, read_json
from benchmd_ray.report.formats import csv_text
from benchmd_ray.report.table import text_of
from benchmd_ray.schema.typed import Count, checked, form_fault

DATA, TABLE, BUILD = "board.json", "board.csv", "build.json"
BUNDLES, LABELS = "bundles", "official.parquet"
OURS = re.compile(r"(index|dataset-\d+-[a-z0-9-]*|entry-[0-9a-f]{16})\.html")
"""Names of pages."""
BUNDLE = re.compile("[0-9a-f]{64}")
MOST_TOLD = 20
"""Differing numbers of `verify`."""


Text = Annotated[str, Field(max_length=LONGEST), checked(str.isprintable, "printable text")]


class RefusedForm(TypedDict):
    name: Text
    reason: Text


class SiteForm(TypedDict):
    """Content of ``build.json``: what a site is made of next to its bundles."""

    title: Text
    resamples: Annotated[Count, Field(ge=1, le=100_000)]
    versions: dict[str, Any]
    refused: list[RefusedForm]


def write_site(board: Board, out: Path, *, labels: Path | None = None) -> list[str]:
    """Write the site; pages and bundles of earlier builds that are no longer on it are removed.

    Args:
        board: With entries.
        out: Folder: a site, empty, or missing.
        labels: File of official digests to publish, so that anybody can verify the site.

    Returns:
        Names of the pages.

    Raises:
        BenchmdError: The folder holds something else.
    """
    require_some(board)
    require_site(out)
    written = _write(board, out)
    (out / BUNDLES).mkdir(exist_ok=True)
    for bundle in board.bundles:
        _keep(bundle, out / BUNDLES / bundle.id)
    names = {bundle.id for bundle in board.bundles}
    for folder in (out / BUNDLES).iterdir():
        if BUNDLE.fullmatch(folder.name) and folder.name not in names:
            remove(folder)
    if labels is not None:
        with replacing(out / LABELS) as partial:
            shutil.copyfile(labels, partial)
    return written


def require_site(out: Path) -> None:
    """Refuse a folder that holds something other than a site."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / BUILD).is_file())):
        raise BenchmdError(
            f"{out} is not a board's site (no {BUILD}) and not empty: nothing was written. Choose "
            "another --out."
        )


def _write(board: Board, out: Path) -> list[str]:
    data, written = content(board), []
    for name, text in pages(board):
        with replacing(out / name) as partial:
            partial.write_text(text, "utf-8")
        written.append(name)
    with replacing(out / TABLE) as partial:
        partial.write_text(csv_text(frame(data)), "utf-8")
    with replacing(out / DATA) as partial:
        partial.write_text(json.dumps(data) + "\n", "utf-8")
    refused = [vars(each) for each in board.refused]
    about = {"title": board.title, "resamples": board.resamples, "refused": refused}
    write_json(out / BUILD, about | {"versions": package_versions()})
    for path in out.glob("*.html"):
        if OURS.fullmatch(path.name) and path.name not in written:
            path.unlink()
    return written


def _keep(bundle: Bundle, folder: Path) -> None:
    """Copy a bundle, unless it is there whole."""
    if folder.exists():
        try:
            if read_bundle(folder).id == bundle.id:
                return
        except Refused:
            pass
        remove(folder)
    shutil.copytree(bundle.folder, folder, symlinks=True)


def verify(
    site: Path, digests: Path | None, done: Callable[[int], None] = lambda count: None
) -> Iterator[str]:
    """Compute a site again from its bundles; what differs, line by line.

    ``digests`` is the file of official digests; None for the one that the site publishes.

    Raises:
        BenchmdError: It is not a site, or there are no official digests.
    """
    stated = _stated(site)
    path = digests or site / LABELS
    if not path.is_file():
        raise BenchmdError(
            f"{site} does not publish its official labels: name their file by --catalog-digests."
        )
    official = read_official(path)
    folders = bundles_of(site)
    for folder in folders:
        yield from _misnamed(folder)
    before = [RefusedBundle(each["name"], each["reason"]) for each in stated["refused"]]
    board = board_of(
        folders,
        official,
        title=stated["title"],
        resamples=stated["resamples"],
        fresh=True,
        refused=before,
        done=done,
    )
    for each in board.refused[len(before) :]:
        yield f"the bundle {each.name} is refused: {each.reason}"
    with TemporaryDirectory(prefix="benchmd-") as temporary:
        again = Path(temporary)
        _write(board, again)
        if stated["versions"] != package_versions():
            yield "it was built with other versions of packages: digits and figures may differ"
        yield from _differences(site / DATA, again / DATA)
        yield from _files(site, again)


def bundles_of(site: Path) -> list[Path]:
    """Folders of a site's bundles."""
    return sorted(folder for folder in (site / BUNDLES).glob("*") if folder.is_dir())


def _stated(site: Path) -> Mapping[str, Any]:
    remedy = "Build the site again with `benchmd board build`."
    try:
        stated = read_json(site / BUILD, remedy)
    except Damaged as error:
        raise BenchmdError(f"{site} is not a board's site: {error}") from error
    if fault := form_fault(SiteForm, stated):
        raise Damaged(site / BUILD, fault, remedy)
    if not (site / BUNDLES).is_dir():
        raise BenchmdError(f"{site} has no folder {BUNDLES}: nothing can be computed again.")
    return stated


def _misnamed(folder: Path) -> Iterator[str]:
    try:
        if read_bundle(folder).id != folder.name:
            yield f"the folder {text_of(folder.name)} holds another bundle"
    except Refused:
        return


def _differences(stated: Path, again: Path) -> Iterator[str]:
    """Values of ``board.json`` that differ."""
    if not _same(stated, again):
        try:
            if stated.stat().st_size > 2 * again.stat().st_size:
                raise ValueError
            one, other = (json.loads(path.read_bytes()) for path in (stated, again))
            told = [*_changed(one, other, "")]
        except (OSError, ValueError, RecursionError):
            told = []
        yield from told[:MOST_TOLD] or [f"{DATA} is not what its bundles give"]
        if len(told) > MOST_TOLD:
            yield f"and {count_of(len(told) - MOST_TOLD, 'other value')} of {DATA}"


def _same(stated: Path, again: Path) -> bool:
    """Whether two files have the same content; a link or no file has none."""
    if stated.is_symlink() or not stated.is_file():
        return False
    return stated.stat().st_size == again.stat().st_size and filecmp.cmp(stated, again, False)


def _changed(stated: object, again: object, where: str) -> Iterator[str]:
    if isinstance(stated, dict) and isinstance(again, dict):
        for name in sorted(stated.keys() | again.keys()):
            yield from _changed(stated.get(name), again.get(name), f"{where} {name}".strip())
    elif isinstance(stated, list) and isinstance(again, list) and len(stated) == len(again):
        for number, (one, other) in enumerate(zip(stated, again, strict=True)):
            label = one.get("name", number) if isinstance(one, dict) else number
            yield from _changed(one, other, f"{where} {label}")
    elif stated != again:
        yield f"{text_of(where)}: the site says {_short(stated)}, its bundles give {_short(again)}"


def _short(value: object) -> str:
    text = text_of(json.dumps(value))
    return text if len(text) <= 80 else f"{text[:79]}…"


def _files(site: Path, again: Path) -> Iterator[str]:
    """Pages and tables that differ, are missing or are not of the board."""
    expected = {path.name for path in again.iterdir()} - {DATA}
    for name in sorted(expected):
        path = site / name
        if not path.is_file() or path.is_symlink():
            yield f"{name} is missing"
        elif not _same(path, again / name):
            yield f"{name} is not what its bundles give"
    allowed = expected | {DATA, BUNDLES, LABELS}
    for name in sorted(path.name for path in site.iterdir() if path.name not in allowed):
        yield f"{text_of(name)} is not of this board"
