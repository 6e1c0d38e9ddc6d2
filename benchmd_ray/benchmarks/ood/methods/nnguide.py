"""NNGuide: −the energy, weighted by how near and how sure the nearest training records are."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.formulas import drawn, free_energy, unit
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

NEIGHBOURS, MOST = 10, 10_000
"""Neighbours, and records of the bank, drawn by a fixed seed."""
BLOCK = 1024


def _fit(bank: Bank, *, neighbours: int = NEIGHBOURS) -> State:
    """Unit features times their energies (records, width), and how many neighbours count."""
    rows = drawn(len(bank.seen), MOST)
    energy = free_energy(bank.seen.logits[rows], bank.head.exclusive)
    guides = unit(bank.seen.features[rows]) * energy[:, None]
    return {"bank": guides, "neighbours": np.array(min(neighbours, len(guides)))}


def _score(state: State, seen: Seen, head: Head) -> Floats:
    guides, asked = np.asarray(state["bank"], np.float64), unit(seen.features)
    k = int(state["neighbours"])
    guide = np.empty(len(asked))
    for start in range(0, len(asked), BLOCK):
        products = asked[start : start + BLOCK] @ guides.T
        largest = np.partition(products, len(guides) - k, axis=1)[:, -k:]
        guide[start : start + BLOCK] = largest.mean(axis=1)
    return -free_energy(seen.logits, head.exclusive) * guide


METHOD = Detector("nnguide", "NNGuide", _fit, _score, "Park, Jung and Teoh, ICCV 2023")
