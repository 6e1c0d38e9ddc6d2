"""Pretraining: one loop for every engine and any number of workers; knows no Ray."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmd_ray.console.terminal import echo
from benchmd_ray.data.batches import Worker, ahead, to_device
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.data.normalise import Normalise
from benchmd_ray.data.pooled import Pool, open_pretraining
from benchmd_ray.errors import BenchmdError, Stopped
from benchmd_ray.files.integrity import made_again, stated_sha256
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder import (
    NETWORKS,
    Encoder,
    compares_examples,
    make_encoder,
    require_fitting,
    require_tokens,
)
from benchmd_ray.models.imagenet import require_imagenet_patches, require_images
from benchmd_ray.models.networks import NETWORK
from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl import METHODS, method_named, technique_named
from benchmd_ray.ssl.method import Draws
from benchmd_ray.training.checkpoints import load_checkpoint, saving
from benchmd_ray.training.engine import Engine, gather, make_engine, require_engine
from benchmd_ray.training.fitting import fit
from benchmd_ray.training.jobs import PretrainJob
from benchmd_ray.training.notice import Agreement
from benchmd_ray.training.reporter import Reporter, require_finite
from benchmd_ray.training.seeds import DRAWS, WEIGHTS, derived_seed, generator, seed_step
from benchmd_ray.training.steps import DRAWN, Inputs, Loss, Steps, choose_step, drawn
from benchmd_ray.training.weights import START, export_model, load_weights


def require_pretrainable(job: PretrainJob, catalog: Catalog) -> None:
    """Refuse a job that cannot work, before anything starts."""
    technique = technique_named(job.technique)
    require_source(catalog)
    if technique.imagenet:
        require_images(catalog.signal)
        require_imagenet_patches(catalog.signal, job.settings.encoder)
    require_fitting(catalog.signal, job.settings.encoder)
    if technique.network not in (None, job.settings.encoder.network):
        raise BenchmdError(
            f"encoder.network is {job.settings.encoder.network}, and the technique "
            f"{job.technique} is for {technique.network}: leave encoder out of the settings."
        )
    if technique.network is not None and job.settings.execution.workers > 1:
        raise BenchmdError(
            f"the technique {job.technique} is fitted to a few records and runs on one worker: use "
            "--set execution.workers=1."
        )
    if isinstance(catalog, Pool):
        _require_poolable(job, catalog)
    if technique.method is None:  # nothing is trained
        return
    if catalog.card.task.segments and not isinstance(catalog, Pool):
        raise BenchmdError(
            f"the task of {catalog.card.name} is a segmentation, whose networks are trained from "
            f"random weights: omit the technique {job.technique}, or use scratch."
        )
    if job.settings.pretrain.options and not technique.plugged_in:
        raise BenchmdError(
            f"pretrain.options is {job.settings.pretrain.options}, which {job.technique} does not "
            "read: omit it, only a custom method reads it."
        )
    if technique.method in METHODS:
        require_tokens(catalog.signal, job.settings.encoder, job.technique)
    require_engine(job.settings.execution)
    _require_shareable(job, method_named(technique.method))
    require_whole_batches(job.settings, catalog.signal)
    if not 1 <= job.last <= job.settings.pretrain.steps:
        raise BenchmdError(
            f"pretraining is to stop after step {job.last}: expected a step from 1 to "
            f"pretrain.steps, which is {job.settings.pretrain.steps}."
        )


def _require_poolable(job: PretrainJob, pool: Pool) -> None:
    if technique_named(job.technique).method is None:
        raise BenchmdError(
            f"{job.technique} trains no encoder, and serves one source: targets are never trained "
            "on, and other catalogs would not be read. Name one catalog, of a source."
        )
    if pool.signal.by_statistics and pool.statistics is None:
        targets = [member.dataset for member in pool.members if member.card.role != "source"]
        raise BenchmdError(
            f"{', '.join(targets)}: the catalog of a target has no training statistics, by which "
            f"{pool.signal.name} is normalised: pretrain on sources only."
        )


def _require_shareable(job: PretrainJob, method: Any) -> None:
    batch, execution = job.settings.pretrain.batch_size, job.settings.execution
    shares, cut = execution.workers * execution.accumulation, execution.accumulation > 1
    if cut and not getattr(method, "per_example", False):
        raise BenchmdError(
            f"execution.accumulation is {execution.accumulation}, and {job.technique} may compare "
            "the examples of a batch with each other: expected 1, or a method whose `per_example` "
            "is true. Any method can use more workers instead."
        )
    if batch % shares:
        times = f" times execution.accumulation {execution.accumulation}" if cut else ""
        raise BenchmdError(
            f"pretrain.batch_size is {batch} and execution.workers {execution.workers}{times}: "
            f"expected a multiple, such as {batch - batch % shares or shares}."
        )


def require_whole_batches(settings: Settings, signal: Signal) -> None:
    """Refuse to split batches that an encoder normalises as a whole.

    Each part would be normalised separately, so results would depend on the number of parts.
    """
    execution, network = settings.execution, settings.encoder.network
    if execution.workers * execution.accumulation == 1 or network == NETWORK:
        return
    if compares_examples(make_encoder(signal, settings.encoder)):
        raise BenchmdError(
            f"execution.workers is {execution.workers} and execution.accumulation "
            f"{execution.accumulation}, and {network} normalises over the batch, which must stay "
            "whole: expected 1 for both. To use a cluster, start several runs, such as other seeds."
        )


def require_source(catalog: Catalog) -> None:
    """Refuse to train on a target's labels or without training records."""
    if catalog.card.role != "source" and not isinstance(catalog, Pool):
        raise BenchmdError(
            f"{catalog.path} is a catalog of the target {catalog.dataset}: targets are never "
            "trained on. Name the source's catalog."
        )
    catalog.require_split("train")


