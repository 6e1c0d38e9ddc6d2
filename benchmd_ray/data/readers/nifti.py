"""NIfTI-1 files, ``.nii`` and ``.nii.gz``, by SimpleITK.

What the header claims is checked before SimpleITK opens the file.
Format: https://nifti.nimh.nih.gov/nifti-1/documentation.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmd_ray.data.itk import simple_itk
from benchmd_ray.data.readers.bounded import ANY, BoundedFile
from benchmd_ray.data.readers.volume import MAX_SLICES, MAX_VOXELS, Volume
from benchmd_ray.data.records import RecordError

VERSION = 2
"""Raised whenever what it reads of the same file changes."""
HEADER_BYTES = 348
FLOATS = {16: "f4", 64: "f8"}
"""NumPy's names of the types that may hold what is not a number."""
ALIKE = 1e-3
"""How far directions may be from right angles, as a cosine; and sizes that a header has twice from
each other, as a share."""
MOVED = 0.5
"""Of a voxel: how far apart two places that a header has for it may be."""
TYPES = {2: 1, 4: 2, 8: 4, 16: 4, 64: 8, 256: 1, 512: 2, 768: 4}
"""Bytes of a voxel of the types that are taken: whole and floating-point numbers."""
MAX_BYTES = 2**31
"""Of a volume, which is held whole."""
MAX_OFFSET = 2**20
"""Where voxels may begin, behind header and extensions."""


def read_nifti(path: Path) -> Volume:
    """Read a volume, turned so that x runs to the left, y to the back and z to the head.

    Axes that lie askew are turned only by right angles, to the nearest direction. Slope and
    intercept of the header are applied.

    Args:
        path: A file that ends in ``.nii`` or ``.nii.gz``.

    Raises:
        RecordError: It is missing, damaged or too large, or no volume of three axes.
    """
    image = turned(read_image(path))
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
    )


def read_image(path: Path) -> Any:
    """Read a volume as a SimpleITK image, its axes and directions as the file has them.

    Args:
        path: A file that ends in ``.nii`` or ``.nii.gz``.

    Raises:
        RecordError: It is missing, damaged or too large, or no volume of three axes.
    """
    require_nifti(path)
    reader: Any = simple_itk().ImageFileReader()
    reader.SetImageIO("NiftiImageIO")
    reader.SetFileName(str(path))
    try:
        image = reader.Execute()
        return image[..., 0] if image.GetDimension() == 4 else image
    except RuntimeError as error:  # it raises that for whatever it meets, and quotes the path
        raise _unreadable() from error


def turned(image: Any) -> Any:
    """An image whose x runs to the left, y to the back and z to the head, by right angles.

    Raises:
        RecordError: Its directions are not at right angles.
    """
    itk = simple_itk()
    try:
        return itk.DICOMOrient(image, "LPS")
    except RuntimeError as error:
        raise _unreadable() from error


def _unreadable() -> RecordError:
    return RecordError(
        "it cannot be read as NIfTI: it is damaged, or its directions are not at right angles"
    )


def require_nifti(path: Path) -> None:
    """Refuse what SimpleITK would believe: sizes, types, places, and a file that is cut off.

    Raises:
        RecordError: The file is missing, or is not a whole volume of three axes.
    """
    packed = path.suffix.lower() == ".gz"
    try:
        with BoundedFile(path, ANY) as file:
            stream: Any = gzip.GzipFile(fileobj=file) if packed else file
            header = stream.read(HEADER_BYTES)
            expected, offset, dtype = _size(header)
            stream.read(offset - HEADER_BYTES)
            held, left, wrong = offset, b"", 0  # SimpleITK puts zeros where a file ends early
            while held <= expected + MAX_OFFSET and (part := stream.read(2**20)):
                held += len(part)
                if dtype is not None:  # and where a number is not finite
                    part = left + part
                    whole = len(part) - len(part) % dtype.itemsize
                    wrong += int((~np.isfinite(np.frombuffer(part[:whole], dtype))).sum())
                    left = part[whole:]
    except (OSError, EOFError, zlib.error) as error:  # of gzip, which holds a checksum
        raise RecordError(f"it cannot be opened, or is damaged ({type(error).__name__})") from error
    if not expected <= held <= expected + MAX_OFFSET:
        what = "cut off" if held < expected else "longer than its header says"
        raise RecordError(f"it is {what}: expected {expected:,} bytes")
    if wrong:
        raise RecordError(f"{wrong:,} of its voxels are not finite numbers")


