"""Predictions of a finished transfer run, as data: every number in a table comes from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.cards import DatasetCard
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.data.records import METADATA, decode_targets
from benchmd_ray.data.resident import split_table
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.metrics import pooled, probabilities
from benchmd_ray.files import replacing
from benchmd_ray.hardware import hardware
from benchmd_ray.models.heads import Classifier
from benchmd_ray.settings import Settings
from benchmd_ray.training.augmentation import evaluated
from benchmd_ray.training.checkpoints import load_classifier, model_description
from benchmd_ray.training.collect import collect, evaluating, evaluation_batch

DESCRIPTION = (
    "dataset",
    "modality",
    "role",
    "policy",
    "catalog",
    "raw_records",
    "raw_expected",
    "options",
    "remarks",
    "classes",
    "hardware",
)
IDENTIFIERS = ("record_id", "unit_id", "group_id", "split")


@dataclass(frozen=True)
class Predictions:
    """Scores and targets of one dataset's evaluation splits."""

    table: pa.Table
    """record_id, unit_id, group_id, split, scores, target and the metadata columns."""
    description: dict[str, str]
    """What `DESCRIPTION` names.

    ``catalog`` is its digest, ``options`` are `Catalog.options`, ``hardware`` is what scored.
    """

    @property
    def splits(self) -> list[str]:
        """Splits in the table, in order of name."""
        return sorted(set(self.table["split"].to_pylist()))

    def of_split(
        self, split: str
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Targets (units, classes), scores (units, classes) and patients (units,) of a split.

        A unit is what is scored: a CT scan with all its windows, elsewhere a record.
        """
        table, (first, targets, scores) = self._pooled(split)
        return targets, scores, np.array(table["group_id"].to_pylist())[first]

    def units_of_split(self, split: str) -> pd.DataFrame:
        """What is known of each unit of a split, in the order of `of_split`.

        Columns: unit_id, group_id (the patient) and those of `METADATA`: age in years, sex, site,
        device, view; null where the source does not say. A unit of several rows has its first
        row's.
        """
        table, (first, *_) = self._pooled(split)
        known = table.select(["unit_id", "group_id", *METADATA])
        found: pd.DataFrame = known.take(first).to_pandas()
        return found

    def _pooled(
        self, split: str
    ) -> tuple[
        pa.Table,
        tuple[npt.NDArray[np.int64], npt.NDArray[np.int8], npt.NDArray[np.float64]],
    ]:
        """Rows of a split, and what `pooled` makes of them."""
        table = self.table.filter(pc.equal(self.table["split"], split))
        classes = table["scores"].type.list_size
        flat = table["scores"].combine_chunks().flatten().to_numpy()
        units = table["unit_id"].to_pylist()
        return table, pooled(units, decode_targets(table["target"]), flat.reshape(-1, classes))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the columns of scores and targets."""
        return tuple(json.loads(self.description["classes"]))


def predictions_path(run: Path, dataset: str) -> Path:
    """File of a run's predictions for a dataset."""
    return run / "predictions" / f"{dataset}.parquet"


def predict(run: Path, catalog: Catalog, settings: Settings, worker: Worker) -> Path:
    """Score the evaluation splits of a catalog with a run's model and write the predictions.

    Args:
        run: Folder of a finished transfer run.
        catalog: The source's own or a target's (zero-shot).
        settings: Precision and feed.
        worker: The device.

    Returns:
        The file written.

    Raises:
        BenchmdError: The model is of another modality, or the catalog has nothing to score.
    """
    model = load_classifier(run)
    held = model.encoder.modality.name
    if held != catalog.modality.name:
        raise BenchmdError(
            f"{run} is a model of {held}, the catalog {catalog.path} is of "
            f"{catalog.modality.name}: name a catalog of the same modality."
        )
    if not catalog.evaluation_splits:
        raise BenchmdError(
            f"the catalog {catalog.path} has no record in its evaluation splits "
            f"{', '.join(catalog.card.evaluation_splits[catalog.manifest['policy']])}."
        )
    about = model_description(run)
    parts = [
        _split_table(model, about, catalog, split, settings, worker)
        for split in catalog.evaluation_splits
    ]
    description = {
        "dataset": catalog.dataset,
        "modality": catalog.modality.name,
        "role": str(catalog.manifest["role"]),
        "policy": str(catalog.manifest["policy"]),
        "catalog": catalog.digest,
        "raw_records": str(catalog.manifest["raw"]["records"]),
        "raw_expected": str(catalog.manifest["raw"]["expected"]),
        "options": json.dumps(catalog.options),
        "remarks": json.dumps(catalog.manifest.get("remarks", {})),
        "classes": json.dumps(catalog.card.classes),
        "hardware": hardware(worker.device).to_json(),
    }
    table = pa.concat_tables(parts).replace_schema_metadata(description)
    path = predictions_path(run, catalog.dataset)
    with replacing(path) as partial:
        pq.write_table(table, partial)
    return path


def _split_table(
    model: Classifier,
    about: Mapping[str, Any],
    catalog: Catalog,
    split: str,
    settings: Settings,
    worker: Worker,
) -> pa.Table:
    forward = evaluating(model, worker, settings.execution.precision)
    feed = whole_split_feed(catalog, split, settings, worker, about["statistics"])
    shown = evaluated(forward, about["augmentation"])
    logits = collect(shown, feed, evaluation_batch(model.encoder))
    scores = probabilities(logits, catalog.modality.task) @ merging(catalog.card)
    table = split_table(catalog, split, [*IDENTIFIERS, "target", *METADATA])
    classes = scores.shape[1]
    column = pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel(), pa.float64()), classes)
    return table.add_column(len(IDENTIFIERS), "scores", column)


def merging(card: DatasetCard) -> npt.NDArray[np.float64]:
    """Scores of the modality's classes to those of a dataset's: (classes, card's classes).

    A class that merges several has the sum of their scores (decision D12).
    """
    own = card.kind.classes
    members = [card.merged_classes.get(name, (name,)) for name in card.classes]
    return np.array([[float(name in merged) for merged in members] for name in own])


def read_predictions(path: Path) -> Predictions:
    """Read predictions.

    Raises:
        BenchmdError: The file is no such table.
    """
    with _readable(path):
        table = pq.read_table(path)
        return Predictions(table, _description(table.schema))


def read_description(path: Path) -> dict[str, str]:
    """What `DESCRIPTION` names of predictions, without reading them.

    Raises:
        BenchmdError: The file is no such table.
    """
    with _readable(path):
        return _description(pq.read_schema(path))


def _description(schema: pa.Schema) -> dict[str, str]:
    metadata = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    return {key: metadata[key] for key in DESCRIPTION}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, KeyError) as error:
        raise BenchmdError(
            f"{path} holds no predictions ({type(error).__name__}: {error}). Remove it and run "
            "`benchmd evaluate` again."
        ) from error
