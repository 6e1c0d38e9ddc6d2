"""NRRD files of one number for each voxel of three axes, by SimpleITK.

Format: https://teem.sourceforge.net/nrrd/format.html.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.geometry import grid_of
from benchmd_ray.data.itk import simple_itk
from benchmd_ray.data.plain_numbers import number_of
from benchmd_ray.data.readers.bounded import ANY, BoundedFile, require_held
from benchmd_ray.data.readers.nifti import ALIKE, MAX_BYTES, Voxels
from benchmd_ray.data.readers.volume import MAX_VOXELS
from benchmd_ray.data.records import RecordError
from benchmd_ray.errors import shown

VERSION = 1
HEADER_BYTES = 2**16
TYPES = {
    **dict.fromkeys(("uchar", "unsigned char", "uint8", "uint8_t"), 1),
    **dict.fromkeys(("signed char", "int8", "int8_t"), 1),
    **dict.fromkeys(("short", "short int", "signed short", "signed short int"), 2),
    **dict.fromkeys(("int16", "int16_t", "ushort", "unsigned short", "uint16", "uint16_t"), 2),
    **dict.fromkeys(("unsigned short int",), 2),
    **dict.fromkeys(("int", "signed int", "int32", "int32_t", "uint", "unsigned int"), 4),
    **dict.fromkeys(("uint32", "uint32_t", "float"), 4),
    **dict.fromkeys(("longlong", "long long", "long long int", "signed long long"), 8),
    **dict.fromkeys(("signed long long int", "int64", "int64_t", "ulonglong"), 8),
    **dict.fromkeys(("unsigned long long", "unsigned long long int", "uint64", "uint64_t"), 8),
    "double": 8,
}
"""Bytes of a voxel, by its type."""
ENCODINGS = ("raw", "gzip", "gz")
SPACES = (
    *("left-posterior-superior", "lps", "right-anterior-superior", "ras"),
    *("left-anterior-superior", "las"),
)
"""Spaces that say where the patient's left, back and head are, in lower case; SimpleITK turns
each of them to the first."""
NO_SPACE = "it does not say where its axes point (space); taken to be left, back and head"
VECTOR = re.compile(r"\(([^()]*)\)")


@dataclass(frozen=True)
class NrrdHeader:
    """What a header says of the voxels."""

    extents: tuple[int, ...]
    """Along the file's axes, the fastest first."""
    fields: Mapping[str, str]
    """By their names in lower case and without blanks, which some writers leave out."""

    @property
    def voxel_bytes(self) -> int:
        """Bytes of a voxel; 0 for a type that is not one of a number."""
        return TYPES.get(self.fields.get("type", "").lower(), 0)


def read_nrrd(path: Path) -> Voxels:
    """Read a volume, its axes as the file has them."""
    header = read_header(path)
    _require_volume(header)
    _require_place(header.fields)
    itk = simple_itk()
    reader = itk.ImageFileReader()
    reader.SetImageIO("NrrdImageIO")
    reader.SetFileName(str(path))
    try:
        image = reader.Execute()
    except RuntimeError as error:  # it raises that for whatever it meets, and quotes the path
        raise RecordError("it cannot be read: its header or its samples are damaged") from error
    if image.GetDimension() != 3 or image.GetNumberOfComponentsPerPixel() != 1:
        raise RecordError("expected one number for each voxel of three axes")
    warnings = () if "space" in header.fields else (NO_SPACE,)
    return Voxels(itk.GetArrayFromImage(image), grid_of(image), warnings=warnings)


def read_header(path: Path) -> NrrdHeader:
    """The header of a file that may hold the samples that it claims."""
    try:
        with BoundedFile(path, ANY) as file:
            begin, size = file.read(HEADER_BYTES), file.bytes
    except OSError as error:
        raise RecordError(f"it cannot be opened: {error.strerror or error}") from error
    header = _parsed(begin)
    voxels = math.prod(header.extents)
    claimed = voxels * header.voxel_bytes
    if voxels > MAX_VOXELS or claimed > MAX_BYTES:
        shape = " × ".join(map(str, header.extents))
        raise RecordError(f"it has the extents {shape}, which are too large")
    if "datafile" not in header.fields:
        require_held(claimed, size, is_packed=header.fields.get("encoding", "").lower() != "raw")
    return header


