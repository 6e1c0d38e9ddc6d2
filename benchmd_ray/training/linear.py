"""Linear evaluation: a head on the features of a frozen encoder, each record encoded once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmd_ray.data.batches import Worker, epoch_order
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import streams, whole_split_feed
from benchmd_ray.models.heads import Classifier, classification_loss
from benchmd_ray.settings import Settings
from benchmd_ray.tasks import TaskKind
from benchmd_ray.training.collect import collect, evaluating, evaluation_batch
from benchmd_ray.training.engine import adamw, cpu_copy, set_lr
from benchmd_ray.training.features import Features, feature_store
from benchmd_ray.training.forward import graphed
from benchmd_ray.training.reporter import Reporter, require_finite
from benchmd_ray.training.selection import Best, TransferData, training_feed, training_streams


def linear_evaluation(
    settings: Settings,
    catalog: Catalog,
    data: TransferData,
    model: Classifier,
    worker: Worker,
    reporter: Reporter,
    *,
    kept: Path | None = None,
) -> Best:
    """Train the head on features that are encoded once by the frozen encoder in eval mode.

    Args:
        settings: Settings of the run. ``transfer.layer_decay`` plays no part: nothing but the head
            is trained.
        catalog: The source's catalog.
        data: The labels.
        model: Its encoder stays as it is.
        worker: This process.
        reporter: Is notified of every epoch.
        kept: Folder in which the features are kept for other runs, and taken from.

    Returns:
        The best epoch, with the weights of head and encoder.
    """
    transfer = settings.transfer
    training, validation = _features(settings, catalog, data, model.encoder, worker, kept)
    features = torch.from_numpy(training).to(worker.device)
    # A copy is in memory alike wherever the features came from: the same bits come out.
    held = torch.from_numpy(validation).clone().to(worker.device)
    targets = torch.from_numpy(data.columns.targets[data.rows]).to(worker.device)
    head, best = model.head.to(worker.device), Best()
    optimiser = adamw(head.parameters(), transfer.optimiser, worker.device)
    reporter.start("linear evaluation", transfer.epochs, "epochs", 0)
    for epoch in range(transfer.epochs):
        loss = head_epoch(head, optimiser, features, targets, settings, epoch, catalog.task.kind)
        with torch.inference_mode():
            scores = data.scores(head(held).cpu().numpy())
        best.offer(scores["validation_auroc"], epoch, partial(cpu_copy, head))
        reporter.report(epoch + 1, {"loss": loss, **scores})
    reporter.finish()
    named = {f"head.{name}": value for name, value in best.weights.items()}
    best.weights = cpu_copy(model) | named
    return best


def _features(
    settings: Settings,
    catalog: Catalog,
    data: TransferData,
    encoder: nn.Module,
    worker: Worker,
    kept: Path | None,
) -> tuple[Features, Features]:
    """Features of the chosen training rows and of the whole validation split."""
    size = evaluation_batch(encoder)
    count = -(-(len(data.rows) + len(data.validation_targets)) // size)
    direct = evaluating(encoder, worker, settings.execution.precision)
    forward = graphed(direct, worker, settings, count)

    def train() -> Features:
        return collect(forward, training_feed(catalog, settings, worker, data), size)

    def validation() -> Features:
        feed = whole_split_feed(catalog, "validation", settings, worker, catalog.statistics)
        return collect(forward, feed, size)

    if kept is None:
        return train(), validation()
    store = feature_store(kept, encoder, settings, catalog, worker.device)
    every = np.arange(len(data.validation_targets))
    streaming = streams(catalog, "validation", settings.execution)
    return (
        store.features("train", data.rows, train, training_streams(catalog, settings, data)),
        store.features("validation", every, validation, streaming),
    )


def head_epoch(
    head: nn.Module,
    optimiser: torch.optim.Optimizer,
    features: torch.Tensor,
    targets: torch.Tensor,
    settings: Settings,
    epoch: int,
    task: TaskKind,
) -> float:
    """One epoch of a head on encoded features.

    Args:
        head: The head.
        optimiser: Steps its parameters.
        features: (rows, width).
        targets: (rows, classes).
        settings: Batch size, schedule, label smoothing, seed.
        epoch: Number of the epoch.
        task: Single-label or multi-label.

    Returns:
        Mean loss over the rows.
    """
    rows, transfer = len(features), settings.transfer
    optimiser_settings = transfer.optimiser
    order = torch.from_numpy(np.array(epoch_order(settings.seed, epoch, rows)))
    size = min(transfer.batch_size, rows)
    steps = -(-rows // size)
    sums = []
    for number, index in enumerate(torch.split(order.to(features.device), size)):
        done = epoch * steps + number
        lr = optimiser_settings.lr_at(done, steps * transfer.epochs)
        logits = head(features[index])
        each = classification_loss(logits, targets[index], task, transfer.label_smoothing)
        set_lr(optimiser, lr)
        optimiser.zero_grad(set_to_none=True)
        each.mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        sums.append(each.detach().sum())
    losses = torch.stack(sums)
    total = steps * transfer.epochs
    require_finite(losses, epoch * steps + 1, lambda step: optimiser_settings.lr_at(step, total))
    return float(losses.sum()) / rows
