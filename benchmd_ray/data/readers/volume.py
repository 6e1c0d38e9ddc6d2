"""CT volumes in Hounsfield units: DICOM series by pydicom, MetaImage files by SimpleITK.

Slices are given one at a time, so that no whole scan of full resolution has to be held.
Geometry: DICOM PS3.3, image plane module; axes x, y, z of patient space point to the patient's
left, back and head, in mm.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import SimpleITK

from benchmd_ray.data.readers.dicom import numbers, open_dicom, pixels, rescaled, text
from benchmd_ray.data.records import RecordError

Numbers = npt.NDArray[np.float64]

MAX_SLICES = 4096
"""Series of more slices are refused before they are read."""
MAX_VOXELS = 2**29
"""Larger volumes are refused before they are read; 800 slices of 512 × 512 have 2**28."""
SAME = 0.01
"""Positions, spacings and directions that differ by less (mm, or 1) are the same."""
UNEVEN = 0.1
"""A step between slices that differs from the median by more than this share of it is uneven."""
GAP = 1.5
"""A step between slices of more than so many times the median step is a gap."""
HEADER = ("PatientID", "PatientAge", "PatientSex", "Manufacturer", "ManufacturerModelName")
"""What is kept of a header."""
COORDINATE = r"-?[0-9]{1,7}(\.[0-9]{0,30})?([eE]-[0-9]{1,3})?"
"""A number of mm in a MetaImage header."""
GEOMETRY = (
    ({"ElementSpacing"}, 3),
    ({"Offset", "Position", "Origin"}, 3),
    ({"TransformMatrix", "Rotation", "Orientation"}, 9),
    ({"CenterOfRotation"}, 3),
)
"""Fields of a MetaImage header by all their names, and how many numbers they hold."""
ELEMENTS = {
    "MET_CHAR": 1,
    "MET_UCHAR": 1,
    "MET_SHORT": 2,
    "MET_USHORT": 2,
    "MET_INT": 4,
    "MET_UINT": 4,
}
"""Bytes of a voxel of a MetaImage file, by its type; other types are not taken."""
PLAIN = {
    "NDims": "3",
    "BinaryData": "true",
    "CompressedData": "false",
    "HeaderSize": "0",
    "BinaryDataByteOrderMSB": "false",
    "ElementByteOrderMSB": "false",
    "ElementNumberOfChannels": "1",
}
"""Values of a MetaImage header that are taken, in lower case."""


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
    remarks: tuple[str, ...] = ()
    """What is unusual about it."""

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
    """What a slice's header says."""

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


def read_series(source: Path | Sequence[Path], series: str | None = None) -> Volume:
    """Open a CT series: its headers are read now, its pixels when they are asked for.

    Slices are ordered by ImagePositionPatient along the normal of ImageOrientationPatient, and
    rescaled by their slope and intercept. Of slices at one position the one with the lowest
    instance number is kept; missing slices are not made up.

    Args:
        source: Folder with the ``.dcm`` files, or the files.
        series: SeriesInstanceUID of the series to take; None takes files of one series alone.

    Raises:
        RecordError: A file cannot be read, an element is missing, there are several series and
            none is named, or the slices do not lie parallel and across the body.
    """
    paths = series_files(source) if isinstance(source, Path) else list(source)
    if not 0 < len(paths) <= MAX_SLICES:
        raise RecordError(f"{len(paths):,} slices; expected 1 to {MAX_SLICES:,} .dcm files")
    found = _of_series([_header(path) for path in paths], series)
    first = found[0]
    normal = _normal(found)
    found.sort(key=lambda s: (float(np.dot(s.origin, normal)), s.number, s.uid))
    kept = [found[0]]
    for one in found[1:]:
        if np.dot(one.origin, normal) - np.dot(kept[-1].origin, normal) > SAME:
            kept.append(one)
    origins = np.array([one.origin for one in kept])
    steps = np.diff(origins @ normal)
    depth = float(np.median(steps)) if len(steps) else first.thickness or 1.0
    gaps, uneven = steps > GAP * depth, np.abs(steps - depth) > UNEVEN * depth
    rows, columns = int(first.size[0]), int(first.size[1])
    if len(kept) * rows * columns > MAX_VOXELS:
        raise RecordError(f"{len(kept)} slices of {columns} × {rows} are more than {MAX_VOXELS:,}")
    remarks = (
        ("it holds files of other series, which are not read", len(paths) > len(found)),
        ("several slices at one position; the first is kept", len(found) > len(kept)),
        ("slices are missing between others", bool(gaps.any())),
        ("the distance between slices varies", bool(uneven[~gaps].any())),
        ("the slices' thickness varies", len({one.thickness for one in kept}) > 1),
    )
    return Volume(
        shape=(len(kept), rows, columns),
        spacing=(depth, *first.spacing[:2]),  # type: ignore[arg-type]  # two, as `_header` takes
        origins=origins,
        normal=normal,
        read_slice=lambda number: _hounsfield(kept[number]),
        uids=tuple(one.uid for one in kept),
        header=series_header(kept[0].path),
        remarks=tuple(remark for remark, is_so in remarks if is_so),
    )


