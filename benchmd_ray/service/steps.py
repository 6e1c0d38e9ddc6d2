"""What an item of a plan does: its work, disk size and resources, and how to find and run it.

Plan, estimates and execution use these classes; a new kind of step is a new class here.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.pooled import open_pretraining
from benchmd_ray.evaluation.evaluation import CLASSIFICATION, Evaluation
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.imagenet import StartWeights
from benchmd_ray.runs.store import Run
from benchmd_ray.service import cost
from benchmd_ray.service.cost import Disk, Inputs, Workload
from benchmd_ray.service.naming import finished_upstream, pretraining, transferring
from benchmd_ray.service.resolved import ResolvedRun
from benchmd_ray.service.scored import is_scored, open_also
from benchmd_ray.settings.definition import EncoderSettings, Settings, as_dict, updated
from benchmd_ray.ssl import technique_named
from benchmd_ray.ssl.brought import start_weights
from benchmd_ray.storage.location import Location
from benchmd_ray.training.jobs import STANDARDISED_ON, Fold


@dataclass(frozen=True)
class Request:
    """A request to find a run in a store, or to execute it."""

    technique: str
    catalog: Location
    store: Path
    settings: Settings
    """Settings with device and precision resolved."""
    upstream: Run | None = None
    weights: Path | None = None
    """File of ImageNet weights; None downloads them once."""
    also: tuple[Location, ...] = ()
    """Further catalogs that an evaluation reads, or that are pretrained on as well."""
    resolved: ResolvedRun | None = None
    """The resolved run, if known."""
    fold: Fold | None = None
    """What a fold run is trained on."""


@dataclass(frozen=True)
class Progress:
    """The run of an item, and its progress."""

    run: Run
    """The run; its folder need not exist."""
    done: bool
    """Whether nothing is left to do: the run is finished, and scored if the item scores."""
    resolved: ResolvedRun | None = None
    """The resolved run, if the item makes a run."""


@dataclass(frozen=True)
class Step(ABC):
    evaluation: Evaluation = field(default=CLASSIFICATION, repr=False)
    """The evaluation, if it scores."""

    kind: ClassVar[str]
    """Kind of the item, as W&B and metrics name it."""
    title: ClassVar[str]
    """Title of its column in a plan's table."""
    makes_run: ClassVar[bool] = True
    """Whether it makes a run; otherwise it adds to the run that it depends on."""
    scores: ClassVar[bool] = True
    of_all_seeds: ClassVar[bool] = False
    """Whether one run serves all seeds, since nothing is drawn."""
    parallel: ClassVar[bool] = False
    """Whether several workers share its training."""

    @abstractmethod
    def work(self, inputs: Inputs) -> Workload:
        """Its computation."""

    @abstractmethod
    def disk(self, inputs: Inputs) -> Disk:
        """Its size on disk."""

    @abstractmethod
    def find(self, request: Request) -> Progress:
        """Find its run in a store."""

    @abstractmethod
    def run(self, request: Request) -> Run:
        """Execute it in this process, unless it is done."""

    def total(self, settings: Settings) -> int | None:
        """Steps or epochs of its training; None where nothing is trained."""
        return None

    def workers(self, settings: Settings) -> int:
        return settings.execution.workers if self.parallel else 1

    def gpus(self, inputs: Inputs) -> float:
        """Number or share of GPUs that it uses, if any are available."""
        workers = self.workers(inputs.settings)
        return self.work(inputs).gpu_share(inputs.settings.execution) if workers == 1 else workers

    def placed(self, settings: Settings) -> Settings:
        """Settings with the workers and the device that it uses."""
        execution = replace(settings.execution, workers=self.workers(settings))
        return replace(settings, execution=execution)


class _OfEncoder:
    """A step that makes a run with an encoder's weights."""

    def find(self, request: Request) -> Progress:
        resolved = self._resolved(request)
        run = resolved.run(request.store.resolve())
        return Progress(run, run.finished, resolved)

    def _resolved(self, request: Request) -> ResolvedRun:
        catalog = open_pretraining([p.resolve() for p in (request.catalog, *request.also)])
        settings = request.settings
        start = _weights(request.technique, request.weights, catalog.signal, settings.encoder)
        return pretraining(request.technique, catalog, settings, start, request.fold)

    def run(self, request: Request) -> Run:
        from benchmd_ray.service.execute import pretrain_resolved

        resolved = request.resolved or self._resolved(request)
        store, several = request.store.resolve(), resolved.settings.execution.workers > 1
        return pretrain_resolved(resolved, store, request.weights, on_cluster=several)


