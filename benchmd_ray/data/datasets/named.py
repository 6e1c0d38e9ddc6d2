"""What a table says of records, row by row: for `listed`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import get_args

from benchmd_ray.data.any_table import has_decimal_commas, table_rows
from benchmd_ray.data.card_files import Files, Split
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.datasets.images import NO_LABEL
from benchmd_ray.data.raw import inside
from benchmd_ray.data.tables import MISSING, age, age_string, sex
from benchmd_ray.errors import BenchmdError, count_of, shown
from benchmd_ray.modality.tasks import UNKNOWN

VERSION = 2
TRUTHS = {"1": 1, "1.0": 1, "true": 1, "yes": 1, "0": 0, "0.0": 0, "false": 0, "no": 0}
"""Values of a column of one label, in lower case; nothing stands for unknown."""
NO_CLASS = "its label is not one of the classes that the card names"
EXPECTED = {"age": "a number of years from 0 to 120", "sex": "a word for male or female"}
"""What values of metadata are read as; others are kept as they are written."""
EXAMPLES = 3

Value = float | str | None


@dataclass(frozen=True)
class Named:
    """What a table or a folder says of one record."""

    path: str
    """Relative to the raw folder, in Unicode's composed form, in which names are compared."""
    file: str = ""
    """The path as the file system has it."""
    label: str | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    patient: str = ""
    split: str | None = None
    """As it is written; None where none is."""
    excluded: str = ""
    written: str = ""
    """Its label as it is written."""
    metadata: dict[str, Value] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    """Values of the table that cannot be read as its metadata, by what they should be."""
    differing: frozenset[str] = frozenset()
    """Metadata of which its rows state several values, so that none is taken."""
    row: int = 0
    """Of the table, from 1 below the header."""


def rows_of(
    table: Path, card: DatasetCard, files: Files, *, real: Callable[[str], str]
) -> Iterator[Named]:
    """What each row of a card's table says; ``real`` gives the path that the file system has."""
    label_columns = files.labels or card.classes
    several = not card.task.exclusive
    columns = [files.path, *(label_columns if several else [files.label]), *files.metadata.values()]
    columns += [name for name in (files.patient_column, files.split) if name]
    rows = list(table_rows(table, columns, f"{card.name}, as its card says"))
    commas = has_decimal_commas(table)
    values = _metadata(rows, table, card, files, commas=commas)
    for number, row in enumerate(rows, 1):
        place = PurePosixPath(files.folder) / f"{row[files.path]}{files.suffix}"
        path = inside(place.as_posix(), table)
        labels, why = _labels(row, label_columns, card, commas=commas) if several else ({}, "")
        label = None
        if not several:
            label, why = class_of(card, row[files.label])
        texts: dict[str, str] = {name: row[column] for name, column in files.metadata.items()}
        metadata = {name: values[name][text] for name, text in texts.items()}
        yield Named(
            path,
            real(path),
            label=label,
            labels=labels,
            patient=row[files.patient_column] if files.patient_column else "",
            split=row[files.split] if files.split else None,
            excluded=why,
            written="" if several else row[files.label],
            metadata=metadata,
            unread={n: t for n, t in texts.items() if metadata[n] is None and not is_missing(t)},
            row=number,
        )


def _metadata(
    rows: Sequence[Mapping[str, str]],
    table: Path,
    card: DatasetCard,
    files: Files,
    *,
    commas: bool,
) -> dict[str, dict[str, Value]]:
    values: dict[str, dict[str, Value]] = {}
    for name, column in files.metadata.items():
        texts = [row[column] for row in rows]
        values[name] = _values(name, texts, commas=commas)
        stated = [text for text in texts if not is_missing(text)]
        if stated and all(values[name][text] is None for text in stated):
            raise BenchmdError(
                f"{table}: none of the {len(stated):,} values of the column {column} can be read "
                f"as {name}, {EXPECTED[name]}: check metadata in the card of {card.name}, or leave "
                f"{name} out of it."
            )
    return values


def class_of(card: DatasetCard, label: str) -> tuple[str | None, str]:
    if not label:
        return None, NO_LABEL
    if label in card.class_mapping:
        name = card.class_mapping[label]
        return name, "" if name else f"its label {shown(label)} has no class"
    if label in card.classes and not card.class_mapping:
        return label, ""
    return None, NO_CLASS


def _labels(
    row: Mapping[str, str], columns: Sequence[str], card: DatasetCard, *, commas: bool
) -> tuple[dict[str, int], str]:
    """1, 0 or -1 of each class; of several columns of one class the highest."""
    labels = dict.fromkeys(card.classes, UNKNOWN)
    for column in columns:
        text = row[column].strip().lower()
        text = text.replace(",", ".") if commas else text
        if text and text not in TRUTHS:
            return {}, f"its value of {column} is neither 1 nor 0"
        name = card.class_mapping.get(column, column)
        if name:
            labels[name] = max(labels[name], TRUTHS.get(text, UNKNOWN))
    is_known = any(value != UNKNOWN for value in labels.values())
    return labels, "" if is_known else "none of its labels is known"


