"""Where a stored volume is in space, so that masks go back to the grid of the file.

A grid is as SimpleITK and DICOM state it: axes x, y, z point to the patient's left, back and head,
in mm. The grid of a file is kept as it is; that of the catalog is turned to these axes, maybe
resampled, and padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.data.itk import simple_itk
from benchmd_ray.files.atomic import replacing

VERSION = 1
"""Raised whenever what it makes of the same values changes."""
GRID = pa.struct(
    [
        pa.field("extents", pa.list_(pa.int32(), 3)),
        pa.field("spacing", pa.list_(pa.float64(), 3)),
        pa.field("origin", pa.list_(pa.float64(), 3)),
        pa.field("direction", pa.list_(pa.float64(), 9)),
    ]
)
GEOMETRY = pa.struct([pa.field("file", GRID), pa.field("stored", GRID)])
"""Type of a catalog's column ``geometry``."""


@dataclass(frozen=True)
class Grid:
    """Voxels in space."""

    extents: tuple[int, ...]
    """Voxels along x, y and z."""
    spacing: tuple[float, ...]
    """mm along x, y and z."""
    origin: tuple[float, ...]
    """Centre of the first voxel: x, y and z in mm."""
    direction: tuple[float, ...]
    """Matrix of the axes' unit vectors, its columns, row by row."""


@dataclass(frozen=True)
class Geometry:
    file: Grid
    stored: Grid


def geometry_of(row: Mapping[str, Mapping[str, Any]]) -> Geometry:
    """The geometry of a row of a catalog's column."""
    grids = {
        name: Grid(**{key: tuple(value) for key, value in grid.items()})
        for name, grid in row.items()
    }
    return Geometry(**grids)


def grid_of(image: Any) -> Grid:
    """The grid of a SimpleITK image of three axes."""
    return Grid(
        tuple(image.GetSize()),
        tuple(image.GetSpacing()),
        tuple(image.GetOrigin()),
        tuple(image.GetDirection()),
    )


def image_of(values: npt.NDArray[Any], grid: Grid) -> Any:
    """A SimpleITK image of values (z, y, x) in a grid of the same extents."""
    image = simple_itk().GetImageFromArray(values)
    image.SetSpacing(grid.spacing)
    image.SetOrigin(grid.origin)
    image.SetDirection(grid.direction)
    return image


def in_file(mask: npt.NDArray[np.uint8], geometry: Geometry) -> Any:
    """A stored mask (z, y, x) as a SimpleITK image in the grid of its file.

    Each voxel of the file takes the label of the nearest stored voxel, and the background outside
    of what is stored. Without resampling these are the very voxels.
    """
    itk = simple_itk()
    grid = geometry.file
    return itk.Resample(
        image_of(mask, geometry.stored),
        grid.extents,
        itk.Transform(3, itk.sitkIdentity),
        itk.sitkNearestNeighbor,
        grid.origin,
        grid.spacing,
        grid.direction,
        0,
        itk.sitkUInt8,
    )


def write_nifti(image: Any, path: Path) -> None:
    """Write a SimpleITK image as ``.nii`` or ``.nii.gz``, whole or not at all."""
    itk = simple_itk()
    with replacing(path) as partial:
        itk.WriteImage(image, str(partial), True)
