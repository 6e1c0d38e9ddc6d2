"""Predictions of a finished transfer run, as data: every number in a table comes from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.data.records import METADATA, decode_targets
from benchmd_ray.errors import BenchmdError
from benchmd_ray.evaluation.metrics import probabilities
from benchmd_ray.files import replacing
from benchmd_ray.models.heads import Classifier
from benchmd_ray.settings import Settings
from benchmd_ray.training.checkpoints import load_classifier
from benchmd_ray.training.collect import collect, evaluating

DESCRIPTION = (
    "dataset",
    "modality",
    "role",
    "policy",
    "catalog",
    "raw_records",
    "raw_expected",
)
IDENTIFIERS = ("record_id", "unit_id", "group_id", "split")


@dataclass(frozen=True)
class Predictions:
    """Scores and targets of one dataset's evaluation splits."""

    table: pa.Table
    """record_id, unit_id, group_id, split, scores, target and the metadata columns."""
    description: dict[str, str]
    """What `DESCRIPTION` names; ``catalog`` is its digest."""

    @property
    def splits(self) -> list[str]:
        """Splits in the table, in order of name."""
        return sorted(set(self.table["split"].to_pylist()))

    def of_split(
        self, split: str
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Targets (rows, classes), scores (rows, classes) and patients (rows,) of a split."""
        rows = np.array(self.table["split"].to_pylist()) == split
        classes = self.table["scores"].type.list_size
        flat = self.table["scores"].combine_chunks().flatten().to_numpy()
        groups = np.array(self.table["group_id"].to_pylist())
        return (
            decode_targets(self.table["target"])[rows],
            flat.reshape(-1, classes)[rows],
            groups[rows],
        )


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
    parts = [
        _split_table(model, catalog, split, settings, worker) for split in catalog.evaluation_splits
    ]
    description = {
        "dataset": catalog.dataset,
        "modality": catalog.modality.name,
        "role": str(catalog.manifest["role"]),
        "policy": str(catalog.manifest["policy"]),
        "catalog": catalog.digest,
        "raw_records": str(catalog.manifest["raw"]["records"]),
        "raw_expected": str(catalog.manifest["raw"]["expected"]),
    }
    table = pa.concat_tables(parts).replace_schema_metadata(description)
    path = predictions_path(run, catalog.dataset)
    with replacing(path) as partial:
        pq.write_table(table, partial)
    return path


def _split_table(
    model: Classifier, catalog: Catalog, split: str, settings: Settings, worker: Worker
) -> pa.Table:
    forward = evaluating(model, worker, settings.execution.precision)
    logits = collect(forward, whole_split_feed(catalog, split, settings, worker))
    scores = probabilities(logits, catalog.modality.task)
    catalog.require_unaltered(split)
    columns = [*IDENTIFIERS, "target", *METADATA]
    table = pa.concat_tables(
        pq.read_table(path, columns=columns) for path, _ in catalog.shards(split)
    )
    classes = scores.shape[1]
    column = pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel(), pa.float64()), classes)
    return table.add_column(len(IDENTIFIERS), "scores", column)


def read_predictions(path: Path) -> Predictions:
    """Read predictions.

    Raises:
        BenchmdError: The file is no such table.
    """
    try:
        table = pq.read_table(path)
        metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        description = {key: metadata[key] for key in DESCRIPTION}
    except (OSError, pa.ArrowException, KeyError) as error:
        raise BenchmdError(
            f"{path} holds no predictions ({type(error).__name__}: {error}). Remove it and run "
            "`benchmd evaluate` again."
        ) from error
    return Predictions(table, description)
