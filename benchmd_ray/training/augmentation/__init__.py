"""Augmentation: how fine-tuning changes a signal each time it sees it.

Draws depend on the seed, the step and the example's place in the batch of all workers, so that any
number of workers and a resumed run see the same signals.
"""

from __future__ import annotations

import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.augmentation.changes import AugmentationDraws, altered, moved
from benchmd_ray.training.augmentation.mixing import mixed

__all__ = ["augmented", "augmented_masks", "mixed", "require_applicable"]

SPATIAL = ("flip", "affine", "blur")
"""Changes of images and volumes only; time has a direction."""
TEMPORAL = ("lead_dropout", "wander")
"""Changes of signals over time only."""
MIXING = ("mixup", "cutmix")
"""Changes for which an example needs one target, which a mask is not."""


def augmented(
    signals: torch.Tensor, how: AugmentationSettings, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """Normalised signals (batch, *input_shape), a worker's share of a step, each changed by itself.

    The other workers' shares are as long.
    """
    draws = AugmentationDraws(len(signals), seed, step, worker)
    return altered(moved(signals, how, draws), how, draws)


def augmented_masks(
    masks: torch.Tensor, how: AugmentationSettings, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """Masks of a worker's signals of a training step, moved as `augmented` moves these."""
    draws = AugmentationDraws(len(masks), seed, step, worker)
    return moved(masks[:, None], how, draws, nearest=True)[:, 0]


def require_applicable(how: AugmentationSettings, signal: Signal, task: Task) -> None:
    """Refuse changes that mean nothing for the signals or the task."""
    over_time = signal.axes[-1] == "time"
    others = SPATIAL if over_time else TEMPORAL
    for name in others:
        if getattr(how, name):
            of = "images and volumes" if over_time else "signals over time"
            raise BenchmdError(
                f"transfer.augmentation.{name} is {getattr(how, name):g}, and {signal.name} has "
                f"the axes {', '.join(signal.axes)}: expected 0, as it is for {of} only. Leave it "
                f"out, or take one of {', '.join(TEMPORAL if over_time else SPATIAL)}."
            )
    for name in MIXING if task.segments else ():
        if getattr(how, name):
            raise BenchmdError(
                f"transfer.augmentation.{name} is {getattr(how, name):g}, and the task on "
                f"{signal.name} is a segmentation, whose masks cannot be mixed: expected 0. Leave "
                "it out, or take flip, shift or affine, which move masks alike."
            )
