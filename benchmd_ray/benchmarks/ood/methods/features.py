"""Detectors of features next to the head's weights, and to the features of training records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmd_ray.benchmarks.ood.methods.formulas import drawn, free_energy, unit
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

FLAT = 1e-6
"""Of the largest singular value of a head: weights in float32 say nothing below that."""
LEAST = 1e-6
"""Of a mean residual, as a share of the mean length: rounding leaves one of a flat space, too."""
GUIDES, MOST_GUIDES = 10, 10_000
"""Neighbours of NNGuide, and records of its bank, drawn by a fixed seed."""
GUIDE_BLOCK = 1024


def dimensions(width: int, records: int) -> int:
    """Dimensions of the principal space, as in the paper; of narrow features half of their width.

    At most half the number of records: else no training record would have a residual.
    """
    paper = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    return max(1, min(paper, records // 2))


def _fit_residual(bank: Bank, *, share: float = 1.0) -> State:
    """The origin (width,), and a basis of the residual space (width, dimensions).

    The origin is where the head gives its logits without their bias: −W⁺ b.
    """
    head = bank.head
    origin = -np.linalg.pinv(head.weight, rcond=FLAT) @ head.bias
    moved = np.asarray(bank.seen.features, np.float64) - origin
    _, vectors = np.linalg.eigh(moved.T @ moved / len(moved))
    width = len(origin)
    kept = max(1, round(share * dimensions(width, len(moved))))
    return {"origin": origin, "basis": vectors[:, : max(1, width - kept)]}


def _residual(state: State, seen: Seen, head: Head) -> Floats:
    """Length of the part outside the space that most training features fill."""
    moved = np.asarray(seen.features, np.float64) - state["origin"]
    return np.asarray(np.linalg.norm(moved @ state["basis"], axis=1))


def _fit_vim(bank: Bank, *, share: float = 1.0) -> State:
    state = _fit_residual(bank, share=share)
    length = float(_residual(state, bank.seen, bank.head).mean())
    moved = np.asarray(bank.seen.features, np.float64) - state["origin"]
    length = max(length, LEAST * float(np.linalg.norm(moved, axis=1).mean()))
    largest = float(np.asarray(bank.seen.logits, np.float64).max(axis=1).mean())
    return state | {"scale": np.array(abs(largest) / length if length > 0 else 0.0)}


def _vim(state: State, seen: Seen, head: Head) -> Floats:
    """The residual, scaled to the size of logits, minus the energy's log Σ exp z."""
    length = _residual(state, seen, head)
    return np.asarray(state["scale"] * length - free_energy(seen.logits, head.exclusive))


def _predicted(logits: npt.ArrayLike, exclusive: bool) -> npt.NDArray[np.intp]:
    """(records,): the most likely class; of labels one past the last where none is likely."""
    z = np.asarray(logits, np.float64)
    chosen = z.argmax(axis=1)
    return np.asarray(chosen if exclusive else np.where(z.max(axis=1) > 0, chosen, z.shape[1]))


def _fit_she(bank: Bank) -> State:
    """Mean features of the correctly classified records of each class, or label and none.

    Of a class without records the mean of all: (classes, width).
    """
    f = np.asarray(bank.seen.features, np.float64)
    guess = _predicted(bank.seen.logits, bank.head.exclusive)
    labels = bank.seen.logits.shape[1]
    means = np.tile(f.mean(axis=0), (labels + (not bank.head.exclusive), 1))
    for name, rows in bank.groups().items():
        place = labels if name == "none" else int(name)
        right = rows[guess[rows] == place]
        means[place] = f[right if len(right) else rows].mean(axis=0)
    return {"means": means}


def _she(state: State, seen: Seen, head: Head) -> Floats:
    """−the product of a feature vector and the mean one of the predicted class."""
    means = state["means"][_predicted(seen.logits, head.exclusive)]
    return -np.asarray((np.asarray(seen.features, np.float64) * means).sum(axis=1))


def _fit_nnguide(bank: Bank, *, neighbours: int = GUIDES) -> State:
    """Unit features times their energies (records, width), and how many neighbours count."""
    rows = drawn(len(bank.seen), MOST_GUIDES)
    energy = free_energy(bank.seen.logits[rows], bank.head.exclusive)
    guides = unit(bank.seen.features[rows]) * energy[:, None]
    return {"bank": guides, "neighbours": np.array(min(neighbours, len(guides)))}


def _nnguide(state: State, seen: Seen, head: Head) -> Floats:
    """−the energy, weighted by how near and how sure the nearest training records are."""
    guides, asked = np.asarray(state["bank"], np.float64), unit(seen.features)
    k = int(state["neighbours"])
    guide = np.empty(len(asked))
    for start in range(0, len(asked), GUIDE_BLOCK):
        products = asked[start : start + GUIDE_BLOCK] @ guides.T
        largest = np.partition(products, len(guides) - k, axis=1)[:, -k:]
        guide[start : start + GUIDE_BLOCK] = largest.mean(axis=1)
    return -free_energy(seen.logits, head.exclusive) * guide


def _fit_fdbd(bank: Bank) -> State:
    return {"mean": bank.seen.features.mean(axis=0, dtype=np.float64)}


def _fdbd(state: State, seen: Seen, head: Head) -> Floats:
    """−the mean distance to the decision boundaries, in units of the distance to the mean."""
    f, z = np.asarray(seen.features, np.float64), np.asarray(seen.logits, np.float64)
    best = z.argmax(axis=1)
    gaps = np.abs(z[np.arange(len(z)), best][:, None] - z)
    between = np.linalg.norm(head.weight[:, None] - head.weight[None], axis=2)[best]
    apart = gaps / np.where(between == 0, 1, between)
    others = z.shape[1] - 1
    away = np.linalg.norm(f - state["mean"], axis=1)
    return np.asarray(-apart.sum(axis=1) / others / np.where(away == 0, 1, away))


def _fit_nci(bank: Bank, *, share: float = 0.0) -> State:
    """The mean, and the paper's share of |f|₁, which is tuned on records of both kinds."""
    return {**_fit_fdbd(bank), "share": np.array(share)}


def _nci(state: State, seen: Seen, head: Head) -> Floats:
    """−the part of a centred feature vector along the weights of the predicted class."""
    f = np.asarray(seen.features, np.float64)
    centred = f - state["mean"]
    weights = head.weight[np.asarray(seen.logits).argmax(axis=1)]
    length = np.linalg.norm(centred, axis=1)
    along = (centred * weights).sum(axis=1) / np.where(length == 0, 1, length)
    return np.asarray(-along - state["share"] * np.abs(f).sum(axis=1))


_WANG = "Wang et al., CVPR 2022"
METHODS = (
    Detector("residual", "residual", _fit_residual, _residual, _WANG),
    Detector("vim", "ViM", _fit_vim, _vim, _WANG),
    Detector("she", "SHE", _fit_she, _she, "Zhang et al., ICLR 2023"),
    Detector("nnguide", "NNGuide", _fit_nnguide, _nnguide, "Park, Jung and Teoh, ICCV 2023"),
    Detector("fdbd", "fDBD", _fit_fdbd, _fdbd, "Liu and Qin, ICML 2024", exclusive_only=True),
    Detector("nci", "NCI", _fit_nci, _nci, "Liu and Qin, CVPR 2025"),
)
