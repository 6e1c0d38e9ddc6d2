"""One array of numbers of an NPY, NPZ or HDF5 file, whole.

Formats: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html and
https://docs.hdfgroup.org/hdf5/. Nothing is unpickled, and no link out of an HDF5 file is followed.
"""

from __future__ import annotations

import itertools
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import numpy.typing as npt

from benchmd_ray.data.readers.bounded import ANY, BoundedFile, require_file
from benchmd_ray.data.records import RecordError, shown_names
from benchmd_ray.errors import composed

VERSION = 2
MAX_VALUES = 2**27
MAX_MEMBERS = 10_000
FILTERS = (1, 2, 3)
"""Numbers of the HDF5 filters that are taken: deflate, shuffle, Fletcher's checksum."""

Array = npt.NDArray[Any]


def read_array(path: Path, key: str = "") -> Array:
    """Read an array of whole or floating-point numbers, of several that of the name ``key``."""
    read = {".npy": _npy, ".npz": _npz}.get(path.suffix.lower(), _hdf5)
    try:
        return read(path, key)
    except (RecordError, MemoryError):
        raise
    except Exception as error:  # zipfile, zlib and h5py raise whatever they meet
        name = type(error).__name__
        raise RecordError(
            f"it cannot be read as {path.suffix.lower()}: it is another file, or damaged ({name})"
        ) from error


def _npy(path: Path, key: str) -> Array:
    with BoundedFile(path, ANY, at_once=8 * MAX_VALUES) as file:
        return _of_stream(file, file.bytes)


def _of_stream(file: IO[bytes], size: int) -> Array:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise RecordError("its array is of another version of the format than 1 and 2")
    header: Any = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    shape, fortran, dtype = header(file, max_header_size=4096)
    _require_numbers(shape, dtype)
    bytes_of_values = math.prod(shape) * dtype.itemsize
    if size != file.tell() + bytes_of_values:
        raise RecordError(f"its array has {size:,} bytes, its header says {shape}")
    data = file.read(bytes_of_values)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _require_numbers(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    count = math.prod(shape)
    if dtype.kind not in "iuf" or dtype.itemsize > 8 or not 0 < count <= MAX_VALUES:
        raise RecordError(
            f"its array has type {dtype} and shape {shape}, expected numbers, at most "
            f"{MAX_VALUES:,}"
        )


def _npz(path: Path, key: str) -> Array:
    with (
        BoundedFile(path, ANY, at_once=8 * MAX_VALUES) as file,
        zipfile.ZipFile(file) as archive,
    ):
        names = archive.namelist()[:MAX_MEMBERS]
        entries = {composed(name.removesuffix(".npy")): name for name in names}
        entry = archive.getinfo(entries[_only(list(entries), key)])
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise RecordError("its array is compressed in a way that is not taken")
        with archive.open(entry) as stream:
            return _of_stream(stream, entry.file_size)


def _only(names: list[str], key: str) -> str:
    if key in names or (not key and len(names) == 1):
        return key or names[0]
    wanted = f"no array {key}" if key else "several arrays and the card names none (key of files)"
    if not names:
        wanted = "no array"
    raise RecordError(f"it holds {wanted}; its arrays are: {shown_names(names) or 'none'}")


def _hdf5(path: Path, key: str) -> Array:
    require_file(path)
    with h5py.File(path, "r") as file:
        dataset = _member(file, key or _only(_datasets(file), ""))
        if dataset.shape is None:
            raise RecordError("its array is empty")
        _require_numbers(dataset.shape, dataset.dtype)
        values: Array = dataset[()]
        return values


def _datasets(file: Any) -> list[str]:
    """Names of the datasets in the file itself; no soft or external link is followed."""
    names: list[str] = []
    places = itertools.count(1)

    def visit(name: str, link: Any) -> bool | None:
        if isinstance(link, h5py.HardLink) and file.get(name, getclass=True) is h5py.Dataset:
            names.append(name)
        return True if next(places) > MAX_MEMBERS else None  # True ends the visit

    if file.visititems_links(visit):
        raise RecordError(f"it has more than {MAX_MEMBERS:,} members")
    return sorted(names)


def _member(file: Any, key: str) -> Any:
    """A dataset that is in the file, plain or compressed by a filter of every HDF5 library."""
    member = file
    for name in key.strip("/").split("/"):
        if isinstance(member, h5py.Group) and not name.isascii():
            name = next((other for other in member if composed(other) == composed(name)), name)
        if not isinstance(member, h5py.Group) or name not in member:
            raise RecordError(f"it holds no array {key}; it has {shown_names(_datasets(file))}")
        if not isinstance(member.get(name, getlink=True), h5py.HardLink):
            raise RecordError(f"its array {key} is a link, which is not followed")
        member = member[name]
    if fault := dataset_fault(member, 8 * MAX_VALUES):
        raise RecordError(f"its array {key} {fault}")
    return member


def dataset_fault(dataset: Any, largest_chunk: int) -> str:
    """Why an object of an HDF5 file is not read; empty where it is. Chunks are bounded in bytes."""
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        return "is not a dataset within the file"
    if dataset.chunks and math.prod(dataset.chunks) * dataset.dtype.itemsize > largest_chunk:
        return f"has chunks of more than {largest_chunk:,} bytes"
    created = dataset.id.get_create_plist()
    used = {created.get_filter(number)[0] for number in range(created.get_nfilters())}
    return "" if used <= set(FILTERS) else "is compressed by a filter that is not taken"
