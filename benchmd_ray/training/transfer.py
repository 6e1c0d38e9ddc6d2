"""Transfer to the source's labels: linear evaluation and fine-tuning; knows no Ray.

The best epoch by the source's validation AUROC, or DSC for masks, is kept. Targets are not used:
this module gets only the source's catalog (decision D17).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file

from benchmd_ray.console.terminal import echo
from benchmd_ray.data.batches import Batch, Feed, Worker
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.errors import BenchmdError, Stopped
from benchmd_ray.extensions.extras import require
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.files.integrity import write_hashed_json
from benchmd_ray.modality.signals import require_signal
from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.models.encoder import NETWORKS, make_encoder, require_fitting
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.networks import RANDOM_KERNELS, require_task, taken_signal
from benchmd_ray.models.segmenter import Segmenter
from benchmd_ray.runs.files import MODEL
from benchmd_ray.settings.definition import (
    AugmentationSettings,
    EncoderSettings,
    Settings,
    as_dict,
    updated,
)
from benchmd_ray.training.augmentation import changed, draws_of, require_applicable
from benchmd_ray.training.checkpoints import load_checkpoint, save_checkpoint
from benchmd_ray.training.collect import evaluated, evaluation_batch
from benchmd_ray.training.engine import Engine, gather, make_engine, require_engine
from benchmd_ray.training.features import linear_evaluation, nearest_neighbours
from benchmd_ray.training.finetuning import (
    Average,
    freeze,
    frozen_parts,
    layer_factors,
    require_averageable,
    require_pretrained,
    set_stochastic_depth,
)
from benchmd_ray.training.forward import graphed
from benchmd_ray.training.jobs import RESULT, TRAINED, TransferJob, selected_by, trained_with
from benchmd_ray.training.notice import Agreement
from benchmd_ray.training.pretrain import require_source, require_whole_batches
from benchmd_ray.training.reporter import Reporter, require_finite
from benchmd_ray.training.seeds import WEIGHTS, derived_seed, seed_step
from benchmd_ray.training.segmentation import patches
from benchmd_ray.training.selection import (
    Best,
    Model,
    TransferData,
    model_of,
    objective_of,
    require_balanceable,
    training_feed,
    transfer_data,
)
from benchmd_ray.training.steps import DRAWN, Inputs, Steps, choose_step, drawn
from benchmd_ray.training.weights import (
    described,
    export_model,
    load_weights,
    model_description,
)

BEST = "best.safetensors"
AVERAGE = "average.safetensors"


def require_transferable(job: TransferJob, catalog: Catalog) -> TransferData:
    """Refuse a job that cannot work, before anything starts; returns the labels of the run."""
    require_source(catalog)
    catalog.require_split("validation")
    catalog = catalog.normalised_as(taken_signal(catalog.signal, job.settings.encoder))
    require_task(catalog.task, job.settings.encoder)
    if catalog.task.segments and job.settings.transfer.freezes:
        raise BenchmdError(
            f"the task of {catalog.dataset} is a segmentation, for which frozen features are not "
            "available: fine-tune instead (--setting finetune-full, or "
            "--set transfer.mode=finetune)."
        )
    require_fitting(catalog.signal, job.settings.encoder)
    if job.settings.transfer.freezes and job.settings.execution.workers > 1:
        raise BenchmdError(
            f"transfer.mode={job.settings.transfer.mode} encodes each record once and runs on one "
            "worker: use --set execution.workers=1."
        )
    if catalog.task.segments:  # masks are written much later
        require("writing masks", "SimpleITK")
    if job.settings.transfer.mode == "finetune":
        if job.settings.encoder.network == RANDOM_KERNELS:
            raise BenchmdError(
                "random kernels are not trained, so that they cannot be fine-tuned: use --setting "
                "linear or knn, or for few labels linear-small."
            )
        require_engine(job.settings.execution)
        require_whole_batches(job.settings, catalog.signal)
        augmentation = job.settings.transfer.augmentation
        require_applicable(augmentation, catalog.signal, catalog.task)
        require_averageable(job.settings)
        require_pretrained(job.settings.transfer.freeze, pretrained=job.upstream is not None)
    if job.upstream is not None:
        _require_same_architecture(job, job.upstream, catalog)
    data = transfer_data(job.settings, catalog, halved=job.halved)
    if job.settings.transfer.mode == "finetune":
        require_balanceable(job.settings, catalog, data)
    return data


def _require_same_architecture(job: TransferJob, upstream: Path, catalog: Catalog) -> None:
    description = model_description(upstream)
    signal, _ = described(description, upstream)
    require_signal(upstream, signal, catalog.signal, catalog.path)
    wanted = as_dict(job.settings.encoder)
    encoder = as_dict(updated(EncoderSettings(), description["encoder"]))
    for size, kind in ((wanted, catalog.signal), (encoder, signal)):
        # 0 is another word for the signal's own patches.
        size["patch_size"] = size["patch_size"] or kind.patch[-1]
    differing = [
        f"{name} is {encoder[name]} there and {value} here"
        for name, value in wanted.items()
        if encoder[name] != value and not name.endswith("dropout")
    ]
    if differing:
        raise BenchmdError(
            f"the encoder of {upstream} differs: {', '.join(differing)}. Use the encoder "
            "settings of that run."
        )


def normalised(job: TransferJob, catalog: Catalog) -> Catalog:
    """The catalog, whose signals are normalised as the job's encoder takes them."""
    catalog = catalog.normalised_as(taken_signal(catalog.signal, job.settings.encoder))
    if job.upstream is None or job.settings.transfer.normalisation == "catalog":
        return catalog
    statistics = model_description(job.upstream)["statistics"]
    return replace(catalog, manifest={**catalog.manifest, "statistics": statistics})


