"""The mark of contaminated rows in figures: next to their names, with its meaning below."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import pandas as pd
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

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
    texts = _texts(titled.figure)
    content = "\n".join([*texts, titled.title, titled.caption])
    names = {_name(text) for text in texts}
    datasets = {name for name in scores["dataset"].unique() if _has(content, name)}
    is_drawn = [
        row in names and (dataset in datasets or not datasets)  # of all, in a mean over datasets
        for row, dataset in zip(rows["technique"], rows["dataset"], strict=True)
    ]
    drawn = rows[pd.Series(is_drawn, rows.index, dtype=bool)]
    if drawn.empty:
        return titled
    _mark(titled.figure, set(drawn["technique"]))
    meaning = legend(drawn)
    footer(titled.figure, meaning)
    return replace(titled, caption=f"{titled.caption} {meaning}".strip())


def _has(content: str, dataset: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(dataset)}(?![\w-])", content) is not None


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


def _texts(figure: Figure) -> list[str]:
    """All texts; those of ticks too, which are set when they are asked for."""
    ticks = [text for axis in _axes(figure) for text in axis.get_ticklabels()]
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return [text.get_text() for text in (*texts, *ticks)]


def _axes(figure: Figure) -> list[Axis]:
    return [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]


def _mark(figure: Figure, names: Collection[str]) -> None:
    for axis in _axes(figure):
        labels = [text.get_text() for text in axis.get_ticklabels()]
        marked = [_marked(label, names) for label in labels]
        if marked != labels:  # their texts are set anew whenever they are drawn
            axis.set_ticklabels(marked)
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_text(_marked(text.get_text(), names))
