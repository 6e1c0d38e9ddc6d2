"""Stored signals to what the encoder sees, at batch time and on the device (decision D1)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmd_ray.modalities import Modality


def by_own_range(signals: torch.Tensor) -> torch.Tensor:
    """Each record divided by its own max − min, so that the unit cancels.

    Args:
        signals: (batch, channel, time), stored steps of any integer type.

    Returns:
        float32 of the same shape; max − min of each record is 1.
    """
    x = signals.float()
    span = x.amax(dim=(1, 2), keepdim=True) - x.amin(dim=(1, 2), keepdim=True)
    return x / span


NORMALISERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"ecg": by_own_range}
"""By modality."""


def normaliser(modality: Modality) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function from stored signals (batch, *stored_shape) to (batch, *input_shape)."""
    return NORMALISERS[modality.name]
