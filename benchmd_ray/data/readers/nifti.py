"""NIfTI-1 files, ``.nii`` and ``.nii.gz`` (https://nifti.nimh.nih.gov/nifti-1/documentation).

They are decoded here, because SimpleITK prefers the qform to an sform that is not the scanner's and
adds intercepts where the slope is 0, which by the standard means that there are none.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.geometry import Grid, image_of
from benchmd_ray.data.itk import simple_itk
from benchmd_ray.data.readers.bounded import ANY, BoundedFile, require_held
from benchmd_ray.data.readers.volume import MAX_SLICES, MAX_VOXELS, Volume
from benchmd_ray.data.records import RecordError

VERSION = 4
HEADER_BYTES = 348
PACKED = b"\x1f\x8b"
"""How files begin that are compressed by gzip."""
TYPES = {
    **{2: "u1", 256: "i1", 4: "i2", 512: "u2", 8: "i4", 768: "u4", 1024: "i8", 1280: "u8"},
    **{16: "f4", 64: "f8"},
}
"""NumPy's names of the types of voxels that are taken: all whole and floating-point numbers."""
OTHER_TYPES = {
    **{1: "bits", 32: "complex numbers", 128: "colours (RGB)", 1536: "float128"},
    **{1792: "complex numbers", 2048: "complex numbers", 2304: "colours (RGBA)"},
}
"""Those of the standard that are not."""
MILLIMETRES = {0: 1.0, 1: 1e3, 2: 1.0, 3: 1e-3}
"""mm of a unit of length, by its code; 0 is unknown."""
ALIKE = 1e-3
"""How far directions may be from right angles, as a cosine; and sizes that a header has twice from
each other, as a share."""
MOVED = 0.5
"""Of a voxel: how far apart two places that a header has for it may be."""
WHOLE = 0.01
"""How far a label may be from a whole number where a slope made it; never over half a step."""
MAX_BYTES = 2**31
"""Of a volume, which is held whole."""
MAX_OFFSET = 2**20
"""Where voxels may begin, behind header and extensions; and how much may be behind them."""

Array = npt.NDArray[np.generic]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Voxels:
    """A volume as its file has it."""

    values: Array
    """(z, y, x), slope and intercept applied."""
    grid: Grid
    scaling: tuple[float, float] = (1.0, 0.0)
    """Slope and intercept that made the values of stored numbers."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class NiftiHeader:
    """What a header says of the voxels."""

    extents: tuple[int, int, int]
    """Along x, y and z."""
    dtype: np.dtype[Any]
    offset: int
    """Byte where they begin."""
    scaling: tuple[float, float]
    grid: Grid
    warnings: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the voxels."""
        return math.prod(self.extents) * self.dtype.itemsize

    @property
    def value_type(self) -> np.dtype[Any]:
        """Of the values: that of the voxels, or floats where slope and intercept apply."""
        if self.scaling == (1.0, 0.0):
            return self.dtype.newbyteorder("=")
        is_wide = self.dtype.itemsize > (4 if self.dtype.kind == "f" else 2)
        return np.dtype(np.float64 if is_wide else np.float32)


def read_nifti(path: Path) -> Volume:
    """Read a volume, turned by right angles: x to the left, y to the back, z to the head."""
    voxels = read_voxels(path)
    image = turned(image_of(voxels.values, voxels.grid))
    values = simple_itk().GetArrayFromImage(image)
    x, y, z = image.GetSpacing()
    directions = np.array(image.GetDirection()).reshape(3, 3)  # columns: x, y and z of the voxels
    return Volume(
        shape=values.shape,
        spacing=(z, y, x),
        origins=np.array(image.GetOrigin())
        + np.arange(len(values))[:, None] * z * directions[:, 2],
        normal=directions[:, 2],
        read_slice=lambda number: np.asarray(values[number]),
        warnings=voxels.warnings,
    )


def turned(image: Any) -> Any:
    """A SimpleITK image turned by right angles: x to the left, y to the back, z to the head."""
    try:
        return simple_itk().DICOMOrient(image, "LPS")
    except RuntimeError as error:
        raise RecordError("its directions are not at right angles") from error


def whole_labels(values: Array, scaling: tuple[float, float]) -> Array:
    """Labels, (z, y, x), those that slope and intercept moved off whole numbers rounded to them."""
    if scaling == (1.0, 0.0) or values.dtype.kind != "f":
        return values
    whole = np.empty_like(values)
    for plane, out in zip(values, whole, strict=True):
        exact = plane.astype(np.float64)
        np.rint(plane, out=out)
        rounding = 1e-6 * float(np.abs(out).max())  # the header's numbers have 24 bits
        wrong = np.abs(exact - out) > min(WHOLE, abs(scaling[0]) / 2 + rounding)
        if wrong.any():
            raise RecordError(
                f"it has the value {exact[wrong][0]:.6g} by slope {scaling[0]:.6g} and intercept "
                f"{scaling[1]:.6g} of its header (scl_slope, scl_inter), expected whole labels: "
                "write them without"
            )
    return whole


