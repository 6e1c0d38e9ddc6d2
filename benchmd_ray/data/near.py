"""Near duplicates: records that look alike, such as resized, recompressed or rescaled copies.

A record's low frequencies (DCT) stand for it. Of images and volumes their signs are compared, a
perceptual hash that ignores brightness, contrast and size; of signals over time their
correlation, which ignores each channel's gain and offset. The limits follow from chance, not from
data. Among 100,000 records are 5e9 pairs. Two unrelated images differ in half of the bits; even if
shared anatomy fixes half of these, 10 % are 7 standard deviations below the mean of 25 %
(p < 1e-11). Two unrelated signals of 15 effective dimensions correlate by 0.98 with p < 1e-9.
Images of one scan or one projection can look alike all the same: a pair is a caution, no fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.records import CONTENT, content_hashes, decode_signals
from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.modality.signals import Signal, valid_area

FREQUENCIES = {2: 16, 3: 8}
"""Lowest frequencies along each axis of an image (2 axes) and of a volume (3)."""
SIGNAL_VALUES = 1024
"""Values that stand for a signal over time, of all channels together."""
DIFFERENT_BITS = 0.1
"""Largest fraction of bits that differ in images and volumes that look alike."""
CORRELATION = 0.98
"""Least correlation of signals over time that look alike."""
LEAST_STEPS = 1.0
"""Stored steps (root mean square of low frequencies) below which a channel is nearly constant."""
CLEAR_STEPS = 8.0
"""Stored steps of a frequency from which its sign is a bit: recompression may change others."""
FEWEST_BITS = 64
"""Images and volumes with fewer bits are not compared, as chance might make them alike."""
BLOCK = 4096
"""Records that are compared with as many others at once."""
NAMED = 10
"""Pairs that are named."""
Vector = npt.NDArray[np.float32]
COLUMNS = ["record_id", "group_id", "split", CONTENT, "valid_size", "signal"]


@dataclass(frozen=True)
class Described:
    """The records of a catalog that are not too smooth, sorted by their IDs."""

    catalog: Catalog
    vectors: Vector
    """(records, values), each of length 1; the product of two is their similarity."""
    names: npt.NDArray[np.str_]
    patients: npt.NDArray[np.str_]
    splits: npt.NDArray[np.str_]
    contents: npt.NDArray[np.uint64]
    constant: int
    """Records that are too smooth."""


@dataclass
class Alike:
    """Counts of pairs that look alike."""

    pairs: int = 0
    across_splits: int = 0
    of_two_patients: int = 0
    copies: int = 0
    """Pairs of exactly equal content."""
    first: list[tuple[int, int, int]] = field(default_factory=list)
    """The first `NAMED`: (rank, place of the one, place of the other). Those across splits and of
    two patients come first, then they are in the order of record IDs."""


def near_duplicates(catalog: Catalog, other: Catalog | None = None) -> list[str]:
    """What to say about records of a catalog that look alike, or like those of another one.

    Raises:
        BenchmdError: The two catalogs cannot be compared, or one is damaged.
    """
    if other is not None:
        _require_comparable(catalog, other)
    one = described(catalog)
    two = one if other is None else described(other)
    lines = _report(one, two, alike(one, two))
    for each in (one, two)[: 1 if other is None else 2]:
        if each.constant:
            verb = "is" if each.constant == 1 else "are"
            count = count_of(each.constant, "record")
            lines.append(f"{count} of {each.catalog.path} {verb} too smooth to be compared")
    return lines


def described(catalog: Catalog) -> Described:
    """Describe the records of all splits of a catalog."""
    signal = catalog.signal
    vectors: list[Vector] = []
    tables, constant = [], 0
    for split in catalog.manifest["splits"]:
        for table in catalog.tables(split, COLUMNS):
            signals, sizes = decode_signals(table["signal"], signal), table["valid_size"]
            drawn = [
                description(values, size, signal)
                for values, size in zip(signals, sizes.to_pylist(), strict=True)
            ]
            vectors += [vector for vector in drawn if vector is not None]
            varies = pa.array([vector is not None for vector in drawn], pa.bool_())
            constant += len(drawn) - varies.true_count
            tables.append(table.drop_columns(["signal", "valid_size"]).filter(varies))
    whole = pa.concat_tables(tables)
    order = pc.sort_indices(whole, [("record_id", "ascending")])
    whole = whole.take(order)
    names, patients, splits = (
        np.array(whole[name].to_pylist(), np.str_) for name in ("record_id", "group_id", "split")
    )
    matrix = np.stack(vectors)[order.to_numpy()] if vectors else np.empty((0, 1), np.float32)
    contents = content_hashes(whole[CONTENT])
    return Described(catalog, matrix, names, patients, splits, contents, constant)


def description(values: npt.NDArray[np.generic], size: list[int], signal: Signal) -> Vector | None:
    """A record (*stored_shape) as a vector of length 1; None if it is too smooth."""
    valid = values[:, *valid_area(signal.stored_shape[1:], size)].astype(np.float32)
    least = LEAST_STEPS * np.sqrt(valid[0].size)
    if len(size) == 1:
        count = max(1, SIGNAL_VALUES // len(valid))
        waves = valid @ _cosines(valid.shape[1], count + 1)[1:].T
        lengths = np.linalg.norm(waves, axis=1, keepdims=True)
        varies = lengths >= least
        waves = np.where(varies, waves / np.where(varies, lengths, 1), 0)
        return waves.ravel() / np.float32(np.sqrt(varies.sum())) if varies.any() else None
    low = valid.mean(axis=0)
    for extent in low.shape:  # each turn transforms the first axis and makes it the last
        low = np.tensordot(low, _cosines(extent, FREQUENCIES[len(size)]), axes=(0, 1))
    bits = low.ravel()[1:]  # not the mean
    signs = np.sign(bits) * (np.abs(bits) >= CLEAR_STEPS)
    clear = np.count_nonzero(signs)
    return signs.astype(np.float32) / np.float32(np.sqrt(clear)) if clear >= FEWEST_BITS else None


@cache
def _cosines(extent: int, count: int) -> Vector:
    """The lowest basis vectors of the orthonormal DCT-II, (count, extent), and then zeros."""
    places = (np.arange(extent) + 0.5) / extent
    waves = np.cos(np.pi * np.arange(count)[:, None] * places) * np.sqrt(2 / extent)
    waves[0] = np.sqrt(1 / extent)
    waves[extent:] = 0
    return np.asarray(waves, np.float32)


def alike(one: Described, two: Described) -> Alike:
    """Count the pairs that look alike, of which the second record is in `two`.

    If both are the same, each pair counts once. Memory is that of a block.
    """
    result = Alike()
    for i, j in _pairs(one, two):
        other_split = (one.splits[i] != two.splits[j]) & (one is two)
        other_patient = one.patients[i] != two.patients[j]
        equal = (one.contents[i] == two.contents[j]) & (one.contents[i] != 0)
        result.pairs += len(i)
        result.across_splits += int(other_split.sum())
        result.of_two_patients += int(other_patient.sum())
        result.copies += int(equal.sum())
        ranks = 3 - 2 * other_split - 1 * other_patient
        some = np.argsort(ranks, kind="stable")[:NAMED]
        named = zip(ranks[some].tolist(), i[some].tolist(), j[some].tolist(), strict=True)
        result.first = sorted([*result.first, *named])[:NAMED]
    return result


def _pairs(
    one: Described, two: Described
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Places of pairs that look alike, block by block; in each, the first places ascend."""
    least = _limit(one.catalog.signal)
    for top in range(0, len(one.vectors), BLOCK):
        for left in range(top if one is two else 0, len(two.vectors), BLOCK):
            similar = one.vectors[top : top + BLOCK] @ two.vectors[left : left + BLOCK].T >= least
            if one is two and left == top:
                similar = np.triu(similar, 1)
            i, j = np.nonzero(similar)
            yield i + top, j + left


