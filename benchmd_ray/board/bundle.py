"""A bundle: a folder with predictions and what is said of them, for others to score.

``bundle.json`` describes the runs and names each file of ``predictions`` by its SHA-256;
``signature.json`` is optional. Nothing else may be in the folder. A file of predictions has a row
for each record, sorted by keyed hash: the hash and the score of each class, or detector
(`row_form`). It has no header, so there is nothing to parse and nothing that decodes to more than
the file. Labels and patients are those of the official catalog (`board.official`). A bundle is
hostile: all of it is bounded and validated, nothing in it is executed, and no name in it becomes a
path.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from benchmd_ray.board.keys import HASH_BYTES, KEY, Signature, is_signed
from benchmd_ray.board.submitters import compared, is_shown_as_written
from benchmd_ray.errors import NAME, BenchmdError, count_of, shown
from benchmd_ray.files.atomic import digest, json_bytes
from benchmd_ray.files.integrity import Damaged, parsed_json
from benchmd_ray.runs.predictions import CLASSIFIED
from benchmd_ray.schema.typed import Count, Name, typed
from benchmd_ray.settings.definition import Settings, updated

ABOUT, SIGNATURE, FOLDER = "bundle.json", "signature.json", "predictions"
MOST_FILES = 5_000
MOST_BYTES = 2**30
"""Of all files of a bundle together."""
MOST_JSON_BYTES = 2**22
"""Twice what `MOST_FILES` and `MOST_RUNS` take; a text may need 150 times its size in memory."""
MOST_RUNS = 100
MOST_LETTERS = 80
MOST_ABOUT = 200
"""Characters of a submitter's name, and of a title or licence."""
CONDITION = "^([a-z0-9][a-z0-9-]{0,40}( [0-9]{1,3})?)?$"
"""A fault and its severity, such as ``noise 3``; empty for the records as they are."""
DETECTOR, MOST_DETECTORS = "^[a-z0-9][a-z0-9-]{0,40}$", 64
Hex = Annotated[str, Field(pattern=KEY)]
Short = Annotated[list[Name], Field(max_length=64)]
STATED = {"encoder", "transfer", "tuned"}
"""Settings that each run states; ``pretrain`` is that of its pretraining."""


class Refused(BenchmdError):
    """A bundle that a board does not take, and why."""


@dataclass(frozen=True)
class Part:
    """A file of predictions of one run on one dataset.

    Scores of classes on the scored split, under one condition, or scores of detectors on the
    records of detection.
    """

    evaluation: Annotated[str, Field(pattern=f"^{NAME}$")]
    version: Count
    condition: Annotated[str, Field(pattern=CONDITION)]
    detectors: Annotated[
        list[Annotated[str, Field(pattern=DETECTOR)]], Field(max_length=MOST_DETECTORS)
    ]
    """Names of its columns; empty for a classification."""
    dataset: Name
    split: Name
    catalog: Name
    """Digest of the catalog that was scored."""
    contamination: Name
    """What of the dataset the pretraining saw; empty for nothing."""
    sha256: Hex

    @property
    def is_main(self) -> bool:
        """Whether it is a classification of the records as they are, which is ranked."""
        return (self.evaluation, self.condition) == (CLASSIFIED.evaluation, "")


EntryKey = tuple[str, ...]


@dataclass(frozen=True)
class PackedRun:
    """A run: what made it, what it cost, and its predictions."""

    run: Name
    row: Name
    """Name of its row in reports, as `report.names` has it."""
    protocol: Name
    technique: Name
    setting: Name
    source: Name
    modality: Name
    policy: Name
    seed: Count
    settings: dict[str, Any]
    """`STATED`."""
    parts: Annotated[dict[Name, Count], Field(max_length=64)]
    """Versions of the parts of the code that computed it."""
    versions: Annotated[dict[Name, Name | None], Field(max_length=64)]
    hardware: Short
    device_hours: Annotated[float, Field(ge=0, lt=2.0**63)] | None
    """Of the run and its pretraining, each over its workers; None if the pretraining is missing."""
    parameters: Count | None
    """Weights of the model; None where they were pruned."""
    weights: Name
    """Title and licence of published weights that it starts from; empty without."""
    predictions: Annotated[list[Part], Field(min_length=1, max_length=1000)]

    @property
    def entry(self) -> EntryKey:
        """What names its entry within a submitter's bundles: all but the seed."""
        about = (self.row, self.protocol, self.setting, self.technique)
        return *about, self.source, self.modality, self.policy


