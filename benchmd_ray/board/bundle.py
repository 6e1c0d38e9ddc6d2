"""A bundle: a folder with predictions and what is said of them, for others to score.

``bundle.json`` describes the runs and names each file of ``predictions`` by its SHA-256;
``signature.json`` is optional. Nothing else may be in the folder. A file of predictions has the
keyed hash of each record, sorted, and scores; labels and patients are those of the official
catalog (`board.official`). A bundle is hostile: all of it is bounded and validated, nothing in it
is executed, and no name in it becomes a path.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from benchmd_ray.board.keys import KEY, Signature, is_signed
from benchmd_ray.board.submitters import compared, is_shown_as_written
from benchmd_ray.errors import BenchmdError, count_of, shown
from benchmd_ray.files.atomic import digest, json_bytes
from benchmd_ray.files.integrity import MAX_JSON_BYTES, Damaged, parsed_json
from benchmd_ray.files.parquet import read_table
from benchmd_ray.runs.predictions import CLASSIFIED
from benchmd_ray.schema.typed import Count, Name, typed
from benchmd_ray.settings.definition import Settings, updated

FORMAT = 1
ABOUT, SIGNATURE, FOLDER = "bundle.json", "signature.json", "predictions"
MOST_FILES = 5_000
MOST_BYTES = 2**30
"""Of all files of a bundle together."""
SCORES = "scores"
Hex = Annotated[str, Field(pattern=KEY)]
Short = Annotated[list[Name], Field(max_length=64)]


class Refused(BenchmdError):
    """A bundle that a board does not take, and why."""


@dataclass(frozen=True)
class Part:
    """A file of predictions: one run on one dataset's scored split, by one evaluation."""

    evaluation: Name
    version: Count
    dataset: Name
    split: Name
    catalog: Name
    """Digest of the catalog that was scored."""
    contamination: Name
    """What of the dataset the pretraining saw; empty for nothing."""
    sha256: Hex


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
    """``encoder``, ``transfer``, ``pretrain`` of its pretraining, ``tuned``."""
    parts: dict[Name, Count]
    """Versions of the parts of the code that computed it."""
    versions: dict[Name, Name | None]
    device: Name
    hardware: Short
    device_hours: Annotated[float, Field(ge=0, lt=2.0**63)] | None
    """Of the run and its pretraining, each over its workers; None if the pretraining is missing."""
    parameters: Count | None
    """Weights of the model; None where they were pruned."""
    weights: Name
    """Title and licence of published weights that it starts from; empty without."""
    predictions: Annotated[list[Part], Field(max_length=1000)]


@dataclass(frozen=True)
class Description:
    """Content of ``bundle.json``."""

    format: Count
    board: Name
    """Digest of the board's key (`BoardKey.check`)."""
    submitter: Annotated[Name, Field(min_length=1, max_length=80)]
    title: Annotated[Name, Field(max_length=200)]
    licence: Annotated[Name, Field(max_length=200)]
    """On which terms the predictions are published; empty if not stated."""
    made: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    benchmd_ray: Name
    licences: dict[Name, Name]
    """Licence of each dataset, as its card states it."""
    runs: Annotated[list[PackedRun], Field(min_length=1, max_length=1000)]

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

    def path(self, number: int) -> Path:
        """File of a part, by its number in `Description.parts`."""
        return part_path(self.folder, number)

    @property
    def identity(self) -> tuple[str, str]:
        """Who submitted it: the name as it is compared, and the key."""
        return compared(self.about.submitter), self.signer


