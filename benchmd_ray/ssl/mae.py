"""Masked autoencoding: predict the raw values of masked patches.

Source: He et al. (https://arxiv.org/abs/2111.06377) as used in BenchMD v2, section 4.2: one encoder
over all positions, zeros for masked embeddings, no decoder.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmd_ray.models.encoder import Encoder
from benchmd_ray.settings.definition import PretrainSettings
from benchmd_ray.ssl.method import Draws, Gather, alone


def mae_loss(predicted: torch.Tensor, patches: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """Mean L2 norm of the residual over masked tokens (batch, tokens), equally many per example.

    ``predicted`` and ``patches`` are (batch, tokens, values).
    """
    norms: torch.Tensor = torch.linalg.vector_norm(predicted - patches.float(), dim=2)
    return (norms * masked).sum() / masked.sum()


class MAE(nn.Module):
    """Masked autoencoding with its head."""

    per_example = True

    def __init__(self, encoder: Encoder, settings: PretrainSettings) -> None:
        super().__init__()
        self.encoder = encoder
        self.rate = settings.mask_rate
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(encoder.width, encoder.signal.patch_size))

    def draw(self, batch: int, generator: torch.Generator) -> Draws:
        """Masked tokens: the same number in each example."""
        tokens = self.encoder.signal.tokens
        count = min(tokens, max(1, round(self.rate * tokens)))
        chosen = torch.rand(batch, tokens, generator=generator).argsort(dim=1)[:, :count]
        return {"masked": torch.zeros(batch, tokens, dtype=torch.bool).scatter(1, chosen, True)}

    def forward(self, signals: torch.Tensor, draws: Draws, gather: Gather = alone) -> torch.Tensor:
        """The loss of the masked tokens."""
        patches, predicted = self._predicted(signals, draws["masked"])
        return mae_loss(predicted, patches, draws["masked"])

    def each(self, signals: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        """The loss of each example, (batch,), with masked tokens (batch, tokens)."""
        patches, predicted = self._predicted(signals, masked)
        norms = torch.linalg.vector_norm(predicted - patches.float(), dim=2)
        losses: torch.Tensor = (norms * masked).sum(dim=1) / masked.sum(dim=1)
        return losses

    def _predicted(
        self, signals: torch.Tensor, masked: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        patches = self.encoder.patches(signals)
        tokens = self.encoder.patch_embedding(patches)
        visible = tokens.masked_fill(masked[:, :, None], 0.0)
        return patches, self.head(self.encoder.encode(visible)[:, 1:])
