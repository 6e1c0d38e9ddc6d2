"""Three planes through a class of a case, for pictures: cut in the process that reads its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.touchstone.masks import Labels, VoxelGrid
from benchmd_ray.scores.segmentation import Box, Segmentation

T = TypeVar("T", bound=np.generic)
Bits = npt.NDArray[np.bool_]
MARGIN = 10.0
"""mm around what is drawn."""
HU_WINDOW = (-160.0, 240.0)
"""Shown of an image in HU."""
LEAST_OF_CT = -500.0
"""An image with lower values is in HU: air is at -1000."""


@dataclass(frozen=True, eq=False)
class Plane:
    """One plane; rows and columns ascend to the patient's head, back and left."""

    reference: Bits
    """(rows, columns)."""
    prediction: Bits
    steps: tuple[float, float]
    """mm between rows and between columns."""
    image: npt.NDArray[np.float32] | None = None


class Planes(NamedTuple):
    """The planes across z, y and x through a class of a case."""

    views: tuple[Plane, ...]
    volumes: tuple[float, float]
    """mL of reference and prediction."""
    window: tuple[float, float] = HU_WINDOW
    """Values of the image that are black and white."""
    note: str = ""
    """Why there is no image."""


def cut(
    reference: Segmentation,
    prediction: Segmentation,
    grid: VoxelGrid,
    number: int,
    image: Labels | None = None,
) -> Planes:
    """Planes through the centre of the reference, or of the prediction where that is empty."""
    everything: Box = (slice(None), slice(None), slice(None))
    masks = [_upright(side.mask(number, everything), grid) for side in (reference, prediction)]
    spacing = [grid.spacing[axis] for axis in _order(grid)]
    at = centre(masks[0] if masks[0].any() else masks[1])
    window = box(masks[0] | masks[1], spacing)
    note, grey_window = "", HU_WINDOW
    values: npt.NDArray[Any] | None = None
    if image is not None:
        note = "; ".join(image.geometry.differences(grid))
        if not note:
            values = _upright(image.values, grid)
            grey_window = _window(values, window)
    planes = []
    for axis, (rows, columns) in enumerate(((1, 2), (0, 2), (0, 1))):
        plane = tuple(at[other] if other == axis else window[other] for other in range(3))
        pixels = None if values is None else np.asarray(values[plane], np.float32)
        steps = (float(spacing[rows]), float(spacing[columns]))
        planes.append(Plane(masks[0][plane], masks[1][plane], steps, pixels))
    volumes = [float(np.count_nonzero(mask)) * grid.voxel_ml for mask in masks]
    return Planes(tuple(planes), (volumes[0], volumes[1]), grey_window, note)


def centre(mask: Bits) -> tuple[int, int, int]:
    """The slice across z, y and x nearest to the centre of mass that has any of the mask."""
    places = np.nonzero(mask)
    if not places[0].size:
        return (mask.shape[0] // 2, mask.shape[1] // 2, mask.shape[2] // 2)
    z, y, x = (int(indices[np.abs(indices - indices.mean()).argmin()]) for indices in places)
    return (z, y, x)


def box(mask: Bits, spacing: Sequence[float]) -> Box:
    """What is drawn: the mask's box and `MARGIN`."""
    slices = []
    for axis, step in enumerate(spacing):
        others = tuple(other for other in range(3) if other != axis)
        there = np.flatnonzero(mask.any(axis=others))
        room = int(np.ceil(MARGIN / step))
        low, high = (there[0], there[-1]) if there.size else (0, mask.shape[axis] - 1)
        slices.append(slice(max(0, int(low) - room), int(high) + room + 1))
    return (slices[0], slices[1], slices[2])


def _window(values: npt.NDArray[Any], box: Box) -> tuple[float, float]:
    """Soft tissue on CT; of other images the 1 % to 99 % quantiles."""
    if float(values.min()) < LEAST_OF_CT:
        return HU_WINDOW
    low, high = np.quantile(values[box].astype(np.float64), (0.01, 0.99))
    return float(low), float(high)


def _order(grid: VoxelGrid) -> tuple[int, int, int]:
    """The file's axis that is nearest to the patient's z, y and x."""
    columns = np.abs(np.array(grid.direction).reshape(3, 3))
    along = [2 - int(np.argmax(columns[axis])) for axis in (2, 1, 0)]
    return (along[0], along[1], along[2]) if len(set(along)) == 3 else (0, 1, 2)


def _upright(values: npt.NDArray[T], grid: VoxelGrid) -> npt.NDArray[T]:
    """(z, y, x), ascending to the patient's head, back and left; a view."""
    order = _order(grid)
    matrix = np.array(grid.direction).reshape(3, 3)
    signs = [matrix[2 - place, 2 - axis] for place, axis in enumerate(order)]
    return values.transpose(order)[tuple(slice(None, None, -1 if s < 0 else 1) for s in signs)]


def packed(planes: Planes) -> tuple[dict[str, Any], bytes]:
    """Planes as plain values and arrays of NumPy's format, for another process."""
    arrays: dict[str, Any] = {}
    file = BytesIO()
    for place, plane in enumerate(planes.views):
        arrays |= {f"reference {place}": plane.reference, f"prediction {place}": plane.prediction}
        if plane.image is not None:
            arrays[f"image {place}"] = plane.image
    np.savez(file, **arrays)
    stated = {"volumes": planes.volumes, "window": planes.window, "note": planes.note}
    return stated | {"steps": [plane.steps for plane in planes.views]}, file.getvalue()


def unpacked(head: dict[str, Any], data: bytes | bytearray) -> Planes:
    """What `packed` packed."""
    with np.load(BytesIO(data), allow_pickle=False) as file:
        arrays = dict(file)
    views = [
        Plane(
            arrays[f"reference {place}"],
            arrays[f"prediction {place}"],
            tuple(steps),
            arrays.get(f"image {place}"),
        )
        for place, steps in enumerate(head["steps"])
    ]
    return Planes(tuple(views), tuple(head["volumes"]), tuple(head["window"]), head["note"])
