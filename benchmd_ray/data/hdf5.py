"""Catalogs as one HDF5 file, to hand on, and back; `hdf5_layout` describes the file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.data.apart import Apart, Died, begin, serve
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import MANIFEST, Catalog, open_catalog
from benchmd_ray.data.hdf5_layout import (
    FORMAT,
    TEXTS,
    columns_of,
    foreign,
    require_layout,
    stated_manifest,
)
from benchmd_ray.data.manifest import manifest_of, shard_part
from benchmd_ray.data.records import (
    CONTENT,
    METADATA,
    binary,
    contents,
    decode_signals,
    decode_targets,
    schema,
    values_fault,
)
from benchmd_ray.data.resident import split_table
from benchmd_ray.data.verify import verify
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import (
    TEMPORARY,
    flush,
    locked,
    remove_partial,
    removed_on_failure,
    replacing,
    write_json,
)

OPTIONS = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
"""Every HDF5 library has these filters; the checksum finds damage."""
PROCESS = Apart("benchmd_ray.data.hdf5")
"""Reads files to import."""


def export_hdf5(catalog: Catalog, path: Path) -> None:
    """Write a catalog as one HDF5 file, whole or not at all, a shard at a time.

    Raises:
        BenchmdError: The catalog is damaged or holds masks, or the disk is full.
    """
    manifest, card = catalog.manifest, catalog.card
    if card.target.is_mask:
        raise BenchmdError(
            f"{catalog.path} holds masks with their geometry, which HDF5 files of catalogs do not: "
            "copy its folder instead."
        )
    for split in manifest["splits"]:
        catalog.require_split(split)
        catalog.require_unaltered(split)
    attributes = {
        "format": FORMAT,
        "dataset": card.name,
        "card_version": card.version,
        "modality": card.modality.name,
        "classes": json.dumps(card.classes),
        "options": json.dumps(manifest["options"]),
        "unit": card.signal.unit,
        "axes": json.dumps(card.signal.axes),
    } | {key: manifest[key] for key in ("policy", "digest")}
    with replacing(path) as partial, _Written(partial) as written:
        with h5py.File(written, "w", libver=("v110", "v110")) as file:
            file.attrs.update(attributes)
            encoded = np.frombuffer(json.dumps(manifest, ensure_ascii=False).encode(), np.uint8)
            file.create_dataset("manifest", data=encoded)
            for split, stated in manifest["splits"].items():
                _write_split(file.create_group(split), catalog, split, stated["records"], written)
        written.require_whole()


class _Written(io.FileIO):
    """A file for HDF5 whose writes never seem to fail, as the library crashes or aborts then.

    The first error is kept for `require_whole`; later writes are dropped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left and self._error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0

    def require_whole(self) -> None:
        if self._error is not None:
            raise self._error


def _write_split(group: Any, catalog: Catalog, split: str, rows: int, file: _Written) -> None:
    widths = _widths(catalog, split)
    for name, column in columns_of(catalog.card).items():
        chunk = (1 if name == "signal" else min(rows, 4096), *column.shape)
        dtype = column.dtype or h5py.string_dtype("utf-8", widths[name])
        group.create_dataset(name, (rows, *column.shape), dtype, chunks=chunk, **OPTIONS)
    first = 0
    for table in catalog.tables(split):
        last = first + len(table)
        for name, values in _arrays(table, catalog.card).items():
            dataset = group[name]
            # numpy's own byte strings are ASCII to HDF5, which does not turn them into UTF-8
            dataset[first:last] = (
                values.astype(dataset.dtype) if values.dtype.kind == "S" else values
            )
        file.require_whole()
        first = last


def _widths(catalog: Catalog, split: str) -> dict[str, int]:
    """Bytes of the longest text of each text column."""
    columns = {name: name for name in TEXTS}
    columns |= {f"metadata/{k}": k for k, kind in METADATA.items() if pa.types.is_string(kind)}
    widths = dict.fromkeys(columns, 1)
    table = split_table(catalog, split, list(columns.values()))
    for name, column in columns.items():
        longest = pc.max(pc.binary_length(table[column])).as_py()
        widths[name] = max(widths[name], longest or 0)
    return widths


