"""Stochastic depth: training skips branches of residual blocks at random.

Source: Huang et al. (https://arxiv.org/abs/1603.09382), here per example, and scaled by the
probability of being kept, as in DeiT (https://arxiv.org/abs/2012.12877).
"""

from __future__ import annotations

import torch
from torch import nn


class DropPath(nn.Module):
    """Applied to the branch of a residual block before it is added to the block's input."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 0.0
        """Chance of an example to go without the branch, in [0, 1)."""

    def forward(self, branch: torch.Tensor) -> torch.Tensor:
        """Map (batch, …) to the same shape, 0 for examples that skip the branch."""
        if not self.training or not self.rate:
            return branch
        keep = 1 - self.rate
        shape = (len(branch), *[1] * (branch.dim() - 1))
        kept = torch.rand(shape, device=branch.device) < keep
        return branch * (kept / keep).to(branch.dtype)
