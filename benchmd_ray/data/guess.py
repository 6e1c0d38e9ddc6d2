"""What a folder of files seems to hold, for a first card (`new_card`).

Run as a module, it is the separate process that looks into the files.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

from benchmd_ray.data.any_table import parquet_columns, table_rows
from benchmd_ray.data.apart import begin, serve
from benchmd_ray.data.datasets.any_file import TEXT
from benchmd_ray.data.datasets.record_rows import label_place, read_record_rows
from benchmd_ray.data.guess_signal import KNOWN, Guess, add_signal, ending_of
from benchmd_ray.data.name_patterns import guessed_pattern, named_in
from benchmd_ray.data.plain_numbers import number_of
from benchmd_ray.data.raw import walk
from benchmd_ray.data.records import METADATA, RecordError
from benchmd_ray.data.tables import header_of, sex
from benchmd_ray.errors import BenchmdError, composed, shown

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
MOST_TABLES = 200
"""Tables that are looked at in a folder: of more, most are recordings."""
MOST_CLASSES = 100
"""Different values of a column that is taken for the classes."""
SPLITS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation",
    "validation": "validation", "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""Names of splits in folders and tables, in lower case."""
LABELS = ("label", "class", "diagnosis", "target", "category", "dx")
PATIENTS = (
    "patient", "patientid", "subject", "subjectid", "person", "personid", "participant",
    "participantid", "donor", "donorid", "volunteer", "volunteerid",
)  # fmt: skip
"""Names of columns, without what is neither letter nor digit, in lower case."""
SPLIT = ("split", "fold", "set", "partition", "subset")
ALONE = (
    "EVERY FILE IS TAKEN FOR A PATIENT. If a patient has several, they are in training and test "
    "alike, and all scores are too good. Name in the card the column with the patients, a level of "
    'folders, or `patient: {pattern: "(?P<patient>…)_"}` for names of files'
)
SAMPLES = (".csv", ".tsv", TEXT)
FEWEST_SAMPLES = 16
"""Of a record in a row; a table with fewer columns is taken for samples in rows."""
READ, TABLE = 0, 1
"""Parts of the look at a folder, as `begin` names them."""


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The fields of the `Guess` of a request's ``folder``; or ``error``, why there is none."""
    try:
        return asdict(guessed(Path(request["folder"]))), b""
    except BenchmdError as error:
        return {"error": str(error)}, b""


