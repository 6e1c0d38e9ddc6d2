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
import SimpleITK

from benchmd_ray.data.readers.bounded import ANY, BoundedFile
from benchmd_ray.data.readers.volume import MAX_SLICES, MAX_VOXELS, Volume
from benchmd_ray.data.records import RecordError

VERSION = 1
"""Raised whenever what it reads of the same file changes."""
HEADER_BYTES = 348
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
    values = SimpleITK.GetArrayFromImage(image)
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
    reader: Any = SimpleITK.ImageFileReader()  # type: ignore[no-untyped-call]
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
    try:
        return SimpleITK.DICOMOrient(image, "LPS")  # type: ignore[no-untyped-call]
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
            expected = _size(stream.read(HEADER_BYTES))
            held = HEADER_BYTES  # SimpleITK puts zeros where a file ends early
            while held <= expected + MAX_OFFSET and (part := stream.read(2**20)):
                held += len(part)
    except (OSError, EOFError, zlib.error) as error:  # of gzip, which holds a checksum
        raise RecordError(f"it cannot be opened, or is damaged ({type(error).__name__})") from error
    if not expected <= held <= expected + MAX_OFFSET:
        what = "cut off" if held < expected else "longer than its header says"
        raise RecordError(f"it is {what}: expected {expected:,} bytes")


def _size(header: bytes) -> int:
    """Bytes of the file that a header describes.

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
    return int(offset + voxels * TYPES[kind])
