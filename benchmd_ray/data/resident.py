"""What a node keeps of a split below ``BENCHMD_CACHE``, by the catalog's digest.

The decoded signals, memory-mapped and so shared within the node; and of a catalog in a bucket the
other columns, so that no shard is fetched again for a label. One pass over the shards writes both;
reading only the columns is a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import CONTENT, content_hashes, decode_signals
from benchmd_ray.files.arrays import mapped
from benchmd_ray.files.atomic import TEMPORARY, cache_folder, locked, remove, replacing
from benchmd_ray.files.cache import keep_within_limit, used
from benchmd_ray.files.integrity import Damaged, is_whole, write_hash
from benchmd_ray.files.parquet import read_table

SIGNAL = "signal"
REMEDY = "Remove it and run again: it is made anew."


def split_table(catalog: Catalog, split: str, columns: Sequence[str]) -> pa.Table:
    """Columns other than the signal of a split, in row order."""
    catalog.require_split(split)
    if isinstance(catalog.path, Path):
        return pa.concat_tables(catalog.tables(split, columns))
    path = _columns_path(catalog, split)
    _keep(
        path,
        lambda: _write_columns(path, [t.drop_columns(SIGNAL) for t in catalog.tables(split)]),
    )
    table = read_table(path, path, REMEDY, columns=columns)
    if len(table) != catalog.rows(split):
        why = f"it holds {len(table)} rows, the catalog {catalog.rows(split)}"
        raise Damaged(path, why, REMEDY)
    return table


def patients_of(catalog: Catalog, splits: Iterable[str]) -> set[str]:
    """Hashed patients of some splits."""
    tables = (split_table(catalog, split, ["group_id"]) for split in splits)
    return {patient for table in tables for patient in table["group_id"].to_pylist()}


def contents_of(catalog: Catalog, splits: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Distinct contents of the records of some splits, but those of constant signals."""
    tables = (split_table(catalog, split, [CONTENT]) for split in splits)
    contents = [content_hashes(table[CONTENT]) for table in tables]
    whole = np.unique(np.concatenate([np.empty(0, np.uint64), *contents]))
    return np.asarray(whole[whole != 0])


def _columns_path(catalog: Catalog, split: str) -> Path:
    return cache_folder() / f"{catalog.digest[:32]}-{split}-columns.parquet"


def _keep(path: Path, write: Callable[[], None]) -> None:
    """Call `write` for a file of the cache, unless it is there undamaged."""
    if is_whole(path):
        used(path)
        return
    with locked(path.with_suffix(".lock"), f"the cached split {path}", wait=True):
        if not is_whole(path):
            for leftover in path.parent.glob(f"{TEMPORARY}*-{path.name}"):
                remove(leftover)  # of interrupted processes
            write()
            write_hash(path)
    keep_within_limit()


def _write_columns(path: Path, tables: Sequence[pa.Table]) -> None:
    with replacing(path) as partial:
        pq.write_table(pa.concat_tables(tables), partial)


def resident_signals(catalog: Catalog, split: str) -> npt.NDArray[np.generic]:
    """Signals of a split, (rows, *stored_shape), memory-mapped and so shared within the node.

    The first use decodes the shards into one file, which each process checks once by its hash.

    Raises:
        BenchmdError: A shard is altered, or the cached array does not fit the signals.
    """
    path = cache_folder() / f"{catalog.digest[:32]}-{split}.npy"
    _keep(path, lambda: _decode_split(catalog, split, path))
    signals: npt.NDArray[np.generic] = mapped(path, "r", REMEDY)
    expected = (catalog.rows(split), *catalog.signal.stored_shape)
    if signals.shape != expected or signals.dtype != np.dtype(catalog.signal.dtype):
        why = f"it holds {signals.dtype} {signals.shape}, expected {expected}"
        raise Damaged(path, why, REMEDY)
    return signals


def _decode_split(catalog: Catalog, split: str, path: Path) -> None:
    """Write the signals of a split as one array, and what else was fetched with them."""
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(catalog.signal.dtype)),
        "fortran_order": False,
        "shape": (catalog.rows(split), *catalog.signal.stored_shape),
    }
    local = isinstance(catalog.path, Path)
    others = []
    with replacing(path) as partial, partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for table in catalog.tables(split, [SIGNAL] if local else None):
            signals = decode_signals(table[SIGNAL], catalog.signal)
            file.write(np.ascontiguousarray(signals).data)
            others.append(table.drop_columns(SIGNAL))
    if not local:
        columns = _columns_path(catalog, split)
        _keep(columns, lambda: _write_columns(columns, others))