def part_path(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"{number:04d}.parquet"


def write_part(folder: Path, number: int, table: pa.Table) -> str:
    """Write a file of predictions; returns its SHA-256."""
    path = part_path(folder, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(None), path, compression="zstd")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_about(folder: Path, about: Description) -> bytes:
    """Write ``bundle.json``; returns its bytes, which a signature is of."""
    content = json_bytes(asdict(about))
    (folder / ABOUT).write_bytes(content)
    return content


def read_bundle(folder: Path) -> Bundle:
    """Read a bundle's description, check every file's hash, and its signature.

    Raises:
        Refused: It has another form, a file too many or too few, or a wrong hash or signature.
    """
    sizes = _files(folder)
    content = _bytes(folder, ABOUT)
    about = _described(_json(content, ABOUT))
    expected = {ABOUT, *(f"{FOLDER}/{n:04d}.parquet" for n in range(len(about.parts)))}
    if others := sizes.keys() ^ (expected | (sizes.keys() & {SIGNATURE})):
        which = "lacks" if min(others) in expected else "also holds"
        raise Refused(f"it {which} {count_of(len(others), 'file')} other than it names")
    signer = ""
    if SIGNATURE in sizes:
        stated = _typed(Signature, _json(_bytes(folder, SIGNATURE), SIGNATURE), SIGNATURE)
        if not is_signed(content, stated):
            raise Refused("its signature is not one of its content by the key that it names")
        signer = stated.public_key
        content += f"{signer}{stated.signature}".encode()
    for number, (_, part) in enumerate(about.parts):
        with part_path(folder, number).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
                raise Refused(f"file {number} of its predictions has another SHA-256 than stated")
    name = hashlib.sha256(content).hexdigest()
    return Bundle(folder, name, about, signer, sum(sizes.values()))


def _files(folder: Path) -> dict[str, int]:
    """Sizes of the files of a folder by name; no links, few enough, small enough."""
    if not folder.is_dir() or folder.is_symlink():
        raise Refused(f"it is not a folder, expected one with {ABOUT}, as `benchmd pack` writes it")
    sizes: dict[str, int] = {}
    for name, entry in _entries(folder):
        if entry.is_symlink() or not entry.is_file(follow_symlinks=False):
            raise Refused("it holds a link, or what is not a regular file")
        sizes[name] = entry.stat(follow_symlinks=False).st_size
        if len(sizes) > MOST_FILES or sum(sizes.values()) > MOST_BYTES:
            raise Refused(f"it has more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes")
    if ABOUT not in sizes:
        raise Refused(f"it has no {ABOUT}, which `benchmd pack` writes")
    return sizes


def _entries(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == FOLDER and entry.is_dir(follow_symlinks=False):
                with os.scandir(entry) as below:
                    yield from ((f"{FOLDER}/{each.name}", each) for each in below)
            else:
                yield entry.name, entry


def _bytes(folder: Path, name: str) -> bytes:
    with (folder / name).open("rb") as file:
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise Refused(f"{name} has more than {MAX_JSON_BYTES:,} bytes")
    return content


def _json(content: bytes, name: str) -> dict[str, Any]:
    try:
        return parsed_json(content, name, "")
    except Damaged as error:
        raise Refused(f"{name}: {error.why}") from error


def _typed(kind: Any, content: Mapping[str, Any], name: str) -> Any:
    try:
        return typed(kind, content, name)
    except (BenchmdError, RecursionError) as error:
        raise Refused(str(error)) from error


def _described(content: Mapping[str, Any]) -> Description:
    if content.get("format") != FORMAT:
        raise Refused(f"{ABOUT} is of another format than {FORMAT}: pack it again")
    about: Description = _typed(Description, content, ABOUT)
    if not is_shown_as_written(about.submitter):
        raise Refused(
            f"pages would not show its submitter {shown(about.submitter)} as written: name one "
            "without folders, doubled or outer spaces, and with something visible"
        )
    for run in about.runs:
        try:
            updated(Settings(), run.settings)
        except BenchmdError as error:
            raise Refused(f"settings of {run.run}: {error}") from error
    keys = [(run.run, part.evaluation, part.dataset) for run, part in about.parts]
    if not keys or len(set(keys)) < len(keys):
        raise Refused("it has no predictions, or those of a run for a dataset twice")
    settings = {digest(run.settings): run.settings for run in about.runs}  # each once in memory
    runs = [replace(run, settings=settings[digest(run.settings)]) for run in about.runs]
    return replace(about, runs=runs)


def read_part(bundle: Bundle, number: int) -> pa.Table:
    """Read a file of predictions, bounded.

    Raises:
        Refused: It is no whole Parquet file, claims or decodes to too much, or says more than
            `_columns_fault` allows.
    """
    try:
        table = read_table(bundle.path(number), f"file {number}", "")
    except Damaged as error:
        raise Refused(f"file {number} of its predictions: {error.why}") from error
    most = 0 if bundle.about.parts[number][1].evaluation == CLASSIFIED.evaluation else MOST_COLUMNS
    has_more = table.schema.metadata or any(field.metadata for field in table.schema)
    if fault := "it holds metadata" if has_more else _columns_fault(table.schema, most):
        raise Refused(f"file {number} of its predictions: {fault}")
    return table


RECORD = "record"
MORE: Sequence[pa.DataType] = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    pa.dictionary(pa.int32(), pa.string()),
)
"""Types of columns of other evaluations than a classification: conditions of a row."""
MOST_COLUMNS = 10
"""Of conditions; a classification has none."""


def _columns_fault(schema: pa.Schema, most: int) -> str:
    """What is wrong with columns, of which ``most`` may be conditions; empty if nothing."""
    if RECORD not in schema.names or SCORES not in schema.names:
        return f"it lacks the column {RECORD} or {SCORES}"
    if schema.field(RECORD).type != pa.binary(16):
        return f"its column {RECORD} is of the type {schema.field(RECORD).type}, not keyed hashes"
    scores = schema.field(SCORES).type
    if not pa.types.is_fixed_size_list(scores) or scores.value_type != pa.float64():
        return f"its column {SCORES} is of the type {scores}, expected lists of float64"
    others = [field for field in schema if field.name not in (RECORD, SCORES)]
    if len(others) > most or not all(field.type in MORE for field in others):
        return "it has columns of other types, or too many"
    return ""
