"""Per-case scores as Touchstone releases them: a folder of each algorithm with CSVs.

``dsc.csv`` and maybe ``nsd.csv`` have a column ``name`` and one for each class: fractions, empty
where the reference has none of it. Their licence is CC BY-NC-ND 4.0: users bring the files.
Display names are those of cards (folders ``touchstone`` of card folders), else the folder's.
"""

from __future__ import annotations

import csv
import functools
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmd_ray.benchmarks.touchstone.cases import SCHEMA
from benchmd_ray.benchmarks.touchstone.joining import METRICS, AlgorithmScores
from benchmd_ray.data.plain_numbers import number_of
from benchmd_ray.data.readers.bounded import read_bounded
from benchmd_ray.data.records import RecordError
from benchmd_ray.data.tables import stated_separator
from benchmd_ray.errors import BenchmdError, composed, count_of, shown
from benchmd_ray.modality.card_folders import card_folders
from benchmd_ray.schema.plain_yaml import read_yaml_file
from benchmd_ray.schema.typed import typed

CARDS = "touchstone"
"""Folder of cards of algorithms, in a folder of cards."""
MAX_BYTES = 2**26
"""Of a CSV: 100,000 cases of 30 classes."""
MAX_LINES = 10**6
NAME = "name"
TASK = "of the CSV files"
ORDER = (
    *("spleen", "kidney_right", "kidney_left", "gall_bladder", "liver", "stomach", "aorta"),
    *("postcava", "pancreas"),
)
"""Classes in the order of the paper's tables."""


@dataclass(frozen=True)
class Algorithm:
    title: str
    framework: str = ""
    pretrained_on: tuple[str, ...] = ()
    """Data of an earlier training; ``not stated`` where it is only known that there was one."""


def algorithms() -> dict[str, Algorithm]:
    """Cards of algorithms by the names of their folders."""
    return _all(card_folders())


@functools.cache
def _all(folders: tuple[Path, ...]) -> dict[str, Algorithm]:
    cards: dict[str, Algorithm] = {}
    paths = [path for folder in folders for path in sorted((folder / CARDS).glob("algorithms*"))]
    for path in paths:
        where = f"the card {path}"
        stated = typed(dict[str, Algorithm], read_yaml_file(path, where), where)
        if both := sorted(stated.keys() & cards.keys()):
            raise BenchmdError(f"{where}: there is a card of {both[0]} already: keep one.")
        cards |= stated
    return cards


def read_csv_folder(folder: Path) -> list[AlgorithmScores]:
    """Scores in the subfolders with a ``dsc.csv``, by name; or of one such folder itself."""
    if not folder.is_dir():
        raise BenchmdError(f"{folder} is not a folder: expected one with a folder per algorithm.")
    folders = [folder] if (folder / "dsc.csv").is_file() else sorted(folder.iterdir())
    folders = [path for path in folders if (path / "dsc.csv").is_file()]
    if not folders:
        raise BenchmdError(
            f"{folder}: no folder in it has a dsc.csv: expected ALGORITHM/dsc.csv, with columns "
            "name and one for each class."
        )
    read = [_algorithm(path) for path in folders]
    others = [p for p in sorted(folder.iterdir()) if p.is_dir() and p not in folders]
    names = [path.name for path in others if path.name[0] != "." and folders != [folder]]
    if names:
        note = f"not read: {', '.join(names)} in {folder.name} without a file dsc.csv."
        read[0] = replace(read[0], notes=(*read[0].notes, note))
    return read


def _algorithm(folder: Path) -> AlgorithmScores:
    card = algorithms().get(folder.name, Algorithm(folder.name.lstrip("_")))
    tables = {
        metric: read_scores_csv(folder / f"{metric}.csv")
        for metric in METRICS
        if metric == "dsc" or (folder / f"{metric}.csv").is_file()
    }
    order = {name: place for place, name in enumerate(ORDER)}
    classes = sorted(map(str, tables["dsc"]), key=lambda name: order.get(name, len(order)))
    for metric, table in tables.items():
        if {*map(str, table)} != {*classes}:
            differ = ", ".join(sorted({*map(str, table)} ^ {*classes}))
            raise BenchmdError(f"{folder / metric}.csv has other classes than dsc.csv: {differ}.")
        differing = table.index.symmetric_difference(tables["dsc"].index)
        if len(differing):
            raise BenchmdError(
                f"{folder / metric}.csv and dsc.csv differ in {count_of(len(differing), 'case')}, "
                f"such as {shown(differing[0])}: expected the same cases in both."
            )
    rows = pd.concat([_long(table, metric) for metric, table in tables.items()], axis=1)
    rows = rows.reset_index().assign(algorithm=card.title)
    empty = {name: math.nan for name in SCHEMA.names if name not in rows}
    rows = rows.assign(**{**empty, "code": None})[SCHEMA.names]
    return AlgorithmScores(card.title, str(folder), TASK, tuple(classes), rows, card.pretrained_on)


