"""Volumes of labels from NIfTI, NRRD and DICOM files, with their position in the patient.

What a header claims is checked before anything is decoded. Decoders may still crash, so
`touchstone.case` reads in a separate process.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.itk import simple_itk
from benchmd_ray.data.readers.bounded import ANY, BoundedFile, require_held
from benchmd_ray.data.readers.dicom import open_dicom
from benchmd_ray.data.readers.dicom_begin import is_dicom
from benchmd_ray.data.readers.dicom_values import numbers
from benchmd_ray.data.readers.nifti import HEADER_BYTES, Voxels, read_header, read_voxels, unpacked
from benchmd_ray.data.readers.nrrd import read_header as read_nrrd_header
from benchmd_ray.data.readers.nrrd import read_nrrd
from benchmd_ray.data.readers.volume import MAX_VOXELS, SAME, read_series
from benchmd_ray.data.records import RecordError
from benchmd_ray.errors import composed

NIFTI, NRRD, DICOM = (".nii.gz", ".nii"), (".seg.nrrd", ".nrrd"), (".dcm",)
SUFFIXES = (*NIFTI, *NRRD, *DICOM)
"""Of files with labels, the longest first."""
SPACING_TOLERANCE, DIRECTION_TOLERANCE = 1e-3, 1e-3
"""Of the spacing between voxels, a share; of a direction's cosines."""
ORIGIN_TOLERANCE = SAME
"""mm, of the first voxel's place."""
GRID_TOLERANCE = 0.1
"""Of the distance between slices: how far one may be from its place on a regular grid."""
RESCALED_BYTES = 8
"""Of a voxel of a DICOM series, whose slope makes it a float."""
Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class VoxelGrid:
    """Where the voxels of a volume are; x, y, z point to the patient's left, back and head."""

    shape: tuple[int, int, int]
    """(z, y, x): slowest to fastest axis of the file."""
    spacing: tuple[float, float, float]
    """mm between voxels along these axes."""
    origin: tuple[float, ...]
    """(3,) mm: x, y, z of the first voxel."""
    direction: tuple[float, ...]
    """(9,): rows of a matrix whose columns are unit vectors along the file's x, y and z."""

    @property
    def voxel_ml(self) -> float:
        """Volume of a voxel in mL."""
        return math.prod(self.spacing) / 1000

    def differences(self, expected: VoxelGrid) -> list[str]:
        """What differs from another: ``spacing 1 × 1 × 2 mm, expected 1 × 1 × 1 mm``."""
        lines = []
        if self.shape != expected.shape:
            lines.append(f"shape {_times(self.shape)}, expected {_times(expected.shape)}")
        scale = np.array(expected.spacing)
        if (np.abs(np.array(self.spacing) - scale) > SPACING_TOLERANCE * scale).any():
            ours, theirs = _times(self.spacing), _times(expected.spacing)
            lines.append(f"spacing {ours} mm, expected {theirs} mm")
        turned = np.abs(np.array(self.direction) - np.array(expected.direction))
        if turned.max() > DIRECTION_TOLERANCE:
            ours, theirs = axes_of(self.direction), axes_of(expected.direction)
            if ours == theirs:
                ours, theirs = (_listed(geometry.direction) for geometry in (self, expected))
            lines.append(f"axes {ours}, expected {theirs}")
        moved = np.abs(np.array(self.origin) - np.array(expected.origin))
        if moved.max() > ORIGIN_TOLERANCE:
            ours, theirs = (_listed(geometry.origin) for geometry in (self, expected))
            lines.append(f"first voxel at {ours} mm, expected {theirs} mm")
        return lines


@dataclass(frozen=True)
class Labels:
    """A volume of labels as a file has it."""

    values: Array
    """(z, y, x), of any type of numbers."""
    geometry: VoxelGrid
    scaling: tuple[float, float] = (1.0, 0.0)
    """Slope and intercept that made the values of stored numbers."""
    warnings: tuple[str, ...] = ()


def suffix_of(path: Path) -> str:
    """The suffix of a file with labels; empty for others."""
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def stem_of(path: Path) -> str:
    """The name without that suffix, in Unicode's composed form."""
    return composed(path.name[: len(path.name) - len(suffix_of(path))])


def slices_of(folder: Path) -> list[Path]:
    """The DICOM files of a folder, by name; they often have no suffix."""
    others = (*NIFTI, *NRRD)
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name[0] != "." and suffix_of(path) not in others and is_dicom(path)
    ]


def read_labels(path: Path) -> Labels:
    """Labels of a NIfTI or NRRD file, or of a folder with one DICOM series; axes as stored."""
    if path.is_dir():
        return _of_series(path)
    suffix = suffix_of(path)
    if suffix in NIFTI:
        return _of_voxels(read_voxels(path))
    if suffix in NRRD:
        return _of_voxels(read_nrrd(path))
    raise RecordError(f"expected a file {', '.join((*NIFTI, *NRRD))}, or a folder of .dcm files")


