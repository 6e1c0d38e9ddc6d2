"""Evaluation of a frozen encoder, each record encoded once: a linear head or nearest neighbours."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmd_ray.data.batches import Worker, epoch_order
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.data.sizes import streams
from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.models.heads import Classifier, classification_loss
from benchmd_ray.models.neighbours import NearestNeighbours
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.collect import EVALUATION_BATCH, collect, evaluating, evaluation_batch
from benchmd_ray.training.engine import TorchEngine, cpu_copy
from benchmd_ray.training.features import Features, feature_store
from benchmd_ray.training.forward import graphed
from benchmd_ray.training.reporter import Reporter, require_finite
from benchmd_ray.training.selection import Best, TransferData, training_feed, training_streams
from benchmd_ray.training.steps import Inputs, Steps, choose_step


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
    """Train the head on features that the frozen encoder gives in eval mode.

    Features are stored in the folder ``kept`` for other runs, and taken from it. The result has the
    weights of head and encoder; ``transfer.layer_decay`` is not read.
    """
    transfer = settings.transfer
    training, validation = frozen_features(settings, catalog, data, model.encoder, worker, kept)
    features = torch.from_numpy(training).to(worker.device)
    # A copy is in memory alike wherever the features came from: the same bits come out.
    validation_features = torch.from_numpy(validation).clone().to(worker.device)
    targets = torch.from_numpy(data.columns.targets[data.rows]).to(worker.device)
    head, best = model.head.to(worker.device), Best()
    steps = head_steps(head, settings, len(features), worker, catalog.task.kind)
    title = steps.chosen.titled("linear evaluation", worker.device)
    reporter.start(title, transfer.epochs, "epochs", 0)
    for epoch in range(transfer.epochs):
        loss = head_epoch(steps, features, targets, settings, epoch)
        with torch.inference_mode():
            scores = data.scores(head(validation_features).cpu().numpy())
        best.offer(scores["validation_auroc"], epoch, partial(cpu_copy, head))
        reporter.report(epoch + 1, {"loss": loss, **scores})
    reporter.finish()
    named = {f"head.{name}": value for name, value in best.weights.items()}
    best.weights = cpu_copy(model) | named
    return best


def nearest_neighbours(
    settings: Settings,
    catalog: Catalog,
    data: TransferData,
    model: Classifier,
    worker: Worker,
    reporter: Reporter,
    *,
    kept: Path | None = None,
) -> Best:
    """Let the training records vote by their features; nothing is trained.

    The head holds their features, which are stored in the folder ``kept`` for other runs.
    """
    training, validation = frozen_features(settings, catalog, data, model.encoder, worker, kept)
    reporter.start("nearest neighbours", 1, "epochs", 0)
    targets = torch.from_numpy(data.columns.targets[data.rows])
    nearest = settings.transfer.neighbours
    head = NearestNeighbours(torch.from_numpy(training), targets, catalog.task.kind, nearest)
    model.head = head.to(worker.device)
    with torch.inference_mode():
        parts = [
            head(torch.from_numpy(validation[start : start + EVALUATION_BATCH]).to(worker.device))
            for start in range(0, len(validation), EVALUATION_BATCH)
        ]
    scores, best = data.scores(torch.cat(parts).cpu().numpy()), Best()
    best.offer(scores["validation_auroc"], 0, partial(cpu_copy, model))
    reporter.report(1, scores)
    reporter.finish()
    return best


def frozen_features(
    settings: Settings,
    catalog: Catalog,
    data: TransferData,
    encoder: nn.Module,
    worker: Worker,
    kept: Path | None,
) -> tuple[Features, Features]:
    """Features of the chosen training rows and of the whole validation split."""
    size = evaluation_batch(encoder)
    direct = evaluating(encoder, worker, settings.execution.precision)
    forward = graphed(direct, worker, settings)  # not compiled: kept features are of all runs

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


def head_steps(
    head: nn.Module, settings: Settings, rows: int, worker: Worker, task: TaskKind
) -> Steps:
    """Steps of a head on features, in float32."""
    transfer = settings.transfer
    engine = TorchEngine(head, transfer.optimiser, settings.execution, worker)

    def loss(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        logits = head(inputs["features"])
        losses = classification_loss(logits, inputs["targets"], task, transfer.label_smoothing)
        return losses.mean(), losses.sum()

    count = -(-rows // min(transfer.batch_size, rows)) * transfer.epochs
    chosen = choose_step(settings.execution, engine, count, built_in=True)
    if chosen.way == "captured":  # so small a step takes longer to compile than all of them
        chosen = replace(chosen, compiles=False, why="not compiled: only a head")
    return Steps(engine, loss, lambda step: None, chosen)  # a head has no dropout to seed


def head_epoch(
    steps: Steps, features: torch.Tensor, targets: torch.Tensor, settings: Settings, epoch: int
) -> float:
    """One epoch of a head on features; the mean loss over the rows."""
    rows, transfer = len(features), settings.transfer
    optimiser = transfer.optimiser
    order = torch.from_numpy(np.array(epoch_order(settings.seed, epoch, rows)))
    size = min(transfer.batch_size, rows)
    count = -(-rows // size)
    total, sums = count * transfer.epochs, []
    for number, index in enumerate(torch.split(order.to(features.device), size)):
        step = epoch * count + number
        inputs = {"features": features[index], "targets": targets[index]}
        sums.append(steps(step, inputs, optimiser.lr_at(step, total)))
    losses = torch.stack(sums)
    require_finite(losses, epoch * count + 1, lambda step: optimiser.lr_at(step, total))
    return float(losses.sum()) / rows
