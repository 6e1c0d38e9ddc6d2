"""The mark of contaminated rows in figures: next to their names, with its meaning below."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter

from benchmd_ray.report.contamination import is_marked, legend
from benchmd_ray.report.figures_panels import footer
from benchmd_ray.report.figures_parts import Titled, mean_auroc
from benchmd_ray.report.frames import MARK, MODES

MODE = rf"(?:,\s(?:{'|'.join(map(re.escape, MODES.values()))}))?"
LABEL = re.compile(
    rf"(?:[\d.–]+\s+|.*\bthat of )?(?P<name>.+?)(?P<mode>{MODE})(?:\s+[\d.–]+)?", re.DOTALL
)
"""A text that names a row, perhaps with its mode and a number, or as the baseline."""


def with_marks(titled: Titled, scores: pd.DataFrame) -> Titled:
    """A figure with the mark at the names of rows that are contaminated on a dataset it names.

    The mark's meaning, with the datasets, is below the figure and in its caption.
    """
    rows = mean_auroc(scores)
    rows = rows[rows["contamination"].map(is_marked)] if len(rows) else rows
    texts = [*_texts(titled.figure)]
    content = "\n".join([*texts, titled.title, titled.caption])
    names = {_name(text) for text in texts}
    is_drawn = [
        row in names and re.search(rf"(?<![\w-]){re.escape(dataset)}(?![\w-])", content) is not None
        for row, dataset in zip(rows["technique"], rows["dataset"], strict=True)
    ]
    drawn = rows[pd.Series(is_drawn, rows.index, dtype=bool)]
    if drawn.empty:
        return titled
    _mark(titled.figure, set(drawn["technique"]))
    meaning = legend(drawn)
    footer(titled.figure, meaning)
    return replace(titled, caption=f"{titled.caption} {meaning}".strip())


def _name(text: str) -> str:
    """The row that a text names, without line breaks."""
    label = LABEL.fullmatch(text)
    return " ".join(label["name"].split()) if label else ""


def _marked(text: str, names: Collection[str]) -> str:
    """A text with the mark after the name of a row, if it names one of these."""
    label = LABEL.fullmatch(text)
    if label is None or _name(text) not in names:
        return text
    return f"{text[: label.end('mode')]}{MARK}{text[label.end('mode') :]}"


def _texts(figure: Figure) -> Iterator[str]:
    yield from (text.get_text() for text in figure.findobj(Text) if isinstance(text, Text))
    for formatter in _formatters(figure):
        yield from map(str, formatter.seq)


def _formatters(figure: Figure) -> Iterator[FixedFormatter]:
    """Of the axes whose ticks have names, which the texts of ticks follow."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            formatter = axis.get_major_formatter()
            if isinstance(formatter, FixedFormatter):
                yield formatter


def _mark(figure: Figure, names: Collection[str]) -> None:
    for text in figure.findobj(Text):
        if (
            isinstance(text, Text)
            and (marked := _marked(text.get_text(), names)) != text.get_text()
        ):
            text.set_text(marked)
    for formatter in _formatters(figure):
        formatter.seq = [_marked(str(label), names) for label in formatter.seq]
