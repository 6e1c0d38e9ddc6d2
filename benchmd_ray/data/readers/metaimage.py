"""MetaImage files, a header ``.mhd`` next to samples ``.raw``, by SimpleITK.

Format: https://itk.org/Wiki/MetaIO/Documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.itk import simple_itk
from benchmd_ray.data.readers.bounded import ANY, read_bounded
from benchmd_ray.data.readers.volume import MAX_SLICES, MAX_VOXELS, SAME, Volume
from benchmd_ray.data.records import RecordError

VERSION = 2
COORDINATE = r"-?[0-9]{1,7}(\.[0-9]{0,30})?([eE]-[0-9]{1,3})?"
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
    "MET_LONG_LONG": 8,
    "MET_ULONG_LONG": 8,
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


def read_mhd(path: Path, *, flipped: bool | None = None) -> Volume:
    """Open an uncompressed MetaImage file of integers; slices are read when they are asked for.

    ``flipped`` turns the order of the slices; None does where they run from the head to the feet.
    """
    shape = _require_samples(path)
    itk = simple_itk()
    reader = itk.ImageFileReader()
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
        return np.asarray(itk.GetArrayFromImage(_itk(reader.Execute))[0])

    return Volume(
        shape=shape,
        spacing=(z, y, x),
        origins=origins[::-1] if turned else origins,
        normal=axes[:, 2] * np.sign(axes[2, 2]),
        read_slice=read_slice,
        flipped=turned,
    )


def _itk(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RuntimeError as error:  # it raises that for whatever it meets, and quotes the header
        raise RecordError("it cannot be read as a MetaImage file") from error


def mhd_fields(path: Path) -> dict[str, str]:
    """The fields of a MetaImage header."""
    try:
        content = read_bounded(path, ANY, "the header", first_bytes=2**16)
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise RecordError("the header cannot be read: it is not ASCII text") from None
    fields: dict[str, str] = {}
    for line in filter(str.strip, lines):
        key, separator, value = line.partition("=")
        if not separator or key.strip() in fields:
            raise RecordError("the header has a line that is not a field, or a field twice")
        fields[key.strip()] = value.strip()
    return fields


def _require_geometry(fields: dict[str, str]) -> None:
    for names, count in GEOMETRY:
        stated = sorted(names & fields.keys())
        values = " ".join(fields[name] for name in stated).split()
        if stated and not (
            len(values) == count and all(re.fullmatch(COORDINATE, value) for value in values)
        ):
            raise RecordError(f"{stated[0]} is not {count} numbers, or appears twice")
    if not all(float(value) > 0 for value in fields.get("ElementSpacing", "0").split()):
        raise RecordError("ElementSpacing is not three positive numbers")


def _require_samples(path: Path) -> tuple[int, int, int]:
    """Shape (z, y, x) of the samples, where a file in the header's folder has that size."""
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
    actual = samples.stat().st_size if samples.is_file() else None
    if actual != size:
        state = "is missing" if actual is None else f"has {actual:,} bytes"
        raise RecordError(f"its samples' file {state}, expected {size:,} bytes")
    return z, y, x
