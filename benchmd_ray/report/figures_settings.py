"""Figures of scores against searched settings: slices, parallel coordinates.

They are of the family of a search's choice, or of its start while there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from benchmd_ray.errors import count_of
from benchmd_ray.report.canvas import OKABE_ITO, new_figure
from benchmd_ray.report.figures_panels import FAINT, SMALL, grid, title_height
from benchmd_ray.report.figures_parts import Drawn, Skipped, Titled
from benchmd_ray.report.figures_wording import listed, plain
from benchmd_ray.report.tuning_frames import family_names, networks
from benchmd_ray.tuning.families import FAMILY
from benchmd_ray.tuning.records import NUMERIC, FamilyRecord, SearchRecord

Floats = npt.NDArray[np.float64]
Space = Mapping[str, Mapping[str, Any]]
SECTION = "Tuning"
NO_VALUE = "{}: no trial has a value"
START: dict[str, Any] = {
    "marker": "D",
    "color": "#000000",
    "markerfacecolor": "white",
    "markeredgewidth": 1.4,
    "markersize": 6.5,
    "linestyle": "none",
    "zorder": 5,
}
"""Look of the first trial, the settings that the search started from."""
COLOURS = "viridis"
PANEL_ROW = 2.0
PANEL_LETTERS = 36
"""Letters of a choice's values that fit side by side below a panel; longer labels are slanted."""
MOST_MARKS = 6
"""Entries on one line of a legend."""
SIDE_BY_SIDE = 10
"""Most settings of parallel coordinates with names on one line; with more they alternate on two."""


def family_of(record: SearchRecord) -> FamilyRecord:
    """The family whose settings are drawn."""
    return record.chosen or record.families[0]


def scored(record: SearchRecord, *families: FamilyRecord) -> pd.DataFrame:
    """Trials with a value, of these families or of all; none while the search has no result."""
    trials = record.trials
    has_value = trials["value"].notna() & record.is_finished
    if families:
        has_value &= trials[FAMILY].isin([family.name for family in families])
    return trials[has_value].reset_index(drop=True)


def chosen_of(record: SearchRecord, done: pd.DataFrame) -> pd.DataFrame:
    """The row of the trial that replaced the start; empty if the start is kept."""
    return done[(done["number"] == record.best) & (done["number"] > 0)]


def inner(record: SearchRecord) -> str:
    """Name of the trials' score, such as ``inner AUROC``."""
    return f"inner {record.metric.upper()}"


def heading(record: SearchRecord, family: FamilyRecord | None = None) -> str:
    """What was searched, of one family or of all."""
    where = listed(list(dict.fromkeys(str(about["modality"]) for about in record.sources)))
    if len(record.sources) == 1:
        where = f"{where}, {record.sources[0]['source']}"
    if family is None and len(record.families) > 1:
        return f"Search over {len(record.families)} families ({where})"
    family = family or record.families[0]
    return f"Search of {family_names(record)[family.name]} ({where}; {networks(family)})"


def varied(space: Space, done: pd.DataFrame) -> list[str]:
    """Settings that vary between the trials with a value."""
    return [name for name in space if done[name].nunique() > 1]


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """The shortest unique ends of settings' names: ``optimiser.lr`` or ``lr``."""
    whole = list(names)
    labels = {}
    for name in whole:
        parts = name.split(".")
        ends = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        labels[name] = next(
            end
            for end in ends
            if end == name or sum(f".{other}".endswith(f".{end}") for other in whole) == 1
        )
    return labels


def mark_legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    figure.legend(
        handles=list(handles),
        loc="outside lower left",
        ncols=max(1, min(len(handles), MOST_MARKS)),
        frameon=False,
        fontsize=8.5,
        handlelength=2.2,
    )


