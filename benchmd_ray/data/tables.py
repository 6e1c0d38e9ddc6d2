"""Tables that come with raw data: CSV files and the values in them."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from benchmd_ray.data.records import OLDEST_AGE
from benchmd_ray.errors import BenchmdError

SEXES = {"male": "male", "m": "male", "female": "female", "f": "female"}
"""Sex by how most sources write it, in lower case."""
AGE_UNITS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}
"""Years in the units of an age as DICOM writes it."""
BOM = "ï»¿"
"""A byte order mark of UTF-8 in a file that is read in an 8-bit encoding."""
OLDEST_POSSIBLE = 120.0
"""Years: a larger age is a slip of the pen."""


def read_rows(
    path: Path,
    columns: Sequence[str],
    table: str,
    *,
    delimiter: str = ",",
    encoding: str = "utf-8-sig",
) -> list[dict[str, str]]:
    """Rows of a CSV file with a header line, by column name, values without blanks at their ends.

    Columns may stand in any order.

    Args:
        path: The file. Where it is missing, the same name with or without ``.gz`` is taken; what
            ends in ``.gz`` is read through gzip.
        columns: Columns that must be there; names match after stripping blanks.
        table: What the file should be, for messages.
        delimiter: What separates the values.
        encoding: Of the text: UTF-8 with or without a byte order mark, unless told otherwise.

    Raises:
        BenchmdError: The file cannot be opened, is no text, has other columns or one twice, is
            empty or cut off, or a row has more values than there are columns.
    """
    path = present(path)
    try:
        with _open_text(path, encoding) as file:
            lines = filter(None, csv.reader(file, delimiter=delimiter))
            names = [name.removeprefix(BOM).strip() for name in next(lines, [])]
            rows = [[value.strip() for value in line] for line in lines]
    except FileNotFoundError as error:
        raise BenchmdError(f"{path} is missing: expected the table of {table}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BenchmdError(f"{path} is no UTF-8 text ({error}). Fetch it again.") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BenchmdError(f"{path} is no whole gzip file ({error}). Fetch it again.") from error
    except OSError as error:
        raise BenchmdError(f"{path} cannot be opened: {error.strerror}.") from error
    absent = [column for column in columns if column not in names]
    if absent:
        raise BenchmdError(
            f"{path} has no column {absent[0]!r}; expected the table of {table} with "
            f"{', '.join(columns)}. Fetch it again."
        )
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise BenchmdError(f"{path} has the column {twice[0]!r} twice. Fetch it again.")
    if not rows:
        raise BenchmdError(f"{path} holds no record. Fetch it again.")
    needed = max(names.index(column) for column in columns)
    for number, row in enumerate(rows, 1):
        if len(row) <= needed:
            raise BenchmdError(
                f"{path} ends within record {number}: the file is cut off. Fetch it again."
            )
        if any(row[len(names) :]):
            raise BenchmdError(
                f"{path}, record {number}: it has {len(row)} values, the header {len(names)} "
                "columns. Fetch it again."
            )
    empty = [""] * len(names)  # for cells that a row leaves out at its end
    return [dict(zip(names, (row + empty)[: len(names)], strict=True)) for row in rows]


def present(path: Path) -> Path:
    """The file, or where it is missing the one of the same name with or without ``.gz``."""
    other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    return other if not path.exists() and other.exists() else path


def _open_text(path: Path, encoding: str) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def age(text: str) -> float | None:
    """Age in years, at most `OLDEST_AGE`; None where there is no number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return min(value, OLDEST_AGE) if math.isfinite(value) and value >= 0 else None


def age_string(text: str) -> float | None:
    """Age in years, at most `OLDEST_AGE`, of an age as DICOM writes it; None where it is none.

    Args:
        text: A number of days, weeks, months or years with the unit's letter, such as ``058Y``;
            years where there is no letter. ``000Y`` and more than `OLDEST_POSSIBLE` years count
            as not given.
    """
    text = text.strip().upper()
    number, unit = (text[:-1], text[-1]) if text[-1:] in AGE_UNITS else (text, "Y")
    if not (number.isascii() and number.isdigit()):
        return None
    years = int(number) * AGE_UNITS[unit]
    if years > OLDEST_POSSIBLE or (years == 0 and unit == "Y"):
        return None
    return age(str(years))


def sex(text: str) -> str | None:
    """``male``, ``female``, or None where the source says neither."""
    return SEXES.get(text.strip().lower())
