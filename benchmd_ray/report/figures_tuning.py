"""Figures of section "Tuning": scores of the trials of each search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from benchmd_ray.errors import count_of
from benchmd_ray.report.canvas import OKABE_ITO, new_figure
from benchmd_ray.report.figures_panels import FAINT, title_height
from benchmd_ray.report.figures_parts import Drawn, FigureContext, Skipped, Titled
from benchmd_ray.report.figures_settings import (
    CHOSEN,
    NO_VALUE,
    SECTION,
    START,
    chosen_of,
    draw_parallel,
    draw_slices,
    family_of,
    heading,
    inner,
    mark_legend,
    scored,
)
from benchmd_ray.report.figures_wording import joined, plain
from benchmd_ray.report.tuning_frames import family_names
from benchmd_ray.tuning.families import FAMILY
from benchmd_ray.tuning.records import FamilyRecord, SearchRecord

BLUE, ORANGE, GREEN, RED = OKABE_ITO[0], OKABE_ITO[1], "#009E73", OKABE_ITO[5]
MARKERS = "os^vPXph<>"
"""Of families, which tell them apart without colour."""
FEW = 3
"""Evaluations that a mark in the legend stands for."""
QUIET = "#9A9A9A"
Stroke = Literal["-", "--", ":"]


def draw_searches(report: FigureContext) -> Iterator[Drawn]:
    """Draw what each search tried and chose."""
    yield from map(draw_history, report.analysis.records)


def draw_settings(report: FigureContext) -> Iterator[Drawn]:
    """Draw the scores of each search against its settings, and its trials' learning curves."""
    for record in report.analysis.records:
        yield draw_slices(record)
        yield draw_curves(record)
        yield draw_parallel(record)


