"""Execute single runs: open in the store, launch, evaluate; finished runs are skipped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmd_ray.cluster.connection import connected, require_shared
from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import Catalog, open_catalog
from benchmd_ray.data.pooled import open_pretraining
from benchmd_ray.data.sizes import streams
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.evaluation import Asked, Evaluation, usual_evaluation
from benchmd_ray.evaluation.registry import benchmark
from benchmd_ray.files.integrity import remove_hashed, write_hash
from benchmd_ray.models.imagenet import StartWeights
from benchmd_ray.models.networks import taken_signal
from benchmd_ray.runs.predictions import predictions_path
from benchmd_ray.runs.pretraining_data import write_learned, write_seen
from benchmd_ray.runs.store import Run, open_run, read_run, require_weights, scoring, working
from benchmd_ray.service.imported import import_exported, trained_of
from benchmd_ray.service.kept_weights import take_kept
from benchmd_ray.service.naming import finished_upstream, pretraining, transferring
from benchmd_ray.service.resolved import ResolvedRun, resolve_settings
from benchmd_ray.service.scored import is_scored, open_also
from benchmd_ray.service.shared_records import learned_of, shared_records
from benchmd_ray.service.unseen import keep_seen, require_unseen, seen_elsewhere, seen_of
from benchmd_ray.settings.definition import EncoderSettings, Settings
from benchmd_ray.ssl import SCRATCH, technique_named, with_solver
from benchmd_ray.ssl.brought import ensure_brought, own_encoder, start_weights
from benchmd_ray.storage.location import Location
from benchmd_ray.training.engine import choose_device
from benchmd_ray.training.jobs import SHARED, PretrainJob, TransferJob
from benchmd_ray.training.launch import launch
from benchmd_ray.training.pretrain import require_pretrainable
from benchmd_ray.training.transfer import require_transferable
from benchmd_ray.training.weights import START, export_model, is_exported, write_weights


def base_settings(
    catalog: Location | Sequence[Location],
    technique: str,
    encoder: EncoderSettings | None = None,
) -> Settings:
    """Fixed-protocol settings for a catalog's modality and a technique, or another encoder.

    For several catalogs that are pretrained on, those of the first by name.
    """
    opened = open_pretraining(catalog) if isinstance(catalog, Sequence) else open_catalog(catalog)
    base = benchmark().starts[0].settings(opened.card.modality, technique, "")
    return with_solver(replace(base, encoder=encoder or base.encoder), technique)


def pretrain_run(
    technique: str,
    catalog: Location | Sequence[Location],
    store: Path,
    settings: Settings,
    *,
    address: str | None = None,
    weights: Path | None = None,
    within: bool = False,
) -> Run:
    """Pretrain, unless it is done; on several catalogs as one, see `data.pooled`.

    With `within` this process is a Ray task with the run's resources: it trains here unless there
    are several workers.

    Raises:
        Busy: Another process works on it.
    """
    chosen = technique_named(technique)
    if weights is not None and not chosen.imagenet:
        raise BenchmdError(
            f"the technique {technique} does not start from ImageNet weights: omit them."
        )
    store = store.resolve()  # workers have folders of their own
    paths = catalog if isinstance(catalog, Sequence) else (catalog,)
    source = open_pretraining([path.resolve() for path in paths])
    ensure_brought(technique)
    start = start_weights(technique, weights, source.signal, settings.encoder)
    with _place(settings, address, within=within) as (settings, on_cluster):
        resolved = pretraining(technique, source, settings, start)
        return pretrain_resolved(resolved, store, weights, on_cluster=on_cluster, start=start)


def pretrain_resolved(
    resolved: ResolvedRun,
    store: Path,
    weights: Path | None,
    *,
    on_cluster: bool,
    start: StartWeights | None = None,
) -> Run:
    """Pretrain a resolved run, unless it is done; `start` are initial weights already read."""
    execution = resolved.settings.execution
    if not on_cluster:
        choose_device(execution.device)  # raises before a run's folder is made
    job = resolved.job(store)
    assert isinstance(job, PretrainJob)
    check = partial(require_pretrainable, job, resolved.trained_on)
    run = open_run(store, resolved.name, resolved.description, check)
    if not run.finished:
        start = start or _start_of(resolved, weights)
        with working(run, execution.device, execution.keep):
            if not take_kept(resolved, run.folder):
                _pretrain(resolved, run.folder, start, on_cluster)
            if "pretrained_on" in run.description:
                write_seen(run.folder, seen_of(resolved.source, resolved.inner))
    return run


def _start_of(resolved: ResolvedRun, path: Path | None) -> StartWeights | None:
    """The weights that a pretraining starts from; their hash must be the resolved one."""
    technique = resolved.technique
    path = path if technique_named(technique).imagenet else None
    ensure_brought(technique)  # on a node of a cluster they may be absent
    start = start_weights(technique, path, resolved.source.signal, resolved.settings.encoder)
    planned = resolved.description["determinants"].get("weights")
    if start is not None and start.sha256 != planned:
        raise BenchmdError(
            f"{start.file} has the SHA-256 {start.sha256}, but the run was planned with {planned}: "
            "the file has changed, or differs on this machine. Use the same file everywhere "
            "and run the command again."
        )
    return start


def _pretrain(
    resolved: ResolvedRun, folder: Path, start: StartWeights | None, on_cluster: bool
) -> None:
    """Train with the technique's method, or export the initial weights if it has none."""
    source, job = resolved.trained_on, resolved.job(folder)
    if start is not None and technique_named(resolved.technique).method is None:
        weights = {f"encoder.{name}": value for name, value in start.tensors.items()}
        encoder = resolved.settings.encoder
        signal = taken_signal(source.signal, encoder)
        export_model(folder, weights, encoder, signal, source.statistics)
        return
    if start is not None:
        write_weights(folder / START, start.tensors)
        write_hash(folder / START)
    launch(job, on_ray=on_cluster, catalog=source)
    remove_hashed(folder / START)