def series_header(path: Path) -> dict[str, str | None]:
    """Texts of `HEADER`, ``SeriesInstanceUID`` and ``Modality`` of one file.

    Raises:
        RecordError: It is missing, damaged or no DICOM file.
    """
    dataset = open_dicom(path, stop_before_pixels=True)
    return {key: text(dataset, key) for key in (*HEADER, "SeriesInstanceUID", "Modality")}


def _header(path: Path) -> _Slice:
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
        missing = [key for key, value in (values | texts).items() if value is None]
        if missing:
            raise RecordError(f"{missing[0]} is missing")
        if text(dataset, "Modality") != "CT":
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
    """The slices of one series, of one geometry."""
    held = Counter(one.series for one in slices)
    if series is None and len(held) > 1:
        raise RecordError(f"its files belong to {len(held)} series; expected one")
    found = [one for one in slices if series in (None, one.series)]
    if not found:
        raise RecordError("none of its files belongs to the series that the annotation names")
    for name in ("orientation", "spacing", "size"):
        values = np.array([getattr(one, name) for one in found])
        if not np.allclose(values, values[0], rtol=0, atol=SAME):
            raise RecordError(f"its slices differ in {name}; expected slices of one geometry")
    return found


def _normal(slices: list[_Slice]) -> Numbers:
    """Unit vector across the slices, towards the head."""
    row, column = np.array(slices[0].orientation).reshape(2, 3)
    normal = np.cross(row, column)
    unit = [np.linalg.norm(vector) for vector in (row, column, normal)]
    if not np.allclose(unit, 1, rtol=0, atol=SAME) or np.argmax(np.abs(normal)) != 2:
        raise RecordError(
            "its slices do not lie across the body (ImageOrientationPatient); expected axial ones"
        )
    return np.asarray(normal / unit[2] * np.sign(normal[2]))


def _hounsfield(one: _Slice) -> npt.NDArray[np.generic]:
    """One slice in HU, (y, x)."""
    try:
        dataset = open_dicom(one.path)
        if numbers(dataset, "RescaleIntercept", 1) is None:
            raise RecordError("RescaleIntercept is missing, so its values are not known in HU")
        values = rescaled(pixels(dataset), dataset)
        if values.shape != one.size or not np.isfinite(values).all():
            raise RecordError(f"not {one.size} finite values, but shape {values.shape}")
    except RecordError as error:
        raise RecordError(f"{one.path.name}: {error}") from error
    return values


def read_mhd(path: Path, *, flipped: bool | None = None) -> Volume:
    """Open a MetaImage file (``.mhd`` next to ``.raw``) of integers, uncompressed.

    Its header is read now, its slices when they are asked for.
    Format: https://itk.org/Wiki/MetaIO/Documentation.

    Args:
        path: The header.
        flipped: Whether to turn the order of the slices; None turns it where the header's
            directions say that they run from the head to the feet.

    Raises:
        RecordError: The header or the samples are missing, damaged or too large, the samples are
            stored outside the header's folder, or the slices do not lie across the body.
    """
    shape = _require_samples(path)
    reader: Any = SimpleITK.ImageFileReader()  # type: ignore[no-untyped-call]
    reader.SetImageIO("MetaImageIO")
    reader.SetFileName(str(path))
    _itk(reader.ReadImageInformation)
    axes = np.array(reader.GetDirection()).reshape(3, 3)  # columns: x, y and z of the voxels
    if not np.allclose(axes.T @ axes, np.eye(3), rtol=0, atol=SAME):
        raise RecordError("its directions (TransformMatrix) are not at right angles")
    if np.argmax(np.abs(axes[:, 2])) != 2:
        raise RecordError("its slices do not lie across the body (TransformMatrix)")
    x, y, z = reader.GetSpacing()
    origins = np.array(reader.GetOrigin()) + np.arange(shape[0])[:, None] * z * axes[:, 2]
    turned = bool(axes[2, 2] < 0) if flipped is None else flipped

    def read_slice(number: int) -> npt.NDArray[np.generic]:
        reader.SetExtractIndex([0, 0, shape[0] - 1 - number if turned else number])
        reader.SetExtractSize([shape[2], shape[1], 1])
        return np.asarray(SimpleITK.GetArrayFromImage(_itk(reader.Execute))[0])

    return Volume(
        shape=shape,
        spacing=(z, y, x),
        origins=origins[::-1] if turned else origins,
        normal=axes[:, 2] * np.sign(axes[2, 2]),
        read_slice=read_slice,
        flipped=turned,
    )


