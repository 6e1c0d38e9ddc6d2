"""Arrays of a NumPy ``.npz`` file, read row by row: a file may be larger than memory.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html in a ZIP file.
Nothing is unpickled or evaluated.
"""

from __future__ import annotations

import functools
import math
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.readers.bounded import ANY, BoundedFile
from benchmd_ray.data.records import RecordError, shown_names

VERSION = 1
HEADER = re.compile(
    rb"\{'descr': '([^']{1,20})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,12}, ){0,31}(?:\d{1,12},?)?)\), \} *\n"
)
MAX_HEADER_BYTES = 2**12
"""Larger headers are refused; NumPy's of a few dimensions have 118."""
MAX_ROWS = 2**19
"""Of an array; the largest, of TissueMNIST, has 165,466."""
MAX_AT_ONCE = 2**24
"""Bytes of the ZIP file that are read at once: of its directory, or of labels."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Rows:
    """The rows of one array of uint8 in C order, to be read in ascending order.

    For an earlier row than the last the array is decompressed anew.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        with _faults():
            archive = zipfile.ZipFile(BoundedFile(path, ANY, at_once=MAX_AT_ONCE))
            entries = [entry for entry in archive.namelist() if entry.endswith(".npy")]
            names = [entry.removesuffix(".npy") for entry in entries]
            if name not in names:
                raise RecordError(
                    f"it holds no array {name}, but {shown_names(names) or 'nothing'}"
                )
            entry = archive.getinfo(f"{name}.npy")
            if entry.compress_type not in METHODS:
                raise RecordError(f"{name} is compressed in a way that is not taken")
            self._stream = archive.open(entry)
            self.shape = self._header(entry.file_size)
            self._start = self._stream.tell()
        self._row_bytes = math.prod(self.shape[1:])

    def _header(self, size: int) -> tuple[int, ...]:
        magic = self._stream.read(8)
        version = magic[6:]
        if magic[:6] != b"\x93NUMPY" or version not in (b"\1\0", b"\2\0"):
            raise RecordError(f"{self.name} is not an array of version 1 or 2 of the format")
        length = int.from_bytes(self._stream.read(2 * version[0]), "little")
        match = HEADER.fullmatch(self._stream.read(min(length, MAX_HEADER_BYTES)))
        if match is None:
            raise RecordError(f"{self.name} has a header that NumPy does not write")
        shape = tuple(int(extent) for extent in match[3].replace(b",", b" ").split())
        if match[1] != b"|u1" or match[2] == b"True" or not shape:
            order = "Fortran" if match[2] == b"True" else "C"
            raise RecordError(
                f"{self.name} has the type {np.dtype(match[1].decode())}, {order} order and shape "
                f"{shape}, expected uint8 in C order with one row per image"
            )
        if shape[0] > MAX_ROWS:
            raise RecordError(f"{self.name} has {shape[0]:,} rows, expected at most {MAX_ROWS:,}")
        if size != self._stream.tell() + math.prod(shape):
            raise RecordError(
                f"{self.name} has {size:,} bytes, its header says {shape} after "
                f"{self._stream.tell()}"
            )
        return shape

    def read(self, row: int, rows: int = 1) -> npt.NDArray[np.uint8]:
        """Some rows, (rows, *shape[1:])."""
        if not 0 <= row <= row + rows <= self.shape[0]:
            raise RecordError(f"{self.name} has {self.shape[0]:,} rows, and not row {row}")
        if rows * self._row_bytes > MAX_AT_ONCE:
            raise RecordError(f"{self.name} has rows of {self._row_bytes:,} bytes")
        with _faults():
            self._stream.seek(self._start + row * self._row_bytes)
            data = self._stream.read(rows * self._row_bytes)
        if len(data) != rows * self._row_bytes:
            raise RecordError(f"{self.name} ends within row {row + len(data) // self._row_bytes}")
        return np.frombuffer(data, np.uint8).reshape(rows, *self.shape[1:])


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except (RecordError, MemoryError):
        raise
    except Exception as error:  # zipfile and zlib raise whatever they meet
        raise RecordError(f"it is not a whole .npz file ({type(error).__name__})") from error


def rows_of(path: Path, name: str) -> Rows:
    """The rows of an array, from where this process last read in it."""
    with _faults():
        state = path.stat()
        return _opened(path, name, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _opened(path: Path, name: str, size: int, changed: int) -> Rows:
    return Rows(path, name)