def _limit(signal: Signal) -> float:
    """Least product of two vectors that look alike; of bits it is 1 - 2 × the fraction."""
    return CORRELATION if _is_over_time(signal) else 1 - 2 * DIFFERENT_BITS


def _is_over_time(signal: Signal) -> bool:
    return len(signal.axes) == 2


def _require_comparable(catalog: Catalog, other: Catalog) -> None:
    if catalog.digest == other.digest:
        raise BenchmdError(
            f"{catalog.path} and {other.path} are one catalog: name another, or use --near."
        )
    ours, theirs = catalog.signal, other.signal
    fits = ours.axes == theirs.axes
    if fits and _is_over_time(ours):
        fits = (ours.channels, ours.stored_shape[0]) == (theirs.channels, theirs.stored_shape[0])
    if not fits:
        raise BenchmdError(
            f"the signals of {catalog.path} ({ours.name}) and {other.path} ({theirs.name}) cannot "
            "be compared: expected two catalogs of images, of volumes, or of signals over time "
            "with the same channels."
        )


def _report(one: Described, two: Described, found: Alike) -> list[str]:
    what = f"correlation of at least {CORRELATION}"
    if not _is_over_time(one.catalog.signal):
        what = f"at most {DIFFERENT_BITS:.0%} of {one.vectors.shape[1]} bits differ"
    where = "" if one is two else f" of {one.catalog.path} and {two.catalog.path}"
    if not found.pairs:
        return [f"no two records{where} look alike ({what})"]
    same_names = one.catalog.card.namespace == two.catalog.card.namespace
    counts = [
        *([f"{found.across_splits:,} across splits"] if one is two else []),
        f"{found.of_two_patients:,} with different patient IDs"
        if same_names
        else "patient IDs cannot be compared",
        f"{found.copies:,} of equal content",
    ]
    verb = "looks" if found.pairs == 1 else "look"
    lines = [
        f"{count_of(found.pairs, 'pair')} of records{where} {verb} alike ({what}): "
        f"{', '.join(counts)}"
    ]
    for rank, i, j in found.first:
        patients = f", {'different patient IDs' if rank % 2 == 0 else 'one patient'}"
        lines.append(
            f"{one.names[i]} ({one.splits[i]}) and {two.names[j]} ({two.splits[j]})"
            f"{patients if same_names else ''}"
        )
    return lines
