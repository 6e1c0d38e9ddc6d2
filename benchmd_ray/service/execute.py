"""One run each: opened in the store, launched, evaluated; done only where it is not done yet."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmd_ray.cluster import connected
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.feed import shuffle_rows, streams
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.predict import predict, predictions_path, read_predictions
from benchmd_ray.files import remove, sha256
from benchmd_ray.models.encoder import network_source
from benchmd_ray.models.imagenet import ImageNetWeights, imagenet_weights
from benchmd_ray.results.store import Run, open_run, read_run, working
from benchmd_ray.settings import (
    ENCODERS,
    EncoderSettings,
    ExecutionSettings,
    Settings,
    as_dict,
    fixed_settings,
    updated,
)
from benchmd_ray.ssl import SCRATCH, method_source, protocol_encoder, technique_named
from benchmd_ray.training.checkpoints import MODEL, START, export_model, versions, write_weights
from benchmd_ray.training.engine import choose_device
from benchmd_ray.training.launch import launch
from benchmd_ray.training.pretrain import PretrainJob, require_pretrainable
from benchmd_ray.training.transfer import TransferJob, require_transferable


def base_settings(catalog: Path, technique: str) -> Settings:
    """The fixed protocol for a catalog's modality and a technique, for settings to change.

    Raises:
        BenchmdError: There is no such catalog.
    """
    return fixed_settings(open_catalog(catalog).modality, protocol_encoder(technique))


def pretrain_run(
    technique: str,
    catalog: Path,
    store: Path,
    settings: Settings,
    address: str | None = None,
    *,
    weights: Path | None = None,
) -> Run:
    """Pretrain, unless it is done.

    Args:
        technique: One of the pretraining techniques.
        catalog: The source's catalog.
        store: Folder of all runs.
        settings: The run's settings.
        address: Ray cluster to work on; None works embedded.
        weights: File of ImageNet weights, for the techniques that start from them; None
            downloads them.

    Raises:
        BenchmdError: Something named does not exist or fit, or the work failed.
    """
    chosen = technique_named(technique)
    if weights is not None and not chosen.imagenet:
        raise BenchmdError(f"the technique {technique} starts from random weights: leave them out.")
    catalog, store = catalog.resolve(), store.resolve()  # workers have folders of their own
    source, start = open_catalog(catalog), None
    if chosen.imagenet:
        start = imagenet_weights(weights, source.modality)
        size = ENCODERS[chosen.encoder]
        encoder = _adopted(settings.encoder, size, technique, f"the technique {technique}")
        settings = replace(settings, encoder=encoder)
    with _place(settings, address) as (settings, on_cluster):
        job = PretrainJob(settings, technique, catalog, store)
        run = open_run(
            store,
            f"pretrain-{source.modality.name}-{_file_name(technique)}",
            _pretraining(job, source, start),
            partial(require_pretrainable, job, source),
        )
        if not run.finished:
            with working(run):
                _pretrain(replace(job, folder=run.folder), source, start, on_cluster)
    return run


def _pretraining(
    job: PretrainJob, source: Catalog, start: ImageNetWeights | None
) -> dict[str, Any]:
    """Content of a pretraining's ``run.json``."""
    about: dict[str, Any] = {
        "kind": "pretrain",
        "technique": job.technique,
        "setting": "pretrain",
    }
    determinants = _determinants(job.settings, source, "pretrain") | {"technique": job.technique}
    if own := method_source(job.technique):
        determinants["method_source"] = own
    if technique_named(job.technique).method is None:  # nothing is trained or drawn
        kept = ("stage", "encoder", "catalog", "technique")
        determinants = {name: determinants[name] for name in kept}
    if start is not None:
        determinants["weights"] = start.sha256
        about["weights"] = {"file": start.file, "left_out": start.left_out}
    return _description(job.settings, source, about, determinants)


def _pretrain(
    job: PretrainJob, source: Catalog, start: ImageNetWeights | None, on_cluster: bool
) -> None:
    """Train by the technique's method, or export the weights to start from where it has none."""
    if start is not None and technique_named(job.technique).method is None:
        weights = {f"encoder.{name}": value for name, value in start.tensors.items()}
        name, statistics = source.modality.name, source.statistics
        export_model(job.folder, weights, job.settings.encoder, name, statistics)
        return
    if start is not None:
        write_weights(job.folder / START, start.tensors)
    launch(job, on_ray=on_cluster)
    remove(job.folder / START)