def transfer(job: TransferJob, worker: Worker, reporter: Reporter) -> None:
    """Train on the source's labels and keep the best epoch.

    Writes ``model.safetensors`` (encoder and head) and ``training.json``.

    Raises:
        BenchmdError: The loss or every validation score is NaN, or a checkpoint, catalog or
            upstream does not fit.
        Stopped: A worker got a signal (`training.notice`) while fine-tuning; a checkpoint was
            written, even within an epoch.
    """
    settings = job.settings
    catalog = normalised(job, open_catalog(job.catalog))
    data = replace(require_transferable(job, catalog), device=str(worker.device))
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed))
    encoder = make_encoder(catalog.signal, settings.transfer_encoder)
    if job.upstream is not None:
        stated = model_description(job.upstream)["weights"]
        load_weights(encoder, job.upstream / MODEL, stated, "encoder.")
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed, 1))
    model = model_of(encoder, catalog.task, settings)
    if settings.transfer.freezes:
        assert isinstance(model, Classifier)  # `require_transferable` refuses others
        evaluate = linear_evaluation if settings.transfer.mode == "linear" else nearest_neighbours
        about = (settings, catalog, data, model, worker, reporter)
        kept = None if job.features is None else cache_folder() / job.features
        best = evaluate(*about, kept=kept)
    else:
        best = _finetune(job, catalog, data, model, worker, reporter)
    if best.epoch < 0:
        raise BenchmdError(
            f"none of the {settings.transfer.epochs} epochs has a validation "
            f"{catalog.task.selected_by.upper()}, so none can be kept: the split validation of "
            f"{catalog.path} could not be scored."
        )
    if worker.rank == 0:
        _export(job, catalog, data, best)


def model_about(job: TransferJob, catalog: Catalog) -> dict[str, Any]:
    """What `export_model` states of the model of a job on a `normalised` catalog."""
    transfer = job.settings.transfer
    # Augmentation is not used if each record is encoded once.
    augmentation = AugmentationSettings() if transfer.freezes else transfer.augmentation
    return {
        "encoder": job.settings.encoder,
        "signal": catalog.signal,
        "statistics": catalog.statistics,
        "task": catalog.task,
        "augmentation": augmentation,
        "nearest": transfer.neighbours if transfer.mode == "knn" else None,
        "hidden": transfer.head_width or None,
        "normalisation": transfer.normalisation if job.upstream is not None else "catalog",
    }


def _export(job: TransferJob, catalog: Catalog, data: TransferData, best: Best) -> None:
    export_model(job.folder, best.weights, **model_about(job, catalog))
    write_hashed_json(
        job.folder / RESULT,
        {
            "best_epoch": best.epoch,
            selected_by(catalog.task): best.score,
            "training_records": len(data.rows),
            TRAINED: trained_with(job.settings, catalog.digest),
        },
        of=job.folder,
    )


