"""Parquet files that are read back: bounded, without foreign types, damage as an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.errors import first_line
from benchmd_ray.integrity import Damaged

MAX_ROWS = 2**26
"""Rows of one file: ten times the epochs of all nights of the largest dataset."""
MAX_BYTES = 2**32
"""Bytes that one file may hold decoded; a text that is there often may claim less than it takes."""
BATCH_ROWS = 4096
"""Rows that are decoded at a time."""


@contextmanager
def opened(
    source: Any, path: object, remedy: str, *, dictionaries: Sequence[str] = ()
) -> Iterator[pq.ParquetFile]:
    """A Parquet file to be read within; what reading it raises becomes one kind of error.

    An extension type is refused: some are defined by code, and Ray registers one that unpickles.

    Args:
        source: The file, as pyarrow takes it.
        path: What it is called in messages.
        remedy: What to do where it is damaged.
        dictionaries: Columns of text to be read as dictionaries of their different values.

    Raises:
        Damaged: It is no such file, claims more than `MAX_ROWS` or `MAX_BYTES`, or has a column of
            an extension type or one twice.
    """
    if isinstance(source, Path) and source.exists() and not source.is_file():
        raise Damaged(path, "it is not a regular file", remedy)
    try:
        with pq.ParquetFile(
            source, read_dictionary=[*dictionaries], page_checksum_verification=True
        ) as file:
            _require_bounded(file.metadata, path, remedy)
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
    """The rows of a Parquet file; see `opened`.

    Raises:
        Damaged: See `opened`; or a column is missing.
    """
    with opened(source, path, remedy) as file:
        missing = [name for name in columns or () if name not in file.schema_arrow.names]
        if missing:
            raise Damaged(path, f"it lacks the columns {', '.join(missing)}", remedy)
        chosen = None if columns is None else [*columns]
        batches, held = [], 0
        for batch in file.iter_batches(BATCH_ROWS, columns=chosen):
            held += batch.nbytes
            if held > MAX_BYTES:
                raise Damaged(path, f"it decodes to more than {MAX_BYTES:,} bytes", remedy)
            batches.append(batch)
        return pa.Table.from_batches(batches) if batches else file.read(columns=chosen)


def _schema(file: pq.ParquetFile, path: object, remedy: str) -> pa.Schema:
    try:
        return file.schema_arrow
    except Exception as error:  # whatever an extension type that is registered raises
        raise Damaged(path, f"its schema cannot be read ({first_line(error)})", remedy) from error


def _require_bounded(metadata: Any, path: object, remedy: str) -> None:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = (metadata.num_rows, sum(group.num_rows for group in groups))
    held = sum(group.total_byte_size for group in groups)
    if min(*sizes, held) < 0 or max(sizes) > MAX_ROWS or held > MAX_BYTES:
        raise Damaged(path, f"it claims {max(sizes):,} rows and {held:,} bytes", remedy)


def _foreign(kind: pa.DataType) -> bool:
    """Whether a type is, or holds, an extension type."""
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if isinstance(kind, pa.DictionaryType):
        return _foreign(kind.value_type)
    return any(_foreign(kind.field(number).type) for number in range(kind.num_fields))
