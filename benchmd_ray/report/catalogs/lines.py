"""Paragraphs, lists and tables of counts as text, at most `WIDTH` columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

WIDTH = 100


def paragraph(content: str, indent: int = 2, label: str = "") -> list[str]:
    """The lines of a wrapped paragraph with a label at its left; words (links) stay whole."""
    start = " " * indent + (f"{label:<13}" if label else "")
    if len(label) > 12:
        start = " " * indent + label + " "
    return textwrap.wrap(
        " ".join(content.split()),
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * (indent + (13 if label else 0)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def list_item(content: str, indent: int = 2) -> list[str]:
    """The lines of a wrapped entry of a list."""
    first, *more = paragraph(content, indent + 2) or [""]
    return [" " * indent + "- " + first.lstrip(), *more]


def count_table(title: str, columns: list[str], rows: Mapping[str, list[int]]) -> list[str]:
    """A table of counts."""
    width = max(len(name) for name in (title, *rows)) + 2
    lines = [f"  {title:{width}}" + "".join(f"{column:>12}" for column in columns)]
    lines += [f"  {name:{width}}" + "".join(f"{n:12,}" for n in rows[name]) for name in rows]
    return [line.rstrip() for line in lines]
