"""Figures of section "Tuning": what the trials of each search scored, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from benchmd_ray.results.canvas import OKABE_ITO, new_figure
from benchmd_ray.results.report.figures_panels import FAINT, SMALL, title_height
from benchmd_ray.results.report.figures_parts import Drawn, Report, Skipped, Titled
from benchmd_ray.results.report.figures_settings import (
    AUROC,
    SECTION,
    START,
    complete,
    draw_contour,
    draw_parallel,
    draw_slices,
    heading,
    labels_of,
    mark_legend,
)
from benchmd_ray.results.report.figures_wording import GLUE, joined, plain
from benchmd_ray.tuning.records import SearchRecord

BLUE, ORANGE, RED = OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[5]
QUIET = "#9A9A9A"
Stroke = Literal["-", "--", ":"]
NONE_YET = "{}: no trial is complete"
INNER = (
    "Inner AUROC is that on the search's validation records, which are scored for no result; that "
    "of the best trial is the best of many and so too high."
)


def draw_tuning(report: Report) -> Iterator[Drawn]:
    """All figures of each search."""
    for record in report.analysis.records:
        for draw in (
            draw_history,
            draw_importance,
            draw_slices,
            draw_contour,
            draw_curves,
            draw_front,
            draw_parallel,
        ):
            yield draw(record)


def draw_history(record: SearchRecord) -> Drawn:
    """What each trial scored in the order of their numbers, and the best so far."""
    name, done = f"history-{record.name}", complete(record)
    if done.empty:
        return Skipped(name, NONE_YET.format(record.name))
    top = float(done["value"].max())
    title = f"{heading(record)}: {_gain(record)}"
    figure = new_figure(title, 3.2 + title_height(title))
    axes = figure.add_subplot()
    axes.step(
        [*done["number"], record.trials["number"].max()],
        [*done["value"].cummax(), top],
        where="post",
        color=BLUE,
        linewidth=1.1,
        label="highest so far",
    )
    axes.plot(done["number"], done["value"], "o", color=BLUE, markersize=4.5, label="complete")
    handles = [_mark("complete", "o", BLUE), Line2D([], [], color=BLUE, label="highest so far")]
    stopped = record.trials[record.trials["state"] == "stopped"].dropna(subset="last_value")
    if len(stopped):
        axes.plot(
            stopped["number"], stopped["last_value"], "v", color=QUIET, markersize=5,
            markerfacecolor="white", label="stopped",
        )  # fmt: skip
        handles.append(_mark("stopped early, its last value", "v", QUIET, hollow=True))
    failed = record.trials[record.trials["state"] == "failed"]
    if len(failed):
        low = axes.get_ylim()[0]
        axes.plot(failed["number"], [low] * len(failed), "x", color=RED, label="failed")
        handles.append(_mark("failed", "x", RED))
    handles += _start_mark(axes, done, "number")
    axes.set_xlabel("trial")
    axes.set_ylabel(AUROC)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    mark_legend(figure, handles)
    reasons = sorted(set(failed["reason"].dropna()))
    caption = joined(
        INNER,
        f"Failed trials, at the lower edge: {'; '.join(reasons)}." if reasons else "",
    )
    return Titled(name, SECTION, title, caption, figure)


def draw_importance(record: SearchRecord) -> Drawn:
    """How much of the variation between trials each setting explains."""
    name = f"importance-{record.name}"
    found = record.importance
    if not found:
        return Skipped(name, f"{record.name}, importance of settings: {record.importance_reason}")
    short = labels_of(record.space)
    first = next(iter(found))
    title = f"{heading(record)}: {first} matters most ({100 * found[first]:.0f}{GLUE}%)"
    figure = new_figure(title, 0.7 + 0.26 * len(found) + title_height(title))
    axes = figure.add_subplot()
    places = np.arange(len(found))[::-1]
    axes.barh(places, list(found.values()), color=BLUE, height=0.7)
    axes.set_yticks(places, [short.get(key, key) for key in found])
    for place, value in zip(places, found.values(), strict=True):
        axes.text(value, place, f" {value:.2f}", va="center", fontsize=SMALL)
    axes.set_xlim(0, 1.12 * max(found.values()) or 1.0)
    axes.set_xlabel("importance")
    trials = len(complete(record))
    caption = (
        f"Share of the variation of AUROC between {trials} complete trials that each setting "
        "explains, as far as these trials tell; all settings together 1. With few trials it is "
        "rough."
    )
    return Titled(name, SECTION, title, caption, figure)


def draw_curves(record: SearchRecord) -> Drawn:
    """AUROC of every trial while it was trained: who was stopped, and when."""
    name = f"curves-{record.name}"
    trials = record.trials[record.trials["curve"].map(len) > 0]
    if trials.empty:
        return Skipped(name, f"{record.name}: no trial reported a value")
    counts = record.counts
    title = (
        f"{heading(record)}: {counts['stopped']} of {len(record.trials)} trials were stopped early"
        + (f", {counts['failed']} failed" if counts["failed"] else "")
    )
    figure = new_figure(title, 3.3 + title_height(title))
    axes = figure.add_subplot()
    looks: dict[str, tuple[str, Stroke, float]] = {
        "complete": (BLUE, "-", 0.55),
        "stopped": (ORANGE, "-", 0.8),
    }
    columns = (trials[name] for name in ("number", "state", "curve"))
    for number, state, curve in zip(*columns, strict=True):
        steps, values = zip(*curve, strict=True)
        colour, line, alpha = looks.get(state, (RED, ":", 0.9))
        axes.plot(steps, values, color=colour, linestyle=line, alpha=alpha, linewidth=0.9,
                  marker=_single(steps), label=f"trial {number}")  # fmt: skip
        if state != "complete":
            marker = "v" if state == "stopped" else "x"
            axes.plot(steps[-1], values[-1], marker, color=colour, markersize=4.5, label="_end")
    handles = [_line("complete", BLUE)]
    if counts["stopped"]:
        handles.append(_line("stopped early", ORANGE, "v"))
    if set(trials["state"]) - set(looks):
        handles.append(_line("failed or not finished", RED, "x", ":"))
    handles += _highlighted(axes, record, trials)
    axes.set_xlabel(_unit(record))
    axes.set_ylabel(AUROC)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    mark_legend(figure, handles)
    caption = joined(
        INNER,
        f"Trials were stopped early by {record.stopping}; the first never is."
        if record.stopping != "none"
        else "",
    )
    return Titled(name, SECTION, title, caption, figure)


def draw_front(record: SearchRecord) -> Drawn:
    """Cost against quality: trials that no other one beats in both are the front."""
    name, done = f"front-{record.name}", complete(record)
    if done.empty:
        return Skipped(name, NONE_YET.format(record.name))
    front = done[done["number"].isin(list(record.front))].sort_values("device_hours")
    cheap, best = front.iloc[0], front.iloc[-1]
    title = f"{heading(record)}: {len(front)} of {len(done)} complete trials are on the front"
    if len(front) > 1:
        title += (
            f", from AUROC {plain(cheap['value'])} in {_hours(cheap)} to {plain(best['value'])} "
            f"in {_hours(best)}"
        )
    figure = new_figure(title, 3.2 + title_height(title))
    axes = figure.add_subplot()
    axes.plot(done["device_hours"], done["value"], "o", color=QUIET, markersize=4, label="complete")
    axes.step(front["device_hours"], front["value"], where="post", color=BLUE, linewidth=1.0,
              label="front")  # fmt: skip
    axes.plot(front["device_hours"], front["value"], "o", color=BLUE, label="on the front")
    handles = [_mark("complete", "o", QUIET), _line("front", BLUE, "o")]
    handles += _start_mark(axes, done, "device_hours")
    spread = done["device_hours"]
    if spread.min() > 0 and spread.max() > 20 * spread.min():
        axes.set_xscale("log")
    axes.set_xlabel("device hours of the trial")
    axes.set_ylabel(AUROC)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    mark_legend(figure, handles)
    caption = joined(
        "On the front are the trials that no other one beats in both AUROC and device hours.", INNER
    )
    return Titled(name, SECTION, title, caption, figure)


def _gain(record: SearchRecord) -> str:
    best, first = plain(record.value), plain(record.first_value)
    if record.best == 0:
        return f"no trial scores above the start, AUROC {best}"
    since = f"; the start {first}" if not np.isnan(record.first_value) else ""
    return f"best inner AUROC {best}, trial {record.best}{since}"


def _start_mark(axes: Axes, done: pd.DataFrame, column: str) -> list[Line2D]:
    """Marks the first trial, the settings that the search started from."""
    start = done[done["number"] == 0]
    if start.empty:
        return []
    axes.plot(start[column], start["value"], label="start", **START)
    return [Line2D([], [], label="start of the search", **START)]


def _highlighted(axes: Axes, record: SearchRecord, trials: pd.DataFrame) -> list[Line2D]:
    """Draws the first and the best trial over the others."""
    handles = []
    for number, label, colour in (
        (0, "start of the search", "#000000"),
        (record.best, "best", "#009E73"),
    ):
        found = trials[trials["number"] == number]
        if len(found):
            steps, values = zip(*found["curve"].iloc[0], strict=True)
            line: Stroke = "--" if number == 0 else "-"
            axes.plot(steps, values, color=colour, linewidth=1.8, linestyle=line, label=label,
                      marker=_single(steps))  # fmt: skip
            handles.append(Line2D([], [], color=colour, linewidth=1.8, linestyle=line, label=label))
    return handles


def _single(steps: Sequence[int]) -> str:
    """Marker of a line: one of a single point would not be seen without it."""
    return "." if len(steps) == 1 else ""


def _unit(record: SearchRecord) -> str:
    if len(record.sources) > 1:
        return "modalities done"
    return "pretraining steps" if record.setting == "pretrain" else "epochs"


def _hours(row: pd.Series) -> str:
    """Device hours of a trial, as seconds where that reads better."""
    hours = float(row["device_hours"])
    return f"{3600 * hours:,.0f} s" if hours < 0.1 else f"{hours:.2g} h"


def _mark(label: str, marker: str, colour: str, *, hollow: bool = False) -> Line2D:
    face = "white" if hollow else colour
    return Line2D([], [], label=label, marker=marker, color=colour, markerfacecolor=face,
                  linestyle="none")  # fmt: skip


def _line(label: str, colour: str, marker: str = "", line: Stroke = "-") -> Line2D:
    return Line2D([], [], label=label, color=colour, marker=marker, linestyle=line)
