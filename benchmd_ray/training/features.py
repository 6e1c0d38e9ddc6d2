"""Evaluation of a frozen encoder: stored features, a trained head, and nearest neighbours.

A file ``<name>.npy`` is named by a hash of everything that determines its content; ``<name>.json``
has its SHA-256 and description.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmd_ray.cluster.hardware import hardware
from benchmd_ray.data.batches import Rows, Worker, epoch_order
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.data.resident import split_table
from benchmd_ray.data.sizes import streams
from benchmd_ray.errors import BenchmdError
from benchmd_ray.extensions.parts import package_versions, versions_of
from benchmd_ray.files.arrays import mapped
from benchmd_ray.files.atomic import digest, locked, replacing, sha256
from benchmd_ray.files.cache import keep_within_limit, used
from benchmd_ray.files.integrity import Damaged, read_hashed_json, require_sha256, write_hashed_json
from benchmd_ray.modality.tasks import TaskKind
from benchmd_ray.models.digest import weights_digest
from benchmd_ray.models.heads import Classifier, classification_loss
from benchmd_ray.models.neighbours import NearestNeighbours
from benchmd_ray.models.networks import network_part, network_source
from benchmd_ray.settings.definition import Settings, as_dict
from benchmd_ray.training.collect import EVALUATION_BATCH, collect, evaluating, evaluation_batch
from benchmd_ray.training.engine import TorchEngine, cpu_copy, uses_bf16
from benchmd_ray.training.forward import graphed
from benchmd_ray.training.reporter import Reporter, require_finite
from benchmd_ray.training.seeds import seed_step
from benchmd_ray.training.selection import Best, TransferData, training_feed, training_streams
from benchmd_ray.training.steps import Inputs, Steps, choose_step

Features = npt.NDArray[np.float32]
"""(rows, width)."""


@dataclass(frozen=True)
class FeatureStore:
    """Stored features of one frozen encoder on the splits of one catalog."""

    folder: Path
    about: dict[str, Any]
    """Everything that determines the features of a record."""
    width: int

    def features(
        self, split: str, rows: Rows, encode: Callable[[], Features], streaming: bool
    ) -> Features:
        """Features (rows, width) of a split: stored ones, or encoded now and stored.

        If several processes need the same features, one encodes and the others wait. ``streaming``:
        ``encode`` reads a streaming feed, whose batches round differently. Changes of the result do
        not affect the file.
        """
        chosen = hashlib.sha256(np.ascontiguousarray(rows, np.int64).tobytes()).hexdigest()
        about = self.about | {"split": split, "rows": chosen, "streaming": streaming}
        name = digest(about)[:32]
        path, shape = self.folder / f"{name}.npy", (len(rows), self.width)
        with locked(self.folder / f"{name}.lock", f"the features {path}", wait=True):
            features = _kept(path, shape, about)
            if features is None:
                _keep(path, encode(), about)
                features = _kept(path, shape, about)
                keep_within_limit()
        used(path.with_suffix(".json"))
        if features is None:
            raise RuntimeError(f"{path} is not what was just written")  # a disk that loses data
        return features

    def split(
        self, catalog: Catalog, split: str, settings: Settings, encode: Callable[[], Features]
    ) -> Features:
        """Features of a whole split of the catalog."""
        rows, streaming = (
            np.arange(catalog.rows(split)),
            streams(catalog, split, settings.execution),
        )
        return self.features(split, rows, encode, streaming)


def feature_store(
    folder: Path, encoder: nn.Module, settings: Settings, catalog: Catalog, device: torch.device
) -> FeatureStore:
    size = as_dict(settings.encoder)
    for name in ("dropout", "embedding_dropout"):  # inactive in a frozen encoder
        del size[name]
    bf16 = uses_bf16(settings.execution.precision, device)
    about = {
        "weights": weights_digest(encoder),
        "encoder": size,
        "network_source": network_source(settings.encoder),
        "catalog": catalog.digest,
        "statistics": catalog.statistics,  # perhaps those of another catalog
        "precision": "bf16" if bf16 else "float32",
        "parts": versions_of(
            ("normalisation", "linear evaluation", network_part(settings.encoder.network))
        ),
        "hardware": asdict(hardware(device)),
        "versions": package_versions(),  # published networks are those of installed libraries
    }
    return FeatureStore(folder, about, int(encoder.width))  # type: ignore[arg-type]


def _keep(path: Path, features: Features, about: dict[str, Any]) -> None:
    with replacing(path) as partial, partial.open("wb") as file:
        np.save(file, np.ascontiguousarray(features, np.float32), allow_pickle=False)
        file.flush()
        content_hash = sha256(partial)
    write_hashed_json(path.with_suffix(".json"), {"features": content_hash, **about})


def _kept(path: Path, shape: tuple[int, int], about: dict[str, Any]) -> Features | None:
    """Stored features; None if missing, damaged or different."""
    try:
        stated = read_hashed_json(path.with_suffix(".json"), "", {"features": str})
        require_sha256(path, stated.pop("features"), "")
        if digest(stated) != digest(about):
            return None
        features: Features = mapped(path, "c", "")
    except Damaged:
        return None
    return features if features.shape == shape and features.dtype == np.float32 else None


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
    """Train the head on the frozen encoder's features; ``transfer.layer_decay`` is not read.

    Features are stored in the folder ``kept`` and shared with other runs.
    """
    transfer = settings.transfer
    training, validation = frozen_features(settings, catalog, data, model.encoder, worker, kept)
    if transfer.solver == "logistic":
        return _solved(settings, catalog, data, model, reporter, training, validation)
    features = torch.from_numpy(training).to(worker.device)
    # A copy has the same memory layout wherever the features came from, hence identical results.
    validation_features = torch.from_numpy(validation).clone().to(worker.device)
    targets = torch.from_numpy(data.columns.targets[data.rows]).to(worker.device)
    head, best = model.head.to(worker.device), Best()
    steps = head_steps(head, settings, len(features), worker, catalog.task.kind)
    title = steps.chosen.titled("linear evaluation", worker.device)
    reporter.start(title, transfer.epochs, "epochs", 0)
    for epoch in range(transfer.epochs):
        head.train()
        loss = head_epoch(steps, features, targets, settings, epoch)
        head.eval()
        with torch.inference_mode():
            scores = data.scores(head(validation_features).cpu().numpy())
        best.offer(scores["validation_auroc"], epoch, partial(cpu_copy, head))
        reporter.report(epoch + 1, {"loss": loss, **scores})
    reporter.finish()
    named = {f"head.{name}": value for name, value in best.weights.items()}
    best.weights = cpu_copy(model) | named
    return best


def _solved(
    settings: Settings,
    catalog: Catalog,
    data: TransferData,
    model: Classifier,
    reporter: Reporter,
    training: Features,
    validation: Features,
) -> Best:
    """The head by logistic regression; the validation split is only scored."""
    from benchmd_ray.training.logistic import fit_head  # needs SciPy, which training does without

    if not (np.isfinite(training).all() and np.isfinite(validation).all()):
        raise BenchmdError(
            f"the features of {catalog.path} by encoder.network={settings.encoder.network} have "
            "NaN or infinite values: expected numbers. Look at signals and weights."
        )
    reporter.start("logistic regression", 1, "epochs", 0)
    targets = data.columns.targets[data.rows].astype(np.int8)
    patients = np.array(split_table(catalog, "train", ["group_id"])["group_id"].to_pylist(), str)
    head = fit_head(training, targets, patients[data.rows], data.task, settings.seed)
    with torch.no_grad():
        model.head.weight.copy_(torch.from_numpy(head.weight))  # type: ignore[operator]
        model.head.bias.copy_(torch.from_numpy(head.bias))  # type: ignore[operator]
    scores, best = data.scores(validation @ head.weight.T + head.bias), Best()
    best.offer(scores["validation_auroc"], 0, partial(cpu_copy, model))
    reporter.report(1, {**scores, "penalty": head.penalty})
    reporter.finish()
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
    """Classify by the votes of the nearest training records; nothing is trained.

    The head holds their features, which are stored in the folder ``kept`` and shared with other
    runs.
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
    """Features of the chosen training rows and of the whole validation split.

    All labels and few take their rows from one encoding of the training split, unless it streams.
    """
    size = evaluation_batch(encoder)
    direct = evaluating(encoder, worker, settings.execution.precision)
    forward = graphed(
        direct, worker, settings
    )  # not compiled: stored features are shared by all runs

    def whole(split: str) -> Features:
        feed = whole_split_feed(catalog, split, settings, worker, catalog.statistics)
        return collect(forward, feed, size)

    def chosen() -> Features:
        return collect(forward, training_feed(catalog, settings, worker, data), size)

    store = None if kept is None else feature_store(kept, encoder, settings, catalog, worker.device)

    def stored(split: str) -> Features:
        encode = partial(whole, split)
        return encode() if store is None else store.split(catalog, split, settings, encode)

    if not streams(catalog, "train", settings.execution):
        training = stored("train")
    elif store is None:
        training = chosen()
    else:
        streaming = training_streams(catalog, settings, data)
        training = store.features("train", data.rows, chosen, streaming)
    few = len(data.rows) < len(training)
    return training[data.rows] if few else training, stored("validation")


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
    if chosen.way == "captured":  # compiling takes longer than all of these small steps
        chosen = replace(chosen, compiles=False, why="not compiled: only a head")
    seed = partial(seed_step, settings.seed, rank=worker.rank)  # for dropout
    return Steps(engine, loss, seed, chosen)


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
