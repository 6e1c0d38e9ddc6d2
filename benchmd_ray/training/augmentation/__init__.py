"""Augmentation: random changes of signals in fine-tuning.

Random numbers depend on the seed, the step and the example's position in the batch over all
workers, so the signals do not depend on the number of workers or on interruptions.
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
"""Changes only for images and volumes, as time has a direction."""
TEMPORAL = ("lead_dropout", "wander")
"""Changes only for signals over time."""
MIXING = ("mixup", "cutmix")
"""Changes that need one target per example, so not for masks."""


def augmented(
    signals: torch.Tensor, how: AugmentationSettings, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """Augment a worker's normalised signals (batch, *input_shape) of a step, each independently.

    All workers' shares have the same length.
    """
    draws = AugmentationDraws(len(signals), seed, step, worker)
    return altered(moved(signals, how, draws), how, draws)


def augmented_masks(
    masks: torch.Tensor, how: AugmentationSettings, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """Move a worker's masks of a training step in the same way as `augmented` moves the signals."""
    draws = AugmentationDraws(len(masks), seed, step, worker)
    return moved(masks[:, None], how, draws, nearest=True)[:, 0]


def require_applicable(how: AugmentationSettings, signal: Signal, task: Task) -> None:
    """Refuse changes that do not apply to the signals or the task."""
    over_time = signal.axes[-1] == "time"
    others = SPATIAL if over_time else TEMPORAL
    for name in others:
        if getattr(how, name):
            of = "images and volumes" if over_time else "signals over time"
            raise BenchmdError(
                f"transfer.augmentation.{name} is {getattr(how, name):g}, and {signal.name} has "
                f"the axes {', '.join(signal.axes)}: expected 0, since it is only for {of}. Omit "
                f"it, or use one of {', '.join(TEMPORAL if over_time else SPATIAL)}."
            )
    for name in MIXING if task.segments else ():
        if getattr(how, name):
            raise BenchmdError(
                f"transfer.augmentation.{name} is {getattr(how, name):g}, and the task on "
                f"{signal.name} is a segmentation, whose masks cannot be mixed: expected 0. Omit "
                "it, or use flip, shift or affine, which also move masks."
            )
