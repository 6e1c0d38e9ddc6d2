"""Detectors that change features or weights and score by the energy of the new logits; GradNorm."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods.formulas import free_energy, probabilities
from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Detector,
    Floats,
    Head,
    Seen,
    State,
    nothing,
)

REACT_PERCENTILE = 90
DICE_KEPT = 10
"""Percent of the head's weights."""
ASH_PERCENTILE, SCALE_PERCENTILE = 65, 85
"""Of a record's features, above which they count as active."""


def _energy(features: Floats, head: Head) -> Floats:
    return -free_energy(features @ head.weight.T + head.bias, head.exclusive)


def _gradnorm(_: State, seen: Seen, head: Head) -> Floats:
    """−the length of the head's gradient towards a prediction of nothing.

    For a linear head it is −|f|₁ · |p − u|₁, where u is the same for all classes; of a label ½.
    """
    p = probabilities(seen.logits, head.exclusive)
    flat = 1 / p.shape[1] if head.exclusive else 0.5
    length = np.abs(np.asarray(seen.features, np.float64)).sum(axis=1)
    return np.asarray(-length * np.abs(p - flat).sum(axis=1))


def _fit_react(bank: Bank, *, percentile: float = REACT_PERCENTILE) -> State:
    return {"most": np.array(np.percentile(bank.seen.features, percentile))}


def _react(state: State, seen: Seen, head: Head) -> Floats:
    """The energy after features are clipped."""
    return _energy(np.minimum(np.asarray(seen.features, np.float64), state["most"]), head)


def _fit_dice(bank: Bank, *, kept: float = DICE_KEPT) -> State:
    contribution = bank.head.weight * bank.seen.features.mean(axis=0, dtype=np.float64)
    return {"kept": contribution > np.percentile(contribution, 100 - kept)}


def _dice(state: State, seen: Seen, head: Head) -> Floats:
    """The energy with the head's weights that contribute most on average."""
    kept = Head(head.weight * state["kept"], head.bias, head.exclusive)
    return _energy(np.asarray(seen.features, np.float64), kept)


def _fit_ash(_: Bank, *, percentile: float = ASH_PERCENTILE) -> State:
    return {"percentile": np.array(percentile)}


def _fit_scale(_: Bank, *, percentile: float = SCALE_PERCENTILE) -> State:
    return {"percentile": np.array(percentile)}


def _peaked(features: Floats, percentile: float) -> tuple[Floats, Floats]:
    """Features with the small ones set to 0, and the factor of ASH and SCALE: exp of all / active.

    Both are sums over a record's features; the percentile is rounded as in the released code.
    """
    place = min(round(features.shape[1] * percentile / 100), features.shape[1] - 1)
    cut = np.partition(features, place, axis=1)[:, place, None]
    active = np.where(features >= cut, features, 0.0)
    sums = active.sum(axis=1, keepdims=True)
    share = features.sum(axis=1, keepdims=True) / np.where(sums == 0, 1, sums)
    return active, np.exp(share)


def _ash(state: State, seen: Seen, head: Head) -> Floats:
    """ASH-S: the energy after a record's small features are set to 0 and the others enlarged."""
    active, factor = _peaked(np.asarray(seen.features, np.float64), float(state["percentile"]))
    return _energy(active * factor, head)


def _scale(state: State, seen: Seen, head: Head) -> Floats:
    """The energy after all features of a record are enlarged."""
    features = np.asarray(seen.features, np.float64)
    return _energy(features * _peaked(features, float(state["percentile"]))[1], head)


METHODS = (
    Detector("gradnorm", "GradNorm", nothing, _gradnorm, "Huang, Geng and Li, NeurIPS 2021"),
    Detector(
        "react", "ReAct", _fit_react, _react, "Sun, Guo and Li, NeurIPS 2021", non_negative=True
    ),
    Detector("dice", "DICE", _fit_dice, _dice, "Sun and Li, ECCV 2022", non_negative=True),
    Detector("ash", "ASH", _fit_ash, _ash, "Djurisic et al., ICLR 2023", non_negative=True),
    Detector("scale", "SCALE", _fit_scale, _scale, "Xu et al., ICLR 2024", non_negative=True),
)
