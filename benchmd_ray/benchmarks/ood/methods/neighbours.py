"""Distances to nearest neighbours, exactly and in bounded memory, and detectors by them."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from benchmd_ray.benchmarks.ood.methods.formulas import drawn, unit
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

QUERIES, BANK = 512, 32768
"""Records of a block; a block of distances has 64 MB, and twice as many in float64."""
EXACT = 16
"""Queries whose exact distances are computed together: few fit the processor's cache."""
SPARE = 8
"""Candidates beyond those that are wanted: rounding may change the order of near ones."""
ROUNDING = 8 * float(np.finfo(np.float32).eps)
"""More than rounding changes a squared distance in float32, as a share of squared lengths."""


def nearest(bank: npt.ArrayLike, queries: npt.ArrayLike, k: int) -> Floats:
    """Euclidean distances to the k nearest of the bank: (queries, k), ascending.

    Candidates are chosen by products in float32, on a GPU where there is one, and their distances
    computed in float64, so that a duplicate has the distance 0. Where rounding may have hidden a
    nearer record, they are chosen again by float64. A bank of fewer than k gives all.
    """
    records, asked = np.asarray(bank, np.float32), np.asarray(queries, np.float32)
    k = min(k, len(records))
    count = min(k + SPARE, len(records))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    blocks = [
        torch.from_numpy(records[start : start + BANK]).to(device)
        for start in range(0, len(records), BANK)
    ]
    centre = records.mean(axis=0)  # products of small numbers lose less
    rows, limit = _candidates(blocks, asked, centre, count, torch.float32)
    distances = _distances(records, asked, rows)[:, :k]
    if count < len(records):
        unsure = _hidden(asked - centre, limit, distances[:, -1])
        if len(unsure):
            rows, _ = _candidates(blocks, asked[unsure], centre, count, torch.float64)
            distances[unsure] = _distances(records, asked[unsure], rows)[:, :k]
    return distances


def _distances(
    records: npt.NDArray[np.float32], asked: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]
) -> Floats:
    distances = np.empty(rows.shape)
    for start in range(0, len(asked), EXACT):
        part = slice(start, start + EXACT)
        gap = records[rows[part]].astype(np.float64)
        gap -= asked[part, None]
        gap *= gap
        distances[part] = np.sqrt(gap.sum(axis=2))
    distances.sort(axis=1)
    return distances


def _hidden(
    moved: npt.NDArray[np.float32], limit: Floats, farthest: Floats
) -> npt.NDArray[np.intp]:
    """Queries for which a record outside the candidates may be nearer than a candidate.

    ``limit`` (queries,) is what `_candidates` gives; all other records are beyond it.
    """
    length = np.sqrt((moved.astype(np.float64) ** 2).sum(axis=1))
    # A record nearer than the farthest is no longer than query and distance together.
    error = ROUNDING * (2 * length + farthest) ** 2
    return np.flatnonzero((farthest > 0) & (limit + length**2 < farthest**2 + error))


def _candidates(
    blocks: list[torch.Tensor],
    asked: npt.NDArray[np.float32],
    centre: npt.NDArray[np.float32],
    count: int,
    precision: torch.dtype,
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Rows of about the nearest, (queries, count), and the largest squared distance, (queries,).

    The distances lack the queries' own squared length, which changes no order.
    """
    device = blocks[0].device
    middle = torch.from_numpy(centre).to(device, precision)
    queries = torch.from_numpy(asked).to(device, precision) - middle
    near = torch.empty(len(asked), 0, dtype=precision, device=device)
    rows = torch.empty(len(asked), 0, dtype=torch.int64, device=device)
    for number, block in enumerate(blocks):
        moved = block.to(precision) - middle
        lengths = (moved**2).sum(dim=1)
        kept = min(count, len(moved))
        least = torch.empty(len(asked), kept, dtype=precision, device=device)
        place = torch.empty(len(asked), kept, dtype=torch.int64, device=device)
        for start in range(0, len(asked), QUERIES):
            part = slice(start, start + QUERIES)
            distance = lengths - 2 * queries[part] @ moved.T
            least[part], place[part] = distance.topk(kept, dim=1, largest=False)
        near = torch.cat([near, least], dim=1)
        rows = torch.cat([rows, place + number * BANK], dim=1)
        near, chosen = near.topk(min(count, near.shape[1]), dim=1, largest=False)
        rows = rows.gather(1, chosen)
    limit = near[:, -1].cpu().numpy()  # ascending
    return np.asarray(rows.cpu().numpy(), np.int64), np.asarray(limit, np.float64)


UNIT_BLOCK = 4096
NEIGHBOURS = 50
"""At most, of features; a tenth of the records where that is less."""
MOST_PICTURES = 1000
"""Training records whose pictures or codes are compared with, drawn by a fixed seed."""


def units(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Features of length 1, (records, width), made in blocks: a bank may have a million records."""
    scaled = np.array(features, np.float32)
    for start in range(0, len(scaled), UNIT_BLOCK):
        scaled[start : start + UNIT_BLOCK] = unit(scaled[start : start + UNIT_BLOCK])
    return scaled


def fit_knn(bank: Bank, *, neighbours: int = NEIGHBOURS) -> State:
    """The records' features of length 1, and how many neighbours are counted."""
    count = max(1, min(neighbours, len(bank.seen) // 10))
    return {"features": units(bank.seen.features), "k": np.array(count)}


def knn(state: State, seen: Seen, head: Head) -> Floats:
    """Distance to the k-th nearest, of features of length 1: within 0 and 2."""
    return nearest(state["features"], units(seen.features), int(state["k"]))[:, -1]


def flat_pictures(seen: Seen) -> npt.NDArray[np.float32]:
    """Small pictures of signals as networks see them: (records, pixels)."""
    return seen.more["pixels"].reshape(len(seen), -1)


def _fit_pictures(bank: Bank) -> State:
    return {"records": flat_pictures(bank.seen)[drawn(len(bank.seen), MOST_PICTURES)]}


def _pictures(state: State, seen: Seen, head: Head, *, k: int) -> Floats:
    return nearest(state["records"], flat_pictures(seen), k)[:, -1]


KNN = Detector("knn", "deep KNN", fit_knn, knn, "Sun et al., ICML 2022")
OF_PICTURES = tuple(
    Detector(
        f"pixel-knn-{k}",
        f"pixel KNN-{k}",
        _fit_pictures,
        partial(_pictures, k=k),
        "Shafaei et al., BMVC 2019; Cao et al., arXiv 2007.04250",
        needs=("pixels",),
    )
    for k in (1, 8)
)