def transfer_settings(catalog: Location, upstream: Path | str | None) -> Settings:
    """Settings of the fixed protocol for a transfer; `upstream` as in `transfer_run`."""
    if isinstance(upstream, str):
        return base_settings(catalog, upstream, own_encoder(upstream))
    if upstream is not None and is_exported(upstream):
        return base_settings(catalog, str(trained_of(upstream)["technique"]))
    technique = SCRATCH if upstream is None else str(read_run(upstream).description["technique"])
    return base_settings(catalog, technique)


def transfer_run(
    catalog: Location,
    store: Path,
    settings: Settings,
    *,
    upstream: Path | str | None = None,
    targets: tuple[Location, ...] = (),
    address: str | None = None,
    within: bool = False,
) -> Run:
    """Transfer, unless it is done, and evaluate on its source and on the targets.

    Args:
        catalog: The source's catalog.
        store: Folder of all runs.
        settings: With an upstream its encoder architecture is used. Dropout is taken from these
            settings, or from the technique if they have the default.
        upstream: Folder of a finished pretraining run, one that `export` wrote, or the name of a
            technique with an external encoder (`ssl.brought`); None starts from scratch.
        targets: Catalogs of the targets.
        address: Ray cluster to work on; None works embedded.
        within: As in `pretrain_run`.
    """
    catalog, store = catalog.resolve(), store.resolve()
    source = open_catalog(catalog)
    if isinstance(upstream, str):
        upstream = pretrain_run(
            upstream, catalog, store, settings, address=address, within=within
        ).folder
    elif upstream is not None and is_exported(upstream):
        upstream = import_exported(upstream.resolve(), store, source).folder
    pretrained = None if upstream is None else finished_upstream(upstream.resolve(), source)
    opened = [open_catalog(target.resolve()) for target in targets]
    for target in opened:
        _require_target(target, source)
    with _place(settings, address, within=within) as (settings, on_cluster):
        resolved = transferring(source, settings, pretrained)
        for target in opened:
            if pretrained is not None:  # before anything is trained
                require_unseen(resolved.description, pretrained.folder, target)
        run = transfer_resolved(resolved, store, on_cluster=on_cluster)
        for target in opened:
            _evaluate(run, target, usual_evaluation(source.task), settings, on_cluster=on_cluster)
    return run