def guessed(folder: Path) -> Guess:
    """What a folder seems to hold, or the only folder in it.

    Raises:
        BenchmdError: It has no file of a known format, or nothing that tells classes.
    """
    try:
        return _guessed(folder)
    except BenchmdError as error:
        inner = [path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._"]
        if len(inner) != 1:
            raise
        try:
            guess = guessed(inner[0])
        except BenchmdError:
            raise error from None
    return replace(guess, inside=(PurePosixPath(inner[0].name) / guess.inside).as_posix())


def _guessed(folder: Path) -> Guess:
    groups: dict[str, list[str]] = {}
    for place, names in walk(folder, *(f"*{end}" for end in KNOWN)):
        for name in sorted(names):
            path = (place / name).relative_to(folder).as_posix()
            groups.setdefault(ending_of(name).lower(), []).append(path)
    if len(groups) > 1:
        groups.pop(TEXT, None)  # notes
    if not groups:
        raise BenchmdError(
            f"{folder} holds no file of a known format: expected one of {', '.join(KNOWN)}."
        )
    begin(TABLE)
    best, others = _of_tables(folder, groups)
    rows = None if best else _of_record_rows(folder, _largest(groups))
    others = [] if rows else others
    guess, files = best or rows or _of_folders(folder, _largest(groups), others)
    guess.unknown += others
    _add_patients(guess, files)
    table = guess.files.get("table")
    is_text = files[0].lower().endswith(TEXT)
    if is_text or any(path not in (*files, table) for paths in groups.values() for path in paths):
        guess.files["suffixes"] = [ending_of(files[0]).lower()]
    begin(READ)
    add_signal(guess, [folder / path for path in files])
    return guess


def _add_patients(guess: Guess, files: Sequence[str]) -> None:
    """Patients in the names of files, where no column names them; or a caution."""
    if "patient" in guess.files:
        return
    if "rows" in guess.files:
        guess.cautions.append(ALONE.replace("FILE", "ROW"))
        return
    start = f"{guess.files['folder']}/" if "folder" in guess.files else ""
    paths = [composed(path).removeprefix(start) for path in files]
    likely = guessed_pattern(paths, len(guess.classes))
    if likely is None:
        guess.cautions.append(ALONE)
        return
    pattern, patients = likely
    guess.files["patient"], guess.private_names = {"pattern": pattern}, True
    guess.patients = len(patients)
    guess.cautions.append(
        f"patients are guessed from the names of files: {len(patients):,} in {len(files):,} files. "
        f"Check the pattern of patient in the card, {shown(pattern)}"
    )


def _largest(groups: Mapping[str, list[str]], without: str = "") -> list[str]:
    """The files of the most frequent format."""
    rest = ([path for path in paths if path != without] for paths in groups.values())
    return max(rest, key=len)


def _tables(folder: Path) -> list[str]:
    """Tables in the folder itself, which may name others of its files."""
    names = (path.name for path in folder.iterdir() if path.is_file())
    return sorted(name for name in names if name.lower().endswith(TABLES))[:MOST_TABLES]


def _of_tables(
    folder: Path, groups: Mapping[str, list[str]]
) -> tuple[tuple[Guess, list[str]] | None, list[str]]:
    """A guess from the table that names the most files, with these; what the others lack."""
    best: tuple[int, Guess, list[str]] | None = None
    others: list[str] = []
    for table in _tables(folder):
        files = _largest(groups, table)
        try:
            rows = list(table_rows(folder / table, _columns(folder / table), "a dataset"))
        except BenchmdError as error:
            others.append(f"whether this table matters: {str(error).removesuffix('.')}")
            continue
        keys = _keys(files) if files else {}
        named = 0
        for column in rows[0]:
            values = {row[column] for row in rows}
            for key, about in keys.items():
                matched = len(values & about.keys())
                named = max(named, matched)
                if matched and (best is None or matched > best[0]):
                    best = matched, _of_rows(table, rows, column, key, about), files
        if files and not named and not files[0].lower().endswith(TABLES):
            others.append(
                f"what {table} is for: none of its columns ({', '.join(list(rows[0])[:10])}) names "
                f"any of the {ending_of(files[0])} files. Add a column with the path of each "
                "row's file"
            )
    return (None if best is None else best[1:]), others


def _columns(path: Path) -> list[str]:
    """Names of a table's columns, each once."""
    names = parquet_columns(path) if path.suffix == ".parquet" else header_of(path)[0]
    if not any(names):
        raise BenchmdError(f"{path} has no header.")
    return [name for name in dict.fromkeys(names) if name]


def _keys(files: Sequence[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Files by the names a column may use, grouped by the folder and suffix that these omit."""
    common = PurePosixPath(os.path.commonpath([PurePosixPath(path).parent for path in files]))
    suffix = ending_of(files[0])
    keys: dict[tuple[str, str], dict[str, str]] = {}
    for place in (common.as_posix(), *(parent.as_posix() for parent in common.parents)):
        for removed in ("", suffix):
            start = "" if place == "." else f"{place}/"
            keys["" if place == "." else place, removed] = {
                composed(path.removeprefix(start).removesuffix(removed)): path for path in files
            }
    return keys


def _of_rows(
    table: str,
    rows: Sequence[Mapping[str, str]],
    column: str,
    key: tuple[str, str],
    paths: Mapping[str, str],
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
        named = [row for row in rows if row[column] in paths and row[patient]]
        guess.patients = len({row[patient] for row in named})
        if named_in([row[patient] for row in named], [row[column] for row in named]):
            guess.private_names = True
            guess.guessed.append(
                "names of files hold patients: private_names keeps them out of catalogs"
            )
    split = next((names[name] for name in SPLIT if name in names), None)
    if split is not None:
        _add_split(guess, split, sorted({row[split] for row in rows}))
    metadata = {name: names[name] for name in METADATA if name in names}
    if "sex" in metadata and not any(sex(row[metadata["sex"]]) for row in rows):
        guess.unknown.append(f"what the codes of the column {metadata.pop('sex')} mean")
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


def _of_record_rows(folder: Path, files: list[str]) -> tuple[Guess, list[str]] | None:
    """A guess from files with a record in each row and its label first or last; None for others."""
    in_folders = any("/" in path for path in files)  # which name classes of recordings
    if in_folders or not files[0].lower().endswith(SAMPLES):
        return None
    for place in ("first", "last"):
        stated = f"label {place}"
        try:
            tables = [
                read_record_rows(folder / path, [label_place(stated)])
                for path in files[:MOST_TABLES]
            ]
        except RecordError:
            continue
        labels = [label for table in tables for label in table.labels]
        classes = sorted(set(labels))
        columns = {table.samples.shape[1] for table in tables}
        few = 2 <= len(classes) <= min(MOST_CLASSES, len(labels) // 2)
        if few and min(columns) >= FEWEST_SAMPLES and all(map(_is_class, classes)):
            facts = {"rows": stated} | ({"samples": min(columns)} if len(columns) == 1 else {})
            text = f"each row of a file is a record, with its class in the {place} column"
            return Guess(facts, classes, guessed=[text]), files
    return None


def _is_class(label: str) -> bool:
    """Whether it may name a class: a whole number, or text."""
    number = number_of(label)
    return bool(label) and (number is None or number.is_integer())


def _of_folders(folder: Path, files: list[str], others: Sequence[str]) -> tuple[Guess, list[str]]:
    """A guess from the names of folders, and the files; ``others``: tables that name none."""
    depth = min(len(PurePosixPath(path).parts) - 1 for path in files)
    if not depth:
        raise BenchmdError(
            f"nothing in {folder} tells the classes of its files: expected a table (CSV or TSV) "
            "with a row for each, or folders named by class."
            + "".join(f" Not known: {what}." for what in others)
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
    return Guess(stated, classes, guessed=["classes are the names of folders"]), files


if __name__ == "__main__":
    serve(answer)
