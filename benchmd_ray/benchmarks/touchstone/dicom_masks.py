"""DICOM segmentations: masks of named segments, whose empty slices may be absent.

BINARY (a frame is a mask of one segment) and LABELMAP (pixels are segment numbers, since 2024) are
read, FRACTIONAL ones are refused. Format: DICOM PS3.3, A.51 and C.8.20.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.touchstone.masks import GRID_TOLERANCE, SPACING_TOLERANCE, VoxelGrid
from benchmd_ray.data.readers.dicom import Stored, open_dicom, pixels
from benchmd_ray.data.readers.dicom_values import numbers, text
from benchmd_ray.data.readers.volume import MAX_SLICES, MAX_VOXELS, SAME
from benchmd_ray.data.records import RecordError

BINARY, LABELMAP = "BINARY", "LABELMAP"
STORAGE = {"1.2.840.10008.5.1.4.1.1.66.4": BINARY, "1.2.840.10008.5.1.4.1.1.66.7": LABELMAP}
"""SOP classes of segmentations, and the type that is taken of each."""
MAX_FRAMES = 2**16


@dataclass(frozen=True)
class DicomSegments:
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    """Their numbers, which the pixels of a label map are."""
    planes: tuple[tuple[int | None, int, Stored], ...]
    """Of each frame: place of its segment among these, None for all of them; number of the slice;
    (y, x) mask, or numbers of segments."""
    geometry: VoxelGrid
    """From the first slice that a frame has to the last."""

    def mask(self, place: int, grid: VoxelGrid) -> npt.NDArray[np.bool_]:
        """(z, y, x) of a segment on a grid that contains this one's slices, see `contained`."""
        mask = np.zeros(grid.shape, bool)
        first = _offset(self.geometry, grid)
        for segment, number, plane in self.planes:
            if segment is None:
                mask[first + number] |= plane == self.numbers[place]
            elif segment == place:
                mask[first + number] |= plane != 0
        return mask


def contained(geometry: VoxelGrid, grid: VoxelGrid) -> bool:
    """Whether these slices are part of a grid that differs only in its number of slices."""
    placed = _moved(geometry, _offset(geometry, grid) * -1, grid.shape[0])
    first = _offset(geometry, grid)
    return not placed.differences(grid) and 0 <= first <= grid.shape[0] - geometry.shape[0]


def spanning(geometry: VoxelGrid, other: VoxelGrid) -> VoxelGrid:
    """The smallest grid that contains two stacks of slices."""
    first = _offset(other, geometry)
    low, high = min(0, first), max(geometry.shape[0], first + other.shape[0])
    if high - low > MAX_SLICES:
        raise RecordError(
            f"the slices of reference and prediction are {high - low:,} slices apart, expected "
            "both in one place"
        )
    return _moved(geometry, low, high - low)


def _offset(geometry: VoxelGrid, grid: VoxelGrid) -> int:
    normal = np.array(grid.direction).reshape(3, 3)[:, 2]
    away = (np.array(geometry.origin) - np.array(grid.origin)) @ normal
    return round(float(away / grid.spacing[0]))


def _moved(geometry: VoxelGrid, slices: int, count: int) -> VoxelGrid:
    """The same stack from another slice on."""
    normal = np.array(geometry.direction).reshape(3, 3)[:, 2]
    origin = np.array(geometry.origin) + slices * geometry.spacing[0] * normal
    return VoxelGrid(
        (count, *geometry.shape[1:]), geometry.spacing, tuple(origin), geometry.direction
    )