def _long(table: pd.DataFrame, metric: str) -> pd.Series:
    places = [(case, name) for case in table.index for name in table]
    index = pd.MultiIndex.from_tuples(places, names=["case", "class"])
    return pd.Series(table.to_numpy(np.float64).ravel(), index, name=metric)


def read_scores_csv(path: Path) -> pd.DataFrame:
    """A CSV of scores: rows by case, a column for each class, NaN where a cell is empty."""
    head, rows = read_rows(path)
    if NAME not in head or len(head) < 2:
        raise BenchmdError(
            f"{path}: its header is {', '.join(head) or 'empty'}; expected name and one column for "
            "each class."
        )
    if len(set(head)) < len(head):
        raise BenchmdError(f"{path}: a column appears twice in {', '.join(head)}.")
    require_cells(path, head, rows)
    cases = [line[head.index(NAME)] for line in rows.values()]
    if twice := sorted(name for name, count in Counter(cases).items() if count > 1):
        raise BenchmdError(
            f"{path}: {count_of(len(twice), 'case')} repeated, such as {shown(twice[0])}: keep "
            "one row for each case."
        )
    content = {
        name: [_number(line[place], path, number) for number, line in rows.items()]
        for place, name in enumerate(head)
        if name != NAME
    }
    return pd.DataFrame(content, index=cases)


def require_cells(path: Path, head: list[str], rows: Mapping[int, list[str]]) -> None:
    """Refuse rows, by line number, that are longer or shorter than the header."""
    for number, line in rows.items():
        if len(line) != len(head):
            raise BenchmdError(f"{path}, line {number}: expected {len(head)} cells as in line 1.")


def read_rows(
    path: Path, delimiters: str = ",", expected: Sequence[str] = ()
) -> tuple[list[str], dict[int, list[str]]]:
    """Header and rows by line number of a text table in UTF-8; Unicode is composed.

    A spreadsheet's first line ``sep=;`` states the separator. Otherwise it is the one of
    ``delimiters`` by which the first line has a column named as in ``expected``, or most cells.
    """
    try:
        content = read_bounded(path, MAX_BYTES, "the table").decode("utf-8-sig")
        if content.count("\n") > MAX_LINES:
            raise BenchmdError(f"{path}: it has more than {MAX_LINES:,} lines.")
        content = composed(content)
        first, _, rest = content.partition("\n")
        if stated := stated_separator(first):
            content, delimiters = rest, stated

        def fits(mark: str) -> tuple[bool, int]:
            first = next(csv.reader(io.StringIO(content), delimiter=mark), [])
            return any(name.strip().lower() in expected for name in first), len(first)

        delimiter = max(delimiters, key=fits)
        lines = csv.reader(io.StringIO(content), delimiter=delimiter, strict=True)
        numbered = enumerate(lines, 2 if stated else 1)
        rows = {number: [cell.strip() for cell in line] for number, line in numbered if line}
        return rows.pop(min(rows, default=0), []), rows
    except RecordError as error:
        raise BenchmdError(f"{path}: {error}.") from error
    except FileNotFoundError as error:
        raise BenchmdError(f"{path}: there is no such file.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BenchmdError(f"{path}: it is not a table as UTF-8 text ({error}).") from error


def _number(cell: str, path: Path, line: int) -> float:
    if cell.lower() in ("", "nan"):
        return math.nan
    value = number_of(cell)
    if value is None:
        raise BenchmdError(
            f"{path}, line {line}: {shown(cell)} is not a number; leave a cell empty where the "
            "reference has none of the class."
        )
    return value