def _arrays(table: pa.Table, card: DatasetCard) -> dict[str, npt.NDArray[Any]]:
    """The rows of a shard as they are written."""
    rows, axes = len(table), len(card.signal.stored_shape) - 1
    sizes = table["valid_size"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    arrays: dict[str, npt.NDArray[Any]] = {
        "signal": decode_signals(table["signal"], card.signal),
        "target": decode_targets(table["target"]),
        "scale": table["scale"].to_numpy(),
        "valid_size": sizes.reshape(rows, axes),
    }
    arrays |= {name: _encoded(table[name].to_pylist()) for name in TEXTS}
    for name, kind in METADATA.items():
        values = table[name].to_pylist()
        is_known = np.array([value is not None for value in values])
        arrays[f"metadata/{name}_known"] = is_known
        arrays[f"metadata/{name}"] = (
            _encoded([value or "" for value in values])
            if pa.types.is_string(kind)
            else np.array([value or 0 for value in values], np.float32)
        )
    return arrays


def _encoded(texts: list[str]) -> npt.NDArray[np.bytes_]:
    return np.array([text.encode() for text in texts])


def import_hdf5(path: Path, out: Path) -> Catalog:
    """Make a catalog of a file that `export_hdf5` wrote, whole or not at all.

    Records and shards are those of the exported catalog; with the same library versions its digest
    is too.

    The file need not be trusted: links, other filters, types or shapes than the card has, and
    counts that do not match are refused. The folder ``out`` is missing or empty.

    Raises:
        BenchmdError: The file is missing, damaged or no such file, ``out`` holds something, or the
            disk is full.
    """
    _require_free(out)
    with locked(out / ".lock", f"the catalog {out}"):
        _require_free(out)
        remove_partial(out)
        partial = out / f"{TEMPORARY}import"
        with removed_on_failure(partial, out):
            _write_apart(path, partial)
            if faults := verify(open_catalog(partial)).faults:
                raise foreign(path, faults[0])
            flush(partial)
            for name in ("shards", MANIFEST):
                (partial / name).rename(out / name)
            partial.rmdir()
    return open_catalog(out)


def _require_free(out: Path) -> None:
    """Refuse a folder with more than an interrupted import leaves."""
    if out.is_dir():
        names = [path.name for path in out.iterdir()]
        if all(name == ".lock" or name.startswith(TEMPORARY) for name in names):
            return
    if out.exists():
        raise BenchmdError(f"{out} is there already: choose another --out, or remove it.")


def _write_apart(path: Path, out: Path) -> None:
    """Write a file's catalog in a separate process, as HDF5 is a native library.

    Raises:
        BenchmdError: It cannot be read, or ends the process.
        OSError: The catalog cannot be written.
    """
    try:
        reply, _ = PROCESS.call({"path": str(path), "out": str(out)})
    except Died as died:
        if died.outside:
            raise BenchmdError(
                f"{path} {died.how}. Free memory where it is short, and run the same command again."
            ) from None
        raise foreign(path, f"it {died.how}") from None
    finally:
        PROCESS.close()
    if "errno" in reply:
        raise OSError(reply["errno"], reply["error"])
    if "error" in reply:
        raise BenchmdError(reply["error"])


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Write the file ``path`` as the catalog ``out``; or ``error``, with the system's ``errno``."""
    path = Path(request["path"])
    begin(0)
    try:
        with _reading(path):
            _write_catalog(path, Path(request["out"]))
    except BenchmdError as error:
        return {"error": str(error)}, b""
    except OSError as error:
        return {"error": error.strerror, "errno": error.errno}, b""
    return {}, b""


def _write_catalog(path: Path, out: Path) -> None:
    with h5py.File(path, "r") as file:
        stated, card = stated_manifest(file, path)
        require_layout(file, stated, card, path)
        parts = list(_parts(file, stated, card, out, path))
    manifest = manifest_of(card, stated, parts)
    for key in ("splits", "statistics", "schema"):
        if manifest[key] != stated[key]:
            raise foreign(path, f"its rows give other {key} than its manifest states")
    write_json(out / MANIFEST, manifest)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a message that names it."""
    if not path.is_file():
        raise BenchmdError(f"{path} is missing: expected a file of `benchmd catalog export`.")
    try:
        yield
    except (BenchmdError, MemoryError):
        raise
    except Exception as error:  # h5py raises whatever it meets
        if isinstance(error, OSError) and error.errno:  # a disk or its permissions, not the file
            raise
        raise foreign(path, f"it is damaged or foreign ({type(error).__name__})") from error


def _parts(
    file: Any, stated: Mapping[str, Any], card: DatasetCard, folder: Path, path: Path
) -> Iterator[dict[str, Any]]:
    """Write the rows that the manifest states as shards, and yield their parts."""
    first: dict[str, int] = {}
    seen = []  # hashes, for there may be millions of records
    for number, shard in enumerate(stated["shards"], 1):
        begin(number)
        split, rows = shard["split"], shard["rows"]
        start = first.setdefault(split, 0)
        first[split] = start + rows
        table = _table(file[split], slice(start, start + rows), split, card, path)
        seen.append(np.array([hash(name) for name in table["record_id"].to_pylist()]))
        yield {
            "name": Path(shard["file"]).stem,
            "split": split,
            "rows": rows,
            **shard_part(table, folder / shard["file"], card),
        }
    if len(np.unique(np.concatenate(seen))) != sum(first.values()):
        raise foreign(path, "a record appears twice")


def _table(group: Any, rows: slice, split: str, card: DatasetCard, path: Path) -> pa.Table:
    layout, count = schema(card), rows.stop - rows.start
    numbers = {name: group[name][rows] for name in ("scale", "valid_size", "target")}
    ages = np.where(group["metadata/age_known"][rows], group["metadata/age"][rows], 0.0)
    held_out = group["metadata/held_out_known"][rows]
    if fault := values_fault(card, age=ages, held_out=held_out, **numbers):
        raise foreign(path, fault)
    signals = np.ascontiguousarray(group["signal"][rows])
    columns: dict[str, Any] = {
        "signal": binary(signals),
        CONTENT: contents(signals, card.signal, numbers["valid_size"].tolist()),
        "split": pa.array([split] * count, pa.string()),
        "scale": pa.array(numbers["scale"], pa.float32()),
    }
    for name in ("target", "valid_size"):
        values = numbers[name]
        kind = layout.field(name).type
        flat = pa.array(values.ravel(), kind.value_type)
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, type=kind)
    for name in TEXTS:
        columns[name] = pa.array(_texts(group[name], rows), pa.string())
    for name, kind in METADATA.items():
        column, are_known = group[f"metadata/{name}"], group[f"metadata/{name}_known"][rows]
        is_text = pa.types.is_string(kind)
        values = _texts(column, rows) if is_text else column[rows].tolist()
        columns[name] = pa.array(np.array(values, object), kind, mask=~are_known)
    return pa.table({name: columns[name] for name in layout.names}, schema=layout)


def _texts(dataset: Any, rows: slice) -> list[str]:
    return [text.decode() for text in dataset[rows]]


if __name__ == "__main__":
    serve(answer)
