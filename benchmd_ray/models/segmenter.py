"""Segmentation of whole signals: a network's maps, a head, sliding windows, and the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.segmentation_networks import SegmentationNetwork

OVERLAP = 0.5
"""Share of a window that the next one overlaps, along each axis."""
SMOOTHING = 1e-5
"""Added to numerator and denominator of Dice, so that the loss of an absent class is 0."""


def windows_of(extents: Sequence[int], window: Sequence[int]) -> int:
    """Number of windows that cover a signal, see `Segmenter.forward`."""
    steps = [
        1 + math.ceil((whole - part) / max(1, int(part * (1 - OVERLAP)))) if whole > part else 1
        for whole, part in zip(extents, window, strict=True)
    ]
    return math.prod(steps)


class Segmenter(nn.Module):
    """A network that returns maps, with a linear head per voxel: signals to logits."""

    def __init__(self, encoder: SegmentationNetwork | Encoder, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        axes = len(encoder.signal.axes) - 1
        kind = nn.Conv3d if axes == 3 else nn.Conv2d
        self.head = kind(encoder.width, classes, kernel_size=1)

    @property
    def window(self) -> tuple[int, ...]:
        """Extents of the network's window."""
        window: tuple[int, ...] = self.encoder.window  # type: ignore[assignment]
        return window

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Logits (batch, classes, *extents) of normalised signals (batch, channel, *extents).

        Larger signals are processed in windows that overlap by `OVERLAP`, and their logits are
        averaged with Gaussian weights (MONAI's ``sliding_window_inference``).
        """
        if tuple(signals.shape[2:]) == self.window:
            return self._logits(signals)
        from monai.inferers.utils import sliding_window_inference

        logits: torch.Tensor = sliding_window_inference(
            signals, self.window, 1, self._logits, OVERLAP, mode="gaussian"
        )
        return logits

    def _logits(self, windows: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(windows))  # type: ignore[no-any-return]


def segmentation_loss(
    logits: torch.Tensor, masks: torch.Tensor, smoothing: float = 0.0
) -> torch.Tensor:
    """Dice loss plus cross-entropy of each example: (batch,).

    Its mean over a batch equals MONAI's ``DiceCELoss`` with softmax and one-hot masks, including
    the background. Logits are (batch, classes, *extents), masks (batch, *extents); ``smoothing`` is
    the share of each label that cross-entropy spreads over all classes.
    """
    logits, masks = logits.float(), masks.long()
    entropy = functional.cross_entropy(
        logits, masks, reduction="none", label_smoothing=smoothing
    ).flatten(1)
    truth = functional.one_hot(masks, logits.shape[1]).movedim(-1, 1).flatten(2).float()
    probabilities = logits.softmax(dim=1).flatten(2)
    both = (truth * probabilities).sum(dim=2)
    sums = truth.sum(dim=2) + probabilities.sum(dim=2)
    dice = 1 - (2 * both + SMOOTHING) / (sums + SMOOTHING)
    return dice.mean(dim=1) + entropy.mean(dim=1)
