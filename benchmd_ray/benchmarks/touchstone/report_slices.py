"""Worst cases as pictures: three planes through the reference's centre, with contours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmd_ray.benchmarks.touchstone.comparing import Comparison
from benchmd_ray.benchmarks.touchstone.planes import Planes
from benchmd_ray.benchmarks.touchstone.report_parts import PERCENT, WORST, class_title
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import slug
from benchmd_ray.report.canvas import new_figure
from benchmd_ray.report.figures_panels import SMALL
from benchmd_ray.report.figures_parts import Drawn, Skipped, Titled

PLANES = ("axial", "coronal", "sagittal")
"""Across z, y and x."""
SIDES = ("RL", "RL", "AP")
"""Of the patient, at the left and right of each plane: right, left, front (anterior), back."""
REFERENCE, PREDICTION = "#00A878", "#D1345B"
ROWS = 10
"""Cases of a figure."""


def draw_planes(axes: Sequence[Axes], planes: Planes) -> None:
    """Contours in three planes, in mm: front and head up, the patient's left to the right."""
    for number, (panel, plane) in enumerate(zip(axes, planes.views, strict=True)):
        height, width = plane.reference.shape
        rows = (np.arange(height) + 0.5) * plane.steps[0]
        columns = (np.arange(width) + 0.5) * plane.steps[1]
        panel.set_facecolor("#F2F2F2")
        if plane.image is not None:
            low, high = planes.window
            panel.pcolormesh(
                columns, rows, plane.image, cmap="gray", vmin=low, vmax=high, rasterized=True
            )
        for mask, colour, style in (
            (plane.reference, REFERENCE, "-"),
            (plane.prediction, PREDICTION, "--"),
        ):
            if mask.any() and min(height, width) > 1:
                values = mask.astype(float)
                panel.contour(
                    columns, rows, values, [0.5], colors=colour, linewidths=1.1, linestyles=style
                )
        panel.set_aspect("equal")
        panel.set_xticks([])
        panel.set_yticks([])
        for side, letter in zip((0.02, 0.98), SIDES[number], strict=True):
            panel.text(
                *(side, 0.5, letter),
                transform=panel.transAxes,
                ha="left" if side < 0.5 else "right",
                va="center",
                fontsize=SMALL,
                color="#E69F00",
            )
        if number == 0:
            panel.invert_yaxis()  # the front is up


def draw_slices(comparison: Comparison, images: Mapping[str, Path]) -> Iterator[Drawn]:
    """The worst cases of each class, with the prediction that scores lowest of those with masks."""
    if not any(algorithm.planes for algorithm in comparison.scores.by_name.values()):
        yield Skipped("worst", "the scores come without masks, so worst cases have no pictures")
        return
    if images and not images.keys() & set(comparison.worst["case"]):
        case = comparison.worst["case"].iloc[0]
        yield Skipped(
            "worst", f"no image is of a worst case, such as {case}: they are drawn without images"
        )
    for name in comparison.scores.classes:
        yield from _of_class(comparison, name, images)


def _of_class(comparison: Comparison, name: str, images: Mapping[str, Path]) -> Iterator[Drawn]:
    stem = slug("worst", name)
    pictures: list[tuple[str, str, float, Planes]] = []
    for case in comparison.worst.loc[comparison.worst["class"] == name, "case"][:ROWS]:
        algorithm, value = _lowest(comparison, case, name)
        reader = comparison.scores.by_name[algorithm].planes if algorithm else None
        if reader is None:
            continue
        try:
            planes = _planes(reader, case, name, images.get(case))
        except BenchmdError as error:
            yield Skipped(stem, str(error))
            continue
        if planes.note:
            yield Skipped(stem, f"{case}: no image, {planes.note}")
        pictures.append((case, algorithm, value, planes))
    if not pictures:
        yield Skipped(stem, f"no case of {name} has a picture")
        return
    metric = comparison.scores.title(comparison.metrics[0])
    first, _, lowest, _ = pictures[0]
    title = f"Worst cases of {class_title(name)}: {metric} from {PERCENT * lowest:.0f} % ({first})"
    figure = new_figure(title, 2.0 * len(pictures) + 0.9)
    panels = np.atleast_2d(figure.subplots(len(pictures), 3))
    for row, (case, algorithm, value, planes) in zip(panels, pictures, strict=True):
        draw_planes(row, planes)
        missed = ", missed" if planes.volumes[0] and not planes.volumes[1] else ""
        label = f"{case}\n{algorithm}\n{metric} {PERCENT * value:.1f} %{missed}"
        row[0].set_ylabel(label, fontsize=SMALL)
    for axes, plane in zip(panels[0], PLANES, strict=True):
        axes.set_title(plane)
    _legend(figure)
    caption = (
        f"Common cases with the lowest mean {metric} over algorithms, each with the prediction of "
        "the algorithm that scores lowest on it; planes through the centre of the reference. R, L: "
        "the patient's right and left; A, P: front and back."
    )
    yield Titled(stem, WORST, title, caption, figure)


def _planes(
    reader: Callable[[str, str, Path | None], Planes], case: str, name: str, image: Path | None
) -> Planes:
    if image is None:
        return reader(case, name, None)
    try:
        return reader(case, name, image)
    except BenchmdError as error:
        return reader(case, name, None)._replace(note=str(error))


def _lowest(comparison: Comparison, case: str, name: str) -> tuple[str, float]:
    """The algorithm with masks that scores lowest, and its score; empty where none has masks."""
    rows = comparison.scores.rows
    metric = comparison.metrics[0]
    cells = rows[(rows["case"] == case) & (rows["class"] == name)].dropna(subset=[metric])
    readable = [n for n, s in comparison.scores.by_name.items() if s.planes is not None]
    cells = cells[cells["algorithm"].isin(readable)].sort_values(metric, kind="stable")
    if cells.empty:
        return "", float("nan")
    return str(cells["algorithm"].iloc[0]), float(cells[metric].iloc[0])


def _legend(figure: Figure) -> None:
    handles = [
        Line2D([], [], color=REFERENCE, label="reference"),
        Line2D([], [], color=PREDICTION, linestyle="--", label="prediction"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize=8.5)