class _OnLabels:
    """A step that trains on a source's labels and scores the source."""

    evaluation: Evaluation

    def total(self, settings: Settings) -> int | None:
        return settings.transfer.epochs if settings.transfer.by_epochs else None

    def find(self, request: Request) -> Progress:
        resolved = self._resolved(request)
        run = resolved.run(request.store.resolve())
        done = run.finished and is_scored(run, resolved.source, self.evaluation)
        return Progress(run, done, resolved)

    def _resolved(self, request: Request) -> ResolvedRun:
        catalog, before = open_catalog(request.catalog.resolve()), request.upstream
        upstream = None if before is None else finished_upstream(before.folder, catalog)
        return transferring(catalog, request.settings, upstream, request.fold)

    def run(self, request: Request) -> Run:
        from benchmd_ray.service.execute import transfer_resolved

        resolved = request.resolved or self._resolved(request)
        # The store, and with it the upstream's folder, may have another path on this machine.
        resolved = replace(resolved, upstream=request.upstream)
        store, several = request.store.resolve(), resolved.settings.execution.workers > 1
        return transfer_resolved(resolved, store, on_cluster=several)


class Pretrain(_OfEncoder, Step):
    """Pretraining on a source by a technique's method."""

    kind, title, scores, parallel = "pretrain", "pretraining", False, True

    def work(self, inputs: Inputs) -> Workload:
        settings, batch = inputs.settings, inputs.settings.pretrain.batch_size
        flops = cost.pretrain_flops(inputs.signal, settings.encoder, inputs.technique, batch)
        return replace(
            _training(self, inputs, batch),
            method=inputs.technique,
            units=settings.pretrain.steps,
            unit_flops=batch * flops,
        )

    def disk(self, inputs: Inputs) -> Disk:
        """Weights of the encoder and of the technique's head, checkpoints and metrics."""
        settings = inputs.settings
        lines = settings.pretrain.steps // settings.execution.log_every
        return cost.disk_of_run(inputs, head=inputs.technique, copies=3, lines=lines)

    def total(self, settings: Settings) -> int:
        return settings.pretrain.steps


class Export(_OfEncoder, Step):
    """Export of a technique's initial weights without training: ImageNet's."""

    kind, title, scores, of_all_seeds = "pretrain", "pretraining", False, True

    def work(self, inputs: Inputs) -> Workload:
        """Nothing is computed."""
        return replace(
            _training(self, inputs, inputs.settings.pretrain.batch_size), method=inputs.technique
        )

    def disk(self, inputs: Inputs) -> Disk:
        return cost.disk_of_run(inputs, head=inputs.technique)

    def gpus(self, inputs: Inputs) -> float:
        return 0.0

    def placed(self, settings: Settings) -> Settings:
        execution = replace(settings.execution, workers=1, device="cpu")
        return replace(settings, execution=execution)


class Fit(_OfEncoder, Step):
    """Random weights that are fitted to a few training records: random kernels."""

    kind, title, scores = "pretrain", "pretraining", False

    def work(self, inputs: Inputs) -> Workload:
        flops = cost.forward_flops(inputs.signal, inputs.settings.encoder)
        work = _training(self, inputs, inputs.settings.pretrain.batch_size)
        return replace(work, method=inputs.technique, once_flops=flops * STANDARDISED_ON)

    def disk(self, inputs: Inputs) -> Disk:
        return cost.disk_of_run(inputs, head=inputs.technique)


