"""Distances between surfaces of two masks: normalised surface Dice and Hausdorff distance.

A surface is made of elements, one for each 2 × 2 × 2 neighbourhood of voxels that is neither all
inside nor all outside. Its area is that of the marching-cubes triangles in the neighbourhood, with
corners at the midpoints of edges. Source: Nikolov et al., Clinically applicable segmentation of
head and neck anatomy for radiotherapy (J Med Internet Res 2021).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.spatial import KDTree

Numbers = npt.NDArray[np.float64]

NEIGHBOURHOODS: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...] = (
    ("000", ((1, 1, 1),)),
    ("000 001", ((4, 4, 0),)),
    ("000 011", ((2, 2, 2),)),
    ("000 111", ((2, 2, 2),)),
    ("000 001 010", ((4, 0, 0), (3, 3, 3))),
    ("000 011 101", ((3, 3, 3),)),
    ("000 001 110", ((4, 4, 0), (1, 1, 1))),
    ("000 001 010 011", ((8, 0, 0),)),
    ("000 001 010 100", ((6, 6, 6),)),
    ("000 001 011 111", ((4, 4, 4), (2, 2, 0), (0, 2, 2))),
    ("000 001 010 111", ((4, 0, 0), (4, 4, 4))),
    ("000 001 110 111", ((8, 8, 0),)),
    ("000 011 101 110", ((4, 4, 4),)),
)
"""Inside voxels of a neighbourhood, and its triangles as area vectors along the axes, in eighths of
a voxel's face. All other neighbourhoods follow by reflection and by swapping axes or inside and
outside.
"""
ROUNDING = 1 + 1e-9
"""Factor on a tolerance against rounding: three steps of 0.1 mm are within 0.3 mm."""
DENSE = 1 / 8
"""Share of neighbourhoods with a surface above which distances come from a distance map."""


@cache
def _vectors() -> npt.NDArray[np.int64]:
    """(256, 3, 3): up to three triangles of each code, in eighths of faces (see `codes`)."""
    vectors = np.zeros((256, 3, 3), np.int64)
    for inside, triangles in NEIGHBOURHOODS:
        for axes in itertools.permutations(range(3)):
            turned = np.array(triangles)[:, axes]
            for flips in itertools.product((0, 1), repeat=3):
                code = 0
                for corner in inside.split():
                    place = [
                        int(corner[axis]) ^ flip for axis, flip in zip(axes, flips, strict=True)
                    ]
                    code |= 1 << (place[0] + 2 * place[1] + 4 * place[2])
                for mirrored in (code, 255 - code):
                    vectors[mirrored, : len(turned)] = turned
                    vectors[mirrored, len(turned) :] = 0
    return vectors


def areas(spacing: Sequence[float]) -> Numbers:
    """(256,): surface area in mm² of a neighbourhood of each code, for a spacing in mm."""
    a, b, c = spacing
    seen = _vectors() * np.array([b * c, a * c, a * b]) / 8
    return np.asarray(np.linalg.norm(seen, axis=2).sum(axis=1), np.float64)


def codes(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """(z + 1, y + 1, x + 1): bit i + 2j + 4k of a neighbourhood is its voxel (i, j, k).

    Everything beyond the borders of the mask (z, y, x) counts as outside.
    """
    voxel = np.pad(mask, 1).view(np.uint8)
    pair = voxel[:-1] | voxel[1:] << 1
    square = pair[:, :-1] | pair[:, 1:] << 2
    return np.asarray(square[:, :, :-1] | square[:, :, 1:] << 4, np.uint8)


@dataclass(frozen=True)
class Surface:
    """The surface elements of a mask."""

    cells: npt.NDArray[np.int64]
    """(elements, 3): where they are, in voxels."""
    areas: Numbers
    """(elements,) mm²."""


def surface(
    mask: npt.NDArray[np.bool_], spacing: Sequence[float], start: Sequence[int] = (0, 0, 0)
) -> Surface:
    """The surface of a mask (z, y, x), whose first voxel is at ``start`` in the whole grid.

    Spacing is in mm along each axis.
    """
    code = codes(mask)
    flat = code.reshape(-1)
    some = np.flatnonzero(flat + np.uint8(1) > 1)  # neither 0 nor 255, which wraps around
    cells = np.stack(np.unravel_index(some, code.shape), axis=1) + np.array(start)
    return Surface(cells, areas(spacing)[flat[some]])


@dataclass(frozen=True)
class Distances:
    """Distances of each surface's elements to the other surface, mm, with the elements' areas."""

    reference: Numbers
    reference_areas: Numbers
    prediction: Numbers
    prediction_areas: Numbers

    def surface_dice(self, tolerance: float) -> float:
        """Share of both surfaces' area that is within a tolerance (mm) of the other surface."""
        most = tolerance * ROUNDING
        total = self.reference_areas.sum() + self.prediction_areas.sum()
        near = self.reference_areas[self.reference <= most].sum()
        return float((near + self.prediction_areas[self.prediction <= most].sum()) / total)

    def hausdorff(self, percent: float) -> float:
        """The larger of the two directed percentile distances, weighted by area, mm."""
        return max(
            _percentile(self.reference, self.reference_areas, percent),
            _percentile(self.prediction, self.prediction_areas, percent),
        )


