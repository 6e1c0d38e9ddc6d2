"""Predictions of a finished transfer run, as data: every number in a table comes from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from benchmd_ray.data.records import METADATA, decode_targets
from benchmd_ray.errors import BenchmdError, shown
from benchmd_ray.hardware import from_json
from benchmd_ray.integrity import OF, Damaged, require_hash, require_of
from benchmd_ray.parquet import opened, read_table
from benchmd_ray.run_files import PREDICTIONS
from benchmd_ray.scores.metrics import pooled
from benchmd_ray.tasks import UNKNOWN, Task
from benchmd_ray.typed import typed

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
    "task",
    "hardware",
    OF,
)
IDENTIFIERS = ("record_id", "unit_id", "group_id", "split")
ROLES = ("source", "target")


@dataclass(frozen=True)
class Predictions:
    """Scores and targets of one dataset's evaluation splits."""

    table: pa.Table
    """record_id, unit_id, group_id, split, scores, target and the metadata columns."""
    description: dict[str, str]
    """What `DESCRIPTION` names.

    ``catalog`` is its digest, ``options`` are `Catalog.options`, ``hardware`` is what scored,
    ``of`` the run.
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
        return self.task.classes

    @property
    def task(self) -> Task:
        """What was predicted; of the dataset's classes."""
        task: Task = typed(Task, json.loads(self.description["task"]), "task")
        return task


def predictions_path(run: Path, dataset: str) -> Path:
    """File of a run's predictions for a dataset."""
    return run / PREDICTIONS / f"{dataset}.parquet"


def read_predictions(path: Path) -> Predictions:
    """Read predictions, compared with their hash.

    Raises:
        Damaged: The file is not what was written, or no such table.
    """
    require_hash(path, _remedy(path))
    return parsed_predictions(path)


def parsed_predictions(path: Path) -> Predictions:
    """Predictions without a look at their hash; whatever the file holds, it is such a table.

    Raises:
        Damaged: It is not.
    """
    remedy = _remedy(path)
    table = read_table(path, path, remedy)
    predictions = Predictions(table, _description(table.schema, path))
    if fault := _fault(predictions):
        raise Damaged(path, fault, remedy)
    return predictions


def read_description(path: Path) -> dict[str, str]:
    """What `DESCRIPTION` names of predictions, without reading or hashing them.

    Raises:
        Damaged: The file is no such table.
    """
    with opened(path, path, _remedy(path)) as file:
        return _description(file.schema_arrow, path)


def _remedy(path: Path) -> str:
    run = path.parent.parent
    return (
        f"Remove it and run `benchmd evaluate {run} --catalog CATALOG` with the catalog of "
        f"{path.stem}, or the same `benchmd run`, which makes it again."
    )


def _description(schema: pa.Schema, path: Path) -> dict[str, str]:
    """What `DESCRIPTION` names, each of the form that `predict` writes.

    Raises:
        Damaged: Something is missing or of another form.
    """
    held = schema.metadata or {}
    try:
        description = {key: held[key.encode()].decode() for key in DESCRIPTION}
        for key, kind in (("options", dict), ("remarks", dict)):
            if not isinstance(json.loads(description[key]), kind):
                raise ValueError(f"{key} is of another type")
        if not all(type(count) is int for count in json.loads(description["remarks"]).values()):
            raise ValueError("a count of its remarks is not one")
        int(description["raw_records"]), int(description["raw_expected"])
        if description["role"] not in ROLES:
            raise ValueError(f"its role is {description['role']!r}")
        typed(Task, json.loads(description["task"]), "task")
        from_json(description["hardware"])
    except (KeyError, ValueError, RecursionError, BenchmdError) as error:
        why = f"it does not say what predictions say ({type(error).__name__}: {error})"
        raise Damaged(path, why, _remedy(path)) from error
    require_of(description[OF], path.parent.parent, path, _remedy(path))
    if description["dataset"] != path.stem:
        raise Damaged(path, f"it is of the dataset {shown(description['dataset'])}", _remedy(path))
    return description


def _fault(predictions: Predictions) -> str:
    """What is wrong with a table of predictions; empty where nothing is."""
    table, classes = predictions.table, predictions.classes
    kinds = {
        **dict.fromkeys(IDENTIFIERS, pa.string()),
        "scores": pa.list_(pa.float64(), len(classes)),
        "target": pa.list_(pa.int8(), len(classes)),
        **METADATA,
    }
    for name, kind in kinds.items():
        if name not in table.column_names:
            return f"it lacks the column {name}"
        if not table.schema.field(name).type.equals(kind):
            return f"its column {name} is of the type {table.schema.field(name).type}"
        if name not in METADATA and table[name].null_count:
            return f"its column {name} has missing values"
    if not len(table) or not classes or not all(isinstance(name, str) for name in classes):
        return "it has no rows or no classes"
    scores = table["scores"].combine_chunks().flatten()
    targets = decode_targets(table["target"])
    if scores.null_count or not np.isfinite(scores.to_numpy(zero_copy_only=False)).all():
        return "a score is missing, NaN or infinite"
    if not np.isin(targets, (0, 1, UNKNOWN)).all():
        return "a target is none of 1, 0 and -1"
    ages = table["age"].to_numpy()
    if (np.isinf(ages) | (ages < 0)).any():
        return "an age is negative or infinite"
    return ""
