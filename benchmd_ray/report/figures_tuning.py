"""Figures of section "Tuning": scores and cost of the trials of each search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from benchmd_ray.report.canvas import OKABE_ITO, new_figure
from benchmd_ray.report.figures_panels import FAINT, SMALL, title_height
from benchmd_ray.report.figures_parts import Drawn, FigureContext, Skipped, Titled
from benchmd_ray.report.figures_settings import (
    CHOSEN,
    NO_VALUE,
    SECTION,
    START,
    TRIALS,
    chosen_of,
    draw_contour,
    draw_parallel,
    draw_slices,
    heading,
    inner,
    labels_of,
    mark_legend,
    scored,
)
from benchmd_ray.report.figures_wording import GLUE, joined, plain, signed
from benchmd_ray.report.tuning_frames import FRESH
from benchmd_ray.tuning.records import RULE, SearchRecord

BLUE, ORANGE, GREEN, RED = OKABE_ITO[0], OKABE_ITO[1], "#009E73", OKABE_ITO[5]
PALE = "#BFD8EC"
QUIET = "#9A9A9A"
Stroke = Literal["-", "--", ":"]


def draw_searches(report: FigureContext) -> Iterator[Drawn]:
    """Draw what each search tried, chose and found important; cost if it is an objective."""
    for record in report.analysis.records:
        yield draw_history(record)
        if record.choosing == "confirmed":
            yield draw_finalists(record)
        yield draw_importance(record)
        if "device_hours" in record.objectives:
            yield draw_front(record)


def draw_settings(report: FigureContext) -> Iterator[Drawn]:
    """Draw the scores of each search against its settings, and its trials' learning curves."""
    for record in report.analysis.records:
        yield draw_slices(record)
        yield draw_contour(record)
        yield draw_curves(record)
        yield draw_parallel(record)


