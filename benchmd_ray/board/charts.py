"""Chart of the entries of a table: AUROC with intervals, and quality beside cost."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from benchmd_ray.board.content import Row
from benchmd_ray.errors import count_of
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.canvas import OKABE_ITO, TechniqueLook, styled
from benchmd_ray.report.figures_panels import (
    LETTERS_OF_NAME,
    SMALL,
    auroc_limits,
    dodged,
    grid,
    points,
    technique_legend,
)
from benchmd_ray.report.figures_parts import Titled
from benchmd_ray.report.figures_wording import ROUGH, joined
from benchmd_ray.report.table import text_of

MOST_LISTED, MOST_POINTS = 25, 300
"""Entries of the left panel, which have numbers, and of the right one, apart from the front."""
HOURS = (0.0001, 1e6)
"""Device hours of the right panel; others are drawn at its edge, as they are only stated."""
FIRST, FULL = "group 1", (1, None)
"""Legend of full points, and their groups; None where nothing is tested."""
LOOKS = {FIRST: TechniqueLook(OKABE_ITO[0], "o", "-")}
BELOW = Line2D([], [], **points(LOOKS[FIRST]), markerfacecolor="white", label="other groups")
DARK = "#444444"


def chart(heading: str, rows: Sequence[Row], untested: str) -> Titled:
    """The chart of a table of `content.content`: its entries with their ``number``, the best first.

    ``untested`` is why nothing is tested; empty where it is.
    """
    first, of = sum(row["group"] == 1 for row in rows), count_of(len(rows), "entry")
    title = f"{heading}: {f'{of}, not tested' if untested else f'{first:,} of {of} in group 1'}"
    drawn = [
        row
        for row in rows
        if row["number"] <= MOST_POINTS or row["on_front"]
        if row["device_hours"] is not None and row["auroc"] is not None
    ]
    listed = rows[:MOST_LISTED]
    with styled():
        figure, panels = grid(title, 1 + bool(drawn), row=0.27 * max(len(listed), 6) + 0.6)
        _forest(panels[0], listed)
        if drawn:
            _costs(panels[1], drawn)
        if not untested:
            technique_legend(figure, [FIRST], LOOKS, extra=[BELOW])
    caption = joined(
        "AUROC, mean over classes and seeds, with its 95 % interval. Overlapping intervals are not "
        "a test; see the groups.",
        f"Left: the {MOST_LISTED} highest of {len(rows):,}." * (len(rows) > MOST_LISTED),
        ROUGH * any("rough" in row["caution"] for row in listed),
        "Right: those that state device hours, by number, drawn within "
        f"{HOURS[0]:g} to {HOURS[1]:,.0f}; the line joins what is best for its cost." * bool(drawn),
    )
    return Titled(slug(heading), "", title, caption, figure)


def _forest(axes: Axes, rows: Sequence[Row]) -> None:
    columns = {"value": "auroc", "low": "auroc_low", "high": "auroc_high"}
    numbers = {name: [row[key] for row in rows] for name, key in columns.items()}
    frame = pd.DataFrame(numbers, dtype=float).assign(
        place=range(len(rows)),
        technique=FIRST,
        caution=[row["caution"] for row in rows],
        tested=True,
        differs=[row["group"] in FULL for row in rows],
    )
    places = [*range(len(rows))]
    dodged(axes, frame, at=places, column="place", techniques=[FIRST], looks=LOOKS, sideways=True)
    labels = [f"{row['number']}. {_short(row['name'])}\n{_short(row['whose'])}" for row in rows]
    axes.set_yticks(places, labels, fontsize=SMALL)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(*auroc_limits(frame))
    axes.set_xlabel("AUROC")


def _costs(axes: Axes, rows: Sequence[Row]) -> None:
    at = {
        row["number"]: (min(max(row["device_hours"], HOURS[0]), HOURS[1]), row["auroc"])
        for row in rows
    }
    for is_first, face in ((True, LOOKS[FIRST].colour), (False, "white")):
        those = [at[row["number"]] for row in rows if (row["group"] in FULL) == is_first]
        if those:
            axes.plot(*zip(*those, strict=True), **points(LOOKS[FIRST]), markerfacecolor=face)
    if front := sorted(at[row["number"]] for row in rows if row["on_front"]):
        axes.step(*zip(*front, strict=True), where="post", color=DARK, linewidth=1, zorder=2)
    for number, point in at.items():
        if number <= MOST_LISTED:
            axes.annotate(f"{number}", point, (4, 3), textcoords="offset points", fontsize=SMALL)
    hours = [point[0] for point in at.values()]
    if max(hours) >= 10 * min(hours):  # then its labels are powers of ten
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,g}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.margins(x=0.1, y=0.1)
    axes.set_xlabel("device hours")
    axes.set_ylabel("AUROC")


def _short(name: str) -> str:
    text = " ".join(text_of(name).split())
    return text if len(text) <= LETTERS_OF_NAME else f"{text[: LETTERS_OF_NAME - 1]}…"
