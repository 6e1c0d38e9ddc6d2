"""What training on a task's targets is: what is seen of a batch, the loss, the score of an epoch.

Transfer asks for the objective of its task; another kind of task is one more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmd_ray.data.batches import Batch, Feed, Worker
from benchmd_ray.modality.tasks import SEGMENTATION, Task, TaskKind
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.models.heads import Classifier, classification_loss
from benchmd_ray.models.segmenter import Segmenter, segmentation_loss
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.augmentation import augmented, augmented_masks, mixed
from benchmd_ray.training.collect import collect, evaluation_batch
from benchmd_ray.training.segmentation import collect_overlaps, mean_dice, patches
from benchmd_ray.training.selection import TransferData

Model = Classifier | Segmenter


@dataclass(frozen=True)
class Objective:
    """Of a kind of task."""

    seen: Callable[[Batch, Model, Settings, int, Worker], Batch]
    """What a training step sees of a worker's share, by the number of the step."""
    loss: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    """(outputs, targets, label smoothing) to the loss of each example, (batch,)."""
    scores: Callable[
        [Callable[[torch.Tensor], torch.Tensor], Feed, Model, TransferData], dict[str, float]
    ]
    """Of the validation split, by a forward pass in eval mode: what an epoch is kept by, under the
    name that metrics give it, and maybe more."""


def objective_of(kind: TaskKind) -> Objective:
    """The objective of a kind of task."""
    if kind == SEGMENTATION:
        return Objective(_patches, segmentation_loss, _dice)
    return Objective(partial(_signals, kind), partial(_loss_of_labels, kind), _auroc)


def model_of(encoder: Encoder, task: Task) -> Model:
    """An encoder with a new head for a task."""
    kind = Segmenter if task.segments else Classifier
    return kind(encoder, len(task.classes))


def _signals(
    kind: TaskKind, batch: Batch, model: Model, settings: Settings, step: int, worker: Worker
) -> Batch:
    how, when = settings.transfer.augmentation, (settings.seed, step, worker)
    changed = replace(batch, signals=augmented(batch.signals, how, *when))
    return mixed(changed, how, kind, *when)


def _patches(batch: Batch, model: Model, settings: Settings, step: int, worker: Worker) -> Batch:
    assert isinstance(model, Segmenter)
    cut = patches(batch, model.window, settings.seed, step, worker)
    how = (settings.transfer.augmentation, settings.seed, step, worker)
    return replace(
        cut,
        signals=augmented(cut.signals, *how),
        targets=augmented_masks(cut.targets, *how),
    )


def _loss_of_labels(
    kind: TaskKind, outputs: torch.Tensor, targets: torch.Tensor, smoothing: float
) -> torch.Tensor:
    return classification_loss(outputs, targets, kind, smoothing)


def _auroc(
    forward: Callable[[torch.Tensor], torch.Tensor], feed: Feed, model: Model, data: TransferData
) -> dict[str, float]:
    return data.scores(collect(forward, feed, evaluation_batch(model.encoder)))


def _dice(
    forward: Callable[[torch.Tensor], torch.Tensor], feed: Feed, model: Model, data: TransferData
) -> dict[str, float]:
    assert isinstance(model, Segmenter)
    size, classes = evaluation_batch(model.encoder), model.head.out_channels
    return {"validation_dsc": mean_dice(collect_overlaps(forward, feed, size, classes))}