def transfer_resolved(resolved: ResolvedRun, store: Path, *, on_cluster: bool) -> Run:
    """Run a resolved transfer, unless it is done, and evaluate on the source."""
    settings, source = resolved.settings, resolved.source
    if not on_cluster:
        choose_device(settings.execution.device)  # raises before a run's folder is made
    if resolved.upstream is not None:
        require_unseen(resolved.description, resolved.upstream.folder, source)
    check = partial(_require_ready, resolved, store)
    run = open_run(store, resolved.name, resolved.description, check)
    if not run.finished:
        if resolved.upstream is not None:
            require_weights(resolved.upstream)
        with working(run, settings.execution.device, settings.execution.keep):
            if resolved.upstream is not None and seen_elsewhere(resolved.description):
                keep_seen(resolved.upstream.folder, run.folder)  # which may go
            write_learned(run.folder, learned_of(source))
            if not take_kept(resolved, run.folder):
                job = resolved.job(run.folder)
                launch(job, on_ray=on_cluster, catalog=resolved.trained_on)
    _evaluate(run, source, usual_evaluation(source.task), settings, on_cluster=on_cluster)
    return run


def _require_ready(resolved: ResolvedRun, store: Path) -> None:
    if resolved.upstream is not None:
        require_weights(resolved.upstream)
    job = resolved.job(store)
    assert isinstance(job, TransferJob)
    require_transferable(job, resolved.trained_on)


def evaluate_run(
    run: Run,
    catalog: Location,
    settings: Settings,
    *,
    address: str | None = None,
    evaluation: Evaluation | None = None,
    also: tuple[Location, ...] = (),
    within: bool = False,
) -> Path:
    """Score a catalog with a finished transfer run, unless already done.

    Args:
        run: The run.
        catalog: The source's own or a target's.
        settings: Device, precision and feed.
        address: Ray cluster to work on; None works embedded.
        evaluation: None uses the default one of the catalog's task.
        also: Other catalogs that the evaluation reads.
        within: As in `pretrain_run`.

    Returns:
        The file with the predictions.
    """
    if run.description["kind"] != "transfer":
        raise BenchmdError(f"{run.folder} is a pretraining run: name a transfer run.")
    if not run.finished:
        raise BenchmdError(f"{run.folder} is not finished: run its `benchmd transfer` again.")
    run = replace(run, folder=run.folder.resolve())
    opened = open_catalog(catalog.resolve())
    asked = evaluation or usual_evaluation(opened.task)
    alone = replace(settings, execution=replace(settings.execution, workers=1))
    with _place(alone, address, within=within) as (settings, on_cluster):
        others = open_also(also)
        return _evaluate(run, opened, asked, settings, on_cluster=on_cluster, also=others)


@contextlib.contextmanager
def _place(
    settings: Settings, address: str | None, *, within: bool
) -> Iterator[tuple[Settings, bool]]:
    """Join the cluster, if given, and resolve device and precision for the place of execution.

    Yields the settings, and whether to compute on the cluster instead of in this process.
    """
    on_cluster = bool(address or os.environ.get("RAY_ADDRESS"))
    if within:
        on_cluster = settings.execution.workers > 1
    with connected(address) if on_cluster else contextlib.nullcontext():
        yield resolve_settings(settings, gpu=_has_gpu(on_cluster)), on_cluster


def _has_gpu(on_cluster: bool) -> bool:
    if not on_cluster:
        return torch.cuda.is_available()
    import ray

    return bool(ray.cluster_resources().get("GPU", 0))


