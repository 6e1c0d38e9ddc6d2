"""Transfer to the source's labels: linear evaluation and fine-tuning; knows no Ray.

The best epoch by the source's validation AUROC is kept. Targets play no part here: this module
is given the source's catalog alone (decision D17).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from benchmd_ray.data.batches import Columns, Feed, Rows, Worker, epoch_order
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.feed import chosen_rows_feed, read_columns, read_units, whole_split_feed
from benchmd_ray.data.splits import label_subset
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.metrics import auroc, pooled, probabilities, require_scorable
from benchmd_ray.files import write_json
from benchmd_ray.modalities import Task
from benchmd_ray.models.encoder import make_encoder
from benchmd_ray.models.heads import Classifier, classification_loss
from benchmd_ray.settings import EncoderSettings, Settings, as_dict, updated
from benchmd_ray.training.checkpoints import (
    MODEL,
    export_model,
    latest_checkpoint,
    load_checkpoint,
    load_weights,
    model_description,
    save_checkpoint,
)
from benchmd_ray.training.collect import collect, evaluating, evaluation_batch
from benchmd_ray.training.engine import (
    Engine,
    cpu_copy,
    gather,
    make_engine,
    set_lr,
)
from benchmd_ray.training.pretrain import require_source
from benchmd_ray.training.reporter import Reporter, require_finite
from benchmd_ray.training.seeds import WEIGHTS, derived_seed, seed_step

BEST = "best.safetensors"
RESULT = "training.json"
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TransferJob:
    """What one transfer run does."""

    settings: Settings
    catalog: Path
    folder: Path
    """Folder of the run, on storage that all workers see."""
    upstream: Path | None = None
    """Folder of the pretraining run; None starts from random weights (scratch)."""


@dataclass
class Best:
    """The best epoch so far."""

    auroc: float = -1.0
    epoch: int = -1
    weights: Weights = field(default_factory=dict)

    def offer(self, auroc: float, epoch: int, weights: Callable[[], Weights]) -> None:
        """Take an epoch that is better than all before; among equals the first stays."""
        if auroc > self.auroc:
            self.auroc, self.epoch, self.weights = auroc, epoch, weights()


@dataclass(frozen=True)
class TransferData:
    """The labels that a run trains and selects on."""

    rows: Rows
    columns: Columns
    """Of all rows of the training split."""
    validation_targets: npt.NDArray[np.int8]
    """Of all rows of the validation split."""
    validation_units: list[str]
    """What each of these rows is scored as part of."""


def require_transferable(job: TransferJob, catalog: Catalog) -> TransferData:
    """Refuse what cannot work before anything starts.

    Returns:
        The labels of the run.

    Raises:
        BenchmdError: A target's catalog, a split without records or without a class that can be
            scored, several workers for linear evaluation, or an upstream of another architecture.
    """
    require_source(catalog)
    catalog.require_split("validation")
    if job.settings.transfer.mode == "linear" and job.settings.execution.workers > 1:
        raise BenchmdError(
            "linear evaluation encodes each record once and runs on one worker: use "
            "--set execution.workers=1."
        )
    if job.upstream is not None:
        _require_same_architecture(job, job.upstream, catalog)
    return _labels(job.settings, catalog)


def _require_same_architecture(job: TransferJob, upstream: Path, catalog: Catalog) -> None:
    held = model_description(upstream)
    if held["modality"] != catalog.modality.name:
        raise BenchmdError(
            f"{upstream} was pretrained on {held['modality']}, the catalog {catalog.path} is of "
            f"{catalog.modality.name}: name a run of the same modality."
        )
    wanted = as_dict(job.settings.encoder)
    encoder = as_dict(updated(EncoderSettings(), held["encoder"]))
    differing = [
        f"{name} is {encoder[name]} there and {value} here"
        for name, value in wanted.items()
        if encoder[name] != value and not name.endswith("dropout")
    ]
    if differing:
        raise BenchmdError(
            f"the encoder of {upstream} is another one: {', '.join(differing)}. Use the encoder "
            "settings of that run."
        )


def transfer(job: TransferJob, worker: Worker, reporter: Reporter) -> None:
    """Train on the source's labels and keep the best epoch.

    Writes ``model.safetensors`` (encoder and head) and ``training.json``.

    Raises:
        BenchmdError: The loss or every validation AUROC is no number, or a checkpoint, catalog or
            upstream does not fit.
    """
    settings = job.settings
    catalog = open_catalog(job.catalog)
    data = require_transferable(job, catalog)
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed))
    encoder = make_encoder(catalog.modality, settings.encoder)
    if job.upstream is not None:
        load_weights(encoder, job.upstream / MODEL, "encoder.")
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed, 1))
    model = Classifier(encoder, catalog.modality)
    train = _linear if settings.transfer.mode == "linear" else _finetune
    best = train(job, catalog, data, model, worker, reporter)
    if best.epoch < 0:
        raise BenchmdError(
            f"none of the {settings.transfer.epochs} epochs has a validation AUROC, so none can be "
            f"kept: the split validation of {catalog.path} could not be scored."
        )
    if worker.rank == 0:
        size = settings.encoder
        export_model(job.folder, best.weights, size, catalog.modality.name, catalog.statistics)
        write_json(
            job.folder / RESULT,
            {
                "best_epoch": best.epoch,
                "validation_auroc": best.auroc,
                "training_records": len(data.rows),
            },
        )


def _labels(settings: Settings, catalog: Catalog) -> TransferData:
    """Rows and targets of the label setting, checked."""
    columns = read_columns(catalog, "train")
    targets = columns.targets
    rows = label_subset(
        targets,
        settings.transfer.labels_per_class,
        catalog.modality.task,
        settings.seed,
    )
    if settings.transfer.shuffle_labels:
        order = np.random.default_rng([settings.seed, 0x5F1]).permutation(len(rows))
        targets[rows] = targets[rows[order]]
    validation = read_columns(catalog, "validation").targets
    units = read_units(catalog, "validation")
    _, scored, _ = pooled(units, validation, np.zeros(validation.shape))
    require_scorable(scored, catalog.modality.classes, f"{catalog.path}, split validation")
    return TransferData(rows, columns, validation, units)


def _score(logits: npt.NDArray[Any], data: TransferData, catalog: Catalog) -> float:
    scores = probabilities(logits, catalog.modality.task)
    _, targets, scores = pooled(data.validation_units, data.validation_targets, scores)
    return auroc(targets, scores).mean


def _linear(
    job: TransferJob,
    catalog: Catalog,
    data: TransferData,
    model: Classifier,
    worker: Worker,
    reporter: Reporter,
) -> Best:
    """Train the head on features that are encoded once by the frozen encoder in eval mode."""
    settings, transfer = job.settings, job.settings.transfer
    encoder = model.encoder
    forward = evaluating(encoder, worker, settings.execution.precision)
    size = evaluation_batch(catalog.modality)
    features, validation = (
        torch.from_numpy(collect(forward, feed, size)).to(worker.device)
        for feed in (
            _training_feed(catalog, settings, worker, data),
            whole_split_feed(catalog, "validation", settings, worker, catalog.statistics),
        )
    )
    targets = torch.from_numpy(data.columns.targets[data.rows]).to(worker.device)
    head, best = model.head.to(worker.device), Best()
    optimiser = torch.optim.AdamW(
        head.parameters(), transfer.optimiser.lr, weight_decay=transfer.optimiser.weight_decay
    )
    reporter.start("linear evaluation", transfer.epochs, "epochs", 0)
    for epoch in range(transfer.epochs):
        loss = head_epoch(
            head, optimiser, features, targets, settings, epoch, catalog.modality.task
        )
        with torch.inference_mode():
            score = _score(head(validation).cpu().numpy(), data, catalog)
        best.offer(score, epoch, partial(cpu_copy, head))
        reporter.report(epoch + 1, {"loss": loss, "validation_auroc": score})
    reporter.finish()
    held = {f"head.{name}": value for name, value in best.weights.items()}
    best.weights = cpu_copy(model) | held
    return best


def head_epoch(
    head: nn.Module,
    optimiser: torch.optim.Optimizer,
    features: torch.Tensor,
    targets: torch.Tensor,
    settings: Settings,
    epoch: int,
    task: Task,
) -> float:
    """One epoch of a head on encoded features.

    Args:
        head: The head.
        optimiser: Steps its parameters.
        features: (rows, width).
        targets: (rows, classes).
        settings: Batch size, schedule, seed.
        epoch: Number of the epoch.
        task: Single-label or multi-label.

    Returns:
        Mean loss over the rows.
    """
    rows, optimiser_settings = len(features), settings.transfer.optimiser
    order = torch.from_numpy(np.array(epoch_order(settings.seed, epoch, rows)))
    size = min(settings.transfer.batch_size, rows)
    steps = -(-rows // size)
    sums = []
    for number, index in enumerate(torch.split(order.to(features.device), size)):
        done = epoch * steps + number
        lr = optimiser_settings.lr_at(done, steps * settings.transfer.epochs)
        each = classification_loss(head(features[index]), targets[index], task)
        set_lr(optimiser, lr)
        optimiser.zero_grad(set_to_none=True)
        each.mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        sums.append(each.detach().sum())
    losses = torch.stack(sums)
    total = steps * settings.transfer.epochs
    require_finite(losses, epoch * steps + 1, lambda step: optimiser_settings.lr_at(step, total))
    return float(losses.sum()) / rows


def _finetune(
    job: TransferJob,
    catalog: Catalog,
    data: TransferData,
    model: Classifier,
    worker: Worker,
    reporter: Reporter,
) -> Best:
    """Train head and encoder; goes on from the newest checkpoint."""
    settings, transfer = job.settings, job.settings.transfer
    engine = make_engine(model, transfer.optimiser, settings.execution, worker)
    position, best = load_checkpoint(job.folder, engine), Best()
    if position:
        best = Best(position["best_auroc"], position["best_epoch"], _saved_best(job.folder))
    first = int(position.get("step", 0))
    feed = _training_feed(catalog, settings, worker, data)
    validation = whole_split_feed(catalog, "validation", settings, worker, catalog.statistics)
    size = evaluation_batch(catalog.modality)
    reporter.start("fine-tuning", transfer.epochs, "epochs", first)
    saved = time.monotonic()
    for epoch in range(first, transfer.epochs):
        loss = _finetune_epoch(engine, feed, settings, epoch, catalog)
        engine.module.eval()
        score = _score(collect(engine, validation, size), data, catalog)
        best.offer(score, epoch, engine.weights)
        reporter.report(epoch + 1, {"loss": loss, "validation_auroc": score})
        due = time.monotonic() - saved >= settings.execution.checkpoint_seconds
        # The first worker's clock decides for all.
        decision = gather(torch.tensor([float(due)], device=worker.device))[0]
        if decision and epoch + 1 < transfer.epochs:
            held = {"best_epoch": best.epoch, "best_auroc": best.auroc}
            files = partial(save_file, best.weights)
            save_checkpoint(job.folder, epoch + 1, engine, held, {BEST: files})
            saved = time.monotonic()
    reporter.finish()
    return best


def _saved_best(folder: Path) -> Weights:
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None  # its position was just read
    return load_file(checkpoint / BEST)


def _training_feed(
    catalog: Catalog, settings: Settings, worker: Worker, data: TransferData
) -> Feed:
    """Streaming where the whole split is used and too large to hold; else the rows are held."""
    whole = len(data.rows) == catalog.rows("train") and not settings.transfer.shuffle_labels
    if whole:
        return whole_split_feed(catalog, "train", settings, worker, catalog.statistics)
    return chosen_rows_feed(
        catalog,
        "train",
        data.rows,
        data.columns,
        settings=settings,
        worker=worker,
        statistics=catalog.statistics,
    )


def _finetune_epoch(
    engine: Engine, feed: Feed, settings: Settings, epoch: int, catalog: Catalog
) -> float:
    """One epoch; the mean loss over its rows."""
    worker, transfer = engine.worker, settings.transfer
    engine.module.train()
    size = min(transfer.batch_size, feed.rows)
    steps = -(-feed.rows // size)
    sums = []
    for number, batch in enumerate(feed.epoch(size, epoch)):
        step = epoch * steps + number
        seed_step(settings.seed, step, worker.rank)
        logits = engine(batch.signals)
        each = classification_loss(logits, batch.targets, catalog.modality.task) * batch.weights
        rows = gather(batch.weights).sum()
        lr = transfer.optimiser.lr_at(step, steps * transfer.epochs)
        engine.step(each.sum() * worker.world / rows, lr)
        sums.append(each.detach().sum())
    losses = gather(torch.stack(sums)[None]).sum(dim=0)
    total = steps * transfer.epochs
    require_finite(losses, epoch * steps + 1, lambda step: transfer.optimiser.lr_at(step, total))
    return float(losses.sum()) / feed.rows
