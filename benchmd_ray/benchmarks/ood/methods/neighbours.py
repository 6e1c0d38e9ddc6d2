"""The nearest neighbours of records among many, exactly and in bounded memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from benchmd_ray.benchmarks.ood.methods.method import Floats

QUERIES, BANK = 512, 32768
"""Records of a block; a block of distances has 64 MB."""
SPARE = 8
"""Candidates beyond those that are wanted: rounding may change the order of near ones."""


def nearest(bank: npt.ArrayLike, queries: npt.ArrayLike, k: int) -> Floats:
    """Euclidean distances to the k nearest: (queries, k), ascending.

    Candidates are chosen by products in float32, on a GPU where there is one, and their distances
    computed in float64, so that a duplicate has the distance 0.

    Args:
        bank: (records, width).
        queries: (queries, width).
        k: How many; all where the bank has fewer.
    """
    own, asked = np.asarray(bank, np.float32), np.asarray(queries, np.float32)
    k = min(k, len(own))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    centre = own.mean(axis=0)  # products of small numbers lose less
    blocks = [
        torch.from_numpy(own[start : start + BANK] - centre) for start in range(0, len(own), BANK)
    ]
    found = np.empty((len(asked), k))
    for start in range(0, len(asked), QUERIES):
        some = asked[start : start + QUERIES]
        rows = _candidates(blocks, torch.from_numpy(some - centre).to(device), k + SPARE)
        gap = own[rows].astype(np.float64) - some[:, None].astype(np.float64)
        exact = np.sqrt((gap**2).sum(axis=2))
        found[start : start + QUERIES] = np.sort(exact, axis=1)[:, :k]
    return found


def _candidates(
    blocks: list[torch.Tensor], queries: torch.Tensor, count: int
) -> npt.NDArray[np.int64]:
    """Rows of about the nearest records: (queries, count or all)."""
    best: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    for number, block in enumerate(blocks):
        placed = block.to(queries.device)
        # Without the queries' own length, which changes no order.
        distance = (placed**2).sum(dim=1) - 2 * queries @ placed.T
        near, place = distance.topk(min(count, len(placed)), dim=1, largest=False)
        place = place + number * BANK
        if best is not None and rows is not None:
            near, place = torch.cat([best, near], dim=1), torch.cat([rows, place], dim=1)
            near, chosen = near.topk(min(count, near.shape[1]), dim=1, largest=False)
            place = place.gather(1, chosen)
        best, rows = near, place
    assert rows is not None  # a bank has records
    return np.asarray(rows.cpu().numpy(), np.int64)