def _parsed(begin: bytes) -> NrrdHeader:
    head, end, _ = begin.replace(b"\r\n", b"\n").partition(b"\n\n")
    lines = head.decode("utf-8", "replace").splitlines()
    if not end or not lines or not re.fullmatch(r"NRRD000[1-5]", lines[0]):
        raise RecordError("it is not a NRRD file")
    fields: dict[str, str] = {}
    for line in lines[1:]:
        key, colon, value = line.partition(":")
        if line.startswith("#") or not colon or value.startswith("="):  # key/value pairs of others
            continue
        name = "".join(key.lower().split())
        if fields.setdefault(name, value.strip()) != value.strip():
            raise RecordError(f"its header has the field {key.strip()[:40]!r} twice")
    sizes = fields.get("sizes", "").split()
    if not sizes or not all(re.fullmatch(r"[1-9]\d{0,8}", size, re.ASCII) for size in sizes):
        raise RecordError("its sizes are not positive whole numbers")
    return NrrdHeader(tuple(map(int, sizes)), fields)


def _require_volume(header: NrrdHeader) -> None:
    """Refuse what SimpleITK would believe: sizes, types, and samples in other files."""
    if "datafile" in header.fields:
        raise RecordError("its samples are in another file (data file), expected all in one")
    if header.fields.get("encoding", "").lower() not in ENCODINGS:
        raise RecordError(f"its encoding is expected to be {' or '.join(ENCODINGS)}")
    if not header.voxel_bytes:
        raise RecordError("its type is none of a number")
    if len(header.extents) != 3:
        raise RecordError(
            f"it has {len(header.extents)} axes, expected 3: write overlapping segments as one "
            "file each"
        )


def _require_place(fields: Mapping[str, str]) -> None:
    """Refuse a place that SimpleITK would pass over or take otherwise than it is meant."""
    space = fields.get("space")
    if space is not None and space.lower() not in SPACES:
        raise RecordError(
            f"its space is {shown(space)}, which does not say where the patient's left, back and "
            "head are: expected left-posterior-superior, right-anterior-superior or "
            "left-anterior-superior"
        )
    if "spacedirections" in fields:
        _require_directions(fields)
    elif "spacings" not in fields:
        raise RecordError("it does not say how far its voxels are apart (space directions)")
    elif space is not None:
        raise RecordError("it has a space and no space directions: write both, or only spacings")
    else:
        spacings = [number_of(text) or 0.0 for text in fields["spacings"].split()]
        if len(spacings) != 3 or min(spacings) <= 0:
            raise RecordError(
                f"its spacings are {shown(fields['spacings'])}, expected three numbers above 0"
            )
    units = re.findall(r'"([^"]*)"', f"{fields.get('spaceunits', '')} {fields.get('units', '')}")
    if any(unit != "mm" for unit in units):
        raise RecordError(f"its lengths are in {' and '.join(dict.fromkeys(units))}, expected mm")


def _require_directions(fields: Mapping[str, str]) -> None:
    """Refuse axes that are not three vectors at right angles, and an origin that is no point."""
    if "spacings" in fields:
        raise RecordError("it has spacings and space directions, expected one of them")
    axes = _vectors(fields["spacedirections"])
    lengths = None if axes is None else np.linalg.norm(axes, axis=1)
    if axes is None or lengths is None or len(axes) != 3 or not lengths.min() > 0:
        raise RecordError(
            f"its space directions are {shown(fields['spacedirections'])}, expected three vectors "
            "of three numbers, none of length 0"
        )
    cosines = axes / lengths[:, None]
    if np.abs(cosines @ cosines.T - np.eye(3)).max() > ALIKE:
        raise RecordError("its directions are not at right angles (space directions)")
    origin = _vectors(fields.get("spaceorigin", "(0,0,0)"))
    if origin is None or len(origin) != 1:
        raise RecordError(
            f"its space origin is {shown(fields['spaceorigin'])}, expected three numbers"
        )


def _vectors(text: str) -> npt.NDArray[np.float64] | None:
    """Vectors of three numbers, such as ``(1,0,0) (0,1,0)``; None of another text."""
    if VECTOR.sub("", text).strip():
        return None
    vectors = [[number_of(part.strip()) for part in v.split(",")] for v in VECTOR.findall(text)]
    if not vectors or any(len(vector) != 3 or None in vector for vector in vectors):
        return None
    return np.array(vectors, np.float64)