def read_voxels(path: Path) -> Voxels:
    """Read a volume, its axes as the file has them, its place by the sform before the qform.

    Whether it is compressed is seen by its content.
    """
    try:
        with BoundedFile(path, ANY) as file:
            stream, is_packed = unpacked(file)
            header = read_header(stream.read(HEADER_BYTES))
            require_held(header.offset + header.size, file.bytes, is_packed=is_packed)
            stream.read(header.offset - HEADER_BYTES)
            content = stream.read(header.size)
            behind = 0
            while behind <= MAX_OFFSET and (part := stream.read(2**16)):
                behind += len(part)
    except (OSError, EOFError, zlib.error) as error:  # of gzip, which holds a checksum
        raise RecordError(f"it cannot be opened, or is damaged ({type(error).__name__})") from error
    if len(content) < header.size or behind > MAX_OFFSET:
        what = "longer than its header says" if behind else "cut off"
        raise RecordError(f"it is {what}: expected {header.offset + header.size:,} bytes")
    warnings = list(header.warnings)
    if is_packed != (path.suffix.lower() == ".gz"):
        state = "compressed by gzip" if is_packed else "not compressed"
        warnings.append(f"it is {state}, and its name ends in {'.nii' if is_packed else '.nii.gz'}")
    values = _scaled(np.frombuffer(content, header.dtype).reshape(header.extents[::-1]), header)
    return Voxels(values, header.grid, header.scaling, tuple(warnings))


def unpacked(file: BoundedFile) -> tuple[Any, bool]:
    """A stream of a file's content, and whether it is compressed, by its beginning."""
    is_packed = file.read(len(PACKED)) == PACKED
    file.seek(0)
    return (gzip.GzipFile(fileobj=file) if is_packed else file), is_packed


