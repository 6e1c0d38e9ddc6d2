"""Panels, points, lines and legends of the report's figures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from benchmd_ray.report.canvas import LETTERS, WIDTH, TechniqueLook, new_figure

SETTING_LABELS = {
    "knn": "neighbours\nall labels",
    "linear": "linear\nall labels",
    "finetune-small": "fine-tune\n8 / class",
    "finetune-medium": "fine-tune\n64 / class",
    "finetune-large": "fine-tune\n256 / class",
    "finetune-full": "fine-tune\nall labels",
}
LABEL_WORDS = {
    "full": "all labels",
    "large": "256 labels per class",
    "medium": "64 labels per class",
    "small": "8 labels per class",
}
SMALL = 7.5
"""Points of small text; none is below 7."""
LETTERS_OF_NAME = 36
COLUMNS = 2
FAINT = "#D9D9D9"
CHANCE = 0.5
"""AUROC of random scores."""


def grid(
    title: str, panels: int, *, columns: int = COLUMNS, row: float = 2.1, extra: float = 1.1
) -> tuple[Figure, list[Axes]]:
    """A figure with this many panels, in rows; heights in inches."""
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = new_figure(title, rows * row + extra + title_height(title))
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(panels)]
    return figure, axes


def title_height(title: str) -> float:
    """Height of a title in inches."""
    return 0.2 * len(textwrap.wrap(title, int(WIDTH * LETTERS), break_on_hyphens=False))


def wrapped(names: Sequence[str]) -> list[str]:
    """Names of rows next to an axis, long ones in two lines."""
    return [textwrap.fill(name, LETTERS_OF_NAME, break_on_hyphens=False) for name in names]


def dodged(
    axes: Axes,
    frame: pd.DataFrame,
    *,
    at: Sequence[str],
    column: str,
    techniques: Sequence[str],
    looks: Mapping[str, TechniqueLook],
    sideways: bool = False,
) -> None:
    """Draw points with intervals, the techniques side by side at each place of an axis.

    Rough intervals are dotted.

    Args:
        axes: Drawn into.
        frame: ``column``, technique, value, low, high, caution; paper if known; sideways tested and
            differs: points without a significant difference are hollow.
        at: Values of ``column`` at 0, 1, ….
        column: Column of the places.
        techniques: All techniques of the figure, so that each keeps its place.
        looks: Look of each technique.
        sideways: Whether places are on the y axis, the first on top.
    """
    bars = axes.hlines if sideways else axes.vlines
    for number, technique in enumerate(techniques):
        rows = frame[frame["technique"] == technique].set_index(column)
        rows = rows.loc[[place for place in at if place in rows.index]]
        if rows.empty:
            continue
        places = np.array([at.index(place) for place in rows.index])
        places = places + dodge(number, len(techniques))
        look = looks[technique]
        rough = rows["caution"].str.contains("rough").to_numpy(bool)
        for dotted, line in ((False, "-"), (True, ":")):
            bars(
                places[rough == dotted],
                rows["low"][rough == dotted],
                rows["high"][rough == dotted],
                color=look.colour,
                linewidth=1.2,
                linestyle=line,
                zorder=2,
            )
        values = rows["value"].to_numpy(float)
        full = np.ones(len(rows), bool)
        if sideways:
            full = (rows["tested"] & rows["differs"]).to_numpy(bool)
        for chosen, face in ((full, look.colour), (~full, "white")):
            if not chosen.any():
                continue
            where = (places[chosen], values[chosen])
            marks = points(look) | {"markerfacecolor": face}
            axes.plot(*(where[::-1] if sideways else where), label=technique, **marks)
        if "paper" in rows and rows["paper"].notna().any():
            hollow = {**points(look), "markerfacecolor": "white", "zorder": 2.5}
            beside = places + 0.3 * (dodge(1, len(techniques)) - dodge(0, len(techniques)))
            axes.plot(beside, rows["paper"], label=f"{technique}, paper", **hollow)
    edges = [edge - 0.5 for edge in range(len(at) + 1)]
    if sideways:
        axes.set_ylim(edges[-1], edges[0])
    else:
        axes.set_xlim(edges[0], edges[-1])
    for edge in edges[1:-1]:
        (axes.axhline if sideways else axes.axvline)(edge, color=FAINT, linewidth=0.6, zorder=0)


def dodge(number: int, techniques: int) -> float:
    """Offset of a technique's points from their place."""
    return (number - (techniques - 1) / 2) * min(0.84 / techniques, 0.18)


