"""What a folder of files seems to hold, for a first card (`new_card`).

Run as a module, it is the separate process that looks into the files.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from benchmd_ray.data.any_table import parquet_columns, table_rows
from benchmd_ray.data.apart import begin, serve
from benchmd_ray.data.datasets.any_file import ARRAYS, IMAGES, OVER_TIME, TIMES, VOLUMES
from benchmd_ray.data.raw import walk
from benchmd_ray.data.readers import edf, wfdb_header
from benchmd_ray.data.readers.arrays import Array, read_array
from benchmd_ray.data.readers.headers import microvolts
from benchmd_ray.data.readers.image import read_image
from benchmd_ray.data.readers.metaimage import read_mhd
from benchmd_ray.data.readers.nifti import read_nifti
from benchmd_ray.data.records import METADATA, RecordError
from benchmd_ray.data.tables import header_of, is_sample
from benchmd_ray.errors import BenchmdError, composed, shown

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
MOST_TABLES = 200
"""Tables that are looked at in a folder: of more, most are recordings."""
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
PATIENTS = (
    "patient", "patientid", "subject", "subjectid", "person", "personid", "participant",
    "participantid",
)  # fmt: skip
"""Names of columns, without what is neither letter nor digit, in lower case."""
SPLIT = ("split", "fold", "set", "partition", "subset")
ALONE = "each file is a separate patient"
READ, TABLE = 0, 1
"""Parts of the look at a folder, as `begin` names them."""


@dataclass
class Guess:
    """What a folder seems to hold."""

    files: dict[str, Any]
    """Keys of the card's `Files`."""
    classes: list[str]
    signal: dict[str, Any] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    """What was taken for what."""
    unknown: list[str] = field(default_factory=list)
    """What the user has to say."""


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The fields of the `Guess` of a request's ``folder``; or ``error``, why there is none."""
    try:
        return asdict(guessed(Path(request["folder"]))), b""
    except BenchmdError as error:
        return {"error": str(error)}, b""


def guessed(folder: Path) -> Guess:
    """What a folder seems to hold.

    Raises:
        BenchmdError: It has no file of a known format, or nothing that tells classes.
    """
    groups: dict[str, list[str]] = {}
    for place, names in walk(folder, *(f"*{end}" for end in KNOWN)):
        for name in sorted(names):
            path = (place / name).relative_to(folder).as_posix()
            groups.setdefault(_ending(name).lower(), []).append(path)
    if not groups:
        raise BenchmdError(
            f"{folder} holds no file of a known format: expected one of {', '.join(KNOWN)}."
        )
    begin(TABLE)
    guess, files = _of_tables(folder, groups) or _of_folders(folder, _largest(groups))
    table = guess.files.get("table")
    if any(path not in (*files, table) for paths in groups.values() for path in paths):
        guess.files["suffixes"] = [_ending(files[0]).lower()]
    begin(READ)
    _add_signal(guess, folder / files[0])
    return guess


def _largest(groups: Mapping[str, list[str]], without: str = "") -> list[str]:
    """The files of the most frequent format."""
    rest = ([path for path in paths if path != without] for paths in groups.values())
    return max(rest, key=len)


def _ending(name: str) -> str:
    """The ending of the name of a file of a known format, as it is written."""
    return name[-max(len(end) for end in KNOWN if name.lower().endswith(end)) :]


def _tables(folder: Path) -> list[str]:
    """Tables in the folder itself, which may name others of its files."""
    names = (path.name for path in folder.iterdir() if path.is_file())
    return sorted(name for name in names if name.lower().endswith(TABLES))[:MOST_TABLES]


def _of_tables(folder: Path, groups: Mapping[str, list[str]]) -> tuple[Guess, list[str]] | None:
    """A guess from the table that names the most files, and these files."""
    best: tuple[int, Guess, list[str]] | None = None
    faults = []
    for table in _tables(folder):
        files = _largest(groups, table)
        try:
            rows = list(table_rows(folder / table, _columns(folder / table), "a dataset"))
        except BenchmdError as error:
            faults.append(str(error).removesuffix("."))
            continue
        keys = _keys(files) if files else {}
        for column in rows[0]:
            values = {row[column] for row in rows}
            for key, about in keys.items():
                matched = len(values & about.keys())
                if matched and (best is None or matched > best[0]):
                    best = matched, _of_rows(table, rows, column, key), files
    if best is None:
        return None
    best[1].unknown += [f"whether this table matters: {fault}" for fault in faults]
    return best[1:]


