"""One run each: opened in the store, launched, evaluated; done only where it is not done yet."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from benchmd_ray.cluster import connected
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.feed import streams
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.predict import predict, predictions_path, read_predictions
from benchmd_ray.results.store import Run, open_run, read_run, working
from benchmd_ray.settings import Settings, as_dict, updated
from benchmd_ray.ssl import SCRATCH, require_method
from benchmd_ray.training.checkpoints import versions
from benchmd_ray.training.engine import choose_device
from benchmd_ray.training.launch import Job, launch
from benchmd_ray.training.pretrain import PretrainJob
from benchmd_ray.training.transfer import TransferJob


def pretrain_run(
    technique: str, catalog: Path, store: Path, settings: Settings, address: str | None = None
) -> Run:
    """Pretrain, unless it is done.

    Args:
        technique: One of the pretraining techniques.
        catalog: The source's catalog.
        store: Folder of all runs.
        settings: The run's settings.
        address: Ray cluster for several workers; None works embedded.

    Raises:
        BenchmdError: Something named does not exist or fit, or the work failed.
    """
    require_method(technique)
    source = open_catalog(catalog)
    determinants = _determinants(settings, source, "pretrain") | {"technique": technique}
    about = {"kind": "pretrain", "technique": technique, "setting": "pretrain"}
    run = open_run(
        store,
        f"pretrain-{source.modality.name}-{technique}",
        _description(settings, source, "pretrain", about, determinants),
    )
    _finish(run, PretrainJob(settings, technique, catalog, run.folder), address)
    return run


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
        settings: The run's settings; the encoder's size is the upstream's where there is one.
        upstream: Folder of a finished pretraining run; None starts from scratch.
        targets: Catalogs to evaluate zero-shot.
        address: Ray cluster for several workers; None works embedded.

    Raises:
        BenchmdError: Something named does not exist or fit, or the work failed.
    """
    source = open_catalog(catalog)
    pretrained = _upstream(upstream)
    technique = SCRATCH if pretrained is None else str(pretrained.description["technique"])
    if pretrained is not None:
        size = pretrained.description["settings"]["encoder"]
        settings = updated(settings, {"encoder": size})
    determinants = _determinants(settings, source, "transfer") | {
        "upstream": None if pretrained is None else pretrained.digest
    }
    about = {
        "kind": "transfer",
        "technique": technique,
        "setting": settings.transfer.setting,
        "upstream": None if pretrained is None else pretrained.folder.name,
    }
    description = _description(settings, source, "transfer", about, determinants)
    if pretrained is not None:
        description["fixed"] &= pretrained.description["fixed"]
    name = f"transfer-{source.modality.name}-{technique}-{settings.transfer.setting}"
    for target in targets:
        _require_same_policy(open_catalog(target), description["policy"])
    run = open_run(store, name, description)
    _finish(run, TransferJob(settings, catalog, run.folder, upstream), address)
    for path in (catalog, *targets):
        evaluate_run(run, path, settings, address)
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
    opened = open_catalog(catalog)
    _require_same_policy(opened, run.description["policy"])
    path = predictions_path(run.folder, opened.dataset)
    if path.is_file() and read_predictions(path).description["catalog"] == opened.digest:
        return path
    execution = settings.execution
    streaming = any(streams(opened, split, execution) for split in opened.evaluation_splits)
    with connected(address, cpus=2) if streaming else contextlib.nullcontext():
        worker = Worker(device=choose_device(execution.device))
        return predict(run.folder, opened, settings, worker)


def _upstream(folder: Path | None) -> Run | None:
    if folder is None:
        return None
    run = read_run(folder)
    if run.description["kind"] != "pretrain" or not run.finished:
        raise BenchmdError(
            f"{folder} is no finished pretraining run: name one that `benchmd pretrain` printed."
        )
    return run


def _finish(run: Run, job: Job, address: str | None) -> None:
    if run.finished:
        return
    with working(run):
        launch(job, address)


def _require_same_policy(catalog: Catalog, policy: str) -> None:
    if catalog.manifest["policy"] != policy:
        raise BenchmdError(
            f"{catalog.path} was built with policy {catalog.manifest['policy']}, the source with "
            f"{policy}: build both with the same --policy."
        )


def _determinants(settings: Settings, source: Catalog, stage: str) -> dict[str, Any]:
    """What decides a run's result; how it is executed does not."""
    everything = as_dict(settings)
    return {
        "stage": stage,
        "encoder": everything["encoder"],
        stage: everything[stage],
        "precision": settings.execution.precision,
        "seed": settings.seed,
        "catalog": source.digest,
    }


def _description(
    settings: Settings,
    source: Catalog,
    stage: str,
    about: dict[str, Any],
    determinants: dict[str, Any],
) -> dict[str, Any]:
    """Content of ``run.json``."""
    everything, defaults = as_dict(settings), as_dict(Settings())
    chosen = {"encoder": everything["encoder"], stage: dict(everything[stage])}
    standard = {"encoder": defaults["encoder"], stage: dict(defaults[stage])}
    if stage == "transfer":  # the mode and the label setting are the protocol's own axes
        for key in ("mode", "labels"):
            standard[stage][key] = chosen[stage][key]
    return {
        **about,
        "modality": source.modality.name,
        "source": source.dataset,
        "policy": source.manifest["policy"],
        "seed": settings.seed,
        "fixed": chosen == standard,
        "settings": everything,
        "determinants": determinants,
        "versions": versions(),
    }
