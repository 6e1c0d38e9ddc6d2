"""Scoring a catalog with the classifier of a finished transfer run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.data.records import PERSON
from benchmd_ray.data.resident import split_table
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import cache_folder
from benchmd_ray.modality.signals import differing_in
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.networks import taken_signal
from benchmd_ray.runs.predictions import IDENTIFIERS
from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.settings.definition import EncoderSettings, Settings, updated
from benchmd_ray.training.collect import collect, evaluated, evaluating, evaluation_batch
from benchmd_ray.training.features import feature_store
from benchmd_ray.training.forward import graphed
from benchmd_ray.training.weights import described, load_classifier, model_description


def classified(
    run: Path, catalog: Catalog, settings: Settings, worker: Worker, *, features: Path | None = None
) -> pa.Table:
    """Table of `Predictions` for the evaluation splits of a catalog by a run's model.

    `features` is the folder of a frozen encoder's features, as in `TransferJob`.
    """
    model = load_classifier(run)
    about = description_for(run, catalog)
    catalog = catalog.normalised_as(described(about, run)[0])
    parts = [
        _split_table(model, about, catalog, split, settings, worker, features=features)
        for split in catalog.evaluation_splits
    ]
    return pa.concat_tables(parts)


def description_for(run: Path, catalog: Catalog) -> dict[str, Any]:
    """Description of a run's model (`export_model`), which must fit the catalog to score."""
    description = model_description(run)
    signal, task = described(description, run)
    size = updated(EncoderSettings(), description["encoder"])
    taken = taken_signal(catalog.signal, size)
    if signal != taken or task != catalog.task:
        other = "of other classes" if signal == taken else f"of {catalog.signal.name}"
        raise BenchmdError(
            f"{run} is a model of {signal.name}, the catalog {catalog.path} is "
            f"{other}{differing_in(signal, taken)}: name a catalog of the same signal and "
            "task."
        )
    if not catalog.evaluation_splits:
        raise BenchmdError(
            f"the catalog {catalog.path} has no record in its evaluation splits "
            f"{', '.join(catalog.card.evaluation_splits[catalog.manifest['policy']])}."
        )
    return description


def _split_table(
    model: Classifier,
    about: Mapping[str, Any],
    catalog: Catalog,
    split: str,
    settings: Settings,
    worker: Worker,
    *,
    features: Path | None,
) -> pa.Table:
    encoder = updated(EncoderSettings(), about["encoder"])
    settings = replace(settings, encoder=encoder)
    # Normalised as in training, also if it is another catalog.
    catalog = replace(catalog, manifest={**catalog.manifest, "statistics": about["statistics"]})
    if features is None or about["augmentation"]["shape"]:
        logits = _outputs(model, model, about, catalog, split, settings, worker)
    else:
        store = feature_store(
            cache_folder() / features, model.encoder, settings, catalog, worker.device
        )
        encode = partial(_outputs, model.encoder, model, about, catalog, split, settings, worker)
        logits = _of_head(model, store.split(catalog, split, settings, encode), settings, worker)
    scores = probabilities(logits, catalog.task.kind) @ merging(catalog.card)
    table = split_table(catalog, split, [*IDENTIFIERS, "target", *PERSON])
    classes = scores.shape[1]
    column = pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel(), pa.float64()), classes)
    return table.add_column(len(IDENTIFIERS), "scores", column)


def _outputs(
    module: nn.Module,
    model: Classifier,
    about: Mapping[str, Any],
    catalog: Catalog,
    split: str,
    settings: Settings,
    worker: Worker,
) -> npt.NDArray[np.float32]:
    """Outputs of a model or its encoder for a split, (rows, width)."""
    size = evaluation_batch(model.encoder)
    feed = whole_split_feed(catalog, split, settings, worker, catalog.statistics)
    direct = evaluating(module, worker, settings.execution.precision)
    forward = evaluated(direct, about["augmentation"]["shape"])
    batches = -(-feed.rows // size)
    return collect(graphed(forward, worker, settings, batches), feed, size)


def _of_head(
    model: Classifier, features: npt.NDArray[np.float32], settings: Settings, worker: Worker
) -> npt.NDArray[np.float32]:
    """Logits (rows, classes) of features, in the batches that a whole model takes."""
    size = evaluation_batch(model.encoder)
    forward = evaluating(model.head, worker, settings.execution.precision)
    with torch.inference_mode():
        parts = [
            forward(torch.from_numpy(features[start : start + size]).clone().to(worker.device))
            for start in range(0, len(features), size)
        ]
        return torch.cat(parts).float().cpu().numpy()


def merging(card: DatasetCard) -> npt.NDArray[np.float64]:
    """Matrix (classes, card's classes) from a task's scores to a dataset's.

    The score of a merged class is the sum of its classes' scores (decision D12).
    """
    classes = card.task.classes
    members = [card.merged_classes.get(name, (name,)) for name in card.classes]
    return np.array([[float(name in merged) for merged in members] for name in classes])