def _evaluate(
    run: Run,
    opened: Catalog,
    evaluation: Evaluation,
    settings: Settings,
    *,
    on_cluster: bool,
    also: tuple[Catalog, ...] = (),
) -> Path:
    if opened.task.kind not in evaluation.tasks:
        raise BenchmdError(
            f"{opened.path} has a {opened.task.kind} task, and the evaluation {evaluation.name} is "
            f"for {', '.join(evaluation.tasks)}: name another catalog or evaluation."
        )
    _require_same_policy(opened, run.description["policy"])
    path = predictions_path(run.folder, opened.dataset, evaluation.name)
    if evaluation.also is not None:
        _require_trained_on(run, opened)
    if is_scored(run, opened, evaluation, also, whole=True):
        return path
    for catalog in (opened, *also):
        require_unseen(run.description, run.folder, catalog)
    for catalog in (opened, *also):
        for split in catalog.evaluation_splits:
            catalog.require_split(split)
            catalog.require_unaltered(split)
    with scoring(run, opened.dataset, evaluation.name):
        # Another process may have scored it in between.
        if not is_scored(run, opened, evaluation, also, whole=True):
            require_weights(run)
            features = SHARED if run.settings.transfer.freezes else None
            shared = shared_records(run, opened)
            asked = Asked(run.folder, opened, settings, Worker(), also, features, shared)
            _score(asked, evaluation, on_cluster=on_cluster)
    return path


def _require_trained_on(run: Run, source: Catalog) -> None:
    """Refuse a run trained on another catalog of the dataset, perhaps with held-out records."""
    if run.description["determinants"]["catalog"] != source.digest:
        held_out = ", ".join(source.held_out) or "nothing"
        raise BenchmdError(
            f"{run.folder} was trained on another catalog of {source.dataset} than {source.path}, "
            f"which holds out {held_out}: it may have been trained on what it must detect. "
            "Train on this catalog."
        )


def _score(asked: Asked, evaluation: Evaluation, *, on_cluster: bool) -> None:
    """Write predictions, in this process or by a task of the cluster."""
    execution, catalog = asked.settings.execution, asked.catalog
    if on_cluster:
        import ray

        require_shared(asked.run)
        gpus = int(execution.device == "cuda")
        task = ray.remote(num_cpus=1, num_gpus=gpus)(_predict)
        try:
            ray.get(task.remote(asked, evaluation))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, BenchmdError):
                raise error.cause from error
            raise
        return
    streaming = any(streams(catalog, split, execution) for split in catalog.evaluation_splits)
    with connected(cpus=2) if streaming else contextlib.nullcontext():
        _predict(asked, evaluation)


def _predict(asked: Asked, evaluation: Evaluation) -> Path:
    """Predict on the device of this process."""
    worker = Worker(device=choose_device(asked.settings.execution.device))
    return evaluation.predict(replace(asked, worker=worker))


def _require_target(target: Catalog, source: Catalog) -> None:
    if target.dataset == source.dataset and target.digest != source.digest:
        raise BenchmdError(
            f"{target.path} is another catalog of {target.dataset}, of which the source is, too: "
            "datasets are told apart by name. To score it, build it from a card with another name "
            "and role: target."
        )
    if target.dataset == source.dataset:
        raise BenchmdError(
            f"{target.path} is a catalog of the source {target.dataset}, which is scored anyway: "
            "name catalogs of targets."
        )
    if target.card.role != "target":
        raise BenchmdError(
            f"{target.path} is a catalog of {target.dataset}, whose card is of a source, to be "
            "trained on. To score models of other sources on it, build it from a card with "
            "role: target, in which all records are scored."
        )
    if not target.card.modality.fits(source.card.modality):
        raise BenchmdError(
            f"{target.path} is a catalog of {target.modality} ({', '.join(target.task.classes)}), "
            f"the source is one of {source.modality} ({', '.join(source.task.classes)}): name "
            "catalogs of the same signal and classes."
        )
    _require_same_policy(target, source.manifest["policy"])


def _require_same_policy(catalog: Catalog, policy: str) -> None:
    if catalog.manifest["policy"] != policy:
        raise BenchmdError(
            f"{catalog.path} was built with policy {catalog.manifest['policy']}, the source with "
            f"{policy}: build both with the same --policy."
        )
