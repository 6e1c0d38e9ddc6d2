"""Tables with a record in each row: its samples, with its label in the first or last column.

The form of the UCR archive (label first) and of data sets on Kaggle (label last).
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import RecordError
from benchmd_ray.data.tables import is_sample, separator_of

MAX_ROWS_BYTES = 2**29
"""Kaggle's heartbeats are a file of 400 MB."""


class Rows(NamedTuple):
    """A table's records."""

    texts: list[list[str]]
    """The columns that are not samples: label, ID."""
    samples: npt.NDArray[np.float64]
    """(records, samples); NaN after the end of shorter ones."""

    @property
    def labels(self) -> list[str]:
        """The label of each record, where the first text is the label."""
        return [plain_label(text) for text in self.texts[0]]


def label_place(rows: str) -> int:
    """The column of the label, from the value of ``rows`` in a card: 0 or -1."""
    return 0 if rows == "label first" else -1


def read_record_rows(path: Path, texts: Sequence[int]) -> Rows:
    """The records of a table; ``texts`` are the columns without samples. The last table is kept.

    Raises:
        RecordError: It is not a table of numbers with as many columns in each row.
    """
    stat = path.stat()
    return _read(path, tuple(texts), stat.st_size, stat.st_mtime_ns)


def first_row(path: Path) -> list[str]:
    """The cells of a table's first row: a header, or a record.

    Raises:
        RecordError: The file cannot be read.
    """
    return _cells(_text(path))[1]


def _text(path: Path) -> bytes:
    return read_bounded(path, MAX_ROWS_BYTES, "the table").removeprefix(codecs.BOM_UTF8)


def _cells(text: bytes) -> tuple[str, list[str]]:
    """The separator, a blank for any number of them, and the cells of the first row."""
    first = text[: 2**20].lstrip(b"\r\n").split(b"\n", 1)[0].decode("utf-8", "replace")
    mark = separator_of(first)
    if mark not in first.strip():
        return " ", first.split()
    return mark, [cell.strip().strip('"') for cell in first.strip(" \r").split(mark)]


@functools.lru_cache(maxsize=1)
def _read(path: Path, texts: tuple[int, ...], *_: int) -> Rows:
    text = _text(path)
    mark, cells = _cells(text)
    text = without_blanks(text) if mark == " " else text
    places = [place % len(cells) for place in texts]
    names = [str(number) for number in range(len(cells))]
    has_header = cells == names != ["0"] or not all(  # pandas counts columns without names
        is_sample(cell) for at, cell in enumerate(cells) if at not in places
    )
    types = {name: pa.float64() for name in names} | {names[at]: pa.string() for at in places}
    uneven: list[pa.csv.InvalidRow] = []

    def refuse(row: pa.csv.InvalidRow) -> str:
        uneven.append(row)
        return "error"

    try:
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(column_names=names, skip_rows=int(has_header), use_threads=False),
            pa.csv.ParseOptions(delimiter=mark, invalid_row_handler=refuse),
            pa.csv.ConvertOptions(column_types=types),
        )
    except (pa.ArrowInvalid, ValueError) as error:
        raise RecordError(_fault(uneven, texts)) from error
    columns = [table.column(at).to_numpy() for at in range(len(names)) if at not in places]
    return Rows(
        [[value or "" for value in table.column(at).to_pylist()] for at in places],
        np.stack(columns, axis=1) if columns else np.empty((len(table), 0)),
    )


def _fault(uneven: Sequence[pa.csv.InvalidRow], texts: Sequence[int]) -> str:
    """Why a table cannot be read."""
    label = {"0": ", and the label first", "-1": ", and the label last"}.get(
        " ".join(map(str, texts)), ""
    )
    fault = f"it is not a table with a record in each row: numbers, the same columns{label}"
    for row in uneven[:1]:
        line = f"line {row.number}" if row.number else "a row"
        fault += f"; {line} has {row.actual_columns} values, the first {row.expected_columns}"
    return fault


def without_blanks(text: bytes) -> bytes:
    """Lines whose values are separated by one blank each, instead of several or tabs."""
    return b"\n".join(b" ".join(line.split()) for line in text.splitlines())


def plain_label(text: str) -> str:
    """A label as it is written, whole numbers without their zeros: ``1`` for ``1.0000000e+00``."""
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else text