def pretrain(job: PretrainJob, worker: Worker, reporter: Reporter) -> None:
    """Train an encoder by a self-supervised method, from the newest checkpoint if there is one.

    Writes ``checkpoints/``, and at the end ``model.safetensors`` with encoder and method head. With
    ``job.until`` training ends there, with the learning rate schedule of the whole run.

    Raises:
        BenchmdError: The loss is NaN, a checkpoint or catalog does not fit, the technique trains
            nothing, or the checkpoint is beyond the step to stop at.
        Stopped: A worker got a signal (`training.notice`); a checkpoint was written.
    """
    settings, total = job.settings, job.settings.pretrain.steps
    catalog = open_pretraining(job.catalogs)
    require_pretrainable(job, catalog)
    if technique_named(job.technique).network is not None:
        fit(job, catalog, worker, reporter)
        return
    torch.manual_seed(derived_seed(WEIGHTS, settings.seed))
    method = _method(job, make_encoder(catalog.signal, settings.encoder))
    engine = make_engine(method, settings.pretrain.optimiser, settings.execution, worker)
    checkpoint = load_checkpoint(job.folder, engine)
    first = 0 if checkpoint is None else checkpoint.step
    if first > job.last:
        raise BenchmdError(
            f"the checkpoint in {job.folder} is of step {first}, beyond step {job.last} at which "
            "to stop: name a later step, or another folder to start over."
        )
    if first and worker.rank == 0:
        echo(f"{job.folder.name} resumes after {first:,} of {total:,} steps", err=True)
    feed = whole_split_feed(catalog, "train", settings, worker, catalog.statistics)
    parts = settings.execution.accumulation
    chosen = choose_step(
        settings.execution,
        engine,
        total,
        built_in=technique_named(job.technique).method in METHODS
        and settings.encoder.network in NETWORKS,
        exchanges=not getattr(method, "per_example", False),
    )
    steps = Steps(
        engine,
        pretraining_loss(engine, feed.normalise, parts),
        partial(seed_step, settings.seed, rank=worker.rank),
        chosen,
        parts=parts,
    )
    title = chosen.titled(f"pretrain {job.technique}", worker.device)
    reporter.start(title, job.last, "steps", first)
    engine.module.train()
    batches = feed.endless(settings.pretrain.batch_size, first)
    of_steps = (step_draws(engine, settings, step) for step in range(first, job.last))
    draws = ahead(of_steps) if worker.device.type == "cuda" else of_steps
    losses = Losses(
        [] if checkpoint is None else checkpoint.position["losses"], worker, settings, reporter
    )
    agreement = Agreement(worker)
    with saving(job.folder, engine) as save_at:
        for step in range(first, job.last):
            stored = next(batches)
            inputs = {"signals": stored.signals, "scales": stored.scales, "sizes": stored.sizes}
            inputs |= {f"{DRAWN}{name}": x for name, x in next(draws).items()}
            lr = settings.pretrain.optimiser.lr_at(step, total)
            losses.add(steps(step, inputs, lr))
            done = step + 1
            save = done % settings.execution.checkpoint_every == 0 or done == job.last
            if save or done % settings.execution.log_every == 0:
                losses.report(done)
            stop = agreement.stop()
            if save or stop:
                save_at(done, {"losses": losses.unreported(done)})
            if stop and done < job.last:
                raise Stopped(stop)
    reporter.finish()
    weights = engine.weights()
    if worker.rank == 0:
        export_model(job.folder, weights, settings.encoder, catalog.signal, catalog.statistics)