def _itk(call: Callable[[], Any]) -> Any:
    """What a call of SimpleITK gives.

    Raises:
        RecordError: It failed.
    """
    try:
        return call()
    except RuntimeError as error:  # it raises that for whatever it meets, and quotes the header
        raise RecordError("it cannot be read as a MetaImage file") from error


def mhd_fields(path: Path) -> dict[str, str]:
    """The fields of a MetaImage header.

    Raises:
        RecordError: It is missing, no text, or a field is there twice.
    """
    try:
        with path.open("rb") as file:
            lines = file.read(2**16).decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"the header cannot be read ({type(error).__name__})") from None
    fields: dict[str, str] = {}
    for line in filter(str.strip, lines):
        key, separator, value = line.partition("=")
        if not separator or key.strip() in fields:
            raise RecordError("the header has a line that is no field, or a field twice")
        fields[key.strip()] = value.strip()
    return fields


def _require_geometry(fields: dict[str, str]) -> None:
    """Refuse numbers in whose place SimpleITK would take others without a word."""
    for names, count in GEOMETRY:
        given = sorted(names & fields.keys())
        values = " ".join(fields[name] for name in given).split()
        if given and not (
            len(values) == count and all(re.fullmatch(COORDINATE, value) for value in values)
        ):
            raise RecordError(f"{given[0]} is not {count} numbers, or is there twice")
    if not all(float(value) > 0 for value in fields.get("ElementSpacing", "0").split()):
        raise RecordError("ElementSpacing is not three positive numbers")


def _require_samples(path: Path) -> tuple[int, int, int]:
    """Shape (z, y, x) of the samples, where the header describes a file of that size.

    Raises:
        RecordError: It does not, or the file is stored outside its folder.
    """
    fields = mhd_fields(path)
    _require_geometry(fields)
    name, kind = fields.get("ElementDataFile", ""), fields.get("ElementType", "")
    if not re.fullmatch(r"[\w.+-]{1,200}", name) or name in (".", "..", "LOCAL", "LIST"):
        raise RecordError("ElementDataFile names no file in the header's own folder")
    odd = [key for key, value in PLAIN.items() if fields.get(key, value).lower() != value]
    odd += [key for key in ("NDims", "BinaryData") if key not in fields]
    if odd or kind not in ELEMENTS:
        raise RecordError(
            "expected whole numbers of one channel in three dimensions, uncompressed, "
            "little-endian and without a header of their own; "
            f"{(odd or ['ElementType'])[0]} says otherwise"
        )
    sizes = fields.get("DimSize", "").split()
    if len(sizes) != 3 or not all(re.fullmatch(r"[1-9]\d{0,8}", size, re.ASCII) for size in sizes):
        raise RecordError("DimSize is not three positive whole numbers")
    x, y, z = (int(size) for size in sizes)
    if x * y * z > MAX_VOXELS or z > MAX_SLICES:
        raise RecordError(
            f"it has {z:,} slices and {x * y * z:,} voxels, expected at most {MAX_SLICES:,} and "
            f"{MAX_VOXELS:,}"
        )
    samples, size = path.with_name(name), x * y * z * ELEMENTS[kind]
    held = samples.stat().st_size if samples.is_file() else None
    if held != size:
        state = "is missing" if held is None else f"has {held:,} bytes"
        raise RecordError(f"its samples' file {state}, expected {size:,} bytes")
    return z, y, x
