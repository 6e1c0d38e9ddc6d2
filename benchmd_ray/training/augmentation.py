"""Augmentation: how fine-tuning changes a signal each time it sees it.

What is drawn depends on the seed, the step and the example's place in the batch of all workers, so
that any number of workers sees the same signals, and a resumed run too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.training.seeds import AUGMENTATION

EVALUATED = 0.5
"""What shapes are multiplied with where the model is evaluated: the mean of training's factor."""

AXES = 3
"""Axes of a signal but the channel's, at most."""
SHIFTED = 7
"""A signal is shifted by up to its extent divided by this: by 4 of 28 pixels."""


@dataclass(frozen=True)
class Augmentation:
    """What is done to normalised signals (batch, *input_shape), on their device."""

    numbers: int
    """How many numbers are drawn for an example, each uniform in [0, 1)."""
    train: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """(signals, numbers (batch, numbers)) to the signals of a training step."""
    evaluate: Callable[[torch.Tensor], torch.Tensor]
    """Signals to what the model is evaluated on."""
    moves: bool = True
    """Whether it moves voxels and keeps their values, so that masks move alike."""


def _unchanged(signals: torch.Tensor) -> torch.Tensor:
    return signals


def _each(numbers: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
    """One number of each example (batch,), as broad as the signals."""
    return numbers.view(-1, *[1] * (signals.dim() - 1))


def _flipped(signals: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    for axis in range(2, signals.dim()):
        turned = _each(numbers[:, axis - 2] < 0.5, signals)
        signals = torch.where(turned, signals.flip(axis), signals)
    return signals


def _shifted(signals: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """What moves in from beyond the border is what lies at the border."""
    for axis in range(2, signals.dim()):
        extent = signals.shape[axis]
        most = extent // SHIFTED
        by = (numbers[:, axis - 2] * (2 * most + 1)).long() - most
        place = torch.arange(extent, device=signals.device) - by[:, None]
        shape = [
            len(signals) if a == 0 else extent if a == axis else 1 for a in range(signals.dim())
        ]
        index = place.clamp(0, extent - 1).view(shape).expand_as(signals)
        signals = signals.gather(axis, index)
    return signals


def _flipped_and_shifted(signals: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return _shifted(_flipped(signals, numbers[:, :AXES]), numbers[:, AXES:])


def _faded(signals: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return signals * _each(numbers[:, 0], signals)


def _half(signals: torch.Tensor) -> torch.Tensor:
    return signals * EVALUATED


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": Augmentation(0, lambda signals, _: signals, _unchanged),
    "flip": Augmentation(AXES, _flipped, _unchanged),
    "shift": Augmentation(AXES, _shifted, _unchanged),
    "flip+shift": Augmentation(2 * AXES, _flipped_and_shifted, _unchanged),
    # Yang et al., MedMNIST v2 (https://arxiv.org/abs/2110.14795), section "Baseline Methods".
    "shape": Augmentation(1, _faded, _half, moves=False),
}
"""By the name that ``transfer.augmentation`` takes."""


def augmented(
    signals: torch.Tensor, name: str, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """A worker's signals of a training step.

    Args:
        signals: (batch, *input_shape), normalised: this worker's share of the step; the others'
            are as long.
        name: One of `AUGMENTATIONS`.
        seed: Of the run.
        step: Number of the step.
        worker: Whose share it is.
    """
    chosen = AUGMENTATIONS[name]
    if not chosen.numbers:
        return signals
    return chosen.train(
        signals, _drawn(chosen, len(signals), seed, step, worker).to(signals.device)
    )


def augmented_masks(
    masks: torch.Tensor, name: str, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """The masks of a worker's signals of a training step, moved as `augmented` moves these.

    Args:
        masks: (batch, *extents).
        name: One of `AUGMENTATIONS`.
        seed: Of the run.
        step: Number of the step.
        worker: Whose share it is.
    """
    chosen = AUGMENTATIONS[name]
    if not chosen.numbers or not chosen.moves:
        return masks
    numbers = _drawn(chosen, len(masks), seed, step, worker).to(masks.device)
    return chosen.train(masks[:, None], numbers)[:, 0]


def _drawn(chosen: Augmentation, share: int, seed: int, step: int, worker: Worker) -> torch.Tensor:
    """Numbers of a worker's examples: (share, numbers)."""
    drawn = np.random.default_rng([AUGMENTATION, seed, step])
    numbers = drawn.random((share * worker.world, chosen.numbers), np.float32)
    return torch.from_numpy(numbers[worker.rank * share :][:share])


def evaluated(
    forward: Callable[[torch.Tensor], torch.Tensor], name: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A forward pass on signals as the model is evaluated on them.

    Args:
        forward: (batch, *input_shape), normalised, to outputs.
        name: One of `AUGMENTATIONS`.
    """
    chosen = AUGMENTATIONS[name]
    return lambda signals: forward(chosen.evaluate(signals))