def _method(job: PretrainJob, encoder: Encoder) -> Any:
    """The technique's method on an encoder, with its initial weights, if any."""
    technique = technique_named(job.technique)
    if technique.method is None:
        raise BenchmdError(f"the technique {job.technique} uses its weights without training.")
    if technique.imagenet:
        start = job.folder / START
        load_weights(encoder, start, stated_sha256(start, made_again(job.folder)))
    method = method_named(technique.method)(encoder, job.settings.pretrain)
    if not isinstance(method, nn.Module) or not hasattr(method, "draw"):
        raise BenchmdError(
            f"the technique {job.technique} made a {type(method).__name__}, expected a torch "
            "module with draw and encoder, as benchmd_ray.ssl.method.Method describes."
        )
    return method


def pretraining_loss(engine: Engine, normalise: Normalise, parts: int) -> Loss:
    """A part's share of the mean loss of a worker's batch."""

    def loss(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        signals = normalise(inputs["signals"], inputs["scales"], inputs["sizes"])
        share = engine(signals, drawn(inputs), gather) / parts
        return share, share

    return loss


def step_draws(engine: Engine, settings: Settings, step: int) -> Draws:
    """This worker's share of what the method draws for a step."""
    worker, size = engine.worker, settings.pretrain.batch_size
    draws = engine.module.draw(size, generator(DRAWS, settings.seed, step))  # type: ignore[operator]
    share = size // worker.world
    start = worker.rank * share
    shares = {name: x[start : start + share] for name, x in draws.items()}
    return {name: to_device(x.numpy(), worker.device) for name, x in shares.items()}


class Losses:
    """Losses that were not reported yet.

    A GPU continues while the losses of an interval are copied to the host; they are checked and
    reported with the next interval.
    """

    def __init__(
        self, earlier: Sequence[float], worker: Worker, settings: Settings, reporter: Reporter
    ) -> None:
        """``earlier`` are losses that an earlier session did not report, over all workers."""
        self._earlier, self._new = list(earlier), list[torch.Tensor]()
        self._worker, self._settings, self._reporter = worker, settings, reporter
        self._underway: _Underway | None = None

    def add(self, loss: torch.Tensor) -> None:
        """Add this worker's loss of a step, on the device."""
        self._new.append(loss)

    def report(self, done: int) -> None:
        """Report the interval that ends with a step; every worker calls it."""
        self._settle()
        self._underway = self._over_workers(done)
        self._earlier, self._new = [], []
        if self._worker.device.type != "cuda":
            self._settle()

    def unreported(self, done: int) -> list[float]:
        """Losses, over all workers, since the last reported interval."""
        self._settle()
        if self._new:
            self._earlier, self._new = self._checked(self._over_workers(done)).tolist(), []
        return self._earlier

    def _over_workers(self, done: int) -> _Underway:
        means = gather(torch.stack(self._new).float()[None]).mean(dim=0)
        return _Underway(means, self._earlier, done)

    def _settle(self) -> None:
        underway, self._underway = self._underway, None
        if underway is not None:
            mean = float(self._checked(underway).mean())
            lr = self._lr(underway.done - 1)
            self._reporter.report(underway.done, {"loss": mean, "lr": lr})

    def _checked(self, underway: _Underway) -> torch.Tensor:
        losses = underway.arrived()
        require_finite(losses, underway.done - len(losses) + 1, self._lr)
        return losses

    def _lr(self, step: int) -> float:
        chosen = self._settings.pretrain
        return chosen.optimiser.lr_at(step, chosen.steps)


class _Underway:
    def __init__(self, losses: torch.Tensor, earlier: Sequence[float], done: int) -> None:
        self.done, self._earlier = done, torch.tensor(earlier, dtype=losses.dtype)
        self._arrived: torch.cuda.Event | None = None
        if losses.device.type == "cuda":
            self._new = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True)
            self._new.copy_(losses, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()
        else:
            self._new = losses

    def arrived(self) -> torch.Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return torch.cat([self._earlier, self._new])