def read_segments(path: Path) -> DicomSegments:
    """Read a segmentation on parallel slices."""
    dataset = open_dicom(path)
    kind = STORAGE.get(text(dataset, "SOPClassUID") or "")
    if kind is None or text(dataset, "SegmentationType") != kind:
        raise RecordError(f"expected a DICOM segmentation of the type {BINARY} or {LABELMAP}")
    frames = int((numbers(dataset, "NumberOfFrames", 1) or (0,))[0])
    rows, columns = (int((numbers(dataset, key, 1) or (0,))[0]) for key in ("Rows", "Columns"))
    if not 0 < frames <= MAX_FRAMES or frames * rows * columns > MAX_VOXELS:
        raise RecordError(f"it has {frames:,} frames of {columns} × {rows}, which is too much")
    segments = {
        int((numbers(item, "SegmentNumber", 1) or (0,))[0]): text(item, "SegmentLabel") or ""
        for item in _items(dataset, "SegmentSequence")
    }
    shared = (_items(dataset, "SharedFunctionalGroupsSequence") or [None])[0]
    groups = _items(dataset, "PerFrameFunctionalGroupsSequence")
    if len(groups) != frames:
        raise RecordError(f"it describes {len(groups):,} frames of {frames:,}")
    owners = [None if kind == LABELMAP else _owner(group, shared, segments) for group in groups]
    origins = []
    for group in groups:
        place = numbers(_within(group, shared, "PlanePositionSequence"), "ImagePositionPatient", 3)
        origins.append(place or (0.0, 0.0, 0.0))
    geometry, places = _stacked(origins, groups, shared, (rows, columns))
    planes = tuple(
        (owner, place, pixels(dataset, frame=number))
        for number, (owner, place) in enumerate(zip(owners, places, strict=True))
    )
    if kind == LABELMAP:
        background = map(int, numbers(dataset, "PixelPaddingValue", 1) or ())
        _require_described(planes, {*segments, 0, *background})
    return DicomSegments(tuple(segments.values()), tuple(segments), planes, geometry)


def _owner(group: Any, shared: Any, segments: Mapping[int, str]) -> int:
    named = _within(group, shared, "SegmentIdentificationSequence")
    number = int((numbers(named, "ReferencedSegmentNumber", 1) or (0,))[0])
    if number not in segments:
        raise RecordError("a frame is of a segment that is not described")
    return list(segments).index(number)


def _require_described(planes: Iterable[tuple[Any, int, Stored]], values: set[int]) -> None:
    there = {int(value) for *_, plane in planes for value in np.unique(plane)}
    if odd := sorted(there - values):
        some = ", ".join(map(str, odd[:10]))
        raise RecordError(f"its pixels have the values {some}, which no segment is described for")


def _stacked(
    origins: Sequence[Sequence[float]], groups: list[Any], shared: Any, size: tuple[int, int]
) -> tuple[VoxelGrid, list[int]]:
    measures = _within(groups[0], shared, "PixelMeasuresSequence")
    oriented = _within(groups[0], shared, "PlaneOrientationSequence")
    cosines = numbers(oriented, "ImageOrientationPatient", 6)
    inplane = numbers(measures, "PixelSpacing", 2)
    if cosines is None or inplane is None or min(inplane) <= 0:
        raise RecordError("its frames do not say where they are")
    for group in groups:
        if "PlaneOrientationSequence" in group and not np.allclose(
            numbers(group["PlaneOrientationSequence"][0], "ImageOrientationPatient", 6) or 0,
            cosines,
            atol=SPACING_TOLERANCE,
        ):
            raise RecordError("its frames are not parallel")
    row, column = np.array(cosines).reshape(2, 3)
    normal = np.cross(row, column)
    normal = normal * np.sign(normal[np.argmax(np.abs(normal))])
    heights = np.array(origins) @ normal
    steps = np.diff(np.unique(np.round(heights, 3)))
    stated = numbers(measures, "SpacingBetweenSlices", 1)
    if not len(steps):  # slices may overlap, so that their thickness says nothing of their distance
        stated = stated or numbers(measures, "SliceThickness", 1)
    depth = abs(stated[0]) if stated and stated[0] else float(steps.min(initial=np.inf))
    places = np.rint((heights - heights.min()) / depth)
    if not np.isfinite(depth) or places.max() >= MAX_SLICES:
        raise RecordError("the distance between its slices is not known")
    first = np.array(origins[int(np.argmin(heights))])
    expected = first + places[:, None] * depth * normal
    if np.abs(expected - np.array(origins)).max() > max(SAME, GRID_TOLERANCE * depth):
        raise RecordError("its slices are no regular grid")
    geometry = VoxelGrid(
        shape=(int(places.max()) + 1, *size),
        spacing=(depth, inplane[0], inplane[1]),
        origin=tuple(first),
        direction=tuple(np.array([row, column, normal]).T.reshape(-1)),
    )
    return geometry, [int(place) for place in places]


def _items(dataset: Any, keyword: str) -> list[Any]:
    return list(dataset.get(keyword) or [])


def _within(group: Any, shared: Any, keyword: str) -> Any:
    for owner in (group, shared):
        if owner is not None and owner.get(keyword):
            return owner.get(keyword)[0]
    raise RecordError(f"{keyword} is missing")