def is_missing(text: str) -> bool:
    """Whether a value says that nothing is known."""
    return text.strip().lower() in MISSING


def _values(name: str, texts: Iterable[str], *, commas: bool) -> dict[str, Value]:
    """What each text of a column of metadata is read as."""
    different = dict.fromkeys(texts)
    if name == "age":
        return {text: _age(text, commas=commas) for text in different}
    if name == "sex":
        codes = {text.lower() for text in different}
        is_other = bool(codes & {"h", "v"})  # an M is mujer next to hombre, man next to vrouw
        return {text: None if is_other and text.lower() == "m" else sex(text) for text in different}
    return {text: None if is_missing(text) else text for text in different}


def _age(text: str, *, commas: bool) -> float | None:
    number = text.replace(",", ".") if commas else text
    years = age(number)
    return age_string(text) if years is None else years


def unread_warnings(card: DatasetCard, files: Files, records: Iterable[Named]) -> dict[str, int]:
    """How many records lack a value because it is unreadable or differs, by warning.

    Values are quoted unless the card hides names.
    """
    listed = [*records]
    unread = [record.unread for record in listed if record.unread]
    differing = Counter(name for record in listed for name in record.differing)
    warnings = {}
    for name, column in files.metadata.items():
        if count := differing[name]:
            why = f"its {name} in the column {column} differs between its rows of the table"
            warnings[f"{why}: it is missing"] = count
        texts = [values[name] for values in unread if name in values]
        examples = list(dict.fromkeys(texts))[:EXAMPLES]
        quoted = "" if card.hides_names else f", such as {', '.join(map(shown, examples))}"
        if texts:
            why = (
                f"its {name} in the column {column} is not {EXPECTED[name]}{quoted}: it is missing"
            )
            warnings[why] = len(texts)
    return warnings


def stated_split(card: DatasetCard, files: Files, record: Named) -> str:
    """The split that is written of a record; empty where the card knows none of that name."""
    if card.role == "target":
        return "test"
    text = record.split or ""
    return str(files.splits.get(text, text if text in get_args(Split) else ""))


def each_once(
    card: DatasetCard, files: Files, records: Sequence[Named], *, name: Callable[[Named], str]
) -> list[Named]:
    """One row of each file: the first, with the metadata of all; in anything else rows must agree.

    Metadata of which rows state several values is missing. Where the card hides names, an error
    names only the record and the rows; ``name`` gives a row's record for messages.
    """
    rows_of_file: dict[str, list[Named]] = {}
    differing: dict[str, Named] = {}
    for record in records:
        rows = rows_of_file.setdefault(record.path, [])
        rows.append(record)
        if len(rows) > 1 and _facts(files, rows[0]) != _facts(files, record):
            differing.setdefault(record.path, record)
    if not differing:
        return [_merged(rows) for rows in rows_of_file.values()]
    path, other = next(iter(differing.items()))
    kept = rows_of_file[path][0]
    facts, others = _facts(files, kept), _facts(files, other)
    unequal = [what for what, fact in facts.items() if fact != others[what]]
    where = f"rows {kept.row} and {other.row}"
    if not card.hides_names:
        first_row, second_row = (
            " ".join(words[what] for what in unequal) for words in (facts, others)
        )
        where = f"it is {first_row} (row {kept.row}) and {second_row} (row {other.row})"
    raise BenchmdError(
        f"the table {files.table} of {card.name}: the record {name(kept)} appears twice with "
        f"different {' and '.join(f'{what}s' for what in unequal)}: {where}. In all "
        f"{count_of(len(differing), 'such record')}. Expected the same patient, split and label in "
        "all rows of a file: correct the table."
    )


def _merged(rows: Sequence[Named]) -> Named:
    if len(rows) == 1:
        return rows[0]
    stated = {name: {row.metadata[name] for row in rows} - {None} for name in rows[0].metadata}
    unread = {name: text for row in reversed(rows) for name, text in row.unread.items()}
    return replace(
        rows[0],
        metadata={
            name: next(iter(values)) if len(values) == 1 else None
            for name, values in stated.items()
        },
        unread={name: text for name, text in unread.items() if not stated[name]},
        differing=frozenset(name for name, values in stated.items() if len(values) > 1),
    )


def _facts(files: Files, record: Named) -> dict[str, str]:
    split = files.splits.get(record.split or "", record.split or "no split")
    labels = ", ".join(f"{name} {value}" for name, value in record.labels.items())
    label = labels or (shown(record.label) if record.label else "with no class of the card")
    return {
        "patient": f"of {shown(record.patient)}" if record.patient else "of no patient",
        "split": f"in {split}",
        "label": f"labelled {label}",
    }
