"""Arrays of a NumPy ``.npz`` file, read row by row: a file may be larger than memory.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html in a ZIP file. The
header and a stream of the ZIP are read; nothing is unpickled.
"""

from __future__ import annotations

import functools
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.records import RecordError

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Readers of a header, by the version of the format."""
FAULTS = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What a broken file raises: RuntimeError where it is encrypted."""


class Rows:
    """The rows of one array of uint8 in a file, to be read in ascending order.

    What lies between the last row that was read and a later one is decompressed and dropped; for an
    earlier one the array is begun anew.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Open an array.

        Args:
            path: The ``.npz`` file.
            name: The array's key.

        Raises:
            RecordError: The file is no such file, or holds no such array of uint8 in C order.
        """
        self.name = name
        try:
            archive = zipfile.ZipFile(path)
            entries = [entry for entry in archive.namelist() if entry.endswith(".npy")]
            held = [entry.removesuffix(".npy") for entry in entries]
            if name not in held:
                raise RecordError(f"it holds no array {name}, but {', '.join(held) or 'nothing'}")
            self._stream = archive.open(f"{name}.npy")
            self.shape = self._header(archive.getinfo(f"{name}.npy").file_size)
            self._start = self._stream.tell()
        except FAULTS as error:
            raise _broken(error) from error
        self._row_bytes = math.prod(self.shape[1:])

    def _header(self, size: int) -> tuple[int, ...]:
        """Shape of the array; the header must be that of uint8 and of the member's bytes."""
        stream: IO[Any] = self._stream
        version = np.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise RecordError(f"{self.name} is of version {version} of the format, expected 1 or 2")
        shape, fortran, dtype = HEADERS[version](stream)
        if dtype != np.uint8 or fortran or not shape:
            order = "Fortran" if fortran else "C"
            raise RecordError(
                f"{self.name} has the type {dtype}, {order} order and shape {shape}, expected "
                "uint8 in C order with one row per image"
            )
        if size != stream.tell() + math.prod(shape):
            raise RecordError(
                f"{self.name} has {size:,} bytes, its header says {shape} after {stream.tell()}"
            )
        return tuple(shape)

    def read(self, row: int, rows: int = 1) -> npt.NDArray[np.uint8]:
        """Some rows, (rows, *shape[1:]).

        Raises:
            RecordError: They are not there, or the file is damaged.
        """
        if not 0 <= row <= row + rows <= self.shape[0]:
            raise RecordError(f"{self.name} has {self.shape[0]:,} rows, and not row {row}")
        try:
            self._stream.seek(self._start + row * self._row_bytes)
            data = self._stream.read(rows * self._row_bytes)
        except FAULTS as error:
            raise _broken(error) from error
        if len(data) != rows * self._row_bytes:
            raise RecordError(f"{self.name} ends within row {row + len(data) // self._row_bytes}")
        return np.frombuffer(data, np.uint8).reshape(rows, *self.shape[1:])


def _broken(error: Exception) -> RecordError:
    return RecordError(f"it is no whole .npz file ({type(error).__name__}: {error})")


def rows_of(path: Path, name: str) -> Rows:
    """The rows of an array, from where this process last read in the same file and array.

    Raises:
        RecordError: See `Rows`; or the file cannot be opened.
    """
    try:
        held = path.stat()
    except OSError as error:
        raise _broken(error) from error
    return _opened(path, name, held.st_size, held.st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _opened(path: Path, name: str, size: int, changed: int) -> Rows:
    return Rows(path, name)
