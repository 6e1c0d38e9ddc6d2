"""Cutting signals of one, two or three dimensions into patches; one function for all uses."""

from __future__ import annotations

import math

import torch


def patchify(signals: torch.Tensor, patch: tuple[int, ...]) -> torch.Tensor:
    """Cut signals into non-overlapping patches.

    Args:
        signals: (batch, channel, *space), 1 to 3 spatial axes.
        patch: Extent of a patch along each spatial axis.

    Returns:
        (batch, tokens, channel × prod(patch)): patches in C order of their position; within a
        patch the channel varies slowest.

    Raises:
        ValueError: An extent is not a multiple of the patch's.
    """
    batch, channels, *space = signals.shape
    if len(space) != len(patch) or any(s % p for s, p in zip(space, patch, strict=True)):
        raise ValueError(
            f"space {tuple(space)} cannot be cut into patches of {patch}: expected as many axes "
            "and multiples of the patch's extents"
        )
    split: list[int] = [n for s, p in zip(space, patch, strict=True) for n in (s // p, p)]
    x = signals.reshape(batch, channels, *split)
    dims = range(len(space))
    # (batch, channel, n1, p1, n2, p2, …) → (batch, n1, n2, …, channel, p1, p2, …)
    x = x.permute(0, *(2 + 2 * d for d in dims), 1, *(3 + 2 * d for d in dims))
    tokens = math.prod([s // p for s, p in zip(space, patch, strict=True)])
    return x.reshape(batch, tokens, channels * math.prod(patch))
