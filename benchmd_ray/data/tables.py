"""Tables that come with raw data: CSV files and the values in them, in composed Unicode.

A first line ``sep=;``, as spreadsheets write it, states the separator and is not a row.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from benchmd_ray.data.plain_numbers import number_of
from benchmd_ray.data.records import OLDEST_AGE
from benchmd_ray.errors import BenchmdError, composed, same_form, shown

SEXES = {
    **dict.fromkeys(
        "m male man mann männlich maennlich masc masculin masculino maschio maschile homme hombre "
        "homem uomo mannelijk manlig mand mężczyzna męski muž mužský férfi mies".split(),
        "male",
    ),
    **dict.fromkeys(
        "f female w woman frau weiblich fem féminin feminin femenino feminino femmina femminile "
        "femme mujer mulher donna vrouw vrouwelijk kvinna kvinnlig kvinde kvinne kobieta żeński "
        "žena ženský nő nainen".split(),
        "female",
    ),
}
"""Sex by how sources of the larger European languages write it, in lower case; no numbers, which
each source uses in another way."""
MISSING = (
    *("", "-", "--", "?", ".", "na", "n/a", "n.a.", "<na>", "#n/a", "nan", "nat", "none", "null"),
    *("unknown", "missing", "not available", "not known", "unbekannt", "inconnu", "desconocido"),
)
"""What stands for a value that is not known, in lower case."""
NOT_FINITE = ("nan", "inf", "infinity")
"""How programs write samples that are not finite, in lower case."""
AGE_UNITS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}
"""Years in the units of an age as DICOM writes it."""
STATED_SEPARATOR = re.compile(r'"?sep=(\\t|[\t!#-/:-@\[-^`{-~])"?\1*\s*', re.IGNORECASE)
"""A spreadsheet's first line: ``sep=;``."""
BOM = "ï»¿"
"""A byte order mark of UTF-8 in a file that is read in an 8-bit encoding."""
OLDEST_POSSIBLE = 120.0
"""Years: a larger age is a slip of the pen, or a code for one that is not known."""
MAX_BYTES = 2**28
"""Larger tables are refused, also where they inflate to more; MIMIC-CXR's metadata have 60 MB."""
MAX_LINE, MAX_LINES = 2**20, 2**21
"""Characters of a line, and lines. Those of SHHS, of 1,300 columns, have about 10,000 characters;
MIMIC-CXR has 400,000 lines."""
MAX_VALUES = 2**24
"""Rows times columns, which are all kept in memory; SHHS has 7 million, MIMIC-CXR 5 million."""


def read_rows(
    path: Path,
    columns: Sequence[str],
    table: str,
    *,
    delimiter: str = ",",
    encoding: str = "utf-8-sig",
) -> list[dict[str, str]]:
    """Rows of a CSV file with a header line, by column name, values without blanks at their ends.

    The file may have its name with or without ``.gz``; ``columns`` must be there, in any order. A
    separator that the first line states is taken before ``delimiter``; ``table`` is what the file
    should be, for messages.

    Raises:
        BenchmdError: The file cannot be opened, is not text, lacks a column or has one twice, is
            empty, cut off or too large, or a row has too many values.
    """
    path = present(path)
    if not path.exists():
        raise BenchmdError(f"{path} is missing: expected the table of {table}.")
    with _opened(path, encoding) as file:
        lines, stated = _rows_and_separator(file, path)
        names, rows = _values(csv.reader(lines, delimiter=stated or delimiter), path)
    _require_columns(path, names, columns, table)
    if not rows:
        raise BenchmdError(f"{path} holds no record, expected a row for each.")
    needed = max(names.index(column) for column in columns)
    for number, row in enumerate(rows, 1):
        is_short = len(row) <= needed
        if is_short or any(row[len(names) :]):
            is_cut_off = is_short and number == len(rows)
            raise BenchmdError(
                f"{path}, record {number}: it has {len(row)} values, the header {len(names)} "
                f"columns{': the file is cut off. Fetch it again' if is_cut_off else ''}."
            )
    empty = [""] * len(names)  # for cells that a row leaves out at its end
    return [dict(zip(names, (row + empty)[: len(names)], strict=True)) for row in rows]


def _require_columns(path: Path, names: Sequence[str], columns: Sequence[str], table: str) -> None:
    absent = [column for column in columns if column not in names]
    if absent:
        near = get_close_matches(absent[0], names, 1)  # a first row of values could name patients
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise BenchmdError(
            f"{path} has no column {absent[0]!r}; expected the table of {table} with "
            f"{', '.join(columns)}.{meant}"
        )
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise BenchmdError(
            f"{path} has the column {shown(twice[0])} twice{same_form(twice[0])}: name it once."
        )


