"""Catalogs as one HDF5 file, to be handed on, and back; of any modality.

Layout: a group per split with the datasets ``signal`` (rows, *stored_shape), one chunk per row,
``target`` (rows, classes), ``scale``, ``valid_size``, ``record_id``, ``unit_id``, ``group_id`` and,
under ``metadata``, each column with a ``<column>_known`` beside; ``manifest``, a JSON text that
says how the catalog was built; attributes for whoever looks into the file.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmd_ray.data.build import ORIGIN, manifest_of, shard_part
from benchmd_ray.data.cards import POLICIES, DatasetCard, cards, dataset_card
from benchmd_ray.data.catalog import MANIFEST, Catalog, open_catalog
from benchmd_ray.data.records import METADATA, decode_signals, decode_targets, schema
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files import TEMPORARY, flush, removed_on_failure, replacing, write_json

FORMAT = "benchmd-catalog-1"
"""Layout of the file."""
TEXTS = ("record_id", "unit_id", "group_id")
LONGEST_TEXT = 1000
"""Bytes; datasets of longer texts are refused."""
LARGEST_SHARD = 2**31
"""Signal bytes that are held at once; shards of more are refused."""
LARGEST_CHUNK = 2**26
"""Bytes; a chunk is read whole, so datasets of larger ones are refused."""
LARGEST_MANIFEST = 2**28
"""Bytes; longer ones are refused."""
FILTERS = (1, 2, 3)
"""Numbers of the filters that are taken: deflate, shuffle, Fletcher's checksum."""
OPTIONS = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
"""Every HDF5 library has these filters; the checksum finds damage."""


@dataclass(frozen=True)
class _Column:
    """A dataset of a split's group."""

    name: str
    shape: tuple[int, ...]
    """Of a row."""
    dtype: np.dtype[Any] | None
    """None for texts."""


def _columns(card: DatasetCard) -> dict[str, _Column]:
    """The datasets of a group by their names."""
    stored = card.kind.stored_shape
    found = [
        _Column("signal", stored, np.dtype(card.kind.dtype)),
        _Column("target", (len(card.classes),), np.dtype(np.int8)),
        _Column("scale", (), np.dtype(np.float32)),
        _Column("valid_size", (len(stored) - 1,), np.dtype(np.int32)),
        *(_Column(name, (), None) for name in TEXTS),
    ]
    for name, kind in METADATA.items():
        dtype = None if pa.types.is_string(kind) else np.dtype(kind.to_pandas_dtype())
        found.append(_Column(f"metadata/{name}", (), dtype))
        found.append(_Column(f"metadata/{name}_known", (), np.dtype(np.bool_)))
    return {column.name: column for column in found}


def export_hdf5(catalog: Catalog, path: Path) -> None:
    """Write a catalog as one HDF5 file, whole or not at all, a shard at a time.

    Args:
        catalog: A finished catalog of any modality.
        path: The file, which is replaced where it is there.

    Raises:
        BenchmdError: The catalog is damaged, or the disk is full.
    """
    manifest, card = catalog.manifest, catalog.card
    for split in manifest["splits"]:
        catalog.require_split(split)
        catalog.require_unaltered(split)
    attributes = {
        "format": FORMAT,
        "classes": json.dumps(card.classes),
        "options": json.dumps(manifest["options"]),
        "unit": card.kind.unit,
        "axes": json.dumps(card.kind.axes),
    } | {key: manifest[key] for key in ("dataset", "card_version", "modality", "policy", "digest")}
    with replacing(path) as partial, h5py.File(partial, "w", libver=("v110", "v110")) as file:
        file.attrs.update(attributes)
        held = np.frombuffer(json.dumps(manifest, ensure_ascii=False).encode(), np.uint8)
        file.create_dataset("manifest", data=held)
        for split, stated in manifest["splits"].items():
            _write_split(file.create_group(split), catalog, split, stated["records"])


