"""Tables with a record in each row: its samples, with its label in the first or last column.

The form of the UCR archive (label first) and of data sets on Kaggle (label last).
"""

from __future__ import annotations

import codecs
import functools
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

    labels: list[str]
    samples: npt.NDArray[np.float64]
    """(records, samples); NaN after the end of shorter ones."""


def read_record_rows(path: Path, label: str) -> Rows:
    """The records of a table; ``label`` is ``first`` or ``last``. The last table is kept.

    Raises:
        RecordError: It is not a table of numbers with as many columns in each row.
    """
    stat = path.stat()
    return _read(path, label, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _read(path: Path, label: str, *_: int) -> Rows:
    text = read_bounded(path, MAX_ROWS_BYTES, "the table").removeprefix(codecs.BOM_UTF8)
    first = text[: 2**20].lstrip().split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    mark = separator_of(first)
    if mark not in first:
        text, mark, first = without_blanks(text), " ", " ".join(first.split())
    cells = [cell.strip().strip('"') for cell in first.split(mark)]
    place = 0 if label == "first" else len(cells) - 1
    is_header = not all(is_sample(cell) for at, cell in enumerate(cells) if at != place)
    names = [str(number) for number in range(len(cells))]
    types = {name: pa.float64() for name in names} | {names[place]: pa.string()}
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(column_names=names, skip_rows=int(is_header), use_threads=False),
            pa.csv.ParseOptions(delimiter=mark),
            pa.csv.ConvertOptions(column_types=types),
        )
    except (pa.ArrowInvalid, ValueError) as error:
        raise RecordError(
            "it is not a table with a record in each row: numbers, the same columns, and the label "
            f"{label}"
        ) from error
    labels = [plain_label(text or "") for text in table.column(place).to_pylist()]
    columns = [table.column(at).to_numpy() for at in range(len(names)) if at != place]
    return Rows(labels, np.stack(columns, axis=1) if columns else np.empty((len(labels), 0)))


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
