"""NIfTI files written byte by byte, so that any header can be had."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

KINDS = {
    **{"u1": 2, "i2": 4, "i4": 8, "f4": 16, "f8": 64, "i1": 256, "u2": 512, "u4": 768},
    **{"i8": 1024, "u8": 1280},
}
"""Codes of types, from the standard."""


def nifti(
    values: np.ndarray,
    *,
    order: str = "<",
    kind: int | None = None,
    spacing: Sequence[float] = (1, 1, 1),
    codes: tuple[int, int] = (1, 0),
    quaternion: Sequence[float] = (0, 0, 0),
    offset: Sequence[float] = (0, 0, 0),
    sign: float = 1,
    matrix: np.ndarray | None = None,
    scaling: tuple[float, float] = (1, 0),
    units: int = 2,
) -> bytes:
    """A file of (z, y, x) values; codes are those of qform and sform, scaling slope, intercept."""
    header = bytearray(352)
    struct.pack_into(f"{order}i", header, 0, 348)
    struct.pack_into(f"{order}8h", header, 40, 3, *values.shape[::-1], 1, 1, 1, 1)
    kind = KINDS[values.dtype.str[1:]] if kind is None else kind
    struct.pack_into(f"{order}2h", header, 70, kind, 8 * values.itemsize)
    struct.pack_into(f"{order}4f", header, 76, sign, *spacing)
    struct.pack_into(f"{order}3f", header, 108, 352, *scaling)
    header[123] = units
    struct.pack_into(f"{order}2h", header, 252, *codes)
    struct.pack_into(f"{order}6f", header, 256, *quaternion, *offset)
    if matrix is not None:
        struct.pack_into(f"{order}12f", header, 280, *np.ravel(matrix))
    header[344:348] = b"n+1\0"
    return bytes(header) + values.astype(values.dtype.newbyteorder(order)).tobytes()


def write(path: Path, values: np.ndarray, **header: object) -> Path:
    """The file `nifti` gives."""
    path.write_bytes(nifti(values, **header))
    return path