def points(look: TechniqueLook) -> dict[str, Any]:
    """Arguments of `Axes.plot` for points without a line."""
    return {
        "linestyle": "none",
        "marker": look.marker,
        "color": look.colour,
        "markersize": 5.0,
        "markeredgewidth": 0.8,
        "zorder": 3,
    }


def setting_ticks(axes: Axes, settings: Sequence[str]) -> None:
    """Name the settings along the x axis."""
    labels = [SETTING_LABELS.get(name, name.replace("-", "\n", 1)) for name in settings]
    axes.set_xticks(range(len(settings)), labels, fontsize=SMALL)
    axes.tick_params(axis="x", length=0)


def auroc_limits(*frames: pd.DataFrame) -> tuple[float, float]:
    """Limits of an AUROC axis, always including chance, so that heights can be judged."""
    columns = ("value", "low", "high", "paper")
    drawn = [frame[c].dropna().to_numpy(float) for frame in frames for c in columns if c in frame]
    values = np.concatenate([*drawn, [CHANCE]])
    bottom, top = float(values.min()), float(values.max())
    room = 0.04 * max(top - bottom, 0.1)
    return max(0.0, bottom - room), min(1.0, top + room) + 0.005


def difference_limits(frame: pd.DataFrame) -> tuple[float, float]:
    """Limits that include zero and all intervals, and span at least 0.1."""
    values = pd.concat([frame[c] for c in ("value", "low", "high")]).dropna()
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    room = max(0.05 * (high - low), (0.1 - (high - low)) / 2)
    return low - room, high + room


def chance_line(axes: Axes) -> None:
    """Draw a line at the AUROC of random scores."""
    axes.axhline(CHANCE, color="#666666", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)


def technique_legend(
    figure: Figure,
    techniques: Sequence[str],
    looks: Mapping[str, TechniqueLook],
    *,
    lines: bool = False,
    markers: bool = True,
    extra: Sequence[Line2D] = (),
) -> None:
    """Legend below the title."""
    handles = [
        Line2D(
            [],
            [],
            label=name,
            color=looks[name].colour,
            marker=looks[name].marker if markers else "",
            linestyle=looks[name].line if lines else "none",
            markersize=5.5,
        )
        for name in techniques
    ]
    handles += list(extra)
    widths = [len(str(handle.get_label())) + (10 if lines else 6) for handle in handles]
    rows = -(-sum(widths) // 125)
    height, title = figure.get_figheight(), figure.get_suptitle().replace("\n", " ")
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0.0, 0.0, 1.0, 1 - 0.25 * rows / height))
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.0, 1 - (0.1 + title_height(title)) / height),
        borderaxespad=0.0,
        ncols=-(-len(handles) // rows),
        frameon=False,
        fontsize=8.5,
        handlelength=3.4 if lines else 1.2,
    )


def footer(figure: Figure, text: str) -> None:
    """Add text below the panels, before the figure is laid out."""
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 1.4 * LETTERS))
    share = (0.06 + 0.14 * len(lines)) / figure.get_figheight()
    above = share
    for legend in figure.legends:
        if (
            legend.get_bbox_to_anchor().bounds == figure.bbox.bounds
        ):  # the footer is at the lower edge
            above += legend.get_window_extent().height / figure.bbox.height + share
            legend.set_bbox_to_anchor((0.0, share, 1.0, 1.0 - share), figure.transFigure)
    left, bottom, width, height = engine.get()["rect"]
    engine.set(rect=(left, bottom + above, width, height - above))
    foot = 0.04 / figure.get_figheight()
    look: dict[str, Any] = {"ha": "left", "va": "bottom", "fontsize": SMALL, "color": "#666666"}
    figure.text(0.01, foot, "\n".join(lines), **look)


def hollow_mark(meaning: str) -> Line2D:
    """Legend entry of hollow points."""
    look: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "linestyle": "none"}
    return Line2D([], [], label=f"hollow: {meaning}", color="#444444", **look)


def chance_mark() -> Line2D:
    """Legend entry of `chance_line`."""
    return Line2D([], [], label="chance", color="#666666", linewidth=0.8, linestyle=(0, (4, 3)))
