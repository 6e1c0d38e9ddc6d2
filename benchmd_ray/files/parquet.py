"""Safe reading of Parquet files: bounded, without extension types, with one error for damage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmd_ray.errors import first_line
from benchmd_ray.files.integrity import Damaged

MAX_ROWS = 2**26
"""Most rows of a file: ten times the epochs of all nights of the largest dataset."""
MAX_BYTES = 2**32
"""Most decoded bytes of a file; the metadata of repeated texts may claim less than they take."""
LEAST_BYTES = 2**27
"""Decoded bytes allowed for any file, however small it is."""
MOST_TIMES = 100
"""Largest ratio of decoded size to file size for larger files; our files have up to about 20."""
BATCH_ROWS = 4096
"""Rows of a foreign table that are decoded at a time."""
READ_ROWS = 2**18
"""Rows decoded at a time for our files; each batch processes all distinct texts of its row
group.
"""
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
LEVELS = 4
"""Additional bytes of a value within a list."""
AS_LONG_AS_STORED = {"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
"""Encodings that store each text in full; others may store one text for many values."""
BY_NUMBER = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
"""Encodings in which each distinct text is stored once."""


@contextmanager
def opened(
    source: Any,
    path: object,
    remedy: str,
    *,
    dictionaries: Sequence[str] = (),
    most: int | None = None,
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; any error of reading becomes `Damaged`.

    Extension types are refused: some are defined by code, and Ray registers one that unpickles.
    ``dictionaries`` are columns of text to read as dictionaries. ``most``: most decoded bytes for
    our own files; None for foreign files and shards.

    Raises:
        Damaged: It is incomplete, claims more than `MAX_ROWS`, ``most`` or `MAX_BYTES`, has a
            column of an extension type, or has a column twice.
    """
    if isinstance(source, Path) and source.exists() and not source.is_file():
        raise Damaged(path, "it is not a regular file", remedy)
    try:
        with pq.ParquetFile(
            source, read_dictionary=[*dictionaries], page_checksum_verification=True
        ) as file:
            _require_bounded(file.metadata, most, path, remedy)
            names = _schema(file, path, remedy).names
            if len(set(names)) < len(names):
                raise Damaged(path, "a column appears twice", remedy)
            for field in file.schema_arrow:
                if _foreign(field.type):
                    raise Damaged(path, f"its column {field.name!r} is of a foreign type", remedy)
            yield file
    except FileNotFoundError as error:
        raise Damaged(path, "it is missing", remedy) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise Damaged(
            path, f"it is not a whole Parquet file ({first_line(error)})", remedy
        ) from error


def read_table(
    source: Any, path: object, remedy: str, *, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read the rows of one of our own Parquet files; see `opened`.

    It may decode to `MOST_TIMES` its size, or to `LEAST_BYTES` if that is more. Texts are read as
    dictionaries until their total length is known.
    """
    size = source.stat().st_size if isinstance(source, Path) and source.is_file() else 0
    most = min(MAX_BYTES, max(LEAST_BYTES, MOST_TIMES * size))
    with opened(source, path, remedy, most=most) as file:
        schema = file.schema_arrow
    if missing := [name for name in columns or () if name not in schema.names]:
        raise Damaged(path, f"it lacks the columns {', '.join(missing)}", remedy)
    chosen = schema.names if columns is None else [*columns]
    plain = pa.schema([schema.field(name) for name in chosen], schema.metadata)
    batches, decoded = [], 0
    texts = [field.name for field in schema if _is_text(field.type)]
    with opened(source, path, remedy, dictionaries=texts, most=most) as file:
        threads = file.metadata.num_rows > BATCH_ROWS  # fewer rows are read faster without
        for batch in file.iter_batches(READ_ROWS, columns=chosen, use_threads=threads):
            decoded += sum(map(_decoded_bytes, batch.columns))
            if decoded > most:
                raise Damaged(path, f"it decodes to more than {most:,} bytes", remedy)
            batches.append(batch.cast(plain))
    return pa.Table.from_batches(batches, plain)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decoded_bytes(column: pa.Array) -> int:
    if not isinstance(column, pa.DictionaryArray) or not _is_text(column.dictionary.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).cast(pa.int64())
    return LEVELS * len(column) + (pc.sum(lengths.take(column.indices)).as_py() or 0)


def _schema(file: pq.ParquetFile, path: object, remedy: str) -> pa.Schema:
    try:
        return file.schema_arrow
    except Exception as error:  # registered extension types may raise anything
        raise Damaged(path, f"its schema cannot be read ({first_line(error)})", remedy) from error


def _require_bounded(metadata: Any, most: int | None, path: object, remedy: str) -> None:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = (metadata.num_rows, sum(group.num_rows for group in groups))
    stored = [group.total_byte_size for group in groups]
    decoded = [
        _claimed(metadata.schema.column(at), group.column(at), ours=most is not None)
        for group in groups
        for at in range(metadata.num_columns)
    ]
    size = max(sum(stored), sum(decoded))
    if min(*sizes, *stored, *decoded) < 0 or max(sizes) > MAX_ROWS or size > (most or MAX_BYTES):
        why = f"it claims {max(sizes):,} rows and {size:,} bytes, more than such a file may hold"
        raise Damaged(path, why, remedy)


def _claimed(column: Any, part: Any, *, ours: bool) -> int:
    """Claimed decoded bytes of a column in a row group.

    For texts a lower bound, unless they have an encoding that our files do not use.
    """
    values, stored = int(part.num_values), int(part.total_uncompressed_size)
    if min(values, stored) < 0:
        return -1
    nested = bool(column.max_repetition_level > 0)
    levels = values * LEVELS * nested
    if part.physical_type != "BYTE_ARRAY":
        return levels + values * WIDTHS.get(part.physical_type, int(column.length))
    encodings = {*part.encodings} - AS_LONG_AS_STORED
    repeated = ours and (
        encodings if nested else encodings - BY_NUMBER
    )  # others are bounded by `read_table`
    return levels + LEVELS * values + (values * stored if repeated else stored)


def _foreign(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if isinstance(kind, pa.DictionaryType):
        return _foreign(kind.value_type)
    return any(_foreign(kind.field(number).type) for number in range(kind.num_fields))