@dataclass(frozen=True)
class Description:
    """Content of ``bundle.json``."""

    format: Literal[1]
    board: Name
    """Digest of the board's key (`BoardKey.check`)."""
    submitter: Annotated[Name, Field(min_length=1, max_length=MOST_LETTERS)]
    title: Annotated[Name, Field(max_length=MOST_ABOUT)]
    licence: Annotated[Name, Field(max_length=MOST_ABOUT)]
    """On which terms the predictions are published; empty if not stated."""
    made: Annotated[str, Field(pattern="^[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}Z$")]
    benchmd_ray: Name
    runs: Annotated[list[PackedRun], Field(min_length=1, max_length=MOST_RUNS)]

    @property
    def parts(self) -> list[tuple[PackedRun, Part]]:
        """All parts with their runs, in the order of their files."""
        return [(run, part) for run in self.runs for part in run.predictions]


@dataclass(frozen=True)
class Bundle:
    """A validated bundle."""

    folder: Path
    id: str
    """SHA-256 of its description, which names the hash of each file, and its signature."""
    about: Description
    signer: str
    """Public key of its signature; empty without one."""
    bytes: int

    @cached_property
    def identity(self) -> tuple[str, str]:
        """Who submitted it: the name as it is compared, and the key."""
        return compared(self.about.submitter), self.signer


def row_form(columns: int) -> np.dtype[np.void]:
    """A row of a file of predictions: 16 bytes of hash, then little-endian float64."""
    return np.dtype([("record", f"V{HASH_BYTES}"), ("scores", "<f8", (columns,))])


