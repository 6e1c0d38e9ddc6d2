"""A board's site: a folder of static pages with its data and the bundles, and its verification."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import matplotlib
from pydantic import Field

from benchmd_ray.board.build import Board, RefusedBundle, Text, board_of
from benchmd_ray.board.bundle import Bundle, Refused, file_sizes, read_bundle
from benchmd_ray.board.content import Row, content, frame
from benchmd_ray.board.keys import KEY
from benchmd_ray.board.official import Official
from benchmd_ray.board.pages import pages
from benchmd_ray.board.recompute import MOST_RESAMPLES
from benchmd_ray.board.rerun import flat
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.extensions.parts import package_versions
from benchmd_ray.files.atomic import remove, replacing, sha256, write_json
from benchmd_ray.files.integrity import read_json
from benchmd_ray.report.formats import csv_text
from benchmd_ray.report.table import text_of
from benchmd_ray.schema.typed import Count, Name, typed

DATA, TABLE, BUILD = "board.json", "board.csv", "build.json"
BUNDLES, LABELS = "bundles", "official.parquet"
OURS = re.compile(r"(index|dataset-\d+-[a-z0-9-]*|entry-[0-9a-f]{24})\.html")
"""Names of pages."""
BUNDLE = re.compile("[0-9a-f]{64}")
MOST_BUNDLES = 100_000
MOST_LINES = 20
"""Differing values, or missing bundles, that `verify` names."""


@dataclass(frozen=True)
class Made:
    """Content of ``build.json``: what a site is made of next to its bundles."""

    title: Text
    official: Annotated[str, Field(pattern=KEY)]
    """SHA-256 of the file of official labels."""
    resamples: Annotated[Count, Field(ge=1, le=MOST_RESAMPLES)]
    bundles: Annotated[list[Annotated[str, Field(pattern=KEY)]], Field(max_length=MOST_BUNDLES)]
    refused: list[RefusedBundle]
    versions: dict[Name, Name]


def write_site(board: Board, out: Path, *, labels: Path | None = None) -> Row:
    """Write the site; pages and bundles of earlier builds that are no longer on it are removed.

    Args:
        board: With entries.
        out: Folder: a site, empty, or missing.
        labels: File of official digests to publish, so that anybody can verify the site; without
            it those of an earlier build are removed.

    Returns:
        Content of ``board.json``.

    Raises:
        BenchmdError: No bundle is on the board, the folder holds something else, or the labels
            have ages and sexes.
    """
    if not board.entries:
        reasons = " ".join(f"{e.name}: {e.reason.rstrip('.')}." for e in board.refused[:3])
        raise BenchmdError(f"no bundle can be on the board. {reasons}")
    require_site(out)
    if labels is not None and board.official.has_subgroups:
        raise BenchmdError(
            f"{labels} has ages and sexes of patients, which are not published: nothing was "
            "written. Make it again without --subgroups, or leave out --publish-labels."
        )
    data = _write(board, out)
    (out / BUNDLES).mkdir(exist_ok=True)
    for bundle in board.bundles:
        _keep(bundle, out / BUNDLES / bundle.id)
    names = {bundle.id for bundle in board.bundles}
    for folder in (out / BUNDLES).iterdir():
        if BUNDLE.fullmatch(folder.name) and folder.name not in names:
            remove(folder)
    if labels is None:
        remove(out / LABELS)
    else:
        with replacing(out / LABELS) as partial:
            shutil.copyfile(labels, partial)
    return data


def require_site(out: Path) -> None:
    """Refuse a folder that holds something other than a site."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / BUILD).is_file())):
        raise BenchmdError(
            f"{out} is not a board's site (no {BUILD}) and not empty: nothing was written. Choose "
            "another --out."
        )


def _write(board: Board, out: Path) -> Row:
    data, written = content(board), set()
    feeds = ((DATA, json.dumps(data) + "\n"), (TABLE, csv_text(frame(data))))
    for name, text in chain(feeds, pages(data)):
        with replacing(out / name) as partial:
            partial.write_text(text, "utf-8")
        written.add(name)
    of, refused = board.official.sha256, list(board.refused)
    bundles = sorted(bundle.id for bundle in board.bundles)
    made = Made(board.title, of, board.resamples, bundles, refused, _versions())
    write_json(out / BUILD, asdict(made))
    for path in out.glob("*.html"):
        if OURS.fullmatch(path.name) and path.name not in written:
            path.unlink()
    return data


def _versions() -> dict[str, str]:
    """Of all that numbers and figures depend on."""
    return {**package_versions(), "matplotlib": matplotlib.__version__}


def _keep(bundle: Bundle, folder: Path) -> None:
    """Copy a bundle, unless it is there whole."""
    if not _holds(folder, bundle):
        if folder.exists():
            remove(folder)
        with suppress(Refused, FileNotFoundError):  # told below
            for name in file_sizes(bundle.folder):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(bundle.folder / name, folder / name, follow_symlinks=False)
        if not _holds(folder, bundle):
            remove(folder)
            raise BenchmdError(f"{bundle.folder} was changed meanwhile: build the board again.")


