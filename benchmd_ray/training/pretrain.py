"""Pretraining: one loop for every engine and any number of workers; knows no Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmd_ray.data.batches import Batch, Worker
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.encoder import Encoder, make_encoder
from benchmd_ray.models.imagenet import require_imagenet_patches, require_images
from benchmd_ray.settings import Settings
from benchmd_ray.ssl import method_named, technique_named
from benchmd_ray.ssl.method import Draws
from benchmd_ray.training.checkpoints import (
    START,
    export_model,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from benchmd_ray.training.engine import Engine, gather, make_engine
from benchmd_ray.training.reporter import Reporter, require_finite
from benchmd_ray.training.seeds import DRAWS, WEIGHTS, derived_seed, generator, seed_step


@dataclass(frozen=True)
class PretrainJob:
    """What one pretraining run does."""

    settings: Settings
    technique: str
    catalog: Path
    folder: Path
    """Folder of the run, on storage that all workers see; holds `START` for a technique that
    starts from ImageNet weights."""
    until: int | None = None
    """Stop after this step of ``pretrain.steps``, with a checkpoint and the exported weights; the
    same job with a later one, or None, goes on from there as if it had never stopped."""

    @property
    def last(self) -> int:
        """Steps that are done when the job ends."""
        return self.settings.pretrain.steps if self.until is None else self.until


def require_pretrainable(job: PretrainJob, catalog: Catalog) -> None:
    """Refuse what cannot work before anything starts.

    Raises:
        BenchmdError: Technique unknown or not for this modality, a target's catalog, no training
            record, patches that do not fit, a batch that the workers cannot share, or a last step
            that is none of the run's.
    """
    technique = technique_named(job.technique)
    require_source(catalog)
    if technique.imagenet:
        require_images(catalog.modality)
        require_imagenet_patches(catalog.modality, job.settings.encoder)
    catalog.modality.with_patch(job.settings.encoder.patch_size)
    if technique.method is None:  # nothing is trained
        return
    if job.settings.pretrain.options and not technique.plugged_in:
        raise BenchmdError(
            f"pretrain.options is {job.settings.pretrain.options}, which {job.technique} does not "
            "read: leave it out, only a method of one's own reads it."
        )
    batch, workers = job.settings.pretrain.batch_size, job.settings.execution.workers
    if batch % workers:
        raise BenchmdError(
            f"pretrain.batch_size is {batch} and execution.workers {workers}: expected a multiple, "
            f"such as {batch - batch % workers or workers}."
        )
    if not 1 <= job.last <= job.settings.pretrain.steps:
        raise BenchmdError(
            f"pretraining is to stop after step {job.last}: expected a step from 1 to "
            f"pretrain.steps, which is {job.settings.pretrain.steps}."
        )


def require_source(catalog: Catalog) -> None:
    """Refuse to train on a target or without training records.

    Raises:
        BenchmdError: The catalog is a target's or has no training split.
    """
    if catalog.manifest["role"] != "source":
        raise BenchmdError(
            f"{catalog.path} is a catalog of the target {catalog.dataset}: targets are never "
            "trained on. Name the source's catalog."
        )
    catalog.require_split("train")


def pretrain(job: PretrainJob, worker: Worker, reporter: Reporter) -> None:
    """Train an encoder by a self-supervised method, from the newest checkpoint on if there is one.

    Writes ``checkpoints/``, and at the end ``model.safetensors`` with encoder and method head. With
    ``job.until`` that is the end, and all that depends on the number of steps (learning rate,
    warm-up) is still that of the whole run.

    Raises:
        BenchmdError: The loss is no number, a checkpoint or catalog does not fit, the technique
            trains nothing, or the checkpoint lies beyond the step to stop at.
    """
    settings, total = job.settings, job.settings.pretrain.steps
    catalog = open_catalog(job.catalog)
    require_pretrainable(job, catalog)
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed))
    method = _method(job, make_encoder(catalog.modality, settings.encoder))
    engine = make_engine(method, settings.pretrain.optimiser, settings.execution, worker)
    first = int(load_checkpoint(job.folder, engine).get("step", 0))
    _require_ahead(job, first)
    feed = whole_split_feed(catalog, "train", settings, worker, catalog.statistics)
    reporter.start(f"pretrain {job.technique}", job.last, "steps", first)
    engine.module.train()
    batches = feed.endless(settings.pretrain.batch_size, first)
    losses: list[torch.Tensor] = []
    for step in range(first, job.last):
        losses.append(_step(engine, batches, settings, step))
        done = step + 1
        save = done % settings.execution.checkpoint_every == 0 or done == job.last
        if save or done % settings.execution.log_every == 0:
            lr = settings.pretrain.optimiser.lr_at(step, total)
            reporter.report(done, {"loss": _mean_loss(losses, done, worker, settings), "lr": lr})
            losses = []
        if save:
            save_checkpoint(job.folder, done, engine, {})
    reporter.finish()
    weights = engine.weights()
    if worker.rank == 0:
        name, statistics = catalog.modality.name, catalog.statistics
        export_model(job.folder, weights, settings.encoder, name, statistics)


def _require_ahead(job: PretrainJob, first: int) -> None:
    """Refuse to export weights of more steps than asked for."""
    if first > job.last:
        raise BenchmdError(
            f"the checkpoint in {job.folder} is of step {first}, beyond step {job.last} at which "
            "to stop: name a later one, or another folder to start anew."
        )


def _method(job: PretrainJob, encoder: Encoder) -> Any:
    """The technique's method on an encoder, which takes the weights to start from, if any."""
    technique = technique_named(job.technique)
    if technique.method is None:
        raise BenchmdError(f"the technique {job.technique} takes its weights as they are.")
    if technique.imagenet:
        load_weights(encoder, job.folder / START)
    made = method_named(technique.method)(encoder, job.settings.pretrain)
    if not isinstance(made, nn.Module) or not hasattr(made, "draw"):
        raise BenchmdError(
            f"the technique {job.technique} made a {type(made).__name__}, expected a torch module "
            "with draw and encoder, as benchmd_ray.ssl.method.Method describes."
        )
    return made


def _step(engine: Engine, batches: Iterator[Batch], settings: Settings, step: int) -> torch.Tensor:
    """One optimiser step; the detached loss of this worker."""
    batch, worker = next(batches), engine.worker
    draws = step_draws(engine, settings, step)
    seed_step(settings.seed, step, worker.rank)
    loss: torch.Tensor = engine(batch.signals, draws, gather)
    engine.step(loss, settings.pretrain.optimiser.lr_at(step, settings.pretrain.steps))
    return loss.detach()


def step_draws(engine: Engine, settings: Settings, step: int) -> Draws:
    """This worker's share of what the method draws for a step."""
    worker, size = engine.worker, settings.pretrain.batch_size
    draws = engine.module.draw(size, generator(DRAWS, settings.seed, step))  # type: ignore[operator]
    share = size // worker.world
    start = worker.rank * share
    return {name: x[start : start + share].to(worker.device) for name, x in draws.items()}


def _mean_loss(losses: list[torch.Tensor], done: int, worker: Worker, settings: Settings) -> float:
    """Mean loss over steps and workers, after a check that all are finite."""
    each = gather(torch.stack(losses).float()[None]).mean(dim=0)
    chosen = settings.pretrain
    lr_of = partial(chosen.optimiser.lr_at, total=chosen.steps)
    require_finite(each, done - len(losses) + 1, lr_of)
    return float(each.mean())
