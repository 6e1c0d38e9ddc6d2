"""Quality beside cost: AUROC of entries against device hours, with the best for their cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmd_ray.board.content import name_of
from benchmd_ray.board.ranking import DIVISIONS, Placed, cost_of
from benchmd_ray.errors import count_of
from benchmd_ray.report.canvas import OTHER_LOOKS, new_figure, styled
from benchmd_ray.report.figures_parts import Titled

LONGEST = 28
"""Characters of a name in the figure."""
MOST_NAMED = 12


def cost_figure(
    dataset: str, labels: str, groups: Sequence[tuple[str, Sequence[Placed]]]
) -> Titled | None:
    """The figure of a dataset's entries with as many labels, by division; None without costs."""
    points = [
        (of, place, cost_of(place.entry), place.entry.results[dataset].value)
        for of, members in groups
        for place in members
    ]
    points = [p for p in points if math.isfinite(p[2]) and math.isfinite(p[3])]
    if len(points) < 2:
        return None
    best = sorted((cost, value, name_of(p.entry)) for _, p, cost, value in points if p.on_front)
    title = f"{dataset}, labels {labels}: {count_of(len(best), 'entry')} best for the cost"
    with styled():
        figure = _drawn(title, points, best)
    caption = (
        f"AUROC (mean over classes) against device hours of training and pretraining, as their "
        f"submitters state them, of {count_of(len(points), 'entry')} that state any. The line is "
        "the highest AUROC for the cost or less; contaminated entries are not on it. Differences "
        "along it may be chance: see the groups."
    )
    return Titled(f"cost-{labels}", "Quality and cost", title, caption, figure, aggregate=True)


def _drawn(
    title: str,
    points: Sequence[tuple[str, Placed, float, float]],
    best: Sequence[tuple[float, float, str]],
) -> Figure:
    figure = new_figure(title, 4.2)
    axes = figure.add_subplot()
    for number, division in enumerate(DIVISIONS):
        those = [(cost, value) for of, _, cost, value in points if of == division]
        if those:
            look = OTHER_LOOKS[number]
            axes.plot(
                *zip(*those, strict=True),
                look.marker,
                color=look.colour,
                label=division,
                linestyle="",
            )
    if best:
        costs, values, _ = zip(*best, strict=True)
        axes.step(
            costs, values, where="post", color="#444444", linewidth=1, label="best for the cost"
        )
    for cost, value, name in best[:MOST_NAMED]:
        text = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
        axes.annotate(text, (cost, value), xytext=(3, 4), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.margins(x=0.15, y=0.15)
    axes.set_xlabel("device hours")
    axes.set_ylabel("AUROC")
    axes.legend(loc="lower right", fontsize=7)
    return figure
