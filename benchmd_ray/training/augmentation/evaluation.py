"""What augmentation changes of the signals that a model is evaluated on."""

from __future__ import annotations

from collections.abc import Callable

import torch

EVALUATED = 0.5
"""What shapes are multiplied with where the model is evaluated: the mean of training's factor."""


def evaluated(
    forward: Callable[[torch.Tensor], torch.Tensor], shape: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A forward pass on signals as the model is evaluated on them.

    Args:
        forward: (batch, *input_shape), normalised, to outputs.
        shape: ``transfer.augmentation.shape`` of its training.
    """
    return (lambda signals: forward(signals * EVALUATED)) if shape else forward
