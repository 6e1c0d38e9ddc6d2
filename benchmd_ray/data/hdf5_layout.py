"""What an HDF5 file of a catalog holds, and whether one that need not be trusted does.

A group per split with the datasets ``signal`` (rows, *stored_shape), one chunk per row,
``target`` (rows, classes), ``scale``, ``valid_size``, ``record_id``, ``unit_id``, ``group_id`` and,
under ``metadata``, each column with a ``<column>_known`` beside; ``manifest``, a JSON text that
says how the catalog was built; attributes for whoever looks into the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.manifest_form import described
from benchmd_ray.data.readers.arrays import dataset_fault
from benchmd_ray.data.records import METADATA, schema
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import parse_json

FORMAT = "benchmd-catalog-1"
"""Layout of the file."""
TEXTS = ("record_id", "unit_id", "group_id")
LONGEST_TEXT = 1000
"""Bytes; datasets of longer texts are refused."""
LARGEST_SHARD = 2**30
"""Signal bytes that are held at once, a few times over; shards of more are refused. They have about
2**24, a scan of a thousand slices 2**28."""
LARGEST_CHUNK = 2**26
"""Bytes; a chunk is read whole, so datasets of larger ones are refused."""
LARGEST_MANIFEST = 2**25
"""Bytes; longer ones are refused. Parsed they take up to a hundred times as much; that of a catalog
of a million records has 2**20."""


@dataclass(frozen=True)
class Column:
    """A dataset of a split's group."""

    name: str
    shape: tuple[int, ...]
    """Of a row."""
    dtype: np.dtype[Any] | None
    """None for texts."""


def columns_of(card: DatasetCard) -> dict[str, Column]:
    stored = card.signal.stored_shape
    columns = [
        Column("signal", stored, np.dtype(card.signal.dtype)),
        Column("target", card.target.shape, np.dtype(card.target.dtype)),
        Column("scale", (), np.dtype(np.float32)),
        Column("valid_size", (len(stored) - 1,), np.dtype(np.int32)),
        *(Column(name, (), None) for name in TEXTS),
    ]
    for name, kind in METADATA.items():
        dtype = None if pa.types.is_string(kind) else np.dtype(kind.to_pandas_dtype())
        columns.append(Column(f"metadata/{name}", (), dtype))
        columns.append(Column(f"metadata/{name}_known", (), np.dtype(np.bool_)))
    return {column.name: column for column in columns}


def foreign(path: Path, what: str) -> BenchmdError:
    """An error for a file that is damaged or not one of ours."""
    return BenchmdError(
        f"{path} cannot be imported: {what}. Expected a file of `benchmd catalog export`; export "
        "the catalog again."
    )


def stated_manifest(file: Any, path: Path) -> tuple[dict[str, Any], DatasetCard]:
    """The exported catalog's manifest, checked, and its card."""
    if file.attrs.get("format") != FORMAT:
        raise foreign(path, f"its attribute 'format' is not {FORMAT!r}")
    dataset = _dataset(file, "manifest", path)
    whole = dataset.chunks is None  # of chunks there could be one for each byte
    if (
        not whole
        or dataset.dtype != np.uint8
        or dataset.ndim != 1
        or len(dataset) > LARGEST_MANIFEST
    ):
        raise foreign(path, "its manifest is not text")
    stated = parse_json(dataset[()].tobytes())
    if not isinstance(stated, dict):
        raise foreign(path, "its manifest is not an object")
    card, fault = described(stated)
    if card is None or fault:
        raise foreign(path, fault)
    if card.target.is_mask:
        raise foreign(path, "it is of a catalog of masks")
    width = schema(card).field("signal").type.byte_width
    for shard in stated["shards"]:
        if shard["rows"] * width > LARGEST_SHARD:
            raise foreign(path, f"its shard {shard['file']} has {shard['rows']} rows")
    return stated, card


def require_layout(file: Any, stated: Mapping[str, Any], card: DatasetCard, path: Path) -> None:
    """Check that each object is expected, within the file, and of the right type and shape."""
    expected = {"manifest": None} | dict.fromkeys(stated["splits"])
    if set(file) != set(expected):
        raise foreign(path, f"it holds {sorted(file)}, expected {sorted(expected)}")
    columns = columns_of(card)
    for split, content in stated["splits"].items():
        group = _group(file, split, path)
        top = {name.partition("/")[0] for name in columns}
        inner = {name.partition("/")[2] for name in columns} - {""}
        if set(group) != top or set(_group(group, "metadata", path)) != inner:
            raise foreign(path, f"its group {split} holds other datasets than expected")
        for name, column in columns.items():
            _require_column(_dataset(group, name, path), column, content["records"], path)


def _require_column(dataset: Any, column: Column, rows: int, path: Path) -> None:
    where = f"its dataset {dataset.name}"
    text = h5py.check_string_dtype(dataset.dtype)
    fits = dataset.dtype == column.dtype if column.dtype else bool(text and text.length)
    if not fits or dataset.dtype.itemsize > LONGEST_TEXT:
        raise foreign(path, f"{where} has type {dataset.dtype}, expected {column.dtype or 'texts'}")
    if dataset.shape != (rows, *column.shape):
        raise foreign(path, f"{where} has shape {dataset.shape}, expected {(rows, *column.shape)}")
    if column.name == "signal" and dataset.chunks != (1, *column.shape):
        raise foreign(path, f"{where} has chunks {dataset.chunks}, expected one per row")
    if dataset.chunks is None or dataset.id.get_num_chunks() != math.ceil(rows / dataset.chunks[0]):
        raise foreign(path, f"{where} has rows that were never written")


def _group(parent: Any, name: str, path: Path) -> Any:
    _require_within(parent, name, path)
    group = parent[name]
    if not isinstance(group, h5py.Group):
        raise foreign(path, f"{name} is not a group")
    return group


def _dataset(parent: Any, name: str, path: Path) -> Any:
    """A dataset that is stored in the file itself."""
    folder, _, leaf = name.rpartition("/")
    parent = _group(parent, folder, path) if folder else parent
    _require_within(parent, leaf, path)
    dataset = parent[leaf]
    if fault := dataset_fault(dataset, LARGEST_CHUNK):
        raise foreign(path, f"{name} {fault}")
    return dataset


def _require_within(parent: Any, name: str, path: Path) -> None:
    if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
        raise foreign(path, f"{name} is a link, which is not followed")
