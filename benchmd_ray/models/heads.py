"""Heads on pooled features."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.modality.tasks import EXCLUSIVE, UNKNOWN, TaskKind
from benchmd_ray.models.encoder import Encoder


def classification_head(
    width: int, classes: int, hidden: int = 0, dropout: float = 0.0
) -> nn.Module:
    """A head from features to logits: linear, or with a hidden layer, GELU and dropout."""
    if not hidden:
        return nn.Linear(width, classes)
    layers = nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, classes)
    return nn.Sequential(*layers)


class Classifier(nn.Module):
    """An encoder and a head, linear by default: signals to logits."""

    def __init__(self, encoder: Encoder, classes: int, head: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head or classification_head(encoder.width, classes)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """Logits: (batch, classes)."""
        return self.head(self.encoder(signals))  # type: ignore[no-any-return]


def classification_loss(
    logits: torch.Tensor, targets: torch.Tensor, task: TaskKind, smoothing: float = 0.0
) -> torch.Tensor:
    """Loss of each example: (batch,); 0 without gradient if all its labels are unknown.

    Targets (batch, classes) are 1, 0 or -1 (unknown), or means of two such targets. Single-label
    tasks use cross-entropy with the class whose target is 1; multi-label tasks use binary
    cross-entropy, mean over the example's known labels. ``smoothing`` is the share of each label
    that is spread evenly over all classes (Szegedy et al., https://arxiv.org/abs/1512.00567,
    section 7); in multi-label tasks over both values, so that 1 becomes 1 − s/2 and 0 becomes s/2.
    """
    if task in EXCLUSIVE and targets.is_floating_point():
        losses = functional.cross_entropy(
            logits.float(), targets.clamp(min=0), reduction="none", label_smoothing=smoothing
        )
        return losses * (targets != UNKNOWN).all(dim=1)
    if task in EXCLUSIVE:
        losses = functional.cross_entropy(
            logits.float(), targets.argmax(dim=1), reduction="none", label_smoothing=smoothing
        )
        return losses * (targets == 1).any(dim=1)
    is_known = (targets != UNKNOWN).float()
    wanted = targets.clamp(min=0).float() * (1 - smoothing) + smoothing / 2
    losses = functional.binary_cross_entropy_with_logits(logits.float(), wanted, reduction="none")
    return (losses * is_known).sum(dim=1) / is_known.sum(dim=1).clamp(min=1)