def draw_history(record: SearchRecord) -> Drawn:
    """Draw the value of each trial in order, by family and number of evaluations."""
    name, done = f"history-{record.name}", scored(record)
    if done.empty:
        return Skipped(name, NO_VALUE.format(record.name))
    title = f"{heading(record)}: {_choice(record)}"
    figure = new_figure(title, 3.4 + title_height(title))
    axes = figure.add_subplot()
    handles = _by_family(axes, record, done)
    lost = record.trials[(record.trials["state"] == "stopped") & record.trials["value"].isna()]
    lost = lost.dropna(subset="last_value")
    if len(lost):
        axes.plot(lost["number"], lost["last_value"], "_", color=QUIET, markersize=6,
                  label="stopped")  # fmt: skip
        handles.append(_mark("stopped within the first", "_", QUIET))
    failed = record.trials[record.trials["state"] == "failed"]
    if len(failed):
        low = axes.get_ylim()[0]
        axes.plot(failed["number"], [low] * len(failed), "x", color=RED, label="failed")
        handles.append(_mark("failed", "x", RED))
    handles += _start_mark(axes, done)
    top = chosen_of(record, done)
    if len(top):
        # Around its own mark, which stays visible.
        look = {**CHOSEN, "markerfacecolor": "none", "markersize": 19.0}
        axes.plot(top["number"], top["value"], label="chosen", **look)
        handles.append(Line2D([], [], label="chosen", **CHOSEN))
    axes.set_xlabel("trial")
    axes.set_ylabel(inner(record))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    mark_legend(figure, handles)
    reasons = sorted(set(failed["reason"].dropna()))
    caption = joined(
        "A value is the mean score of a trial's evaluations on the search's validation records, "
        "which are used for no result, paired with the start's: the larger the mark, the more "
        "evaluations. The highest of many is too high.",
        "Bars: standard error of the mean difference to the start, and of the start's own mean; "
        "the dotted line is the start's value."
        if done["error"].notna().any()
        else "",
        "For trials stopped within their first evaluation, the last score is shown."
        if len(lost)
        else "",
        f"Failed trials, at the lower edge: {'; '.join(reasons)}." if reasons else "",
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def _by_family(axes: Axes, record: SearchRecord, done: pd.DataFrame) -> list[Line2D]:
    """Draw trials with a value, by colour and shape of their family; returns its legend."""
    handles = []
    for place, (family, label) in enumerate(family_names(record).items()):
        rows = done[done[FAMILY] == family]
        if rows.empty:
            continue
        look: dict[str, Any] = {
            "color": OKABE_ITO[place % len(OKABE_ITO)],
            "marker": MARKERS[place % len(MARKERS)],
            "markeredgecolor": "#444444",
            "markeredgewidth": 0.6,
            "linestyle": "none",
        }
        bars = rows.dropna(subset="error")
        axes.errorbar(bars["number"], bars["value"], bars["error"], fmt="none",
                      ecolor=look["color"], elinewidth=0.8, label="_errors")  # fmt: skip
        for count in sorted({*rows["evaluations"]}):
            trials = rows[rows["evaluations"] == count]
            axes.plot(trials["number"], trials["value"], markersize=_size(count), label=label,
                      zorder=4, **look)  # fmt: skip
        handles.append(Line2D([], [], label=label, markersize=_size(FEW), **look))
    counts = sorted({*done["evaluations"]})
    return handles + [
        Line2D([], [], label=count_of(count, "evaluation"), marker="o", color=QUIET,
               linestyle="none", markersize=_size(count))
        for count in dict.fromkeys((counts[0], counts[-1]))
        if len(counts) > 1
    ]  # fmt: skip


def _size(evaluations: int) -> float:
    """Points across a mark."""
    return 3.0 + 1.5 * math.sqrt(evaluations)


def draw_curves(record: SearchRecord) -> Drawn:
    """Draw the score of every trial during its first evaluation, and where it was stopped."""
    name, family = f"curves-{record.name}", family_of(record)
    every = record.trials[record.trials[FAMILY] == family.name]
    trials = every[every["curve"].map(len) > 0]
    if trials.empty:
        return Skipped(name, f"{record.name}: no trial reported a value")
    ended = trials["evaluations"].gt(0).map({True: "evaluated", False: "unfinished"})
    trials = trials.assign(how=ended.mask(ended.eq("unfinished"), trials["state"]))
    stopped, failed = (
        int((trials["how"] == "stopped").sum()),
        int((every["state"] == "failed").sum()),
    )
    title = (
        f"{heading(record, family)}: {stopped} of {len(every)} trials were stopped within their "
        "first evaluation" + (f", {failed} failed" if failed else "")
    )
    figure = new_figure(title, 3.3 + title_height(title))
    axes = figure.add_subplot()
    looks: dict[str, tuple[str, Stroke, float]] = {
        "evaluated": (BLUE, "-", 0.55),
        "stopped": (ORANGE, "-", 0.8),
    }
    columns = (trials[name] for name in ("number", "how", "curve"))
    for number, how, curve in zip(*columns, strict=True):
        steps, values = zip(*curve, strict=True)
        colour, line, alpha = looks.get(how, (RED, ":", 0.9))
        axes.plot(steps, values, color=colour, linestyle=line, alpha=alpha, linewidth=0.9,
                  marker=_single(steps), label=f"trial {number}")  # fmt: skip
        if how != "evaluated":
            marker = "v" if how == "stopped" else "x"
            axes.plot(steps[-1], values[-1], marker, color=colour, markersize=4.5, label="_end")
    handles = [_line("completed", BLUE)]
    if stopped:
        handles.append(_line("stopped", ORANGE, "v"))
    if set(trials["how"]) - set(looks):
        handles.append(_line("failed or not finished", RED, "x", ":"))
    handles += _highlighted(axes, record, trials)
    axes.set_xlabel(_unit(record, family))
    axes.set_ylabel(inner(record))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    mark_legend(figure, handles)
    caption = joined(
        "The highest score so far within the first evaluation of each trial.",
        "A trial is stopped where it is in the worst third of those that came as far; the start "
        "never is."
        if stopped
        else "",
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def _choice(record: SearchRecord) -> str:
    """The choice of a search and the numbers behind it."""
    score = inner(record)
    if record.best == 0 or record.chosen is None:
        return f"no trial is above the start, {score} {plain(record.value)}"
    family = f"{family_names(record)[record.chosen.name]}, " if len(record.families) > 1 else ""
    start = plain(record.first_value)
    return f"{family}trial {record.best} chosen, {score} {plain(record.value)}; the start {start}"


def _start_mark(axes: Axes, done: pd.DataFrame) -> list[Line2D]:
    start = done[done["number"] == 0]
    if start.empty:
        return []
    axes.axhline(start["value"].iloc[0], color="#000000", linewidth=0.7, linestyle=":", zorder=0)
    look = {**START, "markerfacecolor": "none", "markersize": 12.0}
    axes.plot(start["number"], start["value"], label="start", **look)
    return [Line2D([], [], label="start of the search", **START)]


def _highlighted(axes: Axes, record: SearchRecord, trials: pd.DataFrame) -> list[Line2D]:
    handles = []
    for number, label, colour in (
        (0, "start of the search", "#000000"),
        (record.best or None, "chosen", GREEN),
    ):
        trial = trials[trials["number"] == number]
        if len(trial):
            steps, values = zip(*trial["curve"].iloc[0], strict=True)
            line: Stroke = "--" if number == 0 else "-"
            axes.plot(steps, values, color=colour, linewidth=1.8, linestyle=line, label=label,
                      marker=_single(steps))  # fmt: skip
            handles.append(Line2D([], [], color=colour, linewidth=1.8, linestyle=line, label=label))
    return handles


def _single(steps: Sequence[int]) -> str:
    """Marker that makes a single-point line visible."""
    return "." if len(steps) == 1 else ""


def _unit(record: SearchRecord, family: FamilyRecord) -> str:
    if len(record.sources) > 1:
        return "modalities done"
    return "pretraining steps" if family.setting == "pretrain" else "epochs"


def _mark(label: str, marker: str, colour: str) -> Line2D:
    return Line2D([], [], label=label, marker=marker, color=colour, linestyle="none")


def _line(label: str, colour: str, marker: str = "", line: Stroke = "-") -> Line2D:
    return Line2D([], [], label=label, color=colour, marker=marker, linestyle=line)
