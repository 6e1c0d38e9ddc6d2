"""A record, one scored signal with its target, and how a catalog's Parquet shards store it."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.geometry import GEOMETRY, Geometry
from benchmd_ray.errors import composed, shown
from benchmd_ray.modality.signals import Signal, valid_area
from benchmd_ray.modality.tasks import UNKNOWN, Target

PERSON: dict[str, pa.DataType] = {
    "age": pa.float32(),
    "sex": pa.string(),
    "site": pa.string(),
    "device": pa.string(),
    "view": pa.string(),
}
"""Columns kept about the person and the acquisition, null where the source does not say."""
METADATA: dict[str, pa.DataType] = {**PERSON, "held_out": pa.string()}
"""All columns that may be null: `PERSON`, and ``held_out``.

``held_out`` names, separated by `SEPARATOR`, the conditions for which a record of the split
`HELD_OUT` is in it; null elsewhere.
"""
HELD_OUT = "heldout"
"""Split of records that nothing is trained, chosen or normalised on; see `data.holding_out`."""
SEPARATOR = "; "

OLDEST_AGE = 90.0
"""Ages above are stored as this one: very high ages can identify a person."""
CONTENT = "content"
"""Column with the hash of each record's signal; see `contents`."""
CONTENT_BYTES = 8
MOST_NAMES, LONGEST_NAME = 40, 16
"""Channels that a message names, and the characters of a name; EDF has 16."""


class RecordError(Exception):
    """A raw file cannot become a record; it is quarantined with this reason."""


def shown_names(names: Iterable[str]) -> str:
    """Names of channels for a message, shortened."""
    shortened = [name[:LONGEST_NAME] for name in names]
    more = f" and {len(shortened) - MOST_NAMES:,} more" if len(shortened) > MOST_NAMES else ""
    return ", ".join(shortened[:MOST_NAMES]) + more


def require_once(what: str, name: str, count: int, names: Iterable[str]) -> None:
    """Refuse a channel that a file does not have exactly once."""
    if count != 1:
        has = f"has no {what} {name}" if count == 0 else f"has {what} {name} {count} times"
        raise RecordError(f"it {has}, expected once; its {what}s are {shown_names(names)}")


class RecordExcluded(Exception):
    """The protocol excludes the record; it is counted under this reason."""


@dataclass(frozen=True)
class Record:
    """One example of a catalog."""

    record_id: str
    """Unique in the dataset."""
    group_id: str
    """The patient, hashed; splits and bootstrap go by it."""
    unit_id: str
    """What is scored: the scan of a CT window, elsewhere the record itself."""
    signal: npt.NDArray[np.int16] | npt.NDArray[np.uint8]
    """Shape and type as the signal's ``stored_shape`` and ``dtype``."""
    scale: float
    """Physical value = stored value × scale, in the signal's unit."""
    valid_size: tuple[int, ...]
    """Extent of the signal along each axis but the channel's; beyond it lies padding."""
    target: Sequence[int] | npt.NDArray[np.uint8]
    """One value per class: 1, 0, or -1 for unknown; of a segmentation the mask, of the signal's
    stored extents."""
    metadata: dict[str, float | str | None] = field(default_factory=dict)
    """Values for the columns of `METADATA`."""
    geometry: Geometry | None = None
    """Of a segmentation: the grid of its file, for predictions to go back to."""


ID_KEY = "BENCHMD_ID_KEY"
"""Variable with the secret by which patients are hashed."""


def hashed_patient(namespace: str, patient: str) -> str:
    """A stable pseudonym of a patient, 16 hex digits; the same in all forms of Unicode.

    The hash is keyed by the card's ``namespace`` and the secret in ``BENCHMD_ID_KEY``, if set: set
    it where patient numbers could be guessed and found by hashing them all.
    """
    key = hashlib.blake2b(f"{namespace}:{os.environ.get(ID_KEY, '')}".encode()).digest()
    return hashlib.blake2b(composed(patient).encode(), key=key, digest_size=8).hexdigest()


def id_key_digest(namespace: str) -> str:
    """A digest that tells the secret by which patients are hashed from others; empty without."""
    return hashed_patient(namespace, "") if os.environ.get(ID_KEY) else ""