def draw_slices(record: SearchRecord) -> Drawn:
    """Draw the score against each setting separately."""
    name, family = f"slice-{record.name}", family_of(record)
    done = scored(record, family)
    if done.empty:
        return Skipped(name, NO_VALUE.format(record.name))
    top = done["number"].isin(chosen_of(record, done)["number"]).to_numpy()
    short = labels_of(varied(family.space, done))
    if not short:
        return Skipped(name, f"{record.name}: no setting has two values among its trials")
    what = f"{inner(record)} of {count_of(len(done), 'trial')}"
    title = f"{heading(record, family)}: {what} by each setting"
    figure, panels = grid(title, len(short), columns=3, row=PANEL_ROW, extra=0.5)
    for place, (axes, key) in enumerate(zip(panels, short, strict=True)):
        about = family.space[key]
        x, ticks = positions(done[key], about)
        places = x + (_jitter(len(x)) if ticks else 0.0)
        colours = done["number"].to_numpy(float)
        axes.scatter(places, done["value"], c=colours, cmap="Blues", vmin=-0.6 * len(done), s=20,
                     edgecolors="#444444", linewidths=0.4, label="trials")  # fmt: skip
        first = (done["number"] == 0).to_numpy()
        axes.plot(places[first], done["value"][first], label="start", **START)
        axes.plot(places[top], done["value"][top], label="chosen", **CHOSEN)
        _setting_axis(axes, x, about, ticks)
        axes.set_title(short[key])
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        if place % 3 == 0:
            axes.set_ylabel(inner(record))
    mark_legend(figure, _looks(record, done))
    caption = (
        "Each point is a trial with a value, darker the later it was; other settings differ too. "
        "A trial that did not use a setting is not in its panel. Points of one choice are jittered "
        "so that none hides another. Axes are logarithmic where the search samples on a "
        "logarithmic scale."
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


def draw_parallel(record: SearchRecord) -> Drawn:
    """Draw every trial with a value as a line over all settings, coloured by its score."""
    name, family = f"parallel-{record.name}", family_of(record)
    done = scored(record, family)
    if done.empty:
        return Skipped(name, NO_VALUE.format(record.name))
    short = labels_of(varied(family.space, done))
    if not short:
        return Skipped(name, f"{record.name}: no setting has two values among its trials")
    what = f"settings of {count_of(len(done), 'trial')}"
    title = f"{heading(record, family)}: {what} by {inner(record)}"
    figure = new_figure(title, 4.0 + title_height(title))
    axes = figure.add_subplot()
    values = done["value"].to_numpy(float)
    shades = Normalize(values.min(), values.max() if np.ptp(values) else values.min() + 1e-3)
    heights = np.column_stack(
        [*(_heights(done[key], family.space[key]) for key in short), shades(values)]
    )
    for row in np.argsort(values, kind="stable"):
        first = done["number"].iloc[row] == 0
        axes.plot(
            heights[row],
            color=colormaps[COLOURS](float(shades(values[row]))),
            linewidth=2.0 if first else 1.2,
            linestyle="--" if first else "-",
            marker=".",
            markersize=3,
            label=f"trial {done['number'].iloc[row]}",
        )
    ends = {
        key: _ends(done[key].to_numpy(float), about)
        for key, about in family.space.items()
        if key in short and about["kind"] in NUMERIC
    }
    scores = inner(record), (float(shades.vmin or 0), float(shades.vmax or 1))
    _coordinates(axes, family.space, short, ends, *scores)
    bar = ScalarMappable(shades, COLOURS)
    figure.colorbar(bar, ax=axes, label=inner(record), pad=0.06, format="%.3f")
    caption = (
        "Each line is a trial with a value; dashed: the settings that the search started from. "
        "Each axis shows the range of its setting, logarithmic where the search samples so; a line "
        "is interrupted where the trial did not use a setting. Lines of higher value are brighter "
        "and on top."
    )
    return Titled(name, SECTION, title, caption, figure, aggregate=True)


CHOSEN: dict[str, Any] = {
    "marker": "*",
    "color": OKABE_ITO[5],
    "markersize": 10.0,
    "linestyle": "none",
    "zorder": 6,
}
TRIALS: dict[str, Any] = {
    "marker": "o",
    "color": "#444444",
    "markerfacecolor": "#BFD8EC",
    "markersize": 4.5,
    "markeredgewidth": 0.6,
    "linestyle": "none",
    "zorder": 4,
}


def positions(column: pd.Series, about: Mapping[str, Any]) -> tuple[Floats, list[str]]:
    """Positions of values on an axis, and the tick labels of a choice."""
    if about["kind"] in NUMERIC:
        return column.to_numpy(float), []
    names = [str(value) for value in about["values"]]
    seen = [_choice(value, about["values"]) for value in column]
    return np.array(seen, np.float64), names


def _choice(value: Any, values: Sequence[Any]) -> float:
    """Index of a value among the choices; NaN if the trial did not use the setting.

    Values are also compared as text: a column of mixed types is text, and integers with gaps become
    floats.
    """
    if pd.isna(value):
        return float("nan")
    for place, choice in enumerate(values):
        if choice == value or str(choice) == str(value):
            return float(place)
    return float("nan")


def _jitter(count: int) -> Floats:
    """Small fixed offsets (golden ratio)."""
    return np.asarray((np.arange(count) * 0.618033988749895 % 1.0 - 0.5) * 0.5)


def _setting_axis(
    axes: Axes, places: Floats, about: Mapping[str, Any], names: Sequence[str]
) -> None:
    axes.tick_params(labelsize=SMALL)
    if names:
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.6, len(names) - 0.4)
        if sum(map(len, names)) > PANEL_LETTERS:
            axes.tick_params(axis="x", labelrotation=30)
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
        return
    axes.set_xscale("log" if _is_log(about) else "linear")
    axes.set_xlim(*_padded(*_ends(places, about), about, 0.04))
    if not _is_log(about):
        axes.xaxis.set_major_locator(
            MaxNLocator(nbins=5, integer=about["kind"] == "int", min_n_ticks=2)
        )