def _size(header: bytes) -> tuple[int, int, np.dtype[Any] | None]:
    """Bytes of the file that a header describes, where its voxels begin, and their type if floats.

    Raises:
        RecordError: It is no such header, or of no volume of three axes.
    """
    if len(header) < HEADER_BYTES or header[344:348] != b"n+1\0":
        raise RecordError("it is not a NIfTI-1 file of header and voxels in one")
    order = "<" if struct.unpack("<i", header[:4])[0] == HEADER_BYTES else ">"
    count, *extents = struct.unpack(f"{order}8h", header[40:56])
    (kind,) = struct.unpack(f"{order}h", header[70:72])
    (offset,) = struct.unpack(f"{order}f", header[108:112])
    spacing = struct.unpack(f"{order}3f", header[80:92])
    place = struct.unpack(f"{order}18f", header[256:328])
    if not (count == 3 or (count == 4 and extents[3] == 1)) or min(extents[:3]) < 1:
        shown = tuple(extents[: max(0, min(count, 7))])
        raise RecordError(f"it has the extents {shown}, expected those along x, y and z")
    if kind not in TYPES:
        raise RecordError(f"its voxels are of type {kind}, expected one number each")
    voxels = math.prod(extents[:3])
    if voxels > MAX_VOXELS or extents[2] > MAX_SLICES or voxels * TYPES[kind] > MAX_BYTES:
        raise RecordError(f"it has the extents {tuple(extents[:3])}, which are too large")
    if not HEADER_BYTES + 4 <= offset <= MAX_OFFSET:
        raise RecordError(f"its voxels begin at byte {offset:g}, expected behind the header")
    if not all(map(math.isfinite, (*spacing, *place))) or min(spacing) <= 0:
        raise RecordError("its directions or the size of its voxels are not numbers")
    _require_one_place(header, order)
    dtype = np.dtype(f"{order}{FLOATS[kind]}") if kind in FLOATS else None
    return int(offset) + voxels * TYPES[kind], int(offset), dtype


def _require_one_place(header: bytes, order: str) -> None:
    """Refuse a header that says in two ways where voxels are, and not the same.

    A file may have a matrix (sform) and a quaternion (qform) with the voxels' sizes (pixdim); each
    has a code that says of which space it is, 0 for none.

    Raises:
        RecordError: The message says what differs.
    """
    sign, *spacing = struct.unpack(f"{order}4f", header[76:92])
    extents = np.array(struct.unpack(f"{order}3h", header[42:48]))
    of_quaternion, of_matrix = struct.unpack(f"{order}2h", header[252:256])
    numbers = struct.unpack(f"{order}18f", header[256:328])
    if of_matrix <= 0:
        return
    matrix = np.array(numbers[6:]).reshape(3, 4)
    sizes = np.linalg.norm(matrix[:, :3], axis=0)
    if (np.abs(sizes - spacing) > ALIKE * np.array(spacing)).any():
        both = [" × ".join(f"{value:.4g}" for value in each) for each in (spacing, sizes)]
        raise RecordError(f"its voxels are {both[0]} mm by pixdim and {both[1]} mm by sform")
    cosines = (matrix[:, :3] / sizes).T @ (matrix[:, :3] / sizes)
    if np.abs(cosines - np.eye(3)).max() > ALIKE:
        raise RecordError("its directions are not at right angles (sform)")
    if of_quaternion == of_matrix:
        b, c, d = numbers[:3]
        a = math.sqrt(max(0.0, 1 - b * b - c * c - d * d))
        turned = np.array(
            [
                [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
                [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
                [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
            ]
        )
        scaled = turned * np.array(spacing) * [1, 1, -1 if sign < 0 else 1]
        other = np.column_stack([scaled, numbers[3:6]])
        corners = np.column_stack([np.eye(3) * extents, np.zeros(3)])
        corners = np.vstack([corners, [1, 1, 1, 1]])  # of each axis, and the first voxel
        moved = np.abs((matrix - other) @ corners).max()
        if moved > MOVED * min(spacing):
            raise RecordError(f"its qform and sform place voxels {moved:.3g} mm apart")