def part_path(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"{number:04d}.bin"


def write_part(
    folder: Path, number: int, hashes: Sequence[bytes], scores: npt.NDArray[np.float64]
) -> str:
    """Write a file of predictions, sorted by the records' hashes; returns its SHA-256."""
    order = sorted(range(len(hashes)), key=hashes.__getitem__)
    rows = np.empty(len(hashes), row_form(scores.shape[1]))
    rows["record"] = np.frombuffer(b"".join(hashes), rows.dtype["record"])[order]
    rows["scores"] = scores[order]
    path = part_path(folder, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(rows.tobytes())
    return sha256(rows.tobytes()).hexdigest()


def read_part(bundle: Bundle, number: int, records: int, columns: int) -> npt.NDArray[np.void]:
    """Rows of a file of predictions, of which at most twice the expected ones are read.

    Raises:
        Refused: It does not consist of such rows, or was changed since `read_bundle`.
    """
    form, place = row_form(columns), f"file {number} of its predictions"
    path, most = part_path(bundle.folder, number), 2 * records * form.itemsize
    size = path.stat().st_size
    if size % form.itemsize or size > most:
        raise Refused(
            f"{place} has {size:,} bytes, expected {count_of(records, 'row')} of {form.itemsize}: "
            f"a hash and {count_of(columns, 'score')}"
        )
    with path.open("rb") as file:
        content = file.read(most)
    if sha256(content).hexdigest() != bundle.about.parts[number][1].sha256:
        raise Refused(f"{place} was changed while it was read")
    return np.frombuffer(content, form)


def read_bundle(folder: Path) -> Bundle:
    """Read a bundle's description, check every file's hash, and its signature.

    Raises:
        Refused: It has another form, a file too many or too few, or a wrong hash or signature.
    """
    sizes = file_sizes(folder)
    about, content = _read(Description, folder, ABOUT)
    about = _checked(about)
    expected = {ABOUT, *(f"{FOLDER}/{n:04d}.bin" for n in range(len(about.parts)))}
    if others := sizes.keys() ^ (expected | (sizes.keys() & {SIGNATURE})):
        lacking = sorted(others & expected)
        which = "lacks files that it names" if lacking else "holds files that it does not name"
        raise Refused(f"it {which}, such as {shown((lacking or sorted(others))[0])}")
    signer = ""
    if SIGNATURE in sizes:
        stated, written = _read(Signature, folder, SIGNATURE)
        if not is_signed(content, stated):
            raise Refused("its signature is not one of its content by the key that it names")
        if written != json_bytes(vars(stated)):
            raise Refused(f"{SIGNATURE} has another form than `benchmd pack` writes")
        signer = stated.public_key
        content += f"{signer}{stated.signature}".encode()
    for number, (_, part) in enumerate(about.parts):
        with part_path(folder, number).open("rb") as file:
            if file_digest(file, "sha256").hexdigest() != part.sha256:
                raise Refused(f"file {number} of its predictions has another SHA-256 than stated")
    name = sha256(content).hexdigest()
    return Bundle(folder, name, about, signer, sum(sizes.values()))


def file_sizes(folder: Path) -> dict[str, int]:
    """Sizes of the files of a bundle by name.

    Raises:
        Refused: It holds a link, too many files, or too large ones.
    """
    if not folder.is_dir() or folder.is_symlink():
        raise Refused(f"it is not a folder, expected one with {ABOUT}, as `benchmd pack` writes it")
    if not os.path.lexists(folder / ABOUT):
        raise Refused(
            f"it has no {ABOUT}, which `benchmd pack` writes; to build from a folder of bundles, "
            "name FOLDER/*"
        )
    sizes: dict[str, int] = {}
    for name, entry in _entries(folder):
        if entry.is_symlink() or not entry.is_file(follow_symlinks=False):
            raise Refused("it holds a link, or what is not a regular file")
        sizes[name] = entry.stat(follow_symlinks=False).st_size
        if len(sizes) > MOST_FILES or sum(sizes.values()) > MOST_BYTES:
            raise Refused(f"it has more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes")
    return sizes


def _entries(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == FOLDER and entry.is_dir(follow_symlinks=False):
                with os.scandir(entry) as below:
                    yield from ((f"{FOLDER}/{each.name}", each) for each in below)
            else:
                yield entry.name, entry


def _read(kind: Any, folder: Path, name: str) -> tuple[Any, bytes]:
    """A validated JSON file, and its bytes."""
    with (folder / name).open("rb") as file:
        content = file.read(MOST_JSON_BYTES + 1)
    if len(content) > MOST_JSON_BYTES:
        raise Refused(f"{name} has more than {MOST_JSON_BYTES:,} bytes")
    try:
        return typed(kind, parsed_json(content, name, ""), name), content
    except Damaged as error:
        raise Refused(f"{name}: {error.why}") from error
    except (BenchmdError, RecursionError) as error:
        raise Refused(str(error)) from error


def _checked(about: Description) -> Description:
    """Refuse statements that contradict each other."""
    if not is_shown_as_written(about.submitter):
        raise Refused(
            f"pages would not show its submitter {shown(about.submitter)} as written: name one "
            "without folders, doubled or outer spaces, and with something visible"
        )
    keys = [(run.run, p.dataset, p.evaluation, p.condition) for run, p in about.parts]
    if len(set(keys)) < len(keys) or len({run.run for run in about.runs}) < len(about.runs):
        raise Refused("it has a run, or the predictions of a run for a dataset twice")
    main = {(run.run, part.dataset) for run, part in about.parts if part.is_main}
    if others := {key[:2] for key in keys} - main:
        name, dataset = map(shown, min(others))
        raise Refused(f"{name} has no classification of {dataset}, on which its entry is ranked")
    (entry, seed), count = Counter((run.entry, run.seed) for run in about.runs).most_common(1)[0]
    if count > 1:
        raise Refused(f"{count} runs of {shown(entry[0])} have the seed {seed}: submit one of them")
    settings = {digest(run.settings): run.settings for run in about.runs}
    transfers = {name: _setting(stated) for name, stated in settings.items()}
    runs = []
    for run in about.runs:
        name = digest(run.settings)
        if transfers[name] != run.setting:
            which = f"settings of {run.run} are those of {transfers[name]}"
            raise Refused(f"{which}, not of {shown(run.setting)}")
        runs.append(replace(run, settings=settings[name]))  # equal ones once in memory
    return replace(about, runs=runs)


def _setting(settings: dict[str, Any]) -> str:
    """The transfer setting that settings are of; incomplete or invalid ones are refused."""
    if settings.keys() - {"pretrain"} != STATED:
        raise Refused(f"its settings are not those expected: {', '.join(sorted(STATED))}")
    try:
        return updated(Settings(), settings).transfer.setting
    except BenchmdError as error:
        raise Refused(f"settings: {error}") from error
