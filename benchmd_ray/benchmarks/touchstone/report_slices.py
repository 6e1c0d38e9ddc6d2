"""Worst cases as pictures: three planes through the reference's centre, with contours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmd_ray.benchmarks.touchstone.comparing import Comparison
from benchmd_ray.benchmarks.touchstone.joining import Masks
from benchmd_ray.benchmarks.touchstone.report_parts import PERCENT, WORST
from benchmd_ray.errors import BenchmdError
from benchmd_ray.results.canvas import new_figure
from benchmd_ray.results.report.figures_panels import SMALL
from benchmd_ray.results.report.figures_parts import Drawn, Skipped, Titled

Image = npt.NDArray[np.float64]
PLANES = ("axial", "coronal", "sagittal")
"""Across z, y and x."""
REFERENCE, PREDICTION = "#00A878", "#D1345B"
ROWS = 10
"""Cases of a figure."""
MARGIN = 10.0
"""mm around what is drawn."""
WINDOW = (-160.0, 240.0)
"""HU that are shown of an image."""


def centre(mask: npt.NDArray[np.bool_]) -> tuple[int, int, int]:
    """The slice across z, y and x nearest to the centre of mass that has any of the mask."""
    places = np.nonzero(mask)
    if not places[0].size:
        return (mask.shape[0] // 2, mask.shape[1] // 2, mask.shape[2] // 2)
    z, y, x = (int(own[np.abs(own - own.mean()).argmin()]) for own in places)
    return (z, y, x)


def box(mask: npt.NDArray[np.bool_], spacing: Sequence[float]) -> tuple[slice, slice, slice]:
    """What is drawn: the mask's box and `MARGIN`."""
    slices = []
    for axis, step in enumerate(spacing):
        others = tuple(each for each in range(3) if each != axis)
        there = np.flatnonzero(mask.any(axis=others))
        room = int(np.ceil(MARGIN / step))
        low, high = (there[0], there[-1]) if there.size else (0, mask.shape[axis] - 1)
        slices.append(slice(max(0, int(low) - room), int(high) + room + 1))
    return (slices[0], slices[1], slices[2])


def draw_planes(axes: Sequence[Axes], masks: Masks, image: Image | None = None) -> None:
    """Contours of reference and prediction in three planes.

    Voxels are drawn by their spacing, the front and the head up, the patient's left to the right.

    Args:
        axes: Three.
        masks: Of a class.
        image: (z, y, x) HU, for the background.
    """
    at = centre(masks.reference if masks.reference.any() else masks.prediction)
    window = box(masks.reference | masks.prediction, masks.spacing)
    for axis, own in enumerate(axes):
        kept = [each for each in range(3) if each != axis]
        plane = tuple(at[each] if each == axis else window[each] for each in range(3))
        height, width = masks.reference[plane].shape
        rows = (np.arange(height) + 0.5) * masks.spacing[kept[0]]
        columns = (np.arange(width) + 0.5) * masks.spacing[kept[1]]
        own.set_facecolor("#F2F2F2")
        if image is not None and image.shape == masks.reference.shape:
            own.pcolormesh(
                columns,
                rows,
                image[plane],
                cmap="gray",
                vmin=WINDOW[0],
                vmax=WINDOW[1],
                rasterized=True,
            )
        for mask, colour, style in (
            (masks.reference, REFERENCE, "-"),
            (masks.prediction, PREDICTION, "--"),
        ):
            if mask[plane].any() and min(height, width) > 1:
                values = mask[plane].astype(float)
                own.contour(
                    columns, rows, values, [0.5], colors=colour, linewidths=1.1, linestyles=style
                )
        own.set_aspect("equal")
        own.set_xticks([])
        own.set_yticks([])
        if axis == 0:
            own.invert_yaxis()  # the front is up


def draw_slices(
    one: Comparison, image: Callable[[str], Image | None] | None = None
) -> Iterator[Drawn]:
    """The worst cases of each class that have masks.

    The prediction is that of the algorithm with the lowest score of the case that has masks.

    Args:
        one: The comparison.
        image: From a case to its image, where there is one.
    """
    readers = {n: s.masks for n, s in one.scores.by_name.items() if s.masks is not None}
    if not readers:
        yield Skipped("worst", "the scores come without masks, so worst cases have no pictures")
        return
    for name in one.scores.classes:
        yield _of_class(one, name, image)


def _of_class(one: Comparison, name: str, image: Callable[[str], Image | None] | None) -> Drawn:
    slug = re.sub(r"[^a-z0-9]+", "-", f"worst-{name}".lower())
    found: list[tuple[str, str, float, Masks]] = []
    reasons = []
    for case in one.worst.loc[one.worst["class"] == name, "case"][:ROWS]:
        algorithm, value = _lowest(one, case, name)
        reader = one.scores.by_name[algorithm].masks if algorithm else None
        if reader is None:
            continue
        try:
            found.append((case, algorithm, value, reader(case, name)))
        except BenchmdError as error:
            reasons.append(str(error))
    if not found:
        return Skipped(slug, reasons[0] if reasons else f"no case has a score of {name}")
    metric = one.scores.title(one.metrics[0])
    title = f"Worst cases of {name}: {metric} from {PERCENT * found[0][2]:.0f} % ({found[0][0]})"
    figure = new_figure(title, 2.0 * len(found) + 0.9)
    panels = np.atleast_2d(figure.subplots(len(found), 3))
    for row, (case, algorithm, value, masks) in zip(panels, found, strict=True):
        draw_planes(row, masks, image(case) if image is not None else None)
        row[0].set_ylabel(f"{case}\n{algorithm}\n{metric} {PERCENT * value:.1f} %", fontsize=SMALL)
    for axes, plane in zip(panels[0], PLANES, strict=True):
        axes.set_title(plane)
    _legend(figure)
    caption = (
        f"Common cases with the lowest mean {metric} over algorithms; planes through the centre of "
        "the reference, of the algorithm that scores lowest on the case."
    )
    return Titled(slug, WORST, title, caption, figure)


def _lowest(one: Comparison, case: str, name: str) -> tuple[str, float]:
    """The algorithm with masks that scores lowest, and its score; empty where none has masks."""
    rows = one.scores.rows
    metric = one.metrics[0]
    held = rows[(rows["case"] == case) & (rows["class"] == name)].dropna(subset=[metric])
    readable = [n for n, s in one.scores.by_name.items() if s.masks is not None]
    held = held[held["algorithm"].isin(readable)].sort_values(metric, kind="stable")
    if held.empty:
        return "", float("nan")
    return str(held["algorithm"].iloc[0]), float(held[metric].iloc[0])


def _legend(figure: Figure) -> None:
    handles = [
        Line2D([], [], color=REFERENCE, label="reference"),
        Line2D([], [], color=PREDICTION, linestyle="--", label="prediction"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize=8.5)