def _columns(path: Path) -> list[str]:
    """Names of a table's columns, each once."""
    names = parquet_columns(path) if path.suffix == ".parquet" else header_of(path)[0]
    if not any(names):
        raise BenchmdError(f"{path} has no header.")
    return [name for name in dict.fromkeys(names) if name]


def _keys(files: Sequence[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Files by the names a column may use, grouped by the folder and suffix that these omit."""
    common = PurePosixPath(os.path.commonpath([PurePosixPath(path).parent for path in files]))
    suffix = _ending(files[0])
    keys: dict[tuple[str, str], dict[str, str]] = {}
    for place in (common.as_posix(), *(parent.as_posix() for parent in common.parents)):
        for removed in ("", suffix):
            start = "" if place == "." else f"{place}/"
            keys["" if place == "." else place, removed] = {
                composed(path.removeprefix(start).removesuffix(removed)): path for path in files
            }
    return keys


def _of_rows(
    table: str, rows: Sequence[Mapping[str, str]], column: str, key: tuple[str, str]
) -> Guess:
    folder, suffix = key
    files: dict[str, Any] = {"table": table, "path": column}
    files |= {"folder": folder} if folder else {}
    files |= {"suffix": suffix} if suffix else {}
    names = {_plain(name): name for name in reversed(list(rows[0])) if name != column}
    guess = Guess(files, [], guessed=[f"files are named by the column {column} of {table}"])
    patient = next((names[name] for name in PATIENTS if name in names), None)
    if patient is not None:
        files["patient"] = patient
        guess.guessed.append(f"patients are in the column {patient}")
    else:
        guess.unknown.append("which column names the patients: each file stands for one until then")
    split = next((names[name] for name in SPLIT if name in names), None)
    if split is not None:
        _add_split(guess, split, sorted({row[split] for row in rows}))
    metadata = {name: names[name] for name in METADATA if name in names}
    files |= {"metadata": metadata} if metadata else {}
    taken = {column, *metadata.values(), patient, split}
    counts = {
        name: len({row[name] for row in rows} - {""}) for name in rows[0] if name not in taken
    }
    likely = [name for name in counts if _plain(name) in LABELS]
    for name in likely:
        if counts[name] > MOST_CLASSES:
            guess.unknown.append(
                f"what the column {name} is: it has {counts[name]:,} different values, too many "
                "for classes"
            )
    likely += sorted(counts, key=lambda name: counts[name])
    label = next((name for name in likely if 2 <= counts[name] <= MOST_CLASSES), None)
    if label is None:
        guess.unknown.append("which column holds the classes")
        return guess
    files["label"] = label
    guess.guessed.append(f"classes are the values of the column {label}")
    guess.classes = sorted({row[label] for row in rows} - {""})
    return guess


def _plain(name: str) -> str:
    """A column's name in lower case, letters and digits only: ``patientid``."""
    return re.sub(r"[\W_]", "", name.lower())


def _add_split(guess: Guess, column: str, values: Sequence[str]) -> None:
    """Splits by a column, where its values name some."""
    splits = {value: SPLITS[value.lower()] for value in values if value.lower() in SPLITS}
    others = [value for value in values if value and value not in splits]
    if not splits:
        guess.unknown.append(f"what the column {column} is: none of its values names a split")
        return
    guess.files |= {"split": column, "splits": splits}
    guess.guessed.append(f"splits are in the column {column}")
    if others:
        some = ", ".join(map(shown, others[:5]))
        guess.unknown.append(
            f"which splits {some} in the column {column} stand for: their rows are excluded"
        )


def _of_folders(folder: Path, files: list[str]) -> tuple[Guess, list[str]]:
    """A guess from the names of folders, and the files."""
    depth = min(len(PurePosixPath(path).parts) - 1 for path in files)
    if not depth:
        raise BenchmdError(
            f"nothing in {folder} tells the classes of its files: expected a table (CSV or TSV) "
            "with a row for each, or folders named by class."
        )
    parts = [PurePosixPath(composed(path)).parts for path in files]
    names = [Counter(path_parts[at] for path_parts in parts) for at in range(depth)]
    levels = ["split"] if all(name.lower() in SPLITS for name in names[0]) else []
    if levels and depth == 1:
        raise BenchmdError(f"the folders in {folder} name splits, and none in them classes.")
    classes = sorted(names[len(levels)])
    if len(classes) < 2:
        raise BenchmdError(
            f"all files of {folder} are in one folder, {classes[0]}: expected two or more that are "
            "named by class, or a table with a row for each file."
        )
    stated: dict[str, Any] = {"levels": [*levels, "class"]}
    if levels:
        stated["splits"] = {name: SPLITS[name.lower()] for name in sorted(names[0])}
    return Guess(stated, classes, guessed=["classes are the names of folders", ALONE]), files


def _add_signal(guess: Guess, example: Path) -> None:
    end = _ending(example.name).lower()
    try:
        if end in ARRAYS:
            _add_array_signal(guess, read_array(example))
        elif end in VOLUMES and end not in IMAGES:
            shape = (read_mhd(example) if end == ".mhd" else read_nifti(example)).shape
            guess.signal = _volume_signal(1, shape, "int16", "HU" if end == ".mhd" else "1")
        elif end in IMAGES:
            is_dicom = end in (".dcm", ".dicom")
            pixels = None if is_dicom else read_image(example, 3)
            is_grey = pixels is None or (pixels == pixels[..., :1]).all()
            guess.signal = _image_signal(1 if is_grey else 3)
            if is_dicom:
                guess.unknown.append("DICOM files are taken for pictures, each one a record")
        else:
            guess.signal = _time_signal(guess, *_over_time(example, end))
    except RecordError as error:
        raise BenchmdError(f"{example} cannot be read: {error}.") from error


def _add_array_signal(guess: Guess, values: Array) -> None:
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


def _image_signal(channels: int) -> dict[str, Any]:
    shape = [channels, 224, 224]
    return {
        "axes": ["channel", "y", "x"], "stored_shape": shape, "input_shape": shape,
        "dtype": "uint8", "unit": "grey level", "patch": [16, 16],
        "normaliser": "source-statistics",
    }  # fmt: skip


def _volume_signal(channels: int, extents: Sequence[int], dtype: str, unit: str) -> dict[str, Any]:
    """Windows of up to 32 slices, as in the first file."""
    depth = min(32, max(8, extents[0] // 8 * 8))
    side = 96 if max(extents[1:]) <= 160 else 224
    shape = [channels, depth, side, side]
    return {
        "axes": ["channel", "z", "y", "x"], "stored_shape": shape, "input_shape": shape,
        "dtype": dtype, "unit": unit, "patch": [8, 16, 16],
        "normaliser": "source-statistics" if unit == "HU" else "record-range",
    }  # fmt: skip


def _time_signal(
    guess: Guess, names: Sequence[str], rate: float | None, unit: str
) -> dict[str, Any]:
    if rate is None:
        rate = 100.0
        guess.files["rate"] = rate
        guess.unknown.append("the files state no sampling rate: 100 Hz is only a guess, see rate")
    patch = max(1, round(rate / 4))
    length = max(patch, round(SECONDS * rate) // patch * patch)
    named: dict[str, Any] = {"channels": list(names)} if all(names) else {}
    return {
        "axes": ["channel", "time"], "stored_shape": [len(names), length],
        "input_shape": [len(names), length], "dtype": "int16", "unit": unit, "patch": [patch],
        "normaliser": "record-range", **named, "rate": rate,
    }  # fmt: skip


def _over_time(path: Path, end: str) -> tuple[list[str], float | None, str]:
    if end == ".hea":
        header = wfdb_header.read_header(path)
        rates = [
            (signal.name, header.rate * signal.frame, signal.unit) for signal in header.signals
        ]
        return *_voltages(rates), "mV"
    if end == ".edf":
        edf_header = edf.read_header(path)
        channels = edf_header.channels
        rates = [(c.name, c.samples / edf_header.seconds, c.unit) for c in channels]
        return *_voltages(rates), "µV"
    names = header_of(path)[0]
    if not any(names):
        raise RecordError("it is empty; expected a row for each sample")
    if all(map(is_sample, names)):
        return [""] * len(names), None, "1"
    return [name for name in names if name.lower() not in TIMES], None, "1"


def _voltages(channels: Sequence[tuple[str, float, str]]) -> tuple[list[str], float]:
    """Names, rate and unit of the channels that are voltages of one rate."""
    usable = [(name, rate) for name, rate, unit in channels if microvolts(unit) is not None]
    if not usable:
        raise RecordError("none of its channels is a voltage")
    return [name for name, rate in usable if rate == usable[0][1]], usable[0][1]


if __name__ == "__main__":
    serve(answer)
