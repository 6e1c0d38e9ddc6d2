"""Augmentation: random changes of signals in fine-tuning.

Random numbers depend on the seed, the step and the example's position in the batch over all
workers, so the signals do not depend on the number of workers or on interruptions.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from benchmd_ray.data.batches import Batch, Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal
from benchmd_ray.modality.tasks import SEGMENTATION, Task, TaskKind
from benchmd_ray.settings.definition import AugmentationSettings
from benchmd_ray.training.augmentation.changes import (
    altered,
    by_change,
    counts,
    drawn_numbers,
    moved,
)
from benchmd_ray.training.augmentation.mixing import mixed, mixture_draws

SPATIAL = ("flip", "affine", "blur")
"""Changes only for images and volumes, as time has a direction."""
TEMPORAL = ("lead_dropout", "wander")
"""Changes only for signals over time."""
MIXING = ("mixup", "cutmix")
"""Changes that need one target per example, so not for masks."""
NUMBERS = "numbers"
"""Name of the uniform numbers among the draws of a step."""


def draws_of(
    batch: Batch, how: AugmentationSettings, seed: int, step: int, worker: Worker
) -> dict[str, torch.Tensor]:
    """All that is drawn for a worker's share of a step, on its device; empty without changes.

    All workers' shares have the same length.
    """
    draws = mixture_draws(batch, how, seed, step, worker)
    if counts(how, leads=1):
        draws[NUMBERS] = drawn_numbers(how, batch.signals, seed, step, worker)
    return draws


def changed(
    signals: torch.Tensor,
    targets: torch.Tensor,
    draws: Mapping[str, torch.Tensor],
    how: AugmentationSettings,
    kind: TaskKind,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Augment normalised signals (batch, *input_shape) and their targets by the draws of a step.

    Masks are moved as their signals are.
    """
    if NUMBERS in draws:
        numbers = by_change(draws[NUMBERS], how, signals.shape[1])
        signals = altered(moved(signals, how, numbers), how, numbers)
        if kind == SEGMENTATION:
            targets = moved(targets[:, None], how, numbers, nearest=True)[:, 0]
    return mixed(signals, targets, draws, kind) if "partners" in draws else (signals, targets)


def augmented(
    signals: torch.Tensor, how: AugmentationSettings, seed: int, step: int, worker: Worker
) -> torch.Tensor:
    """Augment a worker's normalised signals of a step, each independently, without mixtures."""
    if not counts(how, leads=1):
        return signals
    numbers = by_change(drawn_numbers(how, signals, seed, step, worker), how, signals.shape[1])
    return altered(moved(signals, how, numbers), how, numbers)


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
