"""Volumes, CT in Hounsfield units, and DICOM series; `metaimage` and `nifti` read other files.

Slices are given one at a time, so that no whole scan has to be held. Axes x, y, z of patient space
point to the patient's left, back and head, in mm (DICOM PS3.3, image plane module).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.readers.dicom import open_dicom, pixels, rescaled
from benchmd_ray.data.readers.dicom_values import numbers, text
from benchmd_ray.data.records import RecordError

VERSION = 1

Numbers = npt.NDArray[np.float64]

MAX_SLICES = 4096
MAX_VOXELS = 2**29
"""Larger volumes are refused before they are read; 800 slices of 512 × 512 have 2**28."""
SAME = 0.01
"""Positions, spacings and directions that differ by less (mm, or 1) are the same."""
UNEVEN = 0.1
"""A step between slices that differs from the median by more than this share of it is uneven."""
GAP = 1.5
"""A step between slices of more than so many times the median step is a gap."""
HEADER = ("PatientID", "PatientAge", "PatientSex", "Manufacturer", "ManufacturerModelName")


@dataclass(frozen=True)
class Volume:
    """Slices from the feet to the head."""

    shape: tuple[int, int, int]
    """Slices, rows, columns: (z, y, x)."""
    spacing: tuple[float, float, float]
    """Distance between voxels, (z, y, x) mm; along z the median."""
    origins: Numbers
    """(z, 3): x, y, z in mm of each slice's first voxel."""
    normal: Numbers
    """(3,): unit vector across the slices, towards the head."""
    read_slice: Callable[[int], npt.NDArray[np.generic]]
    """Number of a slice → (y, x) HU, or the labels of a mask."""
    uids: tuple[str, ...] = ()
    """SOP instance of each slice; empty where there are none."""
    flipped: bool = False
    """True where the file holds the slices from the head to the feet."""
    header: dict[str, str | None] = field(default_factory=dict)
    """As `series_header` gives it, of the first slice."""
    warnings: tuple[str, ...] = ()

    @property
    def positions(self) -> Numbers:
        """(z,): mm of each slice along the normal, ascending."""
        return np.asarray(self.origins @ self.normal)

    def slices(self) -> Iterator[npt.NDArray[np.generic]]:
        """All slices in order, (y, x) each."""
        for number in range(self.shape[0]):
            yield self.read_slice(number)

    def slice_at(self, point: Sequence[float]) -> int | None:
        """Number of the slice through a point of patient space (x, y, z mm); None outside."""
        return self._nearest(self.positions - float(np.dot(point, self.normal)))

    def slice_of_height(self, z: float) -> int | None:
        """Number of the slice whose first voxel has a height in mm; None outside."""
        return self._nearest(self.origins[:, 2] - z)

    def _nearest(self, distances: Numbers) -> int | None:
        """Number of the slice at the smallest distance, None where it is over half a slice."""
        nearest = int(np.argmin(np.abs(distances)))
        return nearest if abs(distances[nearest]) <= self.spacing[0] / 2 + SAME else None


@dataclass(frozen=True)
class _Slice:
    path: Path
    series: str
    uid: str
    number: float
    origin: tuple[float, ...]
    orientation: tuple[float, ...]
    spacing: tuple[float, ...]
    size: tuple[float, ...]
    thickness: float | None


