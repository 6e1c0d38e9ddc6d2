"""Chart of the entries of a table: AUROC with intervals, and quality beside cost."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from benchmd_ray.board.content import Row
from benchmd_ray.errors import count_of
from benchmd_ray.report.canvas import OKABE_ITO, TechniqueLook, styled
from benchmd_ray.report.figures_panels import (
    SMALL,
    auroc_limits,
    dodged,
    grid,
    hollow_mark,
    points,
    technique_legend,
)
from benchmd_ray.report.figures_parts import Titled
from benchmd_ray.report.figures_wording import ROUGH, joined
from benchmd_ray.report.table import text_of

MOST_LISTED, MOST_POINTS = 25, 300
"""Entries of the left panel, which have numbers, and of the right one."""
LONGEST = 40
"""Characters of a name."""
GROUP = "group 1"
LOOKS = {GROUP: TechniqueLook(OKABE_ITO[0], "o", "-")}
FRONT = "#444444"


def chart(dataset: str, heading: str, rows: Sequence[Row], number: int) -> Titled:
    """The chart of a table of `content.content`, whose entries are in order, the best first."""
    first = sum(row["group"] == 1 for row in rows)
    title = f"{dataset}, {heading}: {first:,} of {count_of(len(rows), 'entry')} in group 1"
    numbered = [*enumerate(rows[:MOST_POINTS], start=1)]
    costs = [(n, row) for n, row in numbered if row["device_hours"] and row["auroc"] is not None]
    listed = rows[:MOST_LISTED]
    with styled():
        figure, panels = grid(title, 1 + bool(costs), row=0.2 * max(len(listed), 8) + 0.6)
        _forest(panels[0], listed)
        if costs:
            _front(panels[1], costs)
        technique_legend(figure, [GROUP], LOOKS, extra=[hollow_mark("significantly below")])
    caption = joined(
        "AUROC of each entry, mean over classes and seeds, with its 95 % interval; whether "
        "intervals overlap is not a test, groups are.",
        f"Drawn are the {MOST_LISTED} highest of {len(rows):,}." * (len(rows) > MOST_LISTED),
        ROUGH * any("rough" in row["caution"] for row in listed),
        "Right: the same by number, against device hours as stated; the line joins what is best "
        "for its cost." * bool(costs),
    )
    return Titled(f"entries-{number}", "", title, caption, figure, aggregate=True)


def _forest(axes: Axes, rows: Sequence[Row]) -> None:
    frame = pd.DataFrame(
        {
            "place": range(len(rows)),
            "technique": GROUP,
            **{
                n: [row[k] for row in rows] for n, k in (("value", "auroc"), ("caution", "caution"))
            },
            **{end: [row[f"auroc_{end}"] for row in rows] for end in ("low", "high")},
            "tested": True,
            "differs": [row["group"] == 1 for row in rows],
        }
    ).astype(dict.fromkeys(("value", "low", "high"), float))
    places = [*range(len(rows))]
    dodged(axes, frame, at=places, column="place", techniques=[GROUP], looks=LOOKS, sideways=True)
    names = [
        f"{_short(', '.join((row['name'], row['submitter'])))}  {number}"
        for number, row in enumerate(rows, start=1)
    ]
    axes.set_yticks(places, names, fontsize=SMALL)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(*auroc_limits(frame))
    axes.set_xlabel("AUROC")


def _front(axes: Axes, rows: Sequence[tuple[int, Row]]) -> None:
    for is_first, face in ((True, LOOKS[GROUP].colour), (False, "white")):
        those = [row for _, row in rows if (row["group"] == 1) == is_first]
        columns = ([row[key] for row in those] for key in ("device_hours", "auroc"))
        axes.plot(*columns, **points(LOOKS[GROUP]), markerfacecolor=face)
    best = sorted((row["device_hours"], row["auroc"]) for _, row in rows if row["on_front"])
    if best:
        axes.step(*zip(*best, strict=True), where="post", color=FRONT, linewidth=1, zorder=2)
    for number, row in rows:
        if number <= MOST_LISTED:
            at = (row["device_hours"], row["auroc"])
            axes.annotate(f"{number}", at, (4, 3), textcoords="offset points", fontsize=SMALL)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.15, y=0.1)
    axes.set_xlabel("device hours")
    axes.set_ylabel("AUROC")


def _short(name: str) -> str:
    text = text_of(name)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
