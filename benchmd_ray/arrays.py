"""Arrays of numpy that are read back: damage as one kind of error."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmd_ray.errors import shown
from benchmd_ray.integrity import Damaged

UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, SyntaxError, tokenize.TokenError),
    *(OverflowError, MemoryError, RecursionError, RuntimeError, zipfile.BadZipFile, zlib.error),
)
"""What numpy raises on a file that holds none."""


@contextmanager
def _damage(path: Path, remedy: str) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        why = f"numpy cannot read it ({type(error).__name__})"
        raise Damaged(path, why, remedy) from error


def mapped(path: Path, mode: Literal["r", "c"], remedy: str) -> npt.NDArray[Any]:
    """The array of a ``.npy`` file, memory-mapped: read-only (r), or copied on write (c).

    Raises:
        Damaged: It holds none.
    """
    with _damage(path, remedy):
        array: npt.NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
        return array


def read_archive(path: Path, remedy: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an ``.npz`` file, by name.

    Raises:
        Damaged: One cannot be read, or something else is in it.
    """
    with _damage(path, remedy), np.load(path, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # bytes of a file that does not begin as one
            raise Damaged(path, f"{shown(name)} is no array", remedy)
    return arrays