def series_files(folder: Path) -> list[Path]:
    """The ``.dcm`` files of a folder, by name, without hidden ones."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.lower().endswith(".dcm")]
    return sorted(folder / name for name in names if name[0] != ".")


def read_series(
    source: Path | Sequence[Path], series: str | None = None, *, ct: bool = True
) -> Volume:
    """Open a DICOM series: its headers are read now, its pixels when they are asked for.

    Slices are ordered by ImagePositionPatient along the normal of ImageOrientationPatient, and
    rescaled. Of slices at one position that with the lowest instance number is kept; missing ones
    are not made up. ``series`` is the SeriesInstanceUID, needed where there are several. ``ct``
    takes only axial CT, in HU; otherwise values are in the unit that the headers give.
    """
    paths = series_files(source) if isinstance(source, Path) else list(source)
    if not 0 < len(paths) <= MAX_SLICES:
        raise RecordError(f"{len(paths):,} slices; expected 1 to {MAX_SLICES:,} .dcm files")
    slices = _of_series([_header(path, ct) for path in paths], series)
    first = slices[0]
    normal = _normal(slices, ct)
    slices.sort(key=lambda s: (float(np.dot(s.origin, normal)), s.number, s.uid))
    kept = [slices[0]]
    for part in slices[1:]:
        if np.dot(part.origin, normal) - np.dot(kept[-1].origin, normal) > SAME:
            kept.append(part)
    origins = np.array([part.origin for part in kept])
    steps = np.diff(origins @ normal)
    depth = float(np.median(steps)) if len(steps) else first.thickness or 1.0
    gaps, uneven = steps > GAP * depth, np.abs(steps - depth) > UNEVEN * depth
    rows, columns = int(first.size[0]), int(first.size[1])
    if len(kept) * rows * columns > MAX_VOXELS:
        raise RecordError(f"{len(kept)} slices of {columns} × {rows} are more than {MAX_VOXELS:,}")
    warnings = (
        ("it holds files of other series, which are not read", len(paths) > len(slices)),
        ("several slices at one position; the first is kept", len(slices) > len(kept)),
        ("slices are missing between others", bool(gaps.any())),
        ("the distance between slices varies", bool(uneven[~gaps].any())),
        ("the slices' thickness varies", len({part.thickness for part in kept}) > 1),
    )
    return Volume(
        shape=(len(kept), rows, columns),
        spacing=(depth, *first.spacing[:2]),  # type: ignore[arg-type]  # two, as `_header` takes
        origins=origins,
        normal=normal,
        read_slice=lambda number: _values(kept[number], ct),
        uids=tuple(part.uid for part in kept),
        header=series_header(kept[0].path),
        warnings=tuple(warning for warning, is_so in warnings if is_so),
    )


def series_header(path: Path) -> dict[str, str | None]:
    """Texts of `HEADER`, ``SeriesInstanceUID`` and ``Modality`` of one file."""
    dataset = open_dicom(path, stop_before_pixels=True)
    return {key: text(dataset, key) for key in (*HEADER, "SeriesInstanceUID", "Modality")}


def _header(path: Path, ct: bool) -> _Slice:
    try:
        dataset = open_dicom(path, stop_before_pixels=True)
        wanted = {
            "ImagePositionPatient": 3,
            "ImageOrientationPatient": 6,
            "PixelSpacing": 2,
            "Rows": 1,
            "Columns": 1,
        }
        values = {key: numbers(dataset, key, count) for key, count in wanted.items()}
        texts = {key: text(dataset, key) for key in ("SeriesInstanceUID", "SOPInstanceUID")}
        required = values | texts if ct else values  # who anonymises may empty the others
        if missing := [key for key, value in required.items() if value is None]:
            raise RecordError(f"{', '.join(missing)} is missing")
        if ct and text(dataset, "Modality") != "CT":
            raise RecordError("its modality is another than CT")
        if min(values["PixelSpacing"] or (0,)) <= 0:
            raise RecordError("PixelSpacing is not positive")
        thickness = numbers(dataset, "SliceThickness", 1)
        number = numbers(dataset, "InstanceNumber", 1)
        return _Slice(
            path=path,
            series=texts["SeriesInstanceUID"] or "",
            uid=texts["SOPInstanceUID"] or "",
            number=number[0] if number else float("inf"),
            origin=values["ImagePositionPatient"] or (),
            orientation=values["ImageOrientationPatient"] or (),
            spacing=values["PixelSpacing"] or (),
            size=(*(values["Rows"] or ()), *(values["Columns"] or ())),
            thickness=thickness[0] if thickness else None,
        )
    except RecordError as error:
        raise RecordError(f"{path.name}: {error}") from error


def _of_series(slices: list[_Slice], series: str | None) -> list[_Slice]:
    series_sizes = Counter(part.series for part in slices)
    if series is None and len(series_sizes) > 1:
        raise RecordError(f"its files belong to {len(series_sizes)} series; expected one")
    chosen = [part for part in slices if series in (None, part.series)]
    if not chosen:
        raise RecordError("none of its files belongs to the series that the annotation names")
    for name in ("orientation", "spacing", "size"):
        values = np.array([getattr(part, name) for part in chosen])
        if not np.allclose(values, values[0], rtol=0, atol=SAME):
            raise RecordError(f"its slices differ in {name}; expected slices of one geometry")
    return chosen


def _normal(slices: list[_Slice], axial: bool) -> Numbers:
    """Unit vector across the slices, towards the head, or the back or left."""
    row, column = np.array(slices[0].orientation).reshape(2, 3)
    normal = np.cross(row, column)
    unit = [np.linalg.norm(vector) for vector in (row, column, normal)]
    along = int(np.argmax(np.abs(normal)))
    if not np.allclose(unit, 1, rtol=0, atol=SAME) or (axial and along != 2):
        raise RecordError(
            "its slices do not lie across the body (ImageOrientationPatient); expected axial ones"
            if axial
            else "ImageOrientationPatient is not two axes at right angles"
        )
    return np.asarray(normal / unit[2] * np.sign(normal[along]))


def _values(part: _Slice, ct: bool) -> npt.NDArray[np.generic]:
    try:
        dataset = open_dicom(part.path)
        if ct and numbers(dataset, "RescaleIntercept", 1) is None:
            raise RecordError("RescaleIntercept is missing, so its values are not known in HU")
        values = rescaled(pixels(dataset), dataset)
        if values.shape != part.size or not np.isfinite(values).all():
            raise RecordError(f"not {part.size} finite values, but shape {values.shape}")
    except RecordError as error:
        raise RecordError(f"{part.path.name}: {error}") from error
    return values
