"""e-Mix: contrastive learning on mixtures of input embeddings.

Source: Tamkin et al., DABS (https://arxiv.org/abs/2111.12062), section 4; BenchMD v2, section
4.2; decision D13.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.models.encoder import Encoder
from benchmd_ray.settings.definition import PretrainSettings
from benchmd_ray.ssl import PROJECTION
from benchmd_ray.ssl.method import Draws, Gather, alone


def emix_loss(
    mixed: torch.Tensor,
    plain: torch.Tensor,
    ratio: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """Mean over examples of λ·CE(first) + (1 − λ)·CE(second) on cosine logits, in float32.

    ``mixed`` (batch, width) are projected features of the mixtures, ``plain`` (all, width) those of
    the unmixed examples. ``ratio`` (batch,) is λ; ``first`` and ``second`` (batch,) are rows of
    ``plain``, mixed with λ and 1 − λ. ``temperature`` divides the cosines.
    """
    with torch.autocast(mixed.device.type, enabled=False):  # otherwise the product is in bfloat16
        mixed = functional.normalize(mixed.float(), dim=1)
        plain = functional.normalize(plain.float(), dim=1)
        logits = mixed @ plain.T / temperature
        first_loss = functional.cross_entropy(logits, first, reduction="none")
        second_loss = functional.cross_entropy(logits, second, reduction="none")
        return (ratio * first_loss + (1 - ratio) * second_loss).mean()


class EMix(nn.Module):
    """e-Mix with its projection head."""

    per_example = False

    def __init__(self, encoder: Encoder, settings: PretrainSettings) -> None:
        super().__init__()
        self.encoder = encoder
        self.alpha, self.temperature = settings.mixing_alpha, settings.temperature
        self.head = nn.Sequential(nn.LayerNorm(encoder.width), nn.Linear(encoder.width, PROJECTION))

    def draw(self, batch: int, generator: torch.Generator) -> Draws:
        """λ ~ Beta(α, α), the larger of λ and 1 − λ, and a permutation of the batch."""
        alpha = torch.full((batch,), self.alpha, dtype=torch.float64)
        gamma = torch._standard_gamma(alpha, generator=generator)
        other_gamma = torch._standard_gamma(alpha, generator=generator)
        ratio = gamma / (gamma + other_gamma)
        return {
            "ratio": torch.maximum(ratio, 1 - ratio).float(),
            "first": torch.arange(batch),
            "second": torch.randperm(batch, generator=generator),
        }

    def forward(self, signals: torch.Tensor, draws: Draws, gather: Gather = alone) -> torch.Tensor:
        """The e-Mix loss; partners and negatives come from the batch of all workers."""
        tokens = self.encoder.embed(signals)
        partners = gather(tokens.detach())[draws["second"]]
        ratio = draws["ratio"][:, None, None].to(tokens.dtype)
        mixture = ratio * tokens + (1 - ratio) * partners
        hidden = self.encoder.encode(torch.cat([tokens, mixture]))
        plain, mixed = self.head(self.encoder.pool(hidden)).chunk(2)
        return emix_loss(
            mixed,
            gather(plain.float()),
            draws["ratio"],
            draws["first"],
            draws["second"],
            self.temperature,
        )
