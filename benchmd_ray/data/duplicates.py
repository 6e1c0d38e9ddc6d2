"""Records of equal content: they are one patient's, whatever their patient IDs say.

Content is the hash of a signal as it is stored (`records.contents`). These are functions of the
parts of a build, each the summary of a shard with what `rows_of` gives; nothing is read or written.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.data.records import CONTENT, HELD_OUT, content_hashes

Mode = Literal["merge", "keep", "refuse"]
KEPT_IN = (HELD_OUT, "test", "validation", "train")
"""Splits, the first of which keeps a patient who is in several."""
COPIES = "it is an exact copy of another record"
LEAKED = "it is an exact copy of a record in another split"
"""Warnings of a build."""
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Change(NamedTuple):
    """What becomes of the rows of a shard."""

    kept: Mask
    """(rows,)"""
    patients: Mapping[str, str]
    """New patient of those that change."""
    excluded: Mapping[str, int]
    """Rows that go, by reason."""


@dataclass(frozen=True)
class Changes:
    """What a build does about its duplicates."""

    of: Mapping[str, Change]
    """By name of the part; parts that stay as they are have none."""
    warnings: Mapping[str, int]
    """Duplicates among the records that stay."""


def rows_of(table: pa.Table) -> dict[str, str]:
    """Content and patient of each row of a shard, compact enough for a million rows.

    Patients are places in the part's sorted ``groups``.
    """
    groups = pa.array(sorted(set(table["group_id"].to_pylist())), pa.string())
    places = pc.index_in(table["group_id"], groups).to_numpy()
    return {
        "contents": _packed(content_hashes(table[CONTENT]).astype("<u8")),
        "row_groups": _packed(places.astype("<i4")),
    }


def changes(parts: Sequence[Mapping[str, Any]], *, merge: bool) -> Changes:
    """What becomes of the duplicates in the parts of a build.

    With ``merge``, patients who share content are one, named as the first of them. Who then is in
    several splits stays in the first of `KEPT_IN`. Else only the warnings are given.
    """
    rows = _Rows.of([part for part in parts if part["rows"]])
    kept = np.ones(len(rows.contents), bool)
    if not rows.have_copies:
        return Changes({}, {})
    of: dict[str, Change] = {}
    if merge:
        first = _first_patients(rows)
        ranks = np.full(len(rows.names), len(KEPT_IN), np.int64)
        np.minimum.at(ranks, first[rows.patients], rows.ranks)
        merged = np.isin(first, np.flatnonzero(np.bincount(first, minlength=len(first)) > 1))
        kept = ~merged[rows.patients] | (rows.ranks == ranks[first[rows.patients]])
        of = _by_part(rows, first, kept, ranks)
    return Changes(of, rows.warnings(kept))


@dataclass(frozen=True)
class _Rows:
    """All rows of a build."""

    parts: list[str]
    """Names of the parts."""
    ends: list[int]
    """Of each part, the row after its last."""
    contents: npt.NDArray[np.uint64]
    patients: Integers
    """Places in the names."""
    names: list[str]
    """Sorted."""
    ranks: Integers
    """Place of each row's split in `KEPT_IN`."""

    @classmethod
    def of(cls, parts: Sequence[Mapping[str, Any]]) -> _Rows:
        groups = pa.array([name for part in parts for name in part["groups"]], pa.string())
        names = groups.unique()
        names = names.take(pc.sort_indices(names))
        ends = np.cumsum([len(part["groups"]) for part in parts])[:-1]
        by_part = np.split(pc.index_in(groups, names).to_numpy(), ends)  # looked up at once
        contents, patients, ranks = [], [], []
        for part, places in zip(parts, by_part, strict=True):
            contents.append(_unpacked(part["contents"], "<u8"))
            patients.append(places[_unpacked(part["row_groups"], "<i4")])
            rank = KEPT_IN.index(part["split"]) if part["split"] in KEPT_IN else len(KEPT_IN)
            ranks.append(np.full(part["rows"], rank))
        return cls(
            [part["name"] for part in parts],
            np.cumsum([part["rows"] for part in parts]).tolist(),
            np.concatenate(contents).astype(np.uint64),
            np.concatenate(patients).astype(np.int64),
            names.to_pylist(),
            np.concatenate(ranks),
        )

    @property
    def have_copies(self) -> bool:
        stated = self.contents[self.contents != 0]
        return len(np.unique(stated)) < len(stated)

    def warnings(self, kept: Mask) -> dict[str, int]:
        """Numbers of copies among the rows that are kept."""
        some = np.flatnonzero(kept & (self.contents != 0))
        _, of, counts = np.unique(self.contents[some], return_inverse=True, return_counts=True)
        least = np.full(len(counts), len(KEPT_IN), np.int64)
        np.minimum.at(least, of, self.ranks[some])
        copies, leaked = len(some) - len(counts), int((self.ranks[some] > least[of]).sum())
        return {text: n for text, n in ((COPIES, copies), (LEAKED, leaked)) if n}


def _first_patients(rows: _Rows) -> Integers:
    """Of each patient, the first of those that are one with it."""
    from scipy.sparse import coo_array  # takes a while to import
    from scipy.sparse.csgraph import connected_components

    order = np.argsort(rows.contents, kind="stable")
    contents, patients = rows.contents[order], rows.patients[order]
    equal = (contents[1:] == contents[:-1]) & (contents[1:] != 0)
    pairs = patients[:-1][equal], patients[1:][equal]
    size = len(rows.names)
    graph = coo_array((np.ones(len(pairs[0]), bool), pairs), shape=(size, size))
    _, labels = connected_components(graph, directed=False)
    _, first = np.unique(labels, return_index=True)
    return np.asarray(first[labels], np.int64)


def _by_part(rows: _Rows, first: Integers, kept: Mask, ranks: Integers) -> dict[str, Change]:
    of, start = {}, 0
    for name, end in zip(rows.parts, rows.ends, strict=True):
        patients, stays = rows.patients[start:end], kept[start:end]
        start = end
        renamed = np.unique(patients[first[patients] != patients])
        if stays.all() and not len(renamed):
            continue
        gone, counts = np.unique(ranks[first[patients[~stays]]], return_counts=True)
        reasons = {
            f"exact copies show that its patient is in {KEPT_IN[rank]}, too": int(count)
            for rank, count in zip(gone, counts, strict=True)
        }
        names = {rows.names[place]: rows.names[first[place]] for place in renamed}
        of[name] = Change(stays, names, reasons)
    return of


def _packed(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _unpacked(text: str, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), dtype)
