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


def train_briefly(patch: pytest.MonkeyPatch, steps: int = 20, epochs: int = 1) -> None:
    """So many steps of each autoencoder and epochs of the binary classifier, at most."""
    train = autoencoder._train
    patch.setattr(autoencoder, "_TRAINED", {})
    patch.setattr(autoencoder, "_train", lambda *given: train(*given[:-1], min(given[-1], steps)))
    patch.setattr(binary_network, "EPOCHS", min(binary_network.EPOCHS, epochs))


def few_faults(patch: pytest.MonkeyPatch) -> None:
    """`FAULTS` alone, of an ECG."""
    every = sets.faults_of
    patch.setattr(sets, "faults_of", lambda signal: {name: every(signal)[name] for name in FAULTS})