def resampled(labels: Labels, geometry: VoxelGrid) -> Labels:
    """Labels on another grid, each voxel from the nearest one; background outside."""
    values = labels.values
    values = values.astype(np.uint8) if values.dtype == bool else values
    itk = simple_itk()
    image = itk.GetImageFromArray(values)
    image.SetSpacing(labels.geometry.spacing[::-1])
    image.SetOrigin(labels.geometry.origin)
    image.SetDirection(labels.geometry.direction)
    resampler = itk.ResampleImageFilter()
    resampler.SetSize(geometry.shape[::-1])
    resampler.SetOutputSpacing(geometry.spacing[::-1])
    resampler.SetOutputOrigin(geometry.origin)
    resampler.SetOutputDirection(geometry.direction)
    resampler.SetInterpolator(itk.sitkNearestNeighbor)
    result = itk.GetArrayFromImage(resampler.Execute(image))
    return Labels(result.astype(labels.values.dtype, copy=False), geometry)


def claimed(path: Path) -> tuple[int, int]:
    """Voxels that a header claims and bytes of each; 0 where it is unreadable."""
    try:
        voxels, size = _claimed(path)
    except (RecordError, OSError, EOFError, ValueError, zlib.error):
        return 0, 0
    return (voxels, size) if 0 < voxels <= MAX_VOXELS else (0, 0)


def _claimed(path: Path) -> tuple[int, int]:
    if path.is_dir():
        files = slices_of(path)
        return (len(files) * _frames(files[0])[0], RESCALED_BYTES) if files else (0, 0)
    suffix = suffix_of(path)
    if suffix in NIFTI:
        return _of_nifti(path)
    if suffix in DICOM:
        return _frames(path)
    nrrd = read_nrrd_header(path)
    return math.prod(nrrd.extents), nrrd.voxel_bytes


def axes_of(direction: tuple[float, ...]) -> str:
    """Directions of axes as letters, such as LPS: left, back (posterior), head (superior).

    Cosines follow where an axis is oblique.
    """
    columns = np.array(direction).reshape(3, 3).T
    letters = []
    for column in columns:
        along = int(np.argmax(np.abs(column)))
        letters.append("LPS"[along] if column[along] > 0 else "RAI"[along])
    straight = (np.abs(columns).max(axis=1) > 1 - DIRECTION_TOLERANCE**2).all()
    return "".join(letters) + ("" if straight else " " + _listed(direction, 3))


def _of_voxels(voxels: Voxels) -> Labels:
    x, y, z = voxels.grid.spacing
    geometry = VoxelGrid(
        shape=voxels.grid.extents[::-1],  # type: ignore[arg-type]  # three
        spacing=(_shortest(z), _shortest(y), _shortest(x)),
        origin=voxels.grid.origin,
        direction=voxels.grid.direction,
    )
    return Labels(voxels.values, geometry, voxels.scaling, voxels.warnings)


def _of_series(folder: Path) -> Labels:
    files = slices_of(folder)
    volume = read_series(files, ct=False)
    if gaps := [why for why in volume.warnings if "thickness" not in why]:
        raise RecordError(f"its slices are no regular grid: {gaps[0]}")
    depth, normal = volume.spacing[0], np.array(volume.normal)
    expected = volume.origins[0] + np.arange(len(volume.origins))[:, None] * depth * normal
    if np.abs(volume.origins - expected).max() > max(ORIGIN_TOLERANCE, GRID_TOLERANCE * depth):
        raise RecordError("its slices are no regular grid: each is shifted within its plane")
    header = open_dicom(files[0], stop_before_pixels=True)
    (slope,) = numbers(header, "RescaleSlope", 1) or (1.0,)
    (intercept,) = numbers(header, "RescaleIntercept", 1) or (0.0,)
    cosines = numbers(header, "ImageOrientationPatient", 6) or ()
    columns = (cosines[:3], cosines[3:], tuple(volume.normal))
    return Labels(
        np.stack(list(volume.slices())),
        VoxelGrid(
            shape=volume.shape,
            spacing=volume.spacing,
            origin=tuple(volume.origins[0]),
            direction=tuple(np.array(columns).T.reshape(-1)),
        ),
        (slope, intercept),
    )


def _frames(path: Path) -> tuple[int, int]:
    """Pixels of all frames, and bytes of each."""
    header = open_dicom(path, stop_before_pixels=True)
    sizes = [numbers(header, key, 1) for key in ("Rows", "Columns", "NumberOfFrames")]
    (bits,) = numbers(header, "BitsAllocated", 1) or (8.0,)
    return int(math.prod((size or (1.0,))[0] for size in sizes)), max(1, int(bits) // 8)


def _of_nifti(path: Path) -> tuple[int, int]:
    with BoundedFile(path, ANY) as file:
        stream, is_packed = unpacked(file)
        header = read_header(stream.read(HEADER_BYTES))
        require_held(header.offset + header.size, file.bytes, is_packed=is_packed)
    return math.prod(header.extents), header.value_type.itemsize


def _shortest(length: float) -> float:
    """Undo 32-bit rounding, such as 0.800000012: five such steps exceed a tolerance of 4 mm."""
    return float(f"{length:.7g}")


def _times(values: tuple[float, ...]) -> str:
    return " × ".join(f"{value:.6g}" for value in values)


def _listed(values: tuple[float, ...], digits: int = 6) -> str:
    return "(" + ", ".join(f"{value:.{digits}g}" for value in values) + ")"
