"""Weighted nearest neighbours on features: a head that stores training records and is not trained.

Source: Wu et al. 2018 (https://arxiv.org/abs/1805.01978), section 3.4, with the temperature and the
number of neighbours of DINO's evaluation (https://arxiv.org/abs/2104.14294).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmd_ray.modality.tasks import EXCLUSIVE, UNKNOWN, TaskKind

TEMPERATURE = 0.07
"""Temperature of the votes: a neighbour has the weight exp(cosine / temperature)."""
LEAST = 1e-6
"""Smallest share of votes; the largest is 1 minus this, so that logits are finite."""


class NearestNeighbours(nn.Module):
    """Head from features to logits of the shares of their neighbours' votes."""

    features: torch.Tensor
    targets: torch.Tensor

    def __init__(
        self, features: torch.Tensor, targets: torch.Tensor, task: TaskKind, nearest: int
    ) -> None:
        """Store training records: features (records, width) and targets (records, classes).

        Unknown targets (-1) do not vote on their class. ``nearest`` is the number of voting
        records.
        """
        super().__init__()
        self.register_buffer("features", functional.normalize(features.float(), dim=1))
        self.register_buffer("targets", targets.float())
        self.exclusive, self.nearest = task in EXCLUSIVE, min(nearest, len(features))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Logits (batch, classes) of features (batch, width): softmax or sigmoid gives the votes.

        If a class is unknown in all neighbours, its share is that among all training records with a
        known label.
        """
        with torch.autocast(features.device.type, enabled=False):
            cosines = functional.normalize(features.float(), dim=1) @ self.features.T
            near, rows = cosines.topk(self.nearest, dim=1)
            targets = self.targets[rows]  # (batch, nearest, classes)
            unknown = targets == UNKNOWN
            votes = (near / TEMPERATURE).unsqueeze(-1).masked_fill(unknown, -torch.inf)
            share = (votes.softmax(dim=1) * (targets == 1)).sum(dim=1)
            share = torch.where(unknown.all(dim=1), self._prevalence(), share)
            share = share.clamp(LEAST, 1 - LEAST)
            return share.log() if self.exclusive else share.logit()

    def _prevalence(self) -> torch.Tensor:
        positive, labelled = (self.targets == 1).sum(dim=0), (self.targets != UNKNOWN).sum(dim=0)
        return positive / labelled.clamp(min=1)