def _write_split(group: Any, catalog: Catalog, split: str, rows: int) -> None:
    """The datasets of a split, filled shard by shard."""
    widths = _widths(catalog, split)
    for name, column in _columns(catalog.card).items():
        chunk = (1 if name == "signal" else min(rows, 4096), *column.shape)
        dtype = column.dtype or h5py.string_dtype("utf-8", widths[name])
        group.create_dataset(name, (rows, *column.shape), dtype, chunks=chunk, **OPTIONS)
    first = 0
    for path, _ in catalog.shards(split):
        table = pq.read_table(path)
        last = first + len(table)
        for name, values in _arrays(table, catalog.card).items():
            held = group[name]
            # numpy's own byte strings are ASCII to HDF5, which does not turn them into UTF-8
            held[first:last] = values.astype(held.dtype) if values.dtype.kind == "S" else values
        first = last


def _widths(catalog: Catalog, split: str) -> dict[str, int]:
    """Bytes of the longest text of each column of texts."""
    columns = {name: name for name in TEXTS}
    columns |= {f"metadata/{k}": k for k, kind in METADATA.items() if pa.types.is_string(kind)}
    widths = dict.fromkeys(columns, 1)
    for path, _ in catalog.shards(split):
        table = pq.read_table(path, columns=list(columns.values()))
        for name, column in columns.items():
            longest = pc.max(pc.binary_length(table[column])).as_py()
            widths[name] = max(widths[name], longest or 0)
    return widths


