"""Detection made brief, where neither what networks learn nor each fault is tested."""

from __future__ import annotations

import pytest

from benchmd_ray.benchmarks.ood import sets
from benchmd_ray.benchmarks.ood.methods import autoencoder, binary_network

FAULTS = (
    *("inverted", "clipped", "baseline-wander", "white-noise", "square"),
    *("flat-channels", "arm-reversal", "mains-50", "gain-10"),
)
"""Of an ECG: of each use-case and kind of severity."""


def train_briefly(patch: pytest.MonkeyPatch, steps: int = 20) -> None:
    """So many steps of each autoencoder, one epoch of the binary classifier."""
    train = autoencoder._train
    patch.setattr(autoencoder, "_TRAINED", {})
    patch.setattr(autoencoder, "_train", lambda *given: train(*given[:-1], steps))
    patch.setattr(binary_network, "EPOCHS", 1)


def few_faults(patch: pytest.MonkeyPatch) -> None:
    """`FAULTS` alone."""
    every = sets.faults_of
    patch.setattr(
        sets,
        "faults_of",
        lambda signal: {name: fault for name, fault in every(signal).items() if name in FAULTS},
    )
