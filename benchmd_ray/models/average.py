"""The mean of the probabilities of several models, as one model."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional


class Average(nn.Module):
    """Modules of the same inputs and classes, one after the other, as one module.

    Its logits (batch, classes) are those of the mean probabilities of its members: their softmax,
    or sigmoid if classes are not exclusive, is that mean.
    """

    def __init__(self, members: Iterable[nn.Module], *, exclusive: bool) -> None:
        super().__init__()
        self.members, self.exclusive = nn.ModuleList(members), exclusive

    def forward(self, *inputs: torch.Tensor | None) -> torch.Tensor:
        """Logits (batch, classes) in float32 of the members' inputs."""
        logits = torch.stack([member(*inputs).float() for member in self.members])
        if self.exclusive:
            return _log_mean(logits.log_softmax(dim=-1))
        return _log_mean(functional.logsigmoid(logits)) - _log_mean(functional.logsigmoid(-logits))


def _log_mean(logarithms: torch.Tensor) -> torch.Tensor:
    """Logarithm of the mean over the first axis of values that are given as logarithms."""
    return logarithms.logsumexp(dim=0) - math.log(len(logarithms))