def _ends(values: Any, about: Mapping[str, Any]) -> tuple[float, float]:
    """Range of a setting extended to all values: a search may start outside of its space."""
    numbers = [float(value) for value in values if not np.isnan(value)]
    return min([about["low"], *numbers]), max([about["high"], *numbers])


def _is_log(about: Mapping[str, Any]) -> bool:
    return str(about["kind"]).startswith("log")


def _padded(low: float, high: float, about: Mapping[str, Any], room: float) -> tuple[float, float]:
    ends = _scaled([low, high], about)
    more = room * (ends[1] - ends[0]) or room
    first, last = ends[0] - more, ends[1] + more
    return (10**first, 10**last) if _is_log(about) else (first, last)


def _scaled(values: Any, about: Mapping[str, Any]) -> Floats:
    real = np.asarray(values, np.float64)
    return np.log10(real) if _is_log(about) else real


def _heights(column: pd.Series, about: Mapping[str, Any]) -> Floats:
    places, names = positions(column, about)
    if names:
        return places / max(1, len(names) - 1)
    low, high = _scaled(_ends(places, about), about)
    return np.asarray((_scaled(places, about) - low) / (high - low or 1.0))


def _coordinates(
    axes: Axes,
    space: Space,
    short: Mapping[str, str],
    ends: Mapping[str, tuple[float, float]],
    score: str,
    limits: tuple[float, float],
) -> None:
    axes.set_xlim(-0.3, len(short) + 0.3)
    axes.set_ylim(-0.09, 1.09)
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    lower = "\n\n" if len(short) > SIDE_BY_SIDE else ""
    names = [f"{lower * (i % 2)}{_broken(name)}" for i, name in enumerate(short.values())]
    axes.set_xticks(range(len(short) + 1), [*names, score.replace(" ", "\n")], fontsize=SMALL)
    axes.tick_params(axis="x", length=0)
    boxed = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}
    for place, key in enumerate([*short, None]):
        axes.axvline(place, ymin=0.07, ymax=0.93, color="#666666", linewidth=0.7, zorder=0)
        if key is None:
            marks = [(0.0, plain(limits[0])), (1.0, plain(limits[1]))]
        elif key in ends:
            marks = [(height, f"{end:g}") for height, end in enumerate(ends[key])]
        else:
            values = [str(value) for value in space[key]["values"]]
            marks = [(i / max(1, len(values) - 1), value) for i, value in enumerate(values)]
        for height, text in marks:
            end = height in (0.0, 1.0)
            offset = (-0.03 if height == 0.0 else 0.03) if end else 0.0
            axes.text(
                place if end else place + 0.05,
                height + offset,
                text,
                fontsize=7,
                ha="center" if end else "left",
                va="center" if not end else ("top" if height == 0.0 else "bottom"),
                bbox=boxed,
                zorder=6,
            )


def _broken(name: str) -> str:
    """Break a long name into several lines."""
    return name if len(name) < 11 else name.replace(".", ".\n").replace("_", "_\n", 1)


def _looks(record: SearchRecord, done: pd.DataFrame) -> list[Line2D]:
    looks = [("trials", TRIALS)]
    looks += [("start of the search", START)] if (done["number"] == 0).any() else []
    looks += [("chosen", CHOSEN)] if record.best else []
    return [Line2D([], [], label=label, **look) for label, look in looks]
