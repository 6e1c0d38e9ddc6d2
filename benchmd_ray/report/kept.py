"""Scores of predictions with their resamples, cached as Parquet for the next report.

Entries are named by the hash of inputs and code, so they never go stale and may be deleted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray._version import __version__
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.files.cache import used
from benchmd_ray.files.integrity import Damaged, is_whole, replacing_hashed
from benchmd_ray.files.parquet import read_table

CODE = (
    "scores/metrics.py",
    "scores/ranking.py",
    "scores/resampling.py",
    "scores/sums.py",
    "scores/support.py",
    "report/scored.py",
    "modality/tasks.py",
)
"""Source files that say what metrics and resamples are, and how they are kept."""


def kept(
    inputs: Mapping[str, npt.NDArray[np.generic]],
    how: Mapping[str, object],
    compute: Callable[[], pa.Table],
    fits: Callable[[pa.Table], bool],
) -> pa.Table:
    """What ``compute`` gives, from the cache where it was computed before.

    Args:
        inputs: Numeric arrays that the result depends on.
        how: What else it depends on; JSON-serialisable.
        compute: Computes the result.
        fits: Whether a table has the form of a result; others are computed anew.
    """
    path = cache_folder() / "report" / f"{_name(inputs, how)}.parquet"
    if is_whole(path):
        with suppress(Damaged):
            table = read_table(path, path, "")
            if fits(table):
                used(path)
                return table
    result = compute()  # it was not computed yet, or was damaged since
    with suppress(OSError, BenchmdError):  # a folder that is read-only or full
        _keep(path, result)
    return result


def _name(inputs: Mapping[str, npt.NDArray[np.generic]], how: Mapping[str, object]) -> str:
    about = {name: [array.dtype.str, array.shape] for name, array in inputs.items()}
    text = json.dumps([_code(), __version__, np.__version__, about, how], sort_keys=True)
    whole = hashlib.sha256(text.encode())
    for name in sorted(inputs):
        whole.update(np.ascontiguousarray(inputs[name]).data)
    return whole.hexdigest()


@cache
def _code() -> str:
    package, whole = resources.files("benchmd_ray"), hashlib.sha256()
    for name in CODE:
        whole.update(package.joinpath(name).read_bytes())
    return whole.hexdigest()


def _keep(path: Path, result: pa.Table) -> None:
    with replacing_hashed(path) as partial:
        pq.write_table(result, partial, compression="none", use_dictionary=False)