def _finetune(
    job: TransferJob,
    catalog: Catalog,
    data: TransferData,
    model: Model,
    worker: Worker,
    reporter: Reporter,
) -> Best:
    settings, transfer = job.settings, job.settings.transfer
    freeze(model, transfer.freeze, settings.encoder.network)
    set_stochastic_depth(model, transfer.stochastic_depth, settings.encoder.network)
    factors = layer_factors(model, transfer.layer_decay, settings.encoder.network)
    engine = make_engine(model, transfer.optimiser, settings.execution, worker, factors)
    average = Average(engine.module, transfer.averaging) if transfer.averaging else None
    checkpoint, best = load_checkpoint(job.folder, engine), Best()
    kept, objective = f"best_{catalog.task.selected_by}", objective_of(data.task)
    position: Mapping[str, Any] = {} if checkpoint is None else checkpoint.position
    if checkpoint is not None:
        exports = worker.rank == 0
        weights = load_file(checkpoint.folder / BEST) if exports else {}
        best = Best(position[kept], position["best_epoch"], weights)
        if average is not None:
            average.load(checkpoint.folder / AVERAGE)
    first = 0 if checkpoint is None else checkpoint.step
    if first and worker.rank == 0:
        echo(f"{job.folder.name} resumes after {first:,} of {transfer.epochs:,} epochs", err=True)
    feed = training_feed(catalog, settings, worker, data)
    validation = whole_split_feed(catalog, "validation", settings, worker, catalog.statistics)
    batches = -(-feed.rows // min(transfer.batch_size, feed.rows))
    count = batches * transfer.epochs
    forward = evaluated(engine, transfer.augmentation.shape)
    if engine.captures and not catalog.task.segments:
        scored = transfer.epochs * -(-validation.rows // evaluation_batch(model.encoder))
        forward = graphed(forward, worker, settings, scored)
    steps = finetuning_steps(engine, settings, data.task, count)
    begun: list[float] = position.get("sums", [])
    agreement = Agreement(worker)

    def save(epochs: int, sums: list[float]) -> None:
        position = {"best_epoch": best.epoch, kept: best.score, "sums": sums}
        files: dict[str, Callable[[Path], None]] = {BEST: partial(save_file, best.weights)}
        if average is not None:
            files[AVERAGE] = average.save
        save_checkpoint(job.folder, epochs, engine, position, files)

    title = steps.chosen.titled("fine-tuning", worker.device)
    reporter.start(title, transfer.epochs, "epochs", first)
    saved = time.monotonic()
    for epoch in range(first, transfer.epochs):
        about = (engine, steps, feed, settings, epoch, data.task)
        sums, stop = finetune_epoch(*about, begun=begun, agreement=agreement, average=average)
        if stop:
            save(epoch, sums.tolist())
            raise Stopped(stop)
        begun = []
        engine.module.eval()
        with nullcontext() if average is None else average.in_use():
            scores = objective.scores(forward, validation, model, data)
            best.offer(scores[selected_by(catalog.task)], epoch, engine.weights)
        loss = float(sums.sum()) / feed.rows
        reporter.report(epoch + 1, {"loss": loss, **scores})
        due = time.monotonic() - saved >= settings.execution.checkpoint_seconds
        # The first worker's clock decides for all.
        decision = gather(torch.tensor([float(due)], device=worker.device))[0]
        if decision and epoch + 1 < transfer.epochs:
            save(epoch + 1, [])
            saved = time.monotonic()
    reporter.finish()
    return best


def finetune_epoch(
    engine: Engine,
    steps: Steps,
    feed: Feed,
    settings: Settings,
    epoch: int,
    task: TaskKind,
    *,
    begun: list[float],
    agreement: Agreement,
    average: Average | None = None,
) -> tuple[torch.Tensor, int]:
    """Train one epoch from a given batch to its end or a signal.

    ``begun`` has the summed losses of the batches done by an earlier session. Returns the summed
    loss of each batch, (batches,), and the signal to stop for, 0 at the end of the epoch.
    """
    worker, transfer = engine.worker, settings.transfer
    engine.module.train()
    for part in frozen_parts(engine.module, transfer.freeze):
        part.eval()
    size = min(transfer.batch_size, feed.rows)
    count = -(-feed.rows // size)
    sums, stop, model = [], 0, cast("Model", engine.module)
    for number, batch in enumerate(feed.epoch(size, epoch, len(begun)), len(begun)):
        step = epoch * count + number
        lr = transfer.optimiser.lr_at(step, count * transfer.epochs)
        if isinstance(model, Segmenter):
            batch = patches(batch, model.window, settings.seed, step, worker)
        sums.append(steps(step, _inputs(batch, settings, step, worker, task), lr))
        if average is not None:
            average.update(step)
        if stop := agreement.stop():
            break
    earlier = torch.tensor(begun, device=worker.device)
    new = torch.stack(sums) if sums else earlier[:0]
    losses = torch.cat([earlier, gather(new[None]).sum(dim=0)])
    total = count * transfer.epochs
    require_finite(losses, epoch * count + 1, lambda step: transfer.optimiser.lr_at(step, total))
    return losses, stop


def _inputs(
    batch: Batch, settings: Settings, step: int, worker: Worker, task: TaskKind
) -> dict[str, torch.Tensor]:
    """Inputs of a step; gradients are averaged over workers, losses over the whole batch."""
    weights, how = batch.weights, settings.transfer.augmentation
    inputs = {
        "signals": batch.signals,
        "targets": batch.targets,
        "weights": weights,
        "shares": weights * (worker.world / gather(weights).sum()),
    }
    draws = draws_of(batch, how, settings.seed, step, worker)
    if how.mixes and worker.world * settings.execution.accumulation > 1:  # needs the whole batch
        inputs["signals"], inputs["targets"] = changed(
            batch.signals, batch.targets, draws, how, task
        )
        return inputs
    return inputs | {f"{DRAWN}{name}": x for name, x in draws.items()}


def finetuning_steps(engine: Engine, settings: Settings, task: TaskKind, count: int) -> Steps:
    """The steps of a fine-tuning."""
    parts, smoothing = settings.execution.accumulation, settings.transfer.label_smoothing
    objective, how = objective_of(task), settings.transfer.augmentation

    def loss(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        signals, targets = changed(inputs["signals"], inputs["targets"], drawn(inputs), how, task)
        losses = objective.loss(engine(signals), targets, smoothing=smoothing)
        return (losses * inputs["shares"]).sum(), (losses * inputs["weights"]).sum()

    built_in = settings.encoder.network in NETWORKS
    chosen = choose_step(settings.execution, engine, count, built_in=built_in)
    seed = partial(seed_step, settings.seed, rank=engine.worker.rank)
    return Steps(engine, loss, seed, chosen, parts=parts)