def header_of(path: Path) -> tuple[list[str], str]:
    """Names of a CSV file's columns, stripped, and the separator; no names for an empty file.

    The separator is the most frequent of comma, semicolon and tab, unless the first line states it.

    Raises:
        BenchmdError: It cannot be opened or is not text.
    """
    path = present(path)
    with _opened(path, "utf-8-sig") as file:
        lines, stated = _rows_and_separator(file, path)
        line = next((line for line in lines if line.strip()), "")
        mark = stated or separator_of(line)
        cells = next(csv.reader([line], delimiter=mark), [])
    return [composed(cell.strip()) for cell in cells], mark


def separator_of(line: str) -> str:
    """The separator of a line's values: comma, semicolon or tab."""
    return max(",;\t", key=line.count)


def stated_separator(line: str) -> str:
    """The separator that a spreadsheet's first line states; empty for any other line."""
    match = STATED_SEPARATOR.fullmatch(line.removeprefix(BOM))
    return "" if match is None else match[1].replace("\\t", "\t")


def is_sample(text: str) -> bool:
    """Whether a cell of a table of samples is a sample, and its row not one of names."""
    return number_of(text) is not None or text.lower().lstrip("+-") in NOT_FINITE


def present(path: Path) -> Path:
    """The file, or where it is missing the one of the same name with or without ``.gz``."""
    other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    return other if not path.exists() and other.exists() else path


@contextmanager
def _opened(path: Path, encoding: str) -> Iterator[TextIO]:
    """A table as text; what opening or reading it raises becomes a message that names it."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would never end
        raise BenchmdError(f"{path} is not a file: expected a table.")
    try:
        file: Any = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
        with io.TextIOWrapper(file, encoding=encoding, newline="") as text:
            yield text
    except (UnicodeDecodeError, csv.Error) as error:
        raise BenchmdError(
            f"{path} is not a table in UTF-8 ({error}): save it as CSV in UTF-8."
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BenchmdError(f"{path} is not a whole gzip file ({error}). Fetch it again.") from error
    except OSError as error:
        raise BenchmdError(f"{path} cannot be opened: {error.strerror}.") from error


def _rows_and_separator(file: TextIO, path: Path) -> tuple[Iterator[str], str]:
    """Lines of a table, and the separator that a line before them states, or an empty text."""
    lines = _lines(file, path)
    first = next(lines, "")
    stated = stated_separator(first)
    return lines if stated else chain([first], lines), stated


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """Lines of a table; refuses what is too long before it is in memory."""
    characters = lines = 0
    while line := file.readline(MAX_LINE):
        characters, lines = characters + len(line), lines + 1
        if len(line) == MAX_LINE or characters > MAX_BYTES or lines > MAX_LINES:
            most = f"{MAX_LINES:,} lines of up to {MAX_LINE:,} characters"
            raise _too_large(path, f"{MAX_BYTES:,} characters in {most}")
        yield line


def _values(lines: Iterator[list[str]], path: Path) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and the values of the rows; empty lines do not count."""
    filled = filter(None, lines)
    names = [composed(name.removeprefix(BOM).strip()) for name in next(filled, [])]
    rows: list[list[str]] = []
    count = len(names)
    for line in filled:
        count += max(len(line), len(names))  # a short row is filled up
        if count > MAX_VALUES:
            raise _too_large(path, f"{MAX_VALUES:,} values")
        # Not before: some marks are composed to a semicolon.
        rows.append([composed(value.strip()) for value in line])
    return names, rows


def _too_large(path: Path, most: str) -> BenchmdError:
    return BenchmdError(f"{path} is larger than any table: expected at most {most}.")


def age(text: str) -> float | None:
    """Age in years, at most `OLDEST_AGE`; None unless a number from 0 to `OLDEST_POSSIBLE`."""
    value = number_of(text)
    if value is None or not 0 <= value <= OLDEST_POSSIBLE:
        return None
    return min(value, OLDEST_AGE)


def age_string(text: str) -> float | None:
    """Age in years, at most `OLDEST_AGE`, of an age as DICOM writes it; None where it is none.

    A number of days, weeks, months or years with the unit's letter, such as ``058Y``, years without
    one. ``000Y`` and more than `OLDEST_POSSIBLE` years count as missing.
    """
    match = re.fullmatch(r"(\d{1,9})([DWMY]?)", text.strip().upper(), re.ASCII)
    if match is None:
        return None
    unit = match[2] or "Y"
    years = int(match[1]) * AGE_UNITS[unit]
    if years > OLDEST_POSSIBLE or (years == 0 and unit == "Y"):
        return None
    return age(str(years))


def sex(text: str) -> str | None:
    """``male``, ``female``, or None where the source says neither."""
    return SEXES.get(composed(text).strip(" .").lower())
