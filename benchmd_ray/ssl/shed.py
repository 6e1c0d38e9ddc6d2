"""ShED: detect which token embeddings were moved to another position.

Source: Tamkin et al., DABS (https://arxiv.org/abs/2111.12062), section 4; BenchMD v2, section
4.2; decision D14.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.settings.definition import PretrainSettings
from benchmd_ray.ssl.method import Draws, Gather, alone


def derangement(
    batch: int, tokens: int, rate: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw which token takes which place.

    A share ``rate`` of the positions, at least two, is drawn for each example; their tokens are
    permuted in a random cycle, so that each of them really moves.

    Returns:
        source (batch, tokens) int64: position ``t`` gets the token ``source[:, t]``; moved (batch,
        tokens) bool.
    """
    count = min(tokens, max(2, round(rate * tokens)))
    order = torch.rand(batch, tokens, generator=generator).argsort(dim=1)
    chosen = order[:, :count]
    source = torch.arange(tokens).repeat(batch, 1).scatter(1, chosen, chosen.roll(1, dims=1))
    moved = torch.zeros(batch, tokens, dtype=torch.bool).scatter(1, chosen, True)
    return source, moved


def shed_loss(logits: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """Mean binary cross-entropy of 'this token was moved' (batch, tokens), in float32."""
    return functional.binary_cross_entropy_with_logits(logits.float(), moved.float())


class ShED(nn.Module):
    """ShED with its linear classifier per token."""

    per_example = True

    def __init__(self, encoder: Encoder, settings: PretrainSettings) -> None:
        super().__init__()
        if encoder.signal.tokens < 2:
            raise BenchmdError(
                "shed moves tokens to other positions, but with these settings a whole signal of "
                f"{encoder.signal.name} is a single token: choose a smaller encoder.patch_size."
            )
        self.encoder = encoder
        self.rate = settings.corruption_rate
        self.head = nn.Linear(encoder.width, 1)

    def draw(self, batch: int, generator: torch.Generator) -> Draws:
        """Where each token goes."""
        tokens = self.encoder.signal.tokens
        source, moved = derangement(batch, tokens, self.rate, generator)
        return {"source": source, "moved": moved}

    def forward(self, signals: torch.Tensor, draws: Draws, gather: Gather = alone) -> torch.Tensor:
        """`shed_loss` over all tokens but CLS."""
        tokens = self.encoder.embed(signals)
        source = draws["source"][:, :, None].expand_as(tokens)
        hidden = self.encoder.encode(tokens.gather(1, source))
        return shed_loss(self.head(hidden[:, 1:]).squeeze(-1), draws["moved"])