def _scaled(stored: Array, header: NiftiHeader) -> Array:
    if header.scaling == (1.0, 0.0):
        values = stored.astype(header.value_type, copy=False)
    else:
        values = np.empty(stored.shape, header.value_type)
        slope, intercept = header.scaling
        for plane, out in zip(stored, values, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                out[:] = plane.astype(np.float64) * slope + intercept
    if values.dtype.kind == "f" and (wrong := int((~np.isfinite(values)).sum())):
        raise RecordError(f"{wrong:,} of its voxels are not finite numbers")
    return values


def read_header(header: bytes) -> NiftiHeader:
    """What the first `HEADER_BYTES` of a file say."""
    if len(header) < HEADER_BYTES or header[344:348] != b"n+1\0":
        raise RecordError("it is not a NIfTI-1 file of header and voxels in one")
    order = "<" if struct.unpack("<i", header[:4])[0] == HEADER_BYTES else ">"
    count, *extents = struct.unpack(f"{order}8h", header[40:56])
    (kind,) = struct.unpack(f"{order}h", header[70:72])
    offset, slope, intercept = struct.unpack(f"{order}3f", header[108:120])
    is_volume = 3 <= count <= 7 and all(extent == 1 for extent in extents[3:count])
    if not is_volume or min(extents[:3]) < 1:
        stated = tuple(extents[: max(0, min(count, 7))])
        raise RecordError(f"it has the extents {stated}, expected those along x, y and z")
    if kind not in TYPES:
        named = f" ({OTHER_TYPES[kind]})" if kind in OTHER_TYPES else ""
        raise RecordError(f"its voxels are of type {kind}{named}, expected one number each")
    dtype, voxels = np.dtype(order + TYPES[kind]), math.prod(extents[:3])
    if voxels > MAX_VOXELS or extents[2] > MAX_SLICES or voxels * dtype.itemsize > MAX_BYTES:
        raise RecordError(f"it has the extents {tuple(extents[:3])}, which are too large")
    if not HEADER_BYTES + 4 <= offset <= MAX_OFFSET:
        raise RecordError(f"its voxels begin at byte {offset:g}, expected behind the header")
    if slope == 0 or math.isnan(slope):  # by the standard: stored numbers are the values
        slope, intercept = 1.0, 0.0
    if not (math.isfinite(slope) and math.isfinite(intercept)):
        raise RecordError("its slope or intercept (scl_slope, scl_inter) is not a finite number")
    x, y, z = extents[:3]
    grid, warnings = _place(header, order, (x, y, z))
    return NiftiHeader((x, y, z), dtype, int(offset), (slope, intercept), grid, warnings)


def _place(
    header: bytes, order: str, extents: tuple[int, int, int]
) -> tuple[Grid, tuple[str, ...]]:
    """The grid of a header, and warnings.

    Of matrix (sform) and quaternion (qform), each with a code of its space and 0 for none, the
    matrix is preferred, as in nibabel. Without either, axes point to the left, back and head, as in
    SimpleITK.
    """
    of_quaternion, of_matrix = struct.unpack(f"{order}2h", header[252:256])
    matrix = _matrix(header, order) if of_matrix > 0 else None
    sizes, warnings = _sizes(header, order, matrix)
    other = _of_quaternion(header, order, sizes) if of_quaternion > 0 else None
    if matrix is not None:
        cosines, origin = _cosines(matrix, sizes), matrix[:, 3]
        if other is not None and (moved := _moved(matrix, other, extents)) > MOVED * sizes.min():
            if of_quaternion == of_matrix:
                raise RecordError(f"its qform and sform place voxels {moved:.3g} mm apart")
            warnings += (
                f"its qform (code {of_quaternion}) and sform (code {of_matrix}) place voxels "
                "apart; the sform is taken",
            )
    elif other is not None:
        cosines, origin = _quaternion(header, order), other[:, 3]
    else:
        cosines, origin = np.diag([-1.0, -1.0, 1.0]), np.zeros(3)
    scale = MILLIMETRES.get(header[123] & 7, 1.0)
    to_left_and_back = np.array([-1.0, -1.0, 1.0])  # NIfTI's x and y run to the right and front
    grid = Grid(
        extents,
        tuple((sizes * scale).tolist()),
        tuple((origin * scale * to_left_and_back + 0.0).tolist()),
        tuple((cosines * to_left_and_back[:, None] + 0.0).reshape(-1).tolist()),
    )
    return grid, warnings


def _matrix(header: bytes, order: str) -> Numbers:
    values = np.array(struct.unpack(f"{order}12f", header[280:328]))
    if not np.isfinite(values).all():
        raise RecordError("its directions and origin (sform) are not finite numbers")
    matrix = values.reshape(3, 4)
    if not np.linalg.norm(matrix[:, :3], axis=0).all():
        raise RecordError("an axis of its sform has length 0")
    return matrix


def _of_quaternion(header: bytes, order: str, sizes: Numbers) -> Numbers:
    values = struct.unpack(f"{order}6f", header[256:280])
    if not all(map(math.isfinite, values)):
        raise RecordError("its directions and origin (qform) are not finite numbers")
    return np.column_stack([_quaternion(header, order) * sizes, values[3:]])


def _sizes(header: bytes, order: str, matrix: Numbers | None) -> tuple[Numbers, tuple[str, ...]]:
    """Sizes of voxels along x, y and z by pixdim, whose signs mean nothing, or sform; warnings."""
    stated = np.array(struct.unpack(f"{order}3f", header[80:92]))
    sizes, listed = np.abs(stated), " × ".join(f"{size:.4g}" for size in stated)
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        if matrix is None:
            raise RecordError(
                f"its voxels are {listed} mm by pixdim, and there is no sform: expected numbers "
                "above 0"
            )
        warning = f"its voxels are {listed} mm by pixdim; the sizes of the sform are taken"
        return np.linalg.norm(matrix[:, :3], axis=0), (warning,)
    if (stated < 0).any():
        return sizes, (f"its voxels are {listed} mm by pixdim; the signs are passed over",)
    return sizes, ()


def _cosines(matrix: Numbers, spacing: Numbers) -> Numbers:
    """Directions of an sform, (3, 3), made exactly perpendicular."""
    sizes = np.linalg.norm(matrix[:, :3], axis=0)
    if (np.abs(sizes - spacing) > ALIKE * spacing).any():
        both = [" × ".join(f"{value:.4g}" for value in axes) for axes in (spacing, sizes)]
        raise RecordError(f"its voxels are {both[0]} mm by pixdim and {both[1]} mm by sform")
    cosines = matrix[:, :3] / sizes
    if np.abs(cosines.T @ cosines - np.eye(3)).max() > ALIKE:
        raise RecordError("its directions are not at right angles (sform)")
    left, _, right = np.linalg.svd(cosines)  # the nearest rotation
    return np.asarray(left @ right)


def _quaternion(header: bytes, order: str) -> Numbers:
    (sign,) = struct.unpack(f"{order}f", header[76:80])
    b, c, d = struct.unpack(f"{order}3f", header[256:268])
    rest = 1 - (b * b + c * c + d * d)
    if rest < 1e-7:  # half a turn, or rounded: as in the standard's own code
        length = math.sqrt(b * b + c * c + d * d)
        a, b, c, d = 0.0, b / length, c / length, d / length
    else:
        a = math.sqrt(rest)
    cosines = np.array(
        [
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
        ]
    )
    return cosines * [1, 1, -1 if sign < 0 else 1]


def _moved(matrix: Numbers, other: Numbers, extents: tuple[int, int, int]) -> float:
    """The largest distance along an axis, in mm, between a corner's places by two matrices."""
    corners = np.column_stack([np.eye(3) * extents, np.zeros(3)])
    corners = np.vstack([corners, [1, 1, 1, 1]])  # of each axis, and the first voxel
    return float(np.abs((matrix - other) @ corners).max())