def _holds(folder: Path, bundle: Bundle) -> bool:
    with suppress(Refused):
        return folder.exists() and read_bundle(folder).id == bundle.id
    return False


def verify(
    site: Path, official: Official, done: Callable[[int], None] = lambda count: None
) -> Iterator[str]:
    """Compute a site again from its bundles; what differs, line by line.

    Links are reported and never followed.

    Raises:
        BenchmdError: It is not a site, or was built with other labels.
    """
    made = _made(site)
    if made.official != official.sha256:
        raise BenchmdError(
            f"{site} was built with other official labels ({made.official}): name their file by "
            "--catalog-digests, or build it again."
        )
    board = board_of(
        bundles_of(site),
        official,
        title=made.title,
        resamples=made.resamples,
        fresh=True,
        refused=made.refused,
        done=done,
    )
    damaged = board.refused[len(made.refused) :]
    for each in damaged:
        yield f"the bundle {each.name} is refused: {each.reason}"
    others = [bundle for bundle in board.bundles if bundle.id not in made.bundles]
    for bundle in others:
        yield f"the bundle {text_of(bundle.folder.name)} is another than the site was built with"
    there = {*(each.name for each in damaged), *(b.folder.name for b in board.bundles)}
    missing = sorted({*made.bundles} - there)
    yield from (f"the bundle {name} is missing" for name in missing[:MOST_LINES])
    if damaged or others or missing or not board.entries:
        yield "nothing else was compared, as scores, groups and pages depend on all of its bundles"
        return
    with TemporaryDirectory(prefix="benchmd-") as temporary:
        again = Path(temporary)
        _write(board, again)
        if made.versions != _versions():
            yield "it was built with other versions of packages: digits and figures may differ"
        yield from _differences(site / DATA, again / DATA)
        names = {path.name for path in again.iterdir()}
        for name in sorted(names - {DATA}):
            if not _same(site / name, again / name):
                how = "not what its bundles give" if _is_plain(site / name) else "missing"
                yield f"{name} is {how}"
    if _is_plain(site / LABELS) and sha256(site / LABELS) == official.sha256:
        names.add(LABELS)
    yield from _foreign(site, names | {BUNDLES})
    yield from _foreign(site / BUNDLES, {bundle.id for bundle in board.bundles})


def labels_of(site: Path) -> Path:
    """The official digests that a site publishes.

    Raises:
        BenchmdError: It does not, or is no site.
    """
    _made(site)
    if not _is_plain(site / LABELS):
        raise BenchmdError(
            f"{site} does not publish its official labels: name their file by --catalog-digests."
        )
    return site / LABELS


def bundles_of(site: Path) -> list[Path]:
    """Folders of a site's bundles."""
    if (site / BUNDLES).is_symlink() or not (site / BUNDLES).is_dir():
        raise BenchmdError(f"{site} has no folder {BUNDLES}: nothing can be computed again.")
    with os.scandir(site / BUNDLES) as entries:
        return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))


def _made(site: Path) -> Made:
    try:
        if (site / BUILD).is_symlink():
            raise BenchmdError(f"{BUILD} is a link.")
        made: Made = typed(Made, read_json(site / BUILD, "Build the site again."), BUILD)
    except BenchmdError as error:
        raise BenchmdError(f"{site} is not a board's site: {error}") from error
    return made


def _differences(stated: Path, again: Path) -> Iterator[str]:
    """Values of ``board.json`` that differ."""
    if _same(stated, again):
        return
    lines = list[str]()
    try:
        if _is_plain(stated) and stated.stat().st_size <= 2 * again.stat().st_size:
            one, other = (flat(json.loads(p.read_bytes()), lists=True) for p in (stated, again))
            for name in sorted(one.keys() | other.keys()):
                if one.get(name) != other.get(name):
                    values = f"{_short(one.get(name))}, its bundles give {_short(other.get(name))}"
                    lines.append(f"{text_of(name)}: the site says {values}")
    except (OSError, ValueError, RecursionError):
        lines = []
    yield from lines[:MOST_LINES] or [f"{DATA} is not what its bundles give"]
    if len(lines) > MOST_LINES:
        yield f"and {count_of(len(lines) - MOST_LINES, 'other value')} of {DATA}"


def _short(value: object) -> str:
    text = text_of(json.dumps(value))
    return text if len(text) <= 80 else f"{text[:79]}…"


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _same(stated: Path, again: Path) -> bool:
    """Whether two files have the same content; a link or no file has none."""
    return _is_plain(stated) and filecmp.cmp(stated, again, shallow=False)


def _foreign(folder: Path, names: set[str]) -> Iterator[str]:
    """What a folder of a site holds other than these: links, files, bundles under other names."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = text_of(entry.name)
            if entry.is_symlink():
                yield f"{name} is a link, which is not followed"
            elif entry.name not in names:
                yield f"{name} is not of this board"
