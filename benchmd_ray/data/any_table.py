"""Tables that list a dataset's records, as rows of composed text: CSV, TSV and Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.data.tables import MAX_BYTES, MAX_LINES, MAX_VALUES, header_of, present, read_rows
from benchmd_ray.errors import BenchmdError, composed, same_form, shown
from benchmd_ray.files.parquet import BATCH_ROWS, opened

DELTA = frozenset({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})
"""Encodings of text in which a value is stored by its length, or by what differs from the one
before."""
BATCH_BYTES = 2**27
"""Of texts that are decoded at a time, at most, where they are not read as dictionaries."""
REMEDY = "Write the table anew, as Parquet or as CSV."


def table_rows(path: Path, columns: Sequence[str], what: str) -> Iterator[Mapping[str, str]]:
    """Rows of a Parquet (by its ending) or CSV file that has all ``columns``, values as text.

    Raises:
        BenchmdError: The table is missing or too large, or lacks a column or has one twice.
    """
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        raise BenchmdError(f"{path} is a spreadsheet: save it as CSV in UTF-8 and name that.")
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, list(dict.fromkeys(columns)), what)
        return
    yield from read_rows(path, columns, what, delimiter=_separator(path))


def has_decimal_commas(path: Path) -> bool:
    """Whether values may have decimal commas: not in Parquet or comma-separated files."""
    return path.suffix != ".parquet" and _separator(path) != ","


def _separator(path: Path) -> str:
    return header_of(path)[1] if present(path).is_file() else ","


def parquet_columns(path: Path) -> list[str]:
    """Names of a Parquet table's columns of text, numbers and dates."""
    with opened(path, path, REMEDY) as file:
        return [composed(field.name) for field in file.schema_arrow if _is_plain(field.type)]


def _parquet_rows(path: Path, columns: list[str], what: str) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise BenchmdError(f"{path} is missing: expected the table of {what}.")
    with opened(path, path, REMEDY) as file:
        stored = _stored_names(file, columns, path)
        _require_plain(file, stored, path)
        dictionaries, at_once = _text_columns(file, stored, path)
    characters = 0
    # As dictionaries: a long text that many rows have is in memory once.
    with opened(path, path, REMEDY, dictionaries=dictionaries) as file:
        for batch in file.iter_batches(at_once, columns=stored):
            values = [_texts(batch.column(name)) for name in stored]
            characters += sum(len(text) for column in values for text in column)
            if characters > MAX_BYTES:
                raise _too_large(path, f"{MAX_BYTES:,} characters")
            for row in zip(*values, strict=True):
                yield dict(zip(columns, row, strict=True))


def _stored_names(file: pq.ParquetFile, columns: Sequence[str], path: Path) -> list[str]:
    """Names of columns as the file has them, which may be another form of Unicode."""
    names: dict[str, str] = {}
    for name in file.schema_arrow.names:
        if names.setdefault(composed(name), name) != name:
            raise BenchmdError(
                f"{path} has the column {shown(composed(name))} twice{same_form(name)}: name it "
                "once."
            )
    for name in columns:
        if name not in names:
            has = ", ".join(map(shown, list(names)[:40]))
            raise BenchmdError(f"{path} has no column {name!r}; it has {has}.")
    return [names[name] for name in columns]


def _require_plain(file: pq.ParquetFile, columns: Sequence[str], path: Path) -> None:
    """Refuse columns of lists or bytes, and tables that are empty or too large."""
    schema, about = file.schema_arrow, file.metadata
    for name in columns:
        if not _is_plain(schema.field(name).type):
            raise BenchmdError(
                f"{path}: the column {name!r} is of type {schema.field(name).type}, expected text, "
                "numbers or dates."
            )
    if not about.num_rows:
        raise BenchmdError(f"{path} holds no record, expected a row for each.")
    if about.num_rows > MAX_LINES or about.num_rows * len(columns) > MAX_VALUES:
        raise _too_large(path, f"{MAX_LINES:,} rows and {MAX_VALUES:,} values")
    claimed = sum(part.total_uncompressed_size for part in _parts(file, columns))
    if max(claimed, path.stat().st_size) > MAX_BYTES:
        raise _too_large(path, f"{MAX_BYTES:,} bytes")


def _parts(file: pq.ParquetFile, columns: Sequence[str]) -> list[Any]:
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    parts = [group.column(at) for group in groups for at in range(group.num_columns)]
    return [part for part in parts if part.path_in_schema in columns]


def _text_columns(
    file: pq.ParquetFile, columns: Sequence[str], path: Path
) -> tuple[list[str], int]:
    """Columns of text that can be read as dictionaries, and how many rows to decode at a time.

    pyarrow makes no dictionary of the encodings `DELTA`: there each row may have a text as long as
    all that is stored.
    """
    parts = [part for part in _parts(file, columns) if {*part.encodings} & DELTA]
    kinds = {
        part.path_in_schema: file.schema_arrow.field(part.path_in_schema).type for part in parts
    }
    for name, kind in kinds.items():
        if pa.types.is_dictionary(kind) and _is_text(kind.value_type):
            raise BenchmdError(
                f"{path}: the column {name!r} holds categories in a DELTA encoding, which pyarrow "
                f"does not read. {REMEDY}"
            )
    longest = max(
        (p.total_uncompressed_size for p in parts if _is_text(kinds[p.path_in_schema])), default=0
    )
    texts = [name for name in columns if _is_text(file.schema_arrow.field(name).type)]
    dictionaries = [name for name in texts if name not in kinds]
    return dictionaries, min(BATCH_ROWS, max(1, BATCH_BYTES // max(1, longest)))


def _is_plain(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    of_bytes = ("binary", "large_binary", "fixed_size_binary", "binary_view")
    is_bytes = any(getattr(pa.types, f"is_{name}")(kind) for name in of_bytes)
    return not (pa.types.is_nested(kind) or is_bytes)


def _is_text(kind: pa.DataType) -> bool:
    of_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(kind) for check in of_text)


def _texts(column: pa.Array) -> list[str]:
    """Texts of a column; each different value of a dictionary is converted once."""
    if not isinstance(column, pa.DictionaryArray):
        return [_as_text(value) for value in column.to_pylist()]
    used, places = np.unique(column.indices.fill_null(-1).to_numpy(), return_inverse=True)
    chosen = column.dictionary.take(pa.array(used, mask=used < 0))
    texts = [_as_text(value) for value in chosen.to_pylist()]
    return [texts[place] for place in places]


def _as_text(value: Any) -> str:
    """A value as a CSV file would have it; empty where it is missing or NaN."""
    return "" if value is None or value != value else composed(str(value)).strip()


def _too_large(path: Path, most: str) -> BenchmdError:
    return BenchmdError(f"{path} is too large for a table: expected at most {most}.")