def distances(reference: Surface, prediction: Surface, spacing: Sequence[float]) -> Distances:
    """Exact Euclidean distances between two surfaces, neither of which is empty."""
    low = np.minimum(reference.cells.min(axis=0), prediction.cells.min(axis=0))
    high = np.maximum(reference.cells.max(axis=0), prediction.cells.max(axis=0))
    shape = tuple((high - low + 1).tolist())
    most = max(len(reference.cells), len(prediction.cells))
    between = _by_map if most > DENSE * np.prod(shape, dtype=float) else _by_tree
    step = np.array(spacing, np.float64)
    return Distances(
        between(reference.cells - low, prediction.cells - low, step, shape),
        reference.areas,
        between(prediction.cells - low, reference.cells - low, step, shape),
        prediction.areas,
    )


def _by_tree(
    cells: npt.NDArray[np.int64],
    others: npt.NDArray[np.int64],
    spacing: Numbers,
    shape: tuple[int, ...],
) -> Numbers:
    """Distances (mm) of cells to the nearest of others, by a k-d tree."""
    other_numbers = np.sort(np.ravel_multi_index(tuple(others.T), shape))
    cell_numbers = np.ravel_multi_index(tuple(cells.T), shape)
    places = np.searchsorted(other_numbers, cell_numbers)
    apart = other_numbers[np.minimum(places, len(other_numbers) - 1)] != cell_numbers
    nearest = np.zeros(len(cells))
    if apart.any():
        tree = KDTree(others * spacing, balanced_tree=False, compact_nodes=False)
        place = tree.query(cells[apart] * spacing)[1]
        # From whole steps, so that a distance does not depend on where in the grid it is.
        steps = (cells[apart] - others[place]) * spacing
        nearest[apart] = np.sqrt(np.square(steps).sum(axis=1))
    return nearest


def _by_map(
    cells: npt.NDArray[np.int64],
    others: npt.NDArray[np.int64],
    spacing: Numbers,
    shape: tuple[int, ...],
) -> Numbers:
    """Distances by a distance map, for masks that are nearly all surface, such as noise."""
    outside = np.ones(shape, bool)
    outside[tuple(others.T)] = False
    distance = ndimage.distance_transform_edt(outside, sampling=spacing)
    return np.asarray(distance[tuple(cells.T)], np.float64)


def _percentile(values: Numbers, weights: Numbers, percent: float) -> float:
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    place = int(np.searchsorted(share, percent / 100))
    return float(values[order][min(place, len(values) - 1)])