class Linear(_OnLabels, Step):
    """Linear evaluation of an encoder on a source's labels, and its scores there."""

    kind, title = "transfer", "transfers"

    def work(self, inputs: Inputs) -> Workload:
        """Each record is encoded once; the epochs, if there are any, train only the head."""
        if not inputs.settings.transfer.by_epochs:
            return _encoding(self, inputs)
        rows, transfer = cost.training_records(inputs), inputs.settings.transfer
        batch = min(transfer.batch_size, rows)
        return replace(
            _encoding(self, inputs),
            batch=batch,
            units=transfer.epochs,
            unit_flops=rows * cost.head_flops(inputs),
            unit_head_steps=-(-rows // batch),
        )

    def disk(self, inputs: Inputs) -> Disk:
        """Weights, metrics and predictions."""
        return _transfer_disk(inputs, copies=0)


class Neighbours(_OnLabels, Step):
    """Nearest neighbours by an encoder's features on a source, and its scores there."""

    kind, title = "transfer", "transfers"

    def work(self, inputs: Inputs) -> Workload:
        """Each record is encoded once; the search for neighbours is negligible."""
        return _encoding(self, inputs)

    def disk(self, inputs: Inputs) -> Disk:
        """Weights with the features of the training records, and predictions."""
        disk = _transfer_disk(inputs, copies=0)
        width = cost.features_width(inputs.signal, inputs.settings.encoder)
        values = width + len(inputs.source.kind.task.classes)
        return replace(disk, kept=disk.kept + 4 * values * cost.training_records(inputs))


class Finetune(_OnLabels, Step):
    """Fine-tuning of an encoder on a source's labels, and its scores there."""

    kind, title, parallel = "transfer", "transfers", True

    def work(self, inputs: Inputs) -> Workload:
        """Its epochs, including validation."""
        encoder, source = inputs.settings.encoder, inputs.source
        rows, validation = cost.training_records(inputs), source.rows.get("validation", 0)
        forward = cost.forward_flops(inputs.signal, encoder)
        epoch = rows * cost.training_flops(inputs.signal, encoder) + validation * forward
        return replace(
            _training(self, inputs, min(inputs.settings.transfer.batch_size, rows)),
            units=inputs.settings.transfer.epochs,
            unit_flops=epoch,
            once_flops=forward * source.scored_rows,
        )

    def disk(self, inputs: Inputs) -> Disk:
        """Weights, checkpoints with the weights of the best epoch, metrics and predictions."""
        return _transfer_disk(inputs, copies=4)


@dataclass(frozen=True)
class Evaluate(Step):
    """An evaluation of a finished transfer, by default classification of a target."""

    kind, title, makes_run = "evaluate", "evaluations", False

    def work(self, inputs: Inputs) -> Workload:
        """Each record is encoded as often as the evaluation requires."""
        read = (inputs.target or inputs.source, *inputs.also)
        scored = sum(dataset.scored_rows for dataset in read) * self.evaluation.passes
        once = cost.forward_flops(inputs.signal, inputs.settings.encoder) * scored
        work = _training(self, inputs, inputs.settings.pretrain.batch_size)
        return replace(work, once_flops=once, starts=False)

    def disk(self, inputs: Inputs) -> Disk:
        """Predictions, with a row for each time that a record is encoded."""
        scored = (inputs.target or inputs.source).scored_rows * self.evaluation.passes
        return Disk(cost.prediction_bytes(len(inputs.source.kind.task.classes), round(scored)))

    def find(self, request: Request) -> Progress:
        """The transfer, and whether the target is scored."""
        run, catalog = _upstream(request), open_catalog(request.catalog.resolve())
        return Progress(run, is_scored(run, catalog, self.evaluation, open_also(request.also)))

    def run(self, request: Request) -> Run:
        """Score the target."""
        from benchmd_ray.service.execute import evaluate_run

        run, settings = _upstream(request), request.settings
        evaluate_run(
            run,
            request.catalog,
            settings,
            evaluation=self.evaluation,
            also=request.also,
            within=True,
        )
        return run


STEPS: tuple[type[Step], ...] = (Pretrain, Export, Fit, Linear, Neighbours, Finetune, Evaluate)
"""All steps, in the order of a plan's columns."""


def pretrain_step(technique: str) -> Step:
    chosen = technique_named(technique)
    if chosen.method is not None:
        return Pretrain()
    return Export() if chosen.network is None else Fit()


def transfer_step(settings: Settings, evaluation: Evaluation = CLASSIFICATION) -> Step:
    """The step of a transfer with these settings and this evaluation."""
    steps: dict[str, Callable[[Evaluation], Step]]
    steps = {"linear": Linear, "finetune": Finetune, "knn": Neighbours}
    return steps[settings.transfer.mode](evaluation)


def counts(steps: Iterable[Step]) -> dict[str, int]:
    """Number of steps by title."""
    titles = [step.title for step in steps]
    return {title: titles.count(title) for title in dict.fromkeys(kind.title for kind in STEPS)}


def _encoding(step: Step, inputs: Inputs) -> Workload:
    """The work of encoding each record of the splits that are trained on or scored once."""
    source, forward = inputs.source, cost.forward_flops(inputs.signal, inputs.settings.encoder)
    splits = {"train", "validation", *source.scored}
    encoded = sum(source.rows.get(split, 0) for split in splits)
    batch = cost.training_records(inputs)
    return replace(_training(step, inputs, batch), once_flops=forward * encoded)


def _training(step: Step, inputs: Inputs, batch: int) -> Workload:
    """The work of a step without its units."""
    return Workload(
        type(step).__name__.lower(),
        inputs.source.modality,
        inputs.settings.encoder,
        batch,
        inputs.settings.execution.workers,
    )


def _transfer_disk(inputs: Inputs, *, copies: int) -> Disk:
    classes, epochs = len(inputs.source.kind.task.classes), inputs.settings.transfer.epochs
    disk = cost.disk_of_run(inputs, head=classes, copies=copies, lines=epochs)
    return replace(disk, kept=disk.kept + cost.prediction_bytes(classes, inputs.source.scored_rows))


def _upstream(request: Request) -> Run:
    assert request.upstream is not None  # an evaluation always comes after a transfer
    return request.upstream


def _weights(
    technique: str, path: Path | None, signal: Signal, encoder: EncoderSettings
) -> StartWeights | None:
    """Description of a technique's initial weights, None if random."""
    return _weights_once(technique, path, signal, json.dumps(as_dict(encoder), sort_keys=True))


@lru_cache(maxsize=64)
def _weights_once(
    technique: str, path: Path | None, signal: Signal, settings: str
) -> StartWeights | None:
    encoder = updated(EncoderSettings(), json.loads(settings))
    start = start_weights(technique, path, signal, encoder)
    return None if start is None else replace(start, tensors={})
