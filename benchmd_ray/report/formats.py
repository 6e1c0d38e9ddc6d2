"""A frame as aligned text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

import pandas as pd
from pandas.api.types import is_numeric_dtype

from benchmd_ray.console.terminal import visible

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after \\ a bracket would be read as a length
    "]": "{]}",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "τ": r"$\tau$",
    "→": r"$\rightarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "…": r"\dots{}",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "†": r"$\dagger$",
    "“": "``",
    "”": "''",
}
"""Replacements of characters that are special in LaTeX or missing from its fonts."""


NUMBER = re.compile(
    r"–|(\*\*)?[<+−-]?[\d,]*\.?\d+(e-?\d+)?( \[.*\])?( \(no interval\))?†?(\*\*| ≈)?"
)
"""A cell with a number, perhaps with an interval or a mark."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters that a spreadsheet takes for a formula (OWASP, "CSV Injection")."""


def csv_text(frame: pd.DataFrame) -> str:
    """A frame as CSV with a header, safe to open in a spreadsheet.

    A text that starts like a formula gets a leading apostrophe. All texts are quoted, so that no
    separator or line end within them starts a new cell. Numbers stay numbers.
    """
    safe = frame.rename(columns=_inert)
    for at, kind in enumerate(frame.dtypes):
        column = frame.iloc[:, at]
        if kind == "str" and not column.str.startswith(FORMULA).any():
            continue
        if not is_numeric_dtype(kind):
            safe.isetitem(at, column.map(_inert).array)
    return str(safe.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC))


def _inert(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def aligned(frame: pd.DataFrame) -> list[str]:
    """The lines of a frame for a terminal, with numbers right-aligned."""
    rows = [[*map(visible, row)] for row in _rows(frame)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = _right(frame)
    lines = [
        "  ".join(
            v.rjust(w) if r else v.ljust(w) for v, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def markdown(frame: pd.DataFrame) -> str:
    """A frame as a Markdown table, with numbers right-aligned."""
    head, *rows = ([_plain(v) for v in row] for row in _rows(frame))
    marks = ["---:" if right else "---" for right in _right(frame)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rows))


def _plain(cell: str) -> str:
    """A cell escaped for Markdown."""
    return re.sub("<(?=[A-Za-z/!?])", "&lt;", " ".join(cell.split()).replace("|", "\\|"))


def latex(frame: pd.DataFrame, caption: str, label: str, notes: Sequence[str] = ()) -> str:
    """A frame as a LaTeX table with notes; it needs the packages ``booktabs`` and ``longtable``."""
    table = frame.map(str).map(latex_text).rename(columns=lambda name: latex_text(str(name)))
    lines = [
        "% needs \\usepackage{booktabs,longtable}",
        r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}",
        table.to_latex(
            index=False,
            longtable=True,
            escape=False,  # `latex_text` knows more characters
            column_format="".join("r" if right else "l" for right in _right(frame)),
            caption=latex_text(caption),
            label=label,
        ),
        *(f"{latex_text(note)}\n" for note in notes),
        r"\par\endgroup",
    ]
    return "\n".join(lines) + "\n"


def latex_text(content: str) -> str:
    """Plain text for LaTeX."""
    content = re.sub(r"(?<!\w)-(?=\d)", "−", content)
    return "".join(LATEX.get(character, character) for character in content)


def _rows(frame: pd.DataFrame) -> list[list[str]]:
    return [list(map(str, frame.columns)), *([str(v) for v in row] for row in frame.to_numpy())]


def _right(frame: pd.DataFrame) -> list[bool]:
    """Whether each column is right-aligned: only numbers, with or without intervals, and dashes."""
    return [all(NUMBER.fullmatch(str(v)) for v in frame.iloc[:, i]) for i in range(frame.shape[1])]
