"""Arrays of numpy that are read back."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmd_ray.files.integrity import Damaged

UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, SyntaxError, tokenize.TokenError),
    *(OverflowError, MemoryError, RecursionError, RuntimeError, zipfile.BadZipFile, zlib.error),
)


def mapped(path: Path, mode: Literal["r", "c"], remedy: str) -> npt.NDArray[Any]:
    """Memory-map a ``.npy`` file, read-only (r) or copy-on-write (c); raises `Damaged`."""
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
    except UNREADABLE as error:
        why = f"numpy cannot read it ({type(error).__name__})"
        raise Damaged(path, why, remedy) from error
    return array
