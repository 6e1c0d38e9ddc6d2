"""Mahalanobis distances in several layers, summed in units of the mean distance in each."""

from __future__ import annotations

import numpy as np

from benchmd_ray.benchmarks.ood.methods import mahalanobis
from benchmd_ray.benchmarks.ood.methods.method import Bank, Detector, Floats, Head, Seen, State

LAYER = "layer "
"""How quantities of layers begin; the features come last."""


def layers_of(seen: Seen) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Layers in order of name, and then the features."""
    named = {name: values for name, values in sorted(seen.more.items()) if name.startswith(LAYER)}
    return named | {"features": seen.features}


def _fit(bank: Bank) -> State:
    """State of `mahalanobis.fitted` for each layer, and the mean distance of its records."""
    state: State = {}
    groups = bank.groups()
    for name, values in layers_of(bank.seen).items():
        layer = mahalanobis.fitted(values, groups)
        mean = mahalanobis.nearest(layer, values).mean()
        layer["mean"] = np.array(mean if mean > 0 else 1.0)  # layers differ in width
        state |= {f"{name}/{key}": value for key, value in layer.items()}
    return state


def _score(state: State, seen: Seen, head: Head) -> Floats:
    total = np.zeros(len(seen))
    for name, values in layers_of(seen).items():
        layer = {key: state[f"{name}/{key}"] for key in ("means", "root", "mean")}
        total += mahalanobis.nearest(layer, values) / float(layer["mean"])
    return total


METHOD = Detector(
    "mahalanobis-layers",
    "Mahalanobis, layers",
    _fit,
    _score,
    "Lee et al., NeurIPS 2018",
    needs=(LAYER,),
)
