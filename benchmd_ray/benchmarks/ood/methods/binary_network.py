"""Binary classifier trained end to end on the small pictures of signals that the network sees.

Of the epochs, that with the highest AUROC on other patients is kept.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.benchmarks.ood.methods.autoencoder import (
    CHANNELS,
    halved,
    halving,
    in_blocks,
    narrowed,
    weights_of,
    with_weights,
)
from benchmd_ray.benchmarks.ood.methods.formulas import auroc
from benchmd_ray.benchmarks.ood.methods.method import (
    Bank,
    Calibration,
    Detector,
    Floats,
    Head,
    Seen,
    State,
)

EPOCHS, STEPS, BATCH, RATE = 5, 30, 32, 1e-3
"""Of the training, by Adam; steps are those of an epoch. Half of a batch is of each kind."""


class BinaryNetwork(nn.Module):
    """Convolutions that halve a picture three times, and the log odds of out."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, *extents = shape
        self.down = halving(channels, len(extents))
        self.head = nn.Linear(CHANNELS[-1] * prod(halved(extents)[-1]), 1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """(records,)."""
        log_odds: torch.Tensor = self.head(narrowed(self.down, pictures))[:, 0]
        return log_odds


def _fit(bank: Bank) -> State:
    pictures = bank.seen.more["pixels"]
    spread = float(pictures.std()) or 1.0
    return {"centre": np.array(float(pictures.mean())), "spread": np.array(spread)}


def calibrate(
    state: State, calibration: Calibration, other: Calibration, head: Head, *, steps: int = STEPS
) -> State:
    """Train the network, so many steps in an epoch; others choose the epoch."""
    pictures = _given(state, calibration.seen.more["pixels"])
    order, kinds = (
        np.random.default_rng(0),
        [np.flatnonzero(calibration.out == k) for k in (False, True)],
    )
    target = torch.from_numpy(np.repeat([0.0, 1.0], BATCH // 2)).float()
    best, kept = -1.0, state
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = BinaryNetwork(tuple(pictures.shape[1:]))
        optimiser = torch.optim.Adam(network.parameters(), RATE)
        for _ in range(EPOCHS):
            for _ in range(steps):
                rows = np.concatenate([order.choice(kind, BATCH // 2) for kind in kinds])
                logits = network(pictures[rows])
                loss = functional.binary_cross_entropy_with_logits(logits, target)
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
            weights = weights_of(network)
            scores = _score(state | weights, other.seen, head)
            value = auroc(scores[~other.out], scores[other.out])
            if value > best:
                best, kept = value, state | weights
    return kept


def _given(state: State, pictures: npt.NDArray[np.float32]) -> torch.Tensor:
    standardised = (pictures - float(state["centre"])) / float(state["spread"])
    return torch.from_numpy(standardised).float()


def _score(state: State, seen: Seen, head: Head) -> Floats:
    inputs = _given(state, seen.more["pixels"])
    network = BinaryNetwork(tuple(inputs.shape[1:]))
    with_weights(network, state)
    return np.asarray(in_blocks(network, inputs), np.float64)


METHOD = Detector(
    "binary-network",
    "binary classifier, end to end",
    _fit,
    _score,
    "Cao et al., arXiv 2007.04250, as released",
    calibrate=calibrate,
    needs=("pixels",),
)