def transfer_run(
    catalog: Path,
    store: Path,
    settings: Settings,
    *,
    upstream: Path | None = None,
    targets: tuple[Path, ...] = (),
    address: str | None = None,
) -> Run:
    """Transfer, unless it is done, and evaluate the source and the targets.

    Args:
        catalog: The source's catalog.
        store: Folder of all runs.
        settings: The run's settings; the encoder's architecture is the upstream's, where there
            is one, its dropout these settings' (the technique's, where they are the default's).
        upstream: Folder of a finished pretraining run; None starts from scratch.
        targets: Catalogs to evaluate zero-shot.
        address: Ray cluster to work on; None works embedded.

    Raises:
        BenchmdError: Something named does not exist or fit, or the work failed.
    """
    catalog, store = catalog.resolve(), store.resolve()
    source = open_catalog(catalog)
    pretrained = None if upstream is None else _upstream(upstream.resolve(), source)
    technique = SCRATCH if pretrained is None else str(pretrained.description["technique"])
    if pretrained is not None:
        held = updated(EncoderSettings(), pretrained.description["settings"]["encoder"])
        encoder = _adopted(settings.encoder, held, technique, pretrained.folder.name)
        settings = replace(settings, encoder=encoder)
    for target in targets:
        _require_target(open_catalog(target), source)
    with _place(settings, address) as (settings, on_cluster):
        determinants = _determinants(settings, source, "transfer") | {
            "upstream": None if pretrained is None else sha256(pretrained.folder / MODEL)
        }
        about = {
            "kind": "transfer",
            "technique": technique,
            "setting": settings.transfer.setting,
            "upstream": None if pretrained is None else pretrained.folder.name,
        }
        description = _description(settings, source, about, determinants)
        if pretrained is not None:
            description["fixed"] &= pretrained.description["fixed"]
        folder = None if pretrained is None else pretrained.folder
        job = TransferJob(settings, catalog, store, folder)
        run = open_run(
            store,
            f"transfer-{source.modality.name}-{_file_name(technique)}-{settings.transfer.setting}",
            description,
            partial(require_transferable, job, source),
        )
        if not run.finished:
            with working(run):
                launch(replace(job, folder=run.folder), on_ray=on_cluster)
        for path in (catalog, *targets):
            _evaluate(run, path.resolve(), settings, on_cluster)
    return run


def evaluate_run(run: Run, catalog: Path, settings: Settings, address: str | None = None) -> Path:
    """Score a catalog's evaluation splits with a finished transfer run, unless that is done.

    Returns:
        The file with the predictions.

    Raises:
        BenchmdError: The run is not finished or no transfer, or the catalog does not fit.
    """
    if run.description["kind"] != "transfer":
        raise BenchmdError(f"{run.folder} is a pretraining run: name a transfer run.")
    if not run.finished:
        raise BenchmdError(f"{run.folder} is not finished: run its `benchmd transfer` again.")
    run = replace(run, folder=run.folder.resolve())
    with _place(settings, address) as (settings, on_cluster):
        return _evaluate(run, catalog.resolve(), settings, on_cluster)


@contextlib.contextmanager
def _place(settings: Settings, address: str | None) -> Iterator[tuple[Settings, bool]]:
    """Join the cluster where one is named, and settle device and precision for where it runs.

    Yields:
        The settings without ``auto`` for device and precision, and whether all computing belongs
        on the cluster instead of in this process.
    """
    on_cluster = bool(address or os.environ.get("RAY_ADDRESS"))
    with connected(address) if on_cluster else contextlib.nullcontext():
        execution = settings.execution
        device = execution.device
        if device == "auto":
            device = "cuda" if _has_gpu(on_cluster) else "cpu"
        elif not on_cluster:
            choose_device(device)  # refused before a run's folder is made
        precision = execution.precision
        if precision == "auto":
            precision = "bf16" if device == "cuda" else "float32"
        settled = replace(execution, device=device, precision=precision)
        yield replace(settings, execution=settled), on_cluster


def _has_gpu(on_cluster: bool) -> bool:
    if not on_cluster:
        return torch.cuda.is_available()
    import ray

    return bool(ray.cluster_resources().get("GPU", 0))


def _evaluate(run: Run, catalog: Path, settings: Settings, on_cluster: bool) -> Path:
    opened = open_catalog(catalog)
    _require_same_policy(opened, run.description["policy"])
    path = predictions_path(run.folder, opened.dataset)
    if path.is_file() and read_predictions(path).description["catalog"] == opened.digest:
        return path
    for split in opened.evaluation_splits:
        opened.require_split(split)
        opened.require_unaltered(split)
    execution = settings.execution
    if on_cluster:
        import ray

        gpus = int(execution.device == "cuda")
        task = ray.remote(num_cpus=1, num_gpus=gpus)(_predict)
        try:
            return ray.get(task.remote(run.folder, opened, settings))  # type: ignore[no-any-return]
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, BenchmdError):
                raise error.cause from error
            raise
    streaming = any(streams(opened, split, execution) for split in opened.evaluation_splits)
    with connected(cpus=2) if streaming else contextlib.nullcontext():
        return _predict(run.folder, opened, settings)


def _predict(folder: Path, catalog: Catalog, settings: Settings) -> Path:
    worker = Worker(device=choose_device(settings.execution.device))
    return predict(folder, catalog, settings, worker)