def _arrays(table: pa.Table, card: DatasetCard) -> dict[str, npt.NDArray[Any]]:
    """The rows of a shard as they are written."""
    rows, axes = len(table), len(card.kind.stored_shape) - 1
    sizes = table["valid_size"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    found: dict[str, npt.NDArray[Any]] = {
        "signal": decode_signals(table["signal"], card.kind),
        "target": decode_targets(table["target"]),
        "scale": table["scale"].to_numpy(),
        "valid_size": sizes.reshape(rows, axes),
    }
    found |= {name: _encoded(table[name].to_pylist()) for name in TEXTS}
    for name, kind in METADATA.items():
        values = table[name].to_pylist()
        known = np.array([value is not None for value in values])
        found[f"metadata/{name}_known"] = known
        found[f"metadata/{name}"] = (
            _encoded([value or "" for value in values])
            if pa.types.is_string(kind)
            else np.array([value or 0 for value in values], np.float32)
        )
    return found


def _encoded(texts: list[str]) -> npt.NDArray[np.bytes_]:
    return np.array([text.encode() for text in texts])


def import_hdf5(path: Path, out: Path) -> Catalog:
    """Make a catalog of a file that `export_hdf5` wrote, whole or not at all.

    Its records are those of the exported catalog, in shards of the same rows; with the same
    versions of the libraries its digest is the same too.

    Args:
        path: The file. It need not be trusted: links, other filters, types and shapes than those
            of the dataset's card, and counts that do not match are refused.
        out: Folder of the catalog, which must not be there, or be empty.

    Raises:
        BenchmdError: The file is missing, damaged or no such file, ``out`` holds something, or
            the disk is full.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BenchmdError(f"{out} is there already: choose another --out, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{out.name}")
    with removed_on_failure(partial, out):
        with _reading(path):
            with h5py.File(path, "r") as file:
                stated, card = _manifest(file, path)
                _require_layout(file, stated, card, path)
                parts = list(_parts(file, stated, card, partial, path))
            made = manifest_of(card, stated, parts)
            for key in ("splits", "statistics", "schema"):
                if made[key] != stated[key]:
                    raise _foreign(path, f"its rows give other {key} than its manifest states")
            write_json(partial / MANIFEST, made)
            faults = verify(open_catalog(partial)).faults
            if faults:
                raise _foreign(path, faults[0])
        flush(partial)
        partial.rename(out)
    return open_catalog(out)


def _foreign(path: Path, what: str) -> BenchmdError:
    return BenchmdError(
        f"{path} cannot be imported: {what}. Expected a file of `benchmd catalog export`; export "
        "the catalog again."
    )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a message that names it."""
    if not path.is_file():
        raise BenchmdError(f"{path} is missing: expected a file of `benchmd catalog export`.")
    try:
        yield
    except (BenchmdError, MemoryError):
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno:  # a disk or its permissions, not the file
            raise
        raise _foreign(path, f"it is damaged or foreign ({type(error).__name__})") from error


def _manifest(file: Any, path: Path) -> tuple[dict[str, Any], DatasetCard]:
    """What the file says of the exported catalog, checked, and the card of its dataset."""
    if file.attrs.get("format") != FORMAT:
        raise _foreign(path, f"its attribute 'format' is not {FORMAT!r}")
    held = _dataset(file, "manifest", path)
    if held.dtype != np.uint8 or held.ndim != 1 or len(held) > LARGEST_MANIFEST:
        raise _foreign(path, "its manifest is no text")
    stated = json.loads(held[()].tobytes().decode())
    if stated["dataset"] not in cards():
        raise _foreign(path, f"there is no card of its dataset {stated['dataset']!r}")
    card = dataset_card(stated["dataset"])
    if stated["card_version"] != card.version:
        raise _foreign(
            path,
            f"version {stated['card_version']} of its card made it, which is now {card.version}",
        )
    _require_origin(stated, card, path)
    _require_shards(stated, card, path)
    return stated, card


def _require_origin(stated: Mapping[str, Any], card: DatasetCard, path: Path) -> None:
    """What the manifest says of how the catalog was built has the form that a build gives it."""
    kinds: dict[str, type] = dict.fromkeys(ORIGIN, dict) | {"quarantined": list}
    kinds |= {"policy": str, "layout": str, "plan": str, "splits": dict, "shards": list}
    for key, kind in kinds.items():
        if not isinstance(stated[key], kind):
            raise _foreign(path, f"{key} of its manifest is no {kind.__name__}")
    if stated["policy"] not in POLICIES or stated["layout"] not in card.layouts:
        raise _foreign(path, "its policy or layout is not one of the card's")
    raw = stated["raw"]
    counts = [raw[key] for key in ("records", "expected", "missing")]
    counts += [*stated["left_out"].values(), *stated["remarks"].values()]
    texts = [raw["grouped_by"], *stated["options"].values()]
    texts += [entry[key] for entry in stated["quarantined"] for key in ("record", "reason")]
    texts += [entry["file"] or "" for entry in stated["quarantined"]]
    if not all(type(count) is int for count in counts) or not all(
        isinstance(text, str) for text in texts
    ):
        raise _foreign(
            path, "its manifest has a count that is no number, or a reason that is no text"
        )


def _require_shards(stated: Mapping[str, Any], card: DatasetCard, path: Path) -> None:
    """Shards of sound names and sizes, whose rows are those of the splits."""
    width = schema(card).field("signal").type.byte_width
    rows: dict[str, int] = {}
    names = set()
    for shard in stated["shards"]:
        file, split, count = shard["file"], shard["split"], shard["rows"]
        sound = split in stated["splits"] and re.fullmatch(r"[a-z]{1,20}", split)
        if not sound or not re.fullmatch(rf"shards/{split}-\d{{1,9}}\.parquet", file):
            raise _foreign(path, f"its manifest names an odd shard, {file!r}")
        if not isinstance(count, int) or not 0 < count * width <= LARGEST_SHARD:
            raise _foreign(path, f"its shard {file} has {count} rows")
        rows[split] = rows.get(split, 0) + count
        names.add(file)
    if rows != {k: v["records"] for k, v in stated["splits"].items()} or len(names) != len(
        stated["shards"]
    ):
        raise _foreign(path, "the rows of its shards are not those of its splits")


def _require_layout(file: Any, stated: Mapping[str, Any], card: DatasetCard, path: Path) -> None:
    """Every object is one of ours, within the file, of the right type and shape."""
    expected = {"manifest": None} | dict.fromkeys(stated["splits"])
    if set(file) != set(expected):
        raise _foreign(path, f"it holds {sorted(file)}, expected {sorted(expected)}")
    columns = _columns(card)
    for split, content in stated["splits"].items():
        group = _group(file, split, path)
        top = {name.partition("/")[0] for name in columns}
        inner = {name.partition("/")[2] for name in columns} - {""}
        if set(group) != top or set(_group(group, "metadata", path)) != inner:
            raise _foreign(path, f"its group {split} holds other datasets than expected")
        for name, column in columns.items():
            _require_column(_dataset(group, name, path), column, content["records"], path)


def _require_column(held: Any, column: _Column, rows: int, path: Path) -> None:
    where = f"its dataset {held.name}"
    text = h5py.check_string_dtype(held.dtype)
    fits = held.dtype == column.dtype if column.dtype else bool(text and text.length)
    if not fits or held.dtype.itemsize > LONGEST_TEXT:
        raise _foreign(path, f"{where} has type {held.dtype}, expected {column.dtype or 'texts'}")
    if held.shape != (rows, *column.shape):
        raise _foreign(path, f"{where} has shape {held.shape}, expected {(rows, *column.shape)}")
    if column.name == "signal" and held.chunks != (1, *column.shape):
        raise _foreign(path, f"{where} has chunks {held.chunks}, expected one per row")
    if held.chunks is None or held.id.get_num_chunks() != math.ceil(rows / held.chunks[0]):
        raise _foreign(path, f"{where} has rows that were never written")


def _group(parent: Any, name: str, path: Path) -> Any:
    _require_within(parent, name, path)
    held = parent[name]
    if not isinstance(held, h5py.Group):
        raise _foreign(path, f"{name} is no group")
    return held


def _dataset(parent: Any, name: str, path: Path) -> Any:
    """A dataset that lies in the file itself."""
    folder, _, own = name.rpartition("/")
    parent = _group(parent, folder, path) if folder else parent
    _require_within(parent, own, path)
    held = parent[own]
    if not isinstance(held, h5py.Dataset) or held.external or held.is_virtual:
        raise _foreign(path, f"{name} is no dataset within the file")
    if held.chunks and math.prod(held.chunks) * held.dtype.itemsize > LARGEST_CHUNK:
        raise _foreign(path, f"{name} has chunks of more than {LARGEST_CHUNK:,} bytes")
    created = held.id.get_create_plist()
    used = [created.get_filter(number)[0] for number in range(created.get_nfilters())]
    if not set(used) <= set(FILTERS):
        raise _foreign(path, f"{name} is compressed by a filter that is not taken")
    return held


def _require_within(parent: Any, name: str, path: Path) -> None:
    if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
        raise _foreign(path, f"{name} is a link, which is not followed")


def _parts(
    file: Any, stated: Mapping[str, Any], card: DatasetCard, folder: Path, path: Path
) -> Iterator[dict[str, Any]]:
    """Shards of the rows that the manifest states, as they are written."""
    first: dict[str, int] = {}
    seen: set[str] = set()
    for shard in stated["shards"]:
        split, rows = shard["split"], shard["rows"]
        start = first.setdefault(split, 0)
        first[split] = start + rows
        table = _table(file[split], slice(start, start + rows), split, card, path)
        names = table["record_id"].to_pylist()
        if len(set(names)) != rows or seen & set(names):
            raise _foreign(path, "a record is there twice")
        seen |= set(names)
        yield {
            "name": Path(shard["file"]).stem,
            "split": split,
            "rows": rows,
            **shard_part(table, folder / shard["file"], card),
        }


def _table(group: Any, rows: slice, split: str, card: DatasetCard, path: Path) -> pa.Table:
    """Some rows of a split as a shard's table."""
    layout, count = schema(card), rows.stop - rows.start
    signal = np.ascontiguousarray(group["signal"][rows])
    width = layout.field("signal").type.byte_width
    columns: dict[str, Any] = {
        "signal": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), count, [None, pa.py_buffer(signal)]
        ),
        "split": pa.array([split] * count, pa.string()),
        "scale": pa.array(group["scale"][rows], pa.float32()),
    }
    targets = group["target"][rows]
    if not np.isin(targets, (-1, 0, 1)).all():
        raise _foreign(path, "its targets are others than 1, 0 and -1")
    for name, values in (("target", targets), ("valid_size", group["valid_size"][rows])):
        kind = layout.field(name).type
        flat = pa.array(values.ravel(), kind.value_type)
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, type=kind)
    for name in TEXTS:
        columns[name] = pa.array(_texts(group[name], rows), pa.string())
    for name, kind in METADATA.items():
        held, known = group[f"metadata/{name}"], group[f"metadata/{name}_known"][rows]
        is_text = pa.types.is_string(kind)
        values = _texts(held, rows) if is_text else held[rows].tolist()
        columns[name] = pa.array(
            [value if is_known else None for value, is_known in zip(values, known, strict=True)],
            kind,
        )
    return pa.table({name: columns[name] for name in layout.names}, schema=layout)


def _texts(held: Any, rows: slice) -> list[str]:
    """Texts of a dataset."""
    return [text.decode() for text in held[rows]]