def schema(card: DatasetCard) -> pa.Schema:
    """Arrow schema of a dataset's shards; signals are C order, native little-endian."""
    signal = card.signal
    width = int(np.prod(signal.stored_shape)) * np.dtype(signal.dtype).itemsize
    stored = pa.field(
        "signal",
        pa.binary(width),
        nullable=False,
        metadata={
            "dtype": signal.dtype,
            "shape": ",".join(map(str, signal.stored_shape)),
            "unit": signal.unit,
        },
    )
    return pa.schema(
        [
            pa.field("record_id", pa.string(), nullable=False),
            pa.field("group_id", pa.string(), nullable=False),
            pa.field("unit_id", pa.string(), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            stored,
            pa.field(CONTENT, pa.binary(CONTENT_BYTES)),
            pa.field("scale", pa.float32(), nullable=False),
            pa.field("valid_size", pa.list_(pa.int32(), len(signal.stored_shape) - 1)),
            pa.field("target", _arrow_type(card.target), nullable=False),
            *([pa.field("geometry", GEOMETRY, nullable=False)] if card.target.is_mask else []),
            *(pa.field(name, kind) for name, kind in METADATA.items()),
        ]
    )


def _arrow_type(target: Target) -> pa.DataType:
    if target.is_mask:
        return pa.binary(int(np.prod(target.shape)))
    return pa.list_(pa.from_numpy_dtype(np.dtype(target.dtype)), int(np.prod(target.shape)))


def checked(record: Record, card: DatasetCard) -> Record:
    """The record itself, when a catalog of that dataset can hold it.

    Raises:
        RecordError: Its signal, scale, valid size, target or metadata is invalid.
    """
    shape, dtype = card.signal.stored_shape, np.dtype(card.signal.dtype)
    if record.signal.shape != shape or record.signal.dtype != dtype:
        raise RecordError(
            f"{record.record_id}: signal of shape {record.signal.shape} and type "
            f"{record.signal.dtype}, expected {shape} and {dtype}"
        )
    fault = None
    for name, kind in METADATA.items():
        value = record.metadata.get(name)
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if value is not None and not (
            isinstance(value, str) if pa.types.is_string(kind) else number
        ):
            has = "of another type" if card.hides_names else shown(value)
            fault = f"its {name} is {has}, expected {kind}"
    if card.target.is_mask and record.geometry is None:
        fault = "it has a mask and no geometry"
    if not fault:
        fault = values_fault(
            card,
            scale=np.array([record.scale], float),
            valid_size=np.array([record.valid_size]),
            target=np.array([record.target]),
            age=np.array([record.metadata.get("age") or 0.0], float),
            held_out=np.array([record.metadata.get("held_out") is not None]),
        )
    if fault:
        raise RecordError(f"{record.record_id}: {fault}")
    return record


def values_fault(
    card: DatasetCard,
    *,
    scale: npt.NDArray[Any],
    valid_size: npt.NDArray[Any],
    target: npt.NDArray[Any],
    age: npt.NDArray[Any],
    held_out: npt.NDArray[np.bool_],
) -> str | None:
    """What is wrong with the values of some rows, None when nothing is.

    ``valid_size`` is (rows, axes but the channel's), ``target`` (rows, *shape of a target), ``age``
    in years, zero where unknown; classes of records that are ``held_out`` must be unknown.
    """
    extent = card.signal.stored_shape[1:]
    with np.errstate(over="ignore"):
        stored = scale.astype(np.float32)
    if not (np.isfinite(stored) & (stored > 0)).all():
        return "a scale is not a positive number"
    if (
        valid_size.shape[1:] != (len(extent),)
        or not ((valid_size >= 1) & (valid_size <= extent)).all()
    ):
        return f"a valid size is not within the signal, {extent}"
    if fault := card.target.fault(target[~held_out]):
        return fault
    if not (target[held_out] == UNKNOWN).all():
        return "the target of a record that is held out is known"
    if not ((age >= 0) & (age <= OLDEST_AGE)).all():
        return f"an age is not within 0 to {OLDEST_AGE:g} years"
    return None


def to_table(records: Sequence[Record], split: str, card: DatasetCard) -> pa.Table:
    """`checked` records of one split as an Arrow table with `schema`."""
    layout, rows = schema(card), len(records)
    signals = np.array([record.signal for record in records], card.signal.dtype)
    columns: dict[str, pa.Array] = {
        "signal": binary(signals.reshape(rows, *card.signal.stored_shape)),
        CONTENT: contents(signals, card.signal, [record.valid_size for record in records]),
        "split": pa.array([split] * rows, pa.string()),
    }
    plain = ["record_id", "group_id", "unit_id", "scale", "valid_size"]
    if card.target.is_mask:
        masks = np.array([record.target for record in records], card.target.dtype)
        columns["target"] = binary(masks.reshape(rows, *card.target.shape))
        geometries = [record.geometry and asdict(record.geometry) for record in records]
        columns["geometry"] = pa.array(geometries, GEOMETRY)
    else:
        plain.append("target")
    for name in plain:
        columns[name] = pa.array([getattr(r, name) for r in records], layout.field(name).type)
    for name, kind in METADATA.items():
        columns[name] = pa.array([r.metadata.get(name) for r in records], kind)
    return pa.table({name: columns[name] for name in layout.names}, schema=layout)


def contents(
    signals: npt.NDArray[np.generic], signal: Signal, valid_sizes: Iterable[Sequence[int]]
) -> pa.Array:
    """Hash of each signal as it is stored: equal for equal signals, whatever their records' names.

    The scale is not hashed on purpose: of signals stored over their own range, such as ECGs, a copy
    in another unit or gain has the same steps, and would leak as any other copy.
    Null for signals that are constant in each channel, such as blank images and electrodes that
    are off: equal ones say nothing about patients. Padding does not count.
    """
    channels, *extents = signal.stored_shape
    hashes = []
    for stored, size in zip(signals, valid_sizes, strict=True):
        values = stored[:, *valid_area(extents, size)].reshape(channels, -1)
        varies = (values != values[:, :1]).any()
        data = np.ascontiguousarray(stored).data
        hashes.append(hashlib.blake2b(data, digest_size=CONTENT_BYTES).digest() if varies else None)
    return pa.array(hashes, pa.binary(CONTENT_BYTES))


def content_hashes(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """A table's `CONTENT` as numbers, (rows,); 0 where it is null."""
    whole = column.combine_chunks().fill_null(bytes(CONTENT_BYTES))
    return np.asarray(_decoded(whole, (), np.dtype(">u8")), np.uint64)


def binary(values: npt.NDArray[np.generic]) -> pa.Array:
    """Arrays (rows, …) as binary of fixed size."""
    width = math.prod(values.shape[1:]) * values.itemsize
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(values), [None, pa.py_buffer(values)]
    )


def decode_signals(column: pa.ChunkedArray | pa.Array, signal: Signal) -> npt.NDArray[np.generic]:
    """Signals of a table's ``signal`` column, (rows, *stored_shape); zero-copy for one chunk."""
    return _decoded(column, signal.stored_shape, np.dtype(signal.dtype))


def _decoded(
    column: pa.ChunkedArray | pa.Array, shape: Sequence[int], dtype: np.dtype[Any]
) -> npt.NDArray[np.generic]:
    """Arrays of a column of binary of fixed size: (rows, *shape)."""
    if isinstance(column, pa.ChunkedArray):
        chunks = [_decoded(chunk, shape, dtype) for chunk in column.chunks]
        if len(chunks) == 1:
            return chunks[0]
        return np.concatenate(chunks) if chunks else np.empty((0, *shape), dtype)
    width = column.type.byte_width
    values = np.frombuffer(
        column.buffers()[1],
        dtype,
        len(column) * width // dtype.itemsize,
        column.offset * width,
    )
    return values.reshape(len(column), *shape)


def targets_of(column: pa.ChunkedArray, target: Target) -> npt.NDArray[Any]:
    """Targets of a table, (rows, *shape): values of the classes, or masks."""
    if target.is_mask:
        return _decoded(column, target.shape, np.dtype(target.dtype))
    return decode_targets(column)


def positives_per_unit(table: pa.Table, positive: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Positive units of a table per class, (classes,): those with a positive row.

    `positive` is (rows, classes), as of `Target.present`.
    """
    names, unit = np.unique(table["unit_id"].to_pylist(), return_inverse=True)
    is_positive = np.zeros((len(names), positive.shape[1]), bool)
    np.logical_or.at(is_positive, unit, positive)
    return np.asarray(is_positive.sum(axis=0), np.int64)


def conditions(table: pa.Table) -> dict[str, int]:
    """Rows of a table with each condition for which they are held out."""
    texts = (text for text in table["held_out"].to_pylist() if text is not None)
    return dict(Counter(name for text in texts for name in text.split(SEPARATOR)))


def decode_targets(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """Values of the classes in a table, (rows, classes)."""
    rows, classes = len(column), column.type.list_size
    flat: npt.NDArray[np.int8] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.int8).reshape(rows, classes)