def _upstream(folder: Path, source: Catalog) -> Run:
    """A finished pretraining run on this very catalog.

    Raises:
        BenchmdError: It is none. One on a catalog of other splits may have seen this one's
            validation and test patients.
    """
    run = read_run(folder)
    if run.description["kind"] != "pretrain" or not run.finished:
        raise BenchmdError(
            f"{folder} is no finished pretraining run: name one that `benchmd pretrain` printed."
        )
    if run.description["determinants"]["catalog"] != source.digest:
        held = f"{run.description['source']}, policy {run.description['policy']}"
        raise BenchmdError(
            f"{folder} was pretrained on another catalog ({held}) than {source.path} "
            f"({source.dataset}, policy {source.manifest['policy']}), and may have seen its "
            "validation or test patients: pretrain on this catalog."
        )
    return run


def _adopted(
    chosen: EncoderSettings, held: EncoderSettings, technique: str, whose: str
) -> EncoderSettings:
    """The architecture ``held`` with the chosen dropout.

    Args:
        chosen: The settings' encoder; the default stands for no choice.
        held: The encoder whose weights are taken.
        technique: Its fixed protocol has the dropout where nothing is chosen.
        whose: What has that encoder, for the message.

    Raises:
        BenchmdError: Another architecture was chosen, neither the default nor ``held``.
    """
    default = EncoderSettings()
    source = ENCODERS[protocol_encoder(technique)] if chosen == default else chosen

    def dropping(size: EncoderSettings) -> EncoderSettings:
        rates = (source.dropout, source.embedding_dropout)
        return replace(size, dropout=rates[0], embedding_dropout=rates[1])

    result = dropping(held)
    if chosen not in (result, default, dropping(default)):
        raise BenchmdError(
            f"the settings choose another encoder than {whose} has: leave all of encoder out but "
            "dropout and embedding_dropout."
        )
    return result


def _file_name(technique: str) -> str:
    """A technique's name as part of a folder's: that of a user's own may be an import path."""
    return re.sub("[^A-Za-z0-9.]+", "-", technique)


def _require_target(target: Catalog, source: Catalog) -> None:
    if target.manifest["role"] != "target":
        raise BenchmdError(
            f"{target.path} is a catalog of the source {target.dataset}, which is scored anyway: "
            "name catalogs of targets."
        )
    if target.modality != source.modality:
        raise BenchmdError(
            f"{target.path} is a catalog of {target.modality.name}, the source is one of "
            f"{source.modality.name}: name catalogs of the same modality."
        )
    _require_same_policy(target, source.manifest["policy"])


def _require_same_policy(catalog: Catalog, policy: str) -> None:
    if catalog.manifest["policy"] != policy:
        raise BenchmdError(
            f"{catalog.path} was built with policy {catalog.manifest['policy']}, the source with "
            f"{policy}: build both with the same --policy."
        )


def _determinants(settings: Settings, source: Catalog, stage: str) -> dict[str, Any]:
    """What decides a run's result.

    The number of workers, the engine and ZeRO's stage are left out: they change rounding and
    which values dropout draws. With a streaming feed the workers decide the order.
    """
    everything, execution = as_dict(settings), settings.execution
    own = network_source(settings.encoder)
    return {
        **({} if own is None else {"network_source": own}),
        "stage": stage,
        "encoder": everything["encoder"],
        stage: everything[stage],
        "precision": execution.precision,
        "order": _order(source, execution),
        "seed": settings.seed,
        "catalog": source.digest,
    }


def _order(source: Catalog, execution: ExecutionSettings) -> list[int]:
    """What decides the order of the training records beside the seed: nothing, when resident."""
    streaming = streams(source, "train", execution)
    return [execution.workers, shuffle_rows(source, execution)] if streaming else []


def _description(
    settings: Settings, source: Catalog, about: dict[str, Any], determinants: dict[str, Any]
) -> dict[str, Any]:
    """Content of ``run.json``."""
    everything, encoder = as_dict(settings), protocol_encoder(about["technique"])
    standard = as_dict(fixed_settings(source.modality, encoder))
    for key in ("mode", "labels"):  # the protocol's own axes
        standard["transfer"][key] = everything["transfer"][key]
    decisive = [name for name in ("encoder", "pretrain", "transfer") if name in determinants]
    # The run may be evaluated on another machine: where it ran is recorded, not set.
    device = everything["execution"]["device"]
    everything["execution"]["device"] = "auto"
    return {
        **about,
        "device": device,
        "modality": source.modality.name,
        "source": source.dataset,
        "raw": [source.manifest["raw"][name] for name in ("records", "expected")],
        "options": source.options,
        "policy": source.manifest["policy"],
        "seed": settings.seed,
        "fixed": all(determinants[name] == standard[name] for name in decisive),
        "settings": everything,
        "determinants": determinants,
        "versions": versions(),
    }
