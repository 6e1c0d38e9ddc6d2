"""A first card of a folder: what its files and tables let guess, for its user to correct."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pyarrow.parquet as pq

from benchmd_ray.data.cards import Files
from benchmd_ray.data.datasets.any_file import ARRAYS, IMAGES, OVER_TIME, TIMES, VOLUMES
from benchmd_ray.data.datasets.listed import table_rows
from benchmd_ray.data.raw import walk
from benchmd_ray.data.readers.arrays import Array, read_array
from benchmd_ray.data.readers.edf import read_header
from benchmd_ray.data.readers.image import read_image
from benchmd_ray.data.readers.metaimage import read_mhd
from benchmd_ray.data.readers.nifti import read_nifti
from benchmd_ray.data.readers.wfdb import read_wfdb
from benchmd_ray.data.records import METADATA, RecordError
from benchmd_ray.data.tables import present, read_rows
from benchmd_ray.errors import NAME, BenchmdError
from benchmd_ray.files import replacing

TABLES = (".csv", ".tsv", ".parquet")
KNOWN = tuple(dict.fromkeys([*IMAGES, *OVER_TIME, *VOLUMES]))
"""Endings of files that a catalog can be built of."""
MOST_CLASSES = 100
"""Different values of a column that is taken for the classes."""
SECONDS = 10
"""Length of a signal over time, until the user says another."""
SPLITS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation",
    "validation": "validation", "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""Names of splits in folders and tables, in lower case."""
LABELS = ("label", "class", "diagnosis", "target", "category", "dx")
PATIENTS = ("patient", "patient_id", "subject", "subject_id", "person", "participant")


@dataclass
class Guess:
    """What a folder seems to hold."""

    files: dict[str, object]
    """Keys of the card's `Files`."""
    classes: tuple[str, ...]
    signal: dict[str, object] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    """What the user has to say."""


