"""Augmentation: how fine-tuning changes a signal each time it sees it.

What is drawn depends on the seed, the step and the example's place in the batch of all workers, so
that any number of workers sees the same signals, and a resumed run too.
"""

from __future__ import annotations

import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import Task
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.augmentation.draws import AugmentationDraws
from benchmd_ray.training.augmentation.evaluation import evaluated
from benchmd_ray.training.augmentation.mixing import mixed
from benchmd_ray.training.augmentation.movement import moved
from benchmd_ray.training.augmentation.values import altered

__all__ = ["augmented", "augmented_masks", "evaluated", "mixed", "require_applicable"]

SPATIAL = ("flip", "affine", "blur")
"""Changes of images and volumes only; time has a direction."""
TEMPORAL = ("lead_dropout", "wander")
"""Changes of signals over time only."""
MIXING = ("mixup", "cutmix")
"""Changes for which an example needs one target, which a mask is not."""


def augmented(
    signals: torch.Tensor, how: AugmentationSettings, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """A worker's signals of a training step, each changed by itself.

    The signals are normalised, (batch, *input_shape), and this worker's share of the step; the
    other workers' shares are as long.
    """
    draws = AugmentationDraws(len(signals), seed, step, worker)
    return altered(moved(signals, how, draws), how, draws)


def augmented_masks(
    masks: torch.Tensor, how: AugmentationSettings, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """The masks of a worker's signals of a training step, moved as `augmented` moves these."""
    draws = AugmentationDraws(len(masks), seed, step, worker)
    return moved(masks[:, None], how, draws, nearest=True)[:, 0]


def require_applicable(how: AugmentationSettings, signal: Signal, task: Task) -> None:
    """Refuse changes that mean nothing for the signals or the task.

    Raises:
        BenchmdError: One of them is on.
    """
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
