"""Interface of a self-supervised method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from benchmd_ray.models.encoder import Encoder

Draws = dict[str, torch.Tensor]
"""Random numbers of a method for one step; every tensor has the batch as its first axis."""

Gather = Callable[[torch.Tensor], torch.Tensor]
"""Concatenates a tensor over all workers along the batch, in order of rank, differentiably."""


def alone(x: torch.Tensor) -> torch.Tensor:
    """`Gather` of a single worker."""
    return x


class Method(Protocol):
    """A self-supervised method; an ``nn.Module`` with its encoder and its own head."""

    encoder: Encoder
    per_example: bool
    """Whether the loss is a mean of independent losses per example. Only then can a batch be
    processed in parts (`execution.accumulation`); without this attribute it is not split.
    """

    def draw(self, batch: int, generator: torch.Generator) -> Draws:
        """Draw the random numbers of a step on the CPU, for the batch over all workers."""

    def __call__(self, signals: torch.Tensor, draws: Draws, gather: Gather = alone) -> torch.Tensor:
        """Mean loss over this worker's examples.

        ``signals`` (batch, *input_shape) are normalised; ``draws`` are this worker's share of
        `draw`, on their device.
        """

    def parameters(self) -> Any:
        """Parameters of encoder and head."""
