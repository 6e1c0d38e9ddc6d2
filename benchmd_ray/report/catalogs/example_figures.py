"""Pictures of a catalog's records (waveforms, images, slices), without any names."""

from __future__ import annotations

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
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.canvas import named, new_figure
from benchmd_ray.report.catalogs.contents import Example

FEW = 4
"""Most channels for which all classes share one figure."""
PAPER = {"mV": 0.5}
"""Height of a grid box as on ECG paper, by unit; a box is 0.2 s wide."""
CONTOUR = "#E69F00"
GRID: dict[str, Any] = {"color": "#E8C4B8", "linewidth": 0.4, "zorder": 0}
"""Light enough not to hide black traces."""


def draw_examples(catalog: Catalog, chosen: dict[str, list[Example]]) -> dict[str, Figure]:
    """Figures of examples of each class, by file name."""
    if not chosen:
        return {}
    if catalog.signal.axes[-1] != "time":
        return {"examples": _draw_images(catalog, chosen)}
    if catalog.signal.stored_shape[0] <= FEW:
        return {"examples": _draw_few(catalog, chosen)}
    return {
        f"examples-{slug(name)}": _draw_stacks(catalog, name, records)
        for name, records in chosen.items()
    }


def _draw_stacks(catalog: Catalog, name: str, examples: Sequence[Example]) -> Figure:
    """Draw channels below each other on a grid; millivolts to scale, as on ECG paper."""
    unit, count = catalog.signal.unit, catalog.signal.stored_shape[0]
    near = round(0.1 * _rate(catalog))
    box = PAPER.get(unit) or _round_below(_spread([example.signal for example in examples]) / 2)
    stacks = [_stacked(example.signal, box, near) for example in examples]
    lowest = min(float(values.min()) for values, _ in stacks) - box
    highest = max(float(values.max()) for values, _ in stacks) + box
    seconds = max(example.signal.shape[1] for example in examples) / _rate(catalog)
    wide = _grid_seconds(seconds)
    width = 7.0
    height = (highest - lowest) / box * width / (seconds / wide) if unit in PAPER else 0.5 * count
    figure = new_figure(
        f"{named(catalog)}, {name}: {count} channels, each about its median; a box is {wide:g} s × "
        f"{box:g} {unit}",
        1.0 + height,
        width=0.5 + (width + 0.5) * len(examples),
    )
    panels = figure.subplots(1, len(examples), squeeze=False)[0]
    for axes, example, (values, offsets) in zip(panels, examples, stacks, strict=True):
        rows = np.arange(np.floor(lowest / box) * box, highest, box)
        _paper(axes, np.arange(0, seconds + wide / 2, wide), rows)
        _traces(axes, values, offsets, _channels(catalog), _rate(catalog))
        axes.set_xlim(0, seconds)
        axes.set_ylim(lowest, highest)
        if unit in PAPER:
            axes.set_aspect(wide / box)
        axes.set_title(f"split {example.split}")
        axes.set_xlabel("time (s)")
        _bar(axes, 2 * box, f"{2 * box:g} {unit}")
    return figure