def new_card(name: str, folder: Path, cards: Path) -> tuple[list[Path], list[str]]:
    """Write a card of a folder, and one of its signal.

    Args:
        name: Of the dataset.
        folder: With the raw files, and perhaps a table of them.
        cards: Folder of cards; no card in it is written over.

    Returns:
        The files that were written, and what could not be guessed.

    Raises:
        BenchmdError: The name cannot be, a card is there already, or the folder holds no file of a
            known format, or nothing that tells classes.
    """
    if not re.fullmatch(NAME, name):
        raise BenchmdError(f"the name {name!r} cannot be: take small letters, digits, hyphens.")
    paths = [cards / f"{name}.yaml", cards / "modalities" / f"{name}.yaml"]
    for path in paths:
        if path.exists():
            raise BenchmdError(f"{path} is there already: choose another name, or edit it.")
    if not folder.is_dir():
        raise BenchmdError(f"the folder {folder} does not exist.")
    guess = _guessed(folder)
    for path, text in zip(paths, (_dataset(name, guess), _modality(name, guess)), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(text, "utf-8")
    return paths, guess.unknown


def _guessed(folder: Path) -> Guess:
    found: dict[str, list[str]] = {}
    for place, names in walk(folder, *(f"*{end}" for end in KNOWN)):
        for one in sorted(names):
            path = (place / one).relative_to(folder).as_posix()
            found.setdefault(_ending(one).lower(), []).append(path)
    tables = _tables(folder)
    for table in tables:
        if table in found.get(Path(table).suffix, []):
            found[Path(table).suffix].remove(table)
    files = max(found.values(), key=len, default=[])
    if not files:
        raise BenchmdError(
            f"{folder} holds no file of a known format: expected one of {', '.join(KNOWN)}."
        )
    guess = _of_tables(folder, tables, files) or _of_folders(folder, files)
    if sum(map(bool, found.values())) > 1:
        guess.files["suffixes"] = [_ending(files[0]).lower()]
    _add_signal(guess, folder / files[0])
    return guess


def _ending(name: str) -> str:
    """How the name of a file of a known format ends, as it is written."""
    return name[-max(len(end) for end in KNOWN if name.lower().endswith(end)) :]


def _tables(folder: Path) -> list[str]:
    """Tables in the folder itself, which name others of its files."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix.lower() in TABLES and present(path).is_file()
    )


def _of_tables(folder: Path, tables: Sequence[str], files: Sequence[str]) -> Guess | None:
    """What the table says that names the most files."""
    best: tuple[int, Guess] | None = None
    for table in tables:
        rows = _rows(folder / table)
        for column in rows[0] if rows else ():
            held = {row[column] for row in rows}
            for key, about in _keys(files).items():
                matched = len(held & about.keys())
                if matched and (best is None or matched > best[0]):
                    best = matched, _of_rows(table, rows, column, key)
    return best[1] if best else None


def _rows(path: Path) -> list[dict[str, str]]:
    if path.suffix == ".parquet":
        try:
            names = pq.read_schema(path).names
        except (OSError, ValueError):  # not one that can be read: no table of names
            return []
        return list(table_rows(path, names, "a dataset"))
    mark = "\t" if path.suffix == ".tsv" else ","
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        names = next(csv.reader([file.readline(2**20)], delimiter=mark), [])
    names = [name.strip() for name in names if name.strip()]
    return read_rows(path, names, "a dataset", delimiter=mark) if names else []


def _keys(files: Sequence[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Files by what a column may call them, by the folder and the suffix that it leaves out."""
    common = PurePosixPath(os.path.commonpath([PurePosixPath(path).parent for path in files]))
    suffix = _ending(files[0])
    found: dict[tuple[str, str], dict[str, str]] = {}
    for place in (common.as_posix(), *(parent.as_posix() for parent in common.parents)):
        for left_out in ("", suffix):
            start = "" if place == "." else f"{place}/"
            found["" if place == "." else place, left_out] = {
                path.removeprefix(start).removesuffix(left_out): path for path in files
            }
    return found


def _of_rows(
    table: str, rows: Sequence[Mapping[str, str]], column: str, key: tuple[str, str]
) -> Guess:
    folder, suffix = key
    said: dict[str, object] = {"table": table, "path": column}
    said |= {"folder": folder} if folder else {}
    said |= {"suffix": suffix} if suffix else {}
    names = {name.lower(): name for name in rows[0] if name != column}
    for wanted, known in (("patient", PATIENTS), ("split", ("split", "fold", "set", "partition"))):
        held = next((names[name] for name in known if name in names), None)
        if held is not None:
            said[wanted] = held
    if "split" in said:
        values = sorted({row[str(said["split"])] for row in rows})
        said["splits"] = {value: SPLITS.get(value.lower(), "train") for value in values}
    metadata = {name: names[name] for name in METADATA if name in names}
    said |= {"metadata": metadata} if metadata else {}
    taken = {column, *metadata.values(), said.get("patient"), said.get("split")}
    counts = {name: len({row[name] for row in rows}) for name in rows[0] if name not in taken}
    likely = [name for name in counts if name.lower() in LABELS]
    likely += sorted(
        (n for n, c in counts.items() if 2 <= c <= MOST_CLASSES), key=lambda n: counts[n]
    )
    if not likely:
        return Guess(said, (), unknown=["which column holds the classes"])
    said["label"] = likely[0]
    return Guess(said, tuple(sorted({row[likely[0]] for row in rows} - {""})))


def _of_folders(folder: Path, files: Sequence[str]) -> Guess:
    """What the names of folders say."""
    depth = min(len(PurePosixPath(path).parts) - 1 for path in files)
    if not depth:
        raise BenchmdError(
            f"nothing in {folder} tells the classes of its files: expected a table (CSV or TSV) "
            "with a row for each, or folders named by class."
        )
    names = [Counter(PurePosixPath(path).parts[at] for path in files) for at in range(depth)]
    levels = ["split"] if all(name.lower() in SPLITS for name in names[0]) else []
    if levels and depth == 1:
        raise BenchmdError(f"the folders in {folder} name splits, and none in them classes.")
    classes = tuple(sorted(names[len(levels)]))
    if len(classes) < 2:
        raise BenchmdError(
            f"all files of {folder} are in one folder, {classes[0]}: expected two or more that are "
            "named by class, or a table with a row for each file."
        )
    said: dict[str, object] = {"levels": [*levels, "class"]}
    if levels:
        said["splits"] = {name: SPLITS[name.lower()] for name in sorted(names[0])}
    return Guess(said, classes)


def _add_signal(guess: Guess, example: Path) -> None:
    """What one file says of the signal."""
    end = _ending(example.name).lower()
    try:
        if end in ARRAYS:
            _add_array_signal(guess, read_array(example))
        elif end in VOLUMES and end not in IMAGES:
            shape = (read_mhd(example) if end == ".mhd" else read_nifti(example)).shape
            guess.signal = _volume_signal(1, shape, "int16", "HU" if end == ".mhd" else "1")
        elif end in IMAGES:
            grey = end in (".dcm", ".dicom") or _is_grey(read_image(example, 3))
            guess.signal = _image_signal(1 if grey else 3)
            if end in (".dcm", ".dicom"):
                guess.unknown.append("DICOM files are taken for pictures, each one a record")
        else:
            guess.signal = _time_signal(guess, *_over_time(example, end))
    except RecordError as error:
        raise BenchmdError(f"{example} cannot be read: {error}.") from error


def _is_grey(pixels: Array) -> bool:
    return bool((pixels == pixels[..., :1]).all())


def _add_array_signal(guess: Guess, values: Array) -> None:
    """A signal by the axes and the type of an array."""
    of_bytes, shape = values.dtype.name == "uint8", values.shape
    if values.ndim == 1 or (values.ndim == 2 and not of_bytes):
        names = ["" for _ in range(min(shape) if values.ndim == 2 else 1)]
        guess.signal = _time_signal(guess, names, None, "1")
    elif values.ndim == 2 or (values.ndim == 3 and of_bytes and 3 in (shape[0], shape[-1])):
        guess.signal = _image_signal(1 if values.ndim == 2 else 3)
    elif values.ndim in (3, 4):
        dtype = "uint8" if of_bytes else "int16"
        guess.signal = _volume_signal(1 if values.ndim == 3 else shape[0], shape[-3:], dtype, "1")
    else:
        raise RecordError(f"its array has the shape {shape}, expected one to four axes")


def _image_signal(channels: int) -> dict[str, object]:
    shape = [channels, 224, 224]
    return {
        "axes": ["channel", "y", "x"], "stored_shape": shape, "input_shape": shape,
        "dtype": "uint8", "unit": "grey level", "patch": [16, 16],
        "normaliser": "source-statistics",
    }  # fmt: skip


def _volume_signal(channels: int, held: Sequence[int], dtype: str, unit: str) -> dict[str, object]:
    """Windows of up to 32 slices, as the first file has them."""
    depth = min(32, max(8, held[0] // 8 * 8))
    side = 96 if max(held[1:]) <= 160 else 224
    shape = [channels, depth, side, side]
    return {
        "axes": ["channel", "z", "y", "x"], "stored_shape": shape, "input_shape": shape,
        "dtype": dtype, "unit": unit, "patch": [8, 16, 16], "normaliser": "source-statistics",
    }  # fmt: skip


def _time_signal(
    guess: Guess, names: Sequence[str], rate: float | None, unit: str
) -> dict[str, object]:
    if rate is None:
        rate = 100.0
        guess.files["rate"] = rate
        guess.unknown.append("the files state no sampling rate: 100 Hz is only a guess, see rate")
    patch = max(1, round(rate / 4))
    length = max(patch, round(SECONDS * rate) // patch * patch)
    named: dict[str, object] = {"channels": list(names)} if all(names) else {}
    return {
        "axes": ["channel", "time"], "stored_shape": [len(names), length],
        "input_shape": [len(names), length], "dtype": "int16", "unit": unit, "patch": [patch],
        "normaliser": "record-range", **named, "rate": rate,
    }  # fmt: skip


def _over_time(path: Path, end: str) -> tuple[list[str], float | None, str]:
    """Channels, rate and unit of a file."""
    if end == ".hea":
        held = read_wfdb(path)
        return list(held.names), held.rate, "mV"
    if end == ".edf":
        header = read_header(path)
        rate = header.channels[0].samples / header.seconds
        names = [c.name for c in header.channels if c.samples / header.seconds == rate]
        return names, rate, "µV"
    rows = _rows(path)
    return [name for name in rows[0] if name.lower() not in TIMES], None, "1"


def _dataset(name: str, guess: Guess) -> str:
    defaults = Files()
    lines = [
        f"# benchmd catalog build {name} --raw FOLDER --out catalogs/{name}",
        f"name: {name}",
        f"modality: {name} # modalities/{name}.yaml; or another of `benchmd catalog list`",
        "task:",
        "  kind: single-label # or multi-label, or ordinal",
        f"  classes: {_flow(guess.classes)}",
        "files:",
        *(f"  {key}: {_flow(value)}" for key, value in guess.files.items()),
    ]
    if "split" not in guess.files and "split" not in guess.files.get("levels", ()):  # type: ignore[operator]
        lines.append(f"  drawn: {_flow(defaults.drawn)} # by patient, each class in these shares")
    lines += [f"# Not known: {what}." for what in guess.unknown]
    return "\n".join(lines) + "\n"


def _modality(name: str, guess: Guess) -> str:
    lines = [
        f"name: {name}",
        "batch_size: 64",
        "signal:",
        *(f"  {key}: {_flow(value)}" for key, value in guess.signal.items()),
        "task:",
        "  kind: single-label",
        f"  classes: {_flow(guess.classes)}",
    ]
    return "\n".join(lines) + "\n"


def _flow(value: object) -> str:
    """A value as YAML on one line."""
    import yaml

    if isinstance(value, tuple):
        value = list(value)
    text = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...").strip()
