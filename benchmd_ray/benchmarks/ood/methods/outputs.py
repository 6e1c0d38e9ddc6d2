"""Detectors of what a network says of classes: logits and probabilities."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import entr

from benchmd_ray.benchmarks.ood.methods.formulas import entropy, free_energy, probabilities
from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Detector,
    Floats,
    Head,
    Seen,
    State,
    nothing,
)

TEMPERATURE_RANGE = (0.05, 20.0)
TEMPERATURES = (1.0, 1000.0)
"""Of ODIN: the ends of the paper's range, for above 100 scores keep their order."""
STEPS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005)
"""Of ODIN's input."""
EXPONENT, LARGEST = 0.1, 100
"""Of the generalised entropy: the paper's exponent, and how many probabilities count."""


def msp(_: State, seen: Seen, head: Head) -> Floats:
    """−max p; of a multi-label task −max over labels of max(p, 1 − p), that of the surest label."""
    p = probabilities(seen.logits, head.exclusive)
    return np.asarray(-(p if head.exclusive else np.maximum(p, 1 - p)).max(axis=1))


def _fit_temperature(bank: Bank) -> State:
    """The temperature that minimises the negative log-likelihood of validation records.

    Without such records, that of the records trained on.
    """
    seen, targets = bank.validation, bank.validation_targets
    if seen is None or targets is None or not len(seen):
        seen, targets = bank.seen, bank.targets
    z, exclusive = np.asarray(seen.logits, np.float64), bank.head.exclusive

    def loss(log_temperature: float) -> float:
        scaled = z / np.exp(log_temperature)
        if exclusive:
            scaled = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
            return -float(scaled[targets == 1].sum())
        return float(np.logaddexp(0, np.where(targets == 1, -scaled, scaled))[targets >= 0].sum())

    bounds = tuple(np.log(TEMPERATURE_RANGE))
    optimum = minimize_scalar(loss, bounds=bounds, method="bounded")
    return {"temperature": np.array(np.exp(optimum.x))}


def _temperature(state: State, seen: Seen, head: Head) -> Floats:
    logits = np.asarray(seen.logits, np.float64) / state["temperature"]
    return msp({}, Seen(seen.features, logits), head)  # type: ignore[arg-type]


def _mc_dropout(_: State, seen: Seen, head: Head) -> Floats:
    """Entropy of the mean prediction, from logits (records, passes, classes)."""
    passes = np.moveaxis(seen.more["dropout logits"], 1, 0)
    members = [probabilities(logits, head.exclusive) for logits in passes]
    return entropy(np.mean(members, axis=0), head.exclusive)


def _fit_odin(_: Bank, *, temperature: float = 1000.0, step: float = 0.0014) -> State:
    return {"place": np.array([TEMPERATURES.index(temperature), STEPS.index(step)])}


def _odin(state: State, seen: Seen, head: Head) -> Floats:
    """−max p at a high temperature, after a small step that makes the network surer.

    The network computes it for a grid (`ood.network`), of which a calibration chooses.
    """
    row, column = map(int, state["place"])
    return np.asarray(seen.more["odin"][:, row, column], np.float64)


def _max_logit(_: State, seen: Seen, head: Head) -> Floats:
    return np.asarray(-np.asarray(seen.logits, np.float64).max(axis=1))


def _energy(_: State, seen: Seen, head: Head) -> Floats:
    """−log Σ exp z; of a multi-label task the joint energy −Σ log(1 + exp z)."""
    return -free_energy(seen.logits, head.exclusive)


def _entropy(_: State, seen: Seen, head: Head) -> Floats:
    return entropy(probabilities(seen.logits, head.exclusive), head.exclusive)


def _fit_gen(_: Bank, *, exponent: float = EXPONENT, largest: int = LARGEST) -> State:
    return {"exponent": np.array(exponent), "largest": np.array(largest)}


def _gen(state: State, seen: Seen, head: Head) -> Floats:
    """Σ over the largest p of (p (1 − p))^0.1."""
    p = -np.sort(-probabilities(seen.logits, True), axis=1)[:, : int(state["largest"])]
    return np.asarray(((p * (1 - p)) ** state["exponent"]).sum(axis=1))


def _fit_kl(bank: Bank) -> State:
    """Mean probabilities of the records predicted as each class: (predicted classes, classes)."""
    p = probabilities(bank.seen.logits, True)
    guess = p.argmax(axis=1)
    return {"means": np.stack([p[guess == label].mean(axis=0) for label in np.unique(guess)])}


def _kl(state: State, seen: Seen, head: Head) -> Floats:
    """The smallest divergence of p from the mean p of a predicted class."""
    p = probabilities(seen.logits, True)
    least = np.finfo(np.float64).tiny  # a softmax of float64 may be 0
    means = np.maximum(state["means"], least)
    apart = -entr(p).sum(axis=1)[:, None] - p @ np.log(means).T
    return np.asarray(np.maximum(apart.min(axis=1), 0))  # rounding may give less


_HENDRYCKS_2017, _HENDRYCKS_2022 = "Hendrycks and Gimpel, ICLR 2017", "Hendrycks et al., ICML 2022"
METHODS = (
    Detector("msp", "probability threshold", nothing, msp, _HENDRYCKS_2017),
    Detector(
        "temperature",
        "temperature scaling",
        _fit_temperature,
        _temperature,
        "Guo et al., ICML 2017",
    ),
    Detector(
        "mc-dropout",
        "MC dropout",
        nothing,
        _mc_dropout,
        "Gal and Ghahramani, ICML 2016",
        needs=("dropout logits",),
    ),
    Detector(
        "odin",
        "ODIN",
        _fit_odin,
        _odin,
        "Liang, Li and Srikant, ICLR 2018",
        grid={"temperature": TEMPERATURES, "step": STEPS},
        needs=("odin",),
    ),
    Detector("max-logit", "max logit", nothing, _max_logit, _HENDRYCKS_2022),
    Detector(
        "energy",
        "energy",
        nothing,
        _energy,
        "Liu et al., NeurIPS 2020; of labels: Wang et al., NeurIPS 2021",
    ),
    Detector("entropy", "entropy", nothing, _entropy, _HENDRYCKS_2017),
    Detector(
        "gen",
        "generalised entropy",
        _fit_gen,
        _gen,
        "Liu, Lochman and Zach, CVPR 2023",
        exclusive_only=True,
    ),
    Detector("kl-matching", "KL matching", _fit_kl, _kl, _HENDRYCKS_2022, exclusive_only=True),
)