def _draw_few(catalog: Catalog, chosen: dict[str, list[Example]]) -> Figure:
    """Draw all channels of each signal at one scale."""
    traces = {name: [_about_median(e.signal) for e in records] for name, records in chosen.items()}
    spread = _spread([values for records in traces.values() for values in records])
    bar, unit = _round_below(1.5 * spread), catalog.signal.unit
    channels = _channels(catalog)
    offsets = np.asarray(-2 * spread * np.arange(len(channels)), np.float64)
    columns = max(map(len, chosen.values()))
    rate = _rate(catalog)
    seconds = max(v.shape[1] for records in traces.values() for v in records) / rate
    wide = _grid_seconds(seconds)
    figure = new_figure(
        f"{named(catalog)}: signals of each class, channels about their medians, a line each "
        f"{wide:g} s",
        1.2 + (0.15 + 0.5 * len(channels)) * len(chosen),
        width=1.5 + 5.5 * columns,
    )
    panels = figure.subplots(len(chosen), columns, sharex=True, squeeze=False)
    for row, (name, records) in zip(panels, chosen.items(), strict=True):
        for axes in row[len(records) :]:
            axes.set_axis_off()
        for axes, example, values in zip(row[: len(records)], records, traces[name], strict=True):
            _paper(axes, np.arange(0, seconds + wide / 2, wide), offsets)
            placed = np.asarray(values + offsets[:, None], np.float32)
            _traces(axes, placed, offsets, channels, rate)
            axes.set_xlim(0, seconds)
            axes.set_ylim(offsets[-1] - 1.3 * spread, 1.3 * spread)
            axes.set_title(f"{name} ({example.split})")
        _bar(axes, bar, f"{bar:g} {unit}")
    for axes in panels[-1]:
        axes.set_xlabel("time (s)")
    return figure


def _channels(catalog: Catalog) -> Sequence[str]:
    count = catalog.signal.stored_shape[0]
    return catalog.signal.channels or [str(number) for number in range(1, count + 1)]


def _spread(signals: Sequence[npt.NDArray[np.float32]]) -> float:
    """Distance from the channel medians that covers most values of the signals (channel, time)."""
    peaks = [np.percentile(np.abs(_about_median(values)), 99.5) for values in signals]
    return float(np.median(peaks)) or 1.0