def draw_history(record: SearchRecord) -> Drawn:
    """Draw the value of each trial in order, by number of evaluations."""
    name, done = f"history-{record.name}", scored(record)
    if done.empty:
        return Skipped(name, NO_VALUE.format(record.name))
    title = f"{heading(record)}: {_choice(record)}"
    figure = new_figure(title, 3.2 + title_height(title))
    axes = figure.add_subplot()
    bars = done.dropna(subset="error")
    axes.errorbar(bars["number"], bars["value"], bars["error"], fmt="none", ecolor=BLUE,
                  elinewidth=0.8, label="_errors")  # fmt: skip
    handles = []
    for label, rows, face in _by_evaluations(record, done):
        look = {**TRIALS, "color": BLUE, "markerfacecolor": face}
        axes.plot(rows["number"], rows["value"], label=label, **look)
        handles.append(Line2D([], [], label=label, **look))
    lost = record.trials[(record.trials["state"] == "stopped") & record.trials["value"].isna()]
    lost = lost.dropna(subset="last_value")
    if len(lost):
        axes.plot(lost["number"], lost["last_value"], "v", color=QUIET, markersize=5,
                  markerfacecolor="white", label="stopped within the first")  # fmt: skip
        handles.append(_mark("stopped within the first", "v", QUIET, hollow=True))
    failed = record.trials[record.trials["state"] == "failed"]
    if len(failed):
        low = axes.get_ylim()[0]
        axes.plot(failed["number"], [low] * len(failed), "x", color=RED, label="failed")
        handles.append(_mark("failed", "x", RED))
    handles += _start_mark(axes, done, "number")
    top = chosen_of(record, done)
    if len(top):
        look = {
            **CHOSEN,
            "markerfacecolor": "none",
            "markersize": 15.0,
        }  # so that its fill is visible
        axes.plot(top["number"], top["value"], label="chosen", **look)
        handles.append(Line2D([], [], label="chosen", **CHOSEN))
    axes.set_xlabel("trial")
    axes.set_ylabel(inner(record))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    mark_legend(figure, handles)
    reasons = sorted(set(failed["reason"].dropna()))
    caption = joined(
        _values(record),
        "Fresh evaluations, which the title is about, are not drawn." if record.finalists else "",
        "Bars: standard error of the mean difference to the start over evaluations, and of the "
        "start's own mean; the dotted line is the start's value."
        if len(bars)
        else "",
        "For trials stopped within their first evaluation, the last score is shown."
        if len(lost)
        else "",
        f"Failed trials, at the lower edge: {'; '.join(reasons)}." if reasons else "",
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def _by_evaluations(
    record: SearchRecord, done: pd.DataFrame
) -> list[tuple[str, pd.DataFrame, str]]:
    """Label, rows and fill of the trials evaluated once, several times, and completely."""
    count, every = done["evaluations"], record.evaluations
    groups = [
        ("1 evaluation", (count == 1) & (count < every), "white"),
        (f"2 to {every - 1}", (count > 1) & (count < every), PALE),
        (f"all {every} evaluations" if every > 1 else "complete", count >= every, BLUE),
    ]
    return [(label, done[mask], face) for label, mask, face in groups if mask.any()]


def draw_finalists(record: SearchRecord) -> Drawn:
    """Draw the fresh evaluations of the best trials against the start, which decide the choice."""
    name = f"finalists-{record.name}"
    if not record.finalists:
        return Skipped(name, f"{record.name}: no trial was evaluated again against the start")
    fresh = int(record.trials["fresh_evaluations"].max())
    title = f"{heading(record)}, {fresh} fresh evaluations: {_choice(record)}"
    figure = new_figure(title, 0.9 + 0.3 * len(record.finalists) + title_height(title))
    axes = figure.add_subplot()
    for place, finalist in enumerate(reversed(record.finalists)):
        colour = CHOSEN["color"] if finalist["number"] == record.best else BLUE
        ends = [finalist["low"], finalist["difference"]]
        axes.plot(ends, [place, place], color=colour, linewidth=1.4, label="_bound")
        axes.plot(finalist["low"], place, "|", color=colour, markersize=9, label="_low")
        look = CHOSEN if finalist["number"] == record.best else {"marker": "o", "color": BLUE}
        axes.plot(finalist["difference"], place, label=f"trial {finalist['number']}", **look)
        text = f" {signed(finalist['difference'])}, at least {signed(finalist['low'])}"
        axes.annotate(text, (finalist["difference"], place), (8, 0), textcoords="offset points",
                      va="center", fontsize=SMALL)  # fmt: skip
    names = [f"trial {row['number']}" for row in reversed(record.finalists)]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    ends = [0.0, *(row[key] for row in record.finalists for key in ("low", "difference"))]
    span = max(ends) - min(ends) or 1.0
    axes.set_xlim(min(ends) - 0.05 * span, max(ends) + 0.45 * span)
    axes.axvline(0, color="black", linewidth=0.8, linestyle="--")
    axes.set_xlabel(f"{inner(record)} minus the start's")
    caption = (
        "Mean difference to the start over the fresh evaluations, and its one-sided lower bound: "
        f"{RULE}. {FRESH}"
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def draw_importance(record: SearchRecord) -> Drawn:
    """Draw the share of the variation between trials that each setting explains."""
    name = f"importance-{record.name}"
    importance = record.importance
    if not importance:
        return Skipped(name, f"{record.name}, importance of settings: {record.importance_reason}")
    short = labels_of(record.space)
    first = next(iter(importance))
    title = f"{heading(record)}: {first} matters most ({100 * importance[first]:.0f}{GLUE}%)"
    figure = new_figure(title, 0.7 + 0.26 * len(importance) + title_height(title))
    axes = figure.add_subplot()
    places = np.arange(len(importance))[::-1]
    axes.barh(places, list(importance.values()), color=BLUE, height=0.7)
    axes.set_yticks(places, [short.get(key, key) for key in importance])
    for place, value in zip(places, importance.values(), strict=True):
        axes.text(value, place, f" {value:.2f}", va="center", fontsize=SMALL)
    axes.set_xlim(0, 1.12 * max(importance.values()) or 1.0)
    axes.set_xlabel("importance")
    trials = len(scored(record))
    caption = (
        f"Share of the variation of the value between {trials} trials that each setting explains, "
        f"estimated from these trials; the shares of all settings add up to 1. With few trials it "
        f"is rough."
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def draw_curves(record: SearchRecord) -> Drawn:
    """Draw the score of every trial during its first evaluation, and where it was stopped."""
    name = f"curves-{record.name}"
    trials = record.trials[record.trials["curve"].map(len) > 0]
    if trials.empty:
        return Skipped(name, f"{record.name}: no trial reported a value")
    ended = trials["evaluations"].gt(0).map({True: "evaluated", False: "unfinished"})
    trials = trials.assign(how=ended.mask(ended.eq("unfinished"), trials["state"]))
    stopped, failed = int((trials["how"] == "stopped").sum()), record.counts["failed"]
    title = (
        f"{heading(record)}: {stopped} of {len(record.trials)} trials were stopped within their "
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
    axes.set_xlabel(_unit(record))
    axes.set_ylabel(inner(record))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    mark_legend(figure, handles)
    caption = joined(
        "The highest score so far within the first evaluation of each trial.",
        f"Trials were stopped by {record.stopping}; the first never is."
        if record.stopping != "none"
        else "",
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def draw_front(record: SearchRecord) -> Drawn:
    """Draw cost against quality, with the Pareto front."""
    name, done = f"front-{record.name}", scored(record)
    done = done[done["state"] == "complete"]
    if done.empty:
        return Skipped(name, f"{record.name}: no trial is complete")
    front = done[done["number"].isin(list(record.front))].sort_values("device_hours")
    cheap, best = front.iloc[0], front.iloc[-1]
    title = f"{heading(record)}: {len(front)} of {len(done)} complete trials are on the front"
    if len(front) > 1:
        title += (
            f", from {inner(record)} {plain(cheap['value'])} in {_hours(cheap)} to "
            f"{plain(best['value'])} in {_hours(best)}"
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
    axes.set_ylabel(inner(record))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    mark_legend(figure, handles)
    caption = joined(
        "On the front are the trials that no other trial beats in both value and device hours.",
        _values(record),
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def _choice(record: SearchRecord) -> str:
    """The choice of a search and the numbers behind it."""
    best, decision, score = record.best, record.decision, inner(record)
    if record.choosing == "highest":
        if best == 0:
            return f"no trial scores above the start, {score} {plain(record.value)}"
        start = plain(record.first_value)
        return f"highest {score} {plain(record.value)}, trial {best}; the start {start}"
    if decision is None or not record.finalists:
        return f"no trial was evaluated again against the start, {score} {plain(record.value)}"
    if best == 0:
        return f"no trial is shown to be better than the start, {score} {plain(decision['start'])}"
    return (
        f"trial {best} takes the start's place, {score} {plain(decision['expected'])} expected; "
        f"the start {plain(decision['start'])}"
    )


def _values(record: SearchRecord) -> str:
    high = " The highest of many is too high." if record.choosing == "highest" else ""
    return (
        "A value is the mean score of a trial's evaluations on the search's validation records, "
        f"which are used for no result, adjusted to be comparable with the start's.{high}"
    )


def _start_mark(axes: Axes, done: pd.DataFrame, column: str) -> list[Line2D]:
    start = done[done["number"] == 0]
    if start.empty:
        return []
    axes.axhline(start["value"].iloc[0], color="#000000", linewidth=0.7, linestyle=":", zorder=0)
    axes.plot(start[column], start["value"], label="start", **START)
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


def _unit(record: SearchRecord) -> str:
    if len(record.sources) > 1:
        return "modalities done"
    return "pretraining steps" if record.setting == "pretrain" else "epochs"


def _hours(row: pd.Series) -> str:
    """Device hours of a trial as text, or seconds if short."""
    hours = float(row["device_hours"])
    return f"{3600 * hours:,.0f} s" if hours < 0.1 else f"{hours:.2g} h"


def _mark(label: str, marker: str, colour: str, *, hollow: bool = False) -> Line2D:
    face = "white" if hollow else colour
    return Line2D([], [], label=label, marker=marker, color=colour, markerfacecolor=face,
                  linestyle="none")  # fmt: skip


def _line(label: str, colour: str, marker: str = "", line: Stroke = "-") -> Line2D:
    return Line2D([], [], label=label, color=colour, marker=marker, linestyle=line)
