"""Pictures of a catalog's records: waveforms, images, slices. No names are in them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from scipy.ndimage import minimum_filter1d

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.results.canvas import named, new_figure
from benchmd_ray.results.catalogs.contents import Example

EEG_BARS = (10, 25, 50, 100, 200, 400)
"""µV of the bar beside the epochs: the longest that fits."""
GRID: dict[str, Any] = {"color": "#E8C4B8", "linewidth": 0.4, "zorder": 0}
"""Leaves black traces alone."""


def draw_examples(catalog: Catalog, chosen: dict[str, list[Example]]) -> dict[str, Figure]:
    """Examples of each class, by the name of the figure's file; none where none is chosen."""
    if not chosen:
        return {}
    kind = catalog.modality
    if kind == "ecg":
        return {
            f"examples-{_file_name(name)}": _draw_ecgs(catalog, name, found)
            for name, found in chosen.items()
        }
    if kind == "eeg":
        return {"examples": _draw_eegs(catalog, chosen)}
    return {"examples": _draw_images(catalog, chosen)}


def _draw_ecgs(catalog: Catalog, name: str, found: Sequence[Example]) -> Figure:
    """12 leads below each other on a grid of 0.2 s × 0.5 mV, as on paper."""
    near = round(0.1 * _rate(catalog))
    stacks = [_stacked(example.signal, 0.5, near) for example in found]
    lowest = min(float(values.min()) for values, _ in stacks) - 0.5
    highest = max(float(values.max()) for values, _ in stacks) + 0.5
    seconds = found[0].signal.shape[1] / _rate(catalog)
    width = 7.0
    height = (highest - lowest) / 0.5 * width / (seconds / 0.2)
    figure = new_figure(
        f"{named(catalog)}, {name}: 12 leads, each about its median; a box is 0.2 s × 0.5 mV",
        1.0 + height,
        width=0.5 + (width + 0.5) * len(found),
    )
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, example, (values, offsets) in zip(panels, found, stacks, strict=True):
        _paper(axes, np.arange(0, seconds + 0.1, 0.2), np.arange(np.floor(lowest), highest, 0.5))
        _traces(axes, values, offsets, catalog.signal.channels, seconds)
        axes.set_ylim(lowest, highest)
        axes.set_aspect(0.2 / 0.5)
        axes.set_title(f"split {example.split}")
        axes.set_xlabel("time (s)")
        _bar(axes, 1.0, "1 mV")
    return figure


def _draw_eegs(catalog: Catalog, chosen: dict[str, list[Example]]) -> Figure:
    """Both channels of each epoch, all epochs at the same scale."""
    traces = {name: [_about_median(e.signal) for e in found] for name, found in chosen.items()}
    peaks = [np.percentile(np.abs(values), 99.5) for found in traces.values() for values in found]
    spread = float(np.median(peaks)) or 1.0
    bar = max((step for step in EEG_BARS if step <= 1.5 * spread), default=EEG_BARS[0])
    offsets = np.array([0.0, -2 * spread])
    columns = max(map(len, chosen.values()))
    figure = new_figure(
        f"{named(catalog)}: epochs of each stage, channels about their medians, a line each second",
        1.2 + 1.15 * len(chosen),
        width=1.5 + 5.5 * columns,
    )
    panels = figure.subplots(len(chosen), columns, sharex=True, squeeze=False)
    for row, (name, found) in zip(panels, chosen.items(), strict=True):
        for axes in row[len(found) :]:
            axes.set_axis_off()
        for axes, example, values in zip(row[: len(found)], found, traces[name], strict=True):
            seconds = values.shape[1] / _rate(catalog)
            _paper(axes, np.arange(0, seconds + 0.1, 1), offsets)
            _traces(axes, values + offsets[:, None], offsets, catalog.signal.channels, seconds)
            axes.set_ylim(-3.3 * spread, 1.3 * spread)
            axes.set_title(f"{name} ({example.split})")
        _bar(axes, bar, f"{bar} µV")
    for axes in panels[-1]:
        axes.set_xlabel("time (s)")
    return figure