def _round_below(value: float) -> float:
    """The largest 1, 2 or 5 × 10ⁿ that is at most a value."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(max(step for step in (1, 2, 5) if step * power <= value * (1 + 1e-9)) * power)


def _grid_seconds(seconds: float) -> float:
    """Distance of grid lines in seconds: as on ECG paper for 10 s, else for about 50 lines."""
    return _round_below(seconds / 50)


def _about_median(signal: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return signal - np.median(signal, axis=1, keepdims=True)


def _rate(catalog: Catalog) -> float:
    rate = catalog.signal.rate
    assert rate is not None  # signals over time have a rate
    return rate


def _stacked(
    signal: npt.NDArray[np.float32], step: float, near: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Centre channels at their medians and move each down until it clears the one above.

    Args:
        signal: (channel, time).
        step: Unit of distance: channels are two to twelve steps apart; artefacts may overlap.
        near: Samples on both sides that must not overlap either.

    Returns:
        (channel, time), and the height of each channel's median.
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
    rate: float,
) -> None:
    axes.plot(np.arange(values.shape[1]) / rate, values.T, color="black", linewidth=0.6)
    axes.set_yticks(offsets, names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _paper(axes: Axes, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> None:
    for place in x:
        axes.axvline(place, **GRID)
    for place in y:
        axes.axhline(place, **GRID)


def _bar(axes: Axes, height: float, text: str) -> None:
    low = axes.get_ylim()[0]
    place = axes.get_xlim()[1] * 1.012
    axes.plot([place, place], [low, low + height], color="black", linewidth=2, clip_on=False)
    axes.annotate(
        text, (place, low + height / 2), (4, 0), textcoords="offset points",
        va="center", fontsize=8, annotation_clip=False,
    )  # fmt: skip


def _draw_images(catalog: Catalog, chosen: dict[str, list[Example]]) -> Figure:
    """Images without padding, a row for each class; of volumes the middle slice."""
    kind = catalog.signal
    volume = len(kind.axes) == 4
    what = "images of each class, without padding"
    if volume:
        what = "the middle slice of volumes of each class"
    if catalog.task.segments:
        what = "where each class is largest, with its contour"
    windowed = kind.normaliser == "window"
    if windowed:
        centre, width = (float(kind.parameters[name]) for name in ("centre", "width"))
        window = f"{centre:g}/{width:g} {kind.unit}".replace("-", "−")
        what = f"the middle slice of volumes of each class, window {window}"
    columns = max(map(len, chosen.values()))
    shapes = [example.signal.shape[-2:] for records in chosen.values() for example in records]
    cell = max(height for height, _ in shapes), max(width for _, width in shapes)
    inch = 2.2 / max(cell)
    limits = _limits(catalog)
    figure = new_figure(
        f"{named(catalog)}: {what}",
        0.8 + (cell[0] * inch + 0.35) * len(chosen),
        width=1.5 + cell[1] * inch * columns + volume,
    )
    panels = figure.subplots(len(chosen), columns, squeeze=False)
    for row, (name, records) in zip(panels, chosen.items(), strict=True):
        for axes in row:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        row[0].set_ylabel(textwrap.fill(name, 16), rotation=0, ha="right", va="center")
        for axes, example in zip(row[: len(records)], records, strict=True):
            mask = _mask(catalog, example, name)
            image = _image(example.signal, mask)
            picture = _shown(axes, image, *(limits or _own_limits(image)))
            if mask is not None and mask.any():
                axes.contour(_plane(mask), [0.5], colors=CONTOUR, linewidths=1.0)
            _same_scale(axes, example.signal.shape[-2:], cell)
            also = [other for other in example.classes if other != name]
            text = f"{example.split}; also {', '.join(also)}" if also else example.split
            axes.set_xlabel(textwrap.fill(text, 30), fontsize=7)
    if volume and limits:
        ends: Literal["both", "neither"] = "both" if windowed else "neither"
        figure.colorbar(picture, ax=panels, shrink=0.5, label=kind.unit, extend=ends)
    return figure


def _limits(catalog: Catalog) -> tuple[float, float] | None:
    """Values drawn as black and as white in all images; None where images have no common unit."""
    kind = catalog.signal
    if kind.normaliser == "window":
        window = kind.normaliser_parameters().range
        return window.low, window.high
    return (0.0, 255.0) if kind.dtype == "uint8" else None


def _own_limits(image: npt.NDArray[np.float32]) -> tuple[float, float]:
    low, high = np.percentile(image, (1, 99))
    return float(low), float(max(high, np.nextafter(low, np.inf)))


def _mask(catalog: Catalog, example: Example, name: str) -> npt.NDArray[np.bool_] | None:
    """Mask of a class in an example; None without masks."""
    if example.mask is None or name not in catalog.card.classes:
        return None
    return np.asarray(example.mask == catalog.card.classes.index(name))


def _image(
    signal: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.float32]:
    """(channel, y, x): the signal; of a volume the slice with most of the mask, or the middle."""
    if signal.ndim < 4:
        return signal
    place = signal.shape[1] // 2 if mask is None else int(mask.sum(axis=(1, 2)).argmax())
    return signal[:, place]


def _plane(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """(y, x): the mask, or the slice of a volume with most of it."""
    plane = mask if mask.ndim == 2 else mask[int(mask.sum(axis=(1, 2)).argmax())]
    return plane.astype(np.float64)


def _shown(axes: Axes, image: npt.NDArray[np.float32], low: float, high: float) -> AxesImage:
    """Draw an image (channel, y, x), black at ``low``, white at ``high``; RGB of 3 channels."""
    if len(image) != 3:
        return axes.imshow(image[0], cmap="gray", vmin=low, vmax=high)
    return axes.imshow(((image.transpose(1, 2, 0) - low) / (high - low)).clip(0, 1))


def _same_scale(axes: Axes, extent: Sequence[int], cell: Sequence[int]) -> None:
    """Centre an image of (y, x) pixels in a cell; all cells have the same size."""
    (height, width), (tall, wide) = extent, cell
    axes.set_xlim((width - wide) / 2 - 0.5, (width + wide) / 2 - 0.5)
    axes.set_ylim((height + tall) / 2 - 0.5, (height - tall) / 2 - 0.5)