def _about_median(signal: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Each channel less its median, (channel, time)."""
    return signal - np.median(signal, axis=1, keepdims=True)


def _rate(catalog: Catalog) -> float:
    rate = catalog.signal.rate
    assert rate is not None  # signals over time have one
    return rate


def _stacked(
    signal: npt.NDArray[np.float32], step: float, near: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Channels about their medians, each moved down so far that it clears the one above.

    Args:
        signal: (channel, time).
        step: Distances are multiples of it: from two up to twelve, where artefacts overlap.
        near: Samples to both sides that it clears as well.

    Returns:
        (channel, time), and the place of each channel's median.
    """
    values = _about_median(signal)
    floors = minimum_filter1d(values, 2 * near + 1, axis=1)
    offsets = [0.0]
    for floor, below in zip(floors[:-1], values[1:], strict=True):
        steps = np.ceil((below - floor).max() / step)
        offsets.append(offsets[-1] - step * float(np.clip(steps, 2, 12)))
    return values + np.array(offsets)[:, None], np.array(offsets)


def _traces(
    axes: Axes,
    values: npt.NDArray[np.float32],
    offsets: npt.NDArray[np.float64],
    names: Sequence[str],
    seconds: float,
) -> None:
    """Lines over time with the channels' names beside them."""
    time = np.linspace(0, seconds, values.shape[1], endpoint=False)
    axes.plot(time, values.T, color="black", linewidth=0.6)
    axes.set_yticks(offsets, names)
    axes.set_xlim(0, seconds)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _paper(axes: Axes, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> None:
    """Thin lines of a grid, in a colour that leaves black traces alone."""
    for place in x:
        axes.axvline(place, **GRID)
    for place in y:
        axes.axhline(place, **GRID)


def _bar(axes: Axes, height: float, text: str) -> None:
    """A bar of known height at the right edge."""
    low = axes.get_ylim()[0]
    place = axes.get_xlim()[1] * 1.012
    axes.plot([place, place], [low, low + height], color="black", linewidth=2, clip_on=False)
    axes.annotate(
        text, (place, low + height / 2), (4, 0), textcoords="offset points",
        va="center", fontsize=8, annotation_clip=False,
    )  # fmt: skip


def _draw_images(catalog: Catalog, chosen: dict[str, list[Example]]) -> Figure:
    """Images without their padding, a class in each row; of a CT window the middle slice."""
    kind = catalog.signal
    volume = len(kind.axes) == 4
    low, high = 0.0, 255.0
    what = "images of each class, without padding"
    if volume:
        what = "the middle slice of volumes of each class"
    windowed = kind.normaliser == "window"
    if windowed:
        centre, width = (float(kind.parameters[name]) for name in ("centre", "width"))
        low, high = centre - width / 2, centre + width / 2
        said = f"{centre:g}/{width:g} {kind.unit}".replace("-", "−")
        what = f"the middle slice of volumes of each class, window {said}"
    columns = max(map(len, chosen.values()))
    shapes = [example.signal.shape[-2:] for found in chosen.values() for example in found]
    cell = max(height for height, _ in shapes), max(width for _, width in shapes)
    inch = 2.2 / max(cell)
    figure = new_figure(
        f"{named(catalog)}: {what}",
        0.8 + (cell[0] * inch + 0.35) * len(chosen),
        width=1.5 + cell[1] * inch * columns + volume,
    )
    panels = figure.subplots(len(chosen), columns, squeeze=False)
    for row, (name, found) in zip(panels, chosen.items(), strict=True):
        for axes in row:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        row[0].set_ylabel(textwrap.fill(name, 16), rotation=0, ha="right", va="center")
        for axes, example in zip(row[: len(found)], found, strict=True):
            image = example.signal[:, example.signal.shape[1] // 2] if volume else example.signal
            shown = _shown(axes, image, low, high)
            _same_scale(axes, example.signal.shape[-2:], cell)
            also = [other for other in example.classes if other != name]
            text = f"{example.split}; also {', '.join(also)}" if also else example.split
            axes.set_xlabel(textwrap.fill(text, 30), fontsize=7)
    if volume:
        ends: Literal["both", "neither"] = "both" if windowed else "neither"
        figure.colorbar(shown, ax=panels, shrink=0.5, label=kind.unit, extend=ends)
    return figure


def _shown(axes: Axes, signal: npt.NDArray[np.float32], low: float, high: float) -> AxesImage:
    """Draw an image (channel, y, x); one channel from black at ``low`` to white at ``high``."""
    if len(signal) == 1:
        return axes.imshow(signal[0], cmap="gray", vmin=low, vmax=high)
    return axes.imshow(signal.transpose(1, 2, 0) / 255)


def _same_scale(axes: Axes, extent: Sequence[int], cell: Sequence[int]) -> None:
    """Centre an image of (y, x) pixels in a cell that is as large as for any other."""
    (height, width), (tall, wide) = extent, cell
    axes.set_xlim((width - wide) / 2 - 0.5, (width + wide) / 2 - 0.5)
    axes.set_ylim((height + tall) / 2 - 0.5, (height - tall) / 2 - 0.5)


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
