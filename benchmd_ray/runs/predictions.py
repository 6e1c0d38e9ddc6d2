"""Predictions of a finished transfer run: every number in a table is computed from them.

An evaluation's predictions for a dataset are ``predictions/<evaluation>/<dataset>.parquet`` in the
run's folder. Their metadata state the evaluation and its version; predictions of another version
are refused.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import TypedDict

from benchmd_ray.cluster.hardware import Hardware, from_json
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.provenance import PROVENANCES, together
from benchmd_ray.data.records import PERSON, decode_targets
from benchmd_ray.errors import BenchmdError, count_of, shown
from benchmd_ray.files.atomic import parse_json
from benchmd_ray.files.integrity import (
    OF,
    Damaged,
    name_of,
    replacing_hashed,
    require_hash,
    require_of,
)
from benchmd_ray.files.parquet import opened, read_table
from benchmd_ray.modality.tasks import UNKNOWN, Task
from benchmd_ray.runs.files import PREDICTIONS
from benchmd_ray.schema.typed import Count, form_fault, typed
from benchmd_ray.scores.units import Units

DESCRIPTION = (
    "evaluation",
    "version",
    "dataset",
    "modality",
    "role",
    "policy",
    "catalog",
    "also",
    "raw_records",
    "raw_expected",
    "provenance",
    "options",
    "warnings",
    "task",
    "hardware",
    OF,
)
SHARED = "shared"
"""Metadata on the records that the source's training has, too (`SharedForm`); earlier versions
compared none and lack it."""
IDENTIFIERS = ("record_id", "unit_id", "group_id", "split")
ROLES = ("source", "target")


class SharedForm(TypedDict):
    """Records of the evaluation splits that are also in the source's training or validation."""

    source: str
    records: Count
    of: Count
    """Records of the evaluation splits."""
    excluded: bool
    """Whether they are not scored."""


class Outdated(BenchmdError):
    """Predictions by an earlier version of their evaluation, which must be made again."""


@dataclass(frozen=True)
class Predictions:
    """A model's predictions on one dataset's evaluation splits."""

    table: pa.Table
    """Rows; a classification has record_id, unit_id, group_id, split, scores, target and the
    metadata.
    """
    description: dict[str, str]
    """The metadata that `DESCRIPTION` names.

    ``version`` is the evaluation's, ``catalog`` a digest, ``also`` the digests of other catalogs
    that were read (`also_of`), ``options`` are `Catalog.options`, ``hardware`` is that of the
    scoring, ``of`` is the run.
    """

    @property
    def splits(self) -> list[str]:
        """Splits in the table, sorted."""
        return sorted(set(self.table["split"].to_pylist()))

    def of_split(
        self, split: str
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Targets (units, classes), scores (units, classes) and patients (units,) of a split.

        A unit is what is scored: a CT scan with all its windows, otherwise a record.
        """
        targets, scores, units = self.scored_split(split)
        return targets, scores, units["group_id"].to_numpy(dtype=np.str_)

    def units_of_split(self, split: str) -> pd.DataFrame:
        """Metadata of each unit of a split, see `scored_split`."""
        return self.scored_split(split)[2]

    def scored_split(
        self, split: str
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float64], pd.DataFrame]:
        """Targets and scores as in `of_split`, and metadata of each unit.

        Columns: unit_id, group_id (the patient) and those of `PERSON` (age in years, sex, site,
        device, view); null if unknown. They are taken from the first row of a unit.
        """
        table = self.table.filter(pc.equal(self.table["split"], split))
        units, classes = Units(table["unit_id"].to_pylist()), table["scores"].type.list_size
        scores = table["scores"].combine_chunks().flatten().to_numpy().reshape(-1, classes)
        metadata = table.select(["unit_id", "group_id", *PERSON])
        frame: pd.DataFrame = metadata.take(units.first).to_pandas()
        return units.targets(decode_targets(table["target"])), units.scores(scores), frame

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of scores and targets."""
        return self.task.classes

    @property
    def task(self) -> Task:
        """The task, with the dataset's classes."""
        return task_of(self.description["task"])


@functools.lru_cache
def task_of(content: str) -> Task:
    """The task of a description, which many predictions have alike."""
    task: Task = typed(Task, parse_json(content), "task")
    return task


@dataclass(frozen=True)
class Form:
    """Name, version and schema of an evaluation's predictions."""

    evaluation: str
    version: int
    fault: Callable[[Predictions], str]


def predictions_path(run: Path, dataset: str, evaluation: str = "classification") -> Path:
    """File of a run's predictions for a dataset."""
    return run / PREDICTIONS / evaluation / f"{dataset}.parquet"


def write_predictions(
    table: pa.Table,
    run: Path,
    catalog: Catalog,
    hardware: Hardware,
    form: Form,
    also: Sequence[Catalog] = (),
    *,
    shared: SharedForm | None = None,
) -> Path:
    """Write predictions, their metadata (`DESCRIPTION`) and their hash.

    ``catalog`` was scored, ``also`` are other catalogs that were read; ``shared`` is what the
    catalog shares with the run's source, None where it was not compared. A table that does not fit
    the evaluation's form is an error, and nothing is written.
    """
    raw = catalog.manifest["raw"]
    description = {
        "evaluation": form.evaluation,
        "version": str(form.version),
        "dataset": catalog.dataset,
        "modality": catalog.modality,
        "role": catalog.card.role,
        "policy": str(catalog.manifest["policy"]),
        "catalog": catalog.digest,
        "also": also_of(also),
        "raw_records": str(raw["records"]),
        "raw_expected": str(raw["expected"]),
        "provenance": together(*(other.provenance for other in (catalog, *also))),
        "options": json.dumps(catalog.options),
        "warnings": json.dumps(_noted(catalog)),
        "task": json.dumps(asdict(replace(catalog.task, classes=catalog.card.classes))),
        "hardware": hardware.to_json(),
        OF: name_of(run),
        **({} if shared is None else {SHARED: json.dumps(shared)}),
    }
    path = predictions_path(run, catalog.dataset, form.evaluation)
    if fault := form.fault(Predictions(table, description)):
        raise BenchmdError(
            f"the evaluation {form.evaluation} of {catalog.dataset} made a table that cannot be "
            f"used: {fault}. Nothing was written; correct its `compute`."
        )
    with replacing_hashed(path) as partial:
        pq.write_table(table.replace_schema_metadata(description), partial)
    return path


def shared_text(shared: SharedForm) -> str:
    """What the records that a source's training has, too, mean for scores; empty for none."""
    if not shared["records"]:
        return ""
    what = f"{shared['records']:,} of {count_of(shared['of'], 'record')}"
    whose = f"the training or validation of {shared['source']} has them or their patients"
    return f"{what} excluded: {whose}" if shared["excluded"] else f"{what} scored though {whose}"


def _noted(catalog: Catalog) -> dict[str, int]:
    """What a reader of scores on a catalog is told of its records, and of how many."""
    raw, noted = catalog.manifest["raw"], dict(catalog.manifest["warnings"])
    if raw["grouped_by"] != "patient":
        unknown = f"its patient is unknown, so each {raw['grouped_by']} counts as one"
        noted[f"{unknown}, and intervals may be too narrow"] = raw["records"]
    return noted


def shared_in(path: Path) -> str:
    """`shared_text` of predictions that were just written; empty where nothing was compared."""
    stated = (pq.read_schema(path).metadata or {}).get(SHARED.encode())
    return shared_text(json.loads(stated)) if stated else ""


def also_of(catalogs: Sequence[Catalog]) -> str:
    """Digests of catalogs by dataset, as in `DESCRIPTION`."""
    return json.dumps({catalog.dataset: catalog.digest for catalog in catalogs}, sort_keys=True)


def fault_of_columns(
    table: pa.Table, kinds: Mapping[str, pa.DataType], may_be_null: Collection[str]
) -> str:
    """What is wrong with the columns of a table, given their types by name; empty if nothing is."""
    for name, kind in kinds.items():
        if name not in table.column_names:
            return f"it lacks the column {name}"
        if not table.schema.field(name).type.equals(kind):
            return f"its column {name} is of the type {table.schema.field(name).type}"
        if name not in may_be_null and table[name].null_count:
            return f"its column {name} has missing values"
    return ""


def _fault(predictions: Predictions) -> str:
    table, classes = predictions.table, predictions.classes
    kinds = {
        **dict.fromkeys(IDENTIFIERS, pa.string()),
        "scores": pa.list_(pa.float64(), len(classes)),
        "target": pa.list_(pa.int8(), len(classes)),
        **PERSON,
    }
    if why := fault_of_columns(table, kinds, PERSON):
        return why
    if not len(table) or not classes or not all(isinstance(name, str) for name in classes):
        return "it has no rows or no classes"
    scores = table["scores"].combine_chunks().flatten()
    targets = decode_targets(table["target"])
    values = scores.to_numpy(zero_copy_only=False)
    if scores.null_count or not ((values >= 0) & (values <= 1)).all():
        return "a score is missing, NaN or outside 0 to 1"
    if not np.isin(targets, (0, 1, UNKNOWN)).all():
        return "a target is not 1, 0 or -1"
    ages = table["age"].to_numpy()
    if (np.isinf(ages) | (ages < 0)).any():
        return "an age is negative or infinite"
    return ""


CLASSIFIED = Form("classification", 3, _fault)


def read_predictions(path: Path, form: Form = CLASSIFIED) -> Predictions:
    """Read predictions, verified by their hash.

    Raises:
        Damaged: The file was changed, or is of another evaluation.
        Outdated: It is of another version of the evaluation.
    """
    require_hash(path, _remedy(path))
    return parsed_predictions(path, form)


def parsed_predictions(path: Path, form: Form = CLASSIFIED) -> Predictions:
    """Read predictions without verifying their hash; everything else is validated.

    Raises:
        Damaged: The file has another form.
        Outdated: It is of another version of the evaluation.
    """
    remedy = _remedy(path)
    table = read_table(path, path, remedy)
    predictions = Predictions(table, _description(table.schema, path, form))
    if fault := form.fault(predictions):
        raise Damaged(path, fault, remedy)
    return predictions


def read_description(path: Path, form: Form = CLASSIFIED) -> tuple[dict[str, str], pa.Schema]:
    """Metadata and schema of predictions, without reading or hashing the rows.

    Raises:
        Damaged: The file has another form.
        Outdated: It is of another version of the evaluation.
    """
    with opened(path, path, _remedy(path)) as file:
        return _description(file.schema_arrow, path, form), file.schema_arrow


def _remedy(path: Path) -> str:
    run = path.parents[2]
    if path.parent.name != CLASSIFIED.evaluation:
        return "Remove it and run the same `benchmd run`, which makes it again."
    return (
        f"Remove it and run `benchmd evaluate {run} --catalog CATALOG` with the catalog of "
        f"{path.stem}, or the same `benchmd run`, which makes it again."
    )


def _description(schema: pa.Schema, path: Path, form: Form) -> dict[str, str]:
    metadata = schema.metadata or {}
    try:
        description = {key: metadata[key.encode()].decode() for key in DESCRIPTION}
        for key in ("options", "warnings", "also"):
            if not isinstance(parse_json(description[key]), dict):
                raise ValueError(f"{key} is of another type")
        if not all(type(count) is int for count in parse_json(description["warnings"]).values()):
            raise ValueError("a count of its warnings is not a number")
        if stated := metadata.get(SHARED.encode()):
            description[SHARED] = stated.decode()
            if fault := form_fault(SharedForm, parse_json(description[SHARED])):
                raise ValueError(fault)
        version = int(description["version"])
        if not all(
            0 <= int(description[f"raw_{name}"]) < 2**63 for name in ("records", "expected")
        ):
            raise ValueError("a count of raw records is not a number")
        if description["provenance"] not in PROVENANCES:
            raise ValueError(f"its provenance is {description['provenance']!r}")
        if description["role"] not in ROLES:
            raise ValueError(f"its role is {description['role']!r}")
        task_of(description["task"])
        from_json(description["hardware"])
    except (KeyError, ValueError, RecursionError, BenchmdError) as error:
        why = f"its description cannot be used ({type(error).__name__}: {error})"
        raise Damaged(path, why, _remedy(path)) from error
    require_of(description[OF], path.parents[2], path, _remedy(path))
    for name, stated, place in (
        ("evaluation", form.evaluation, path.parent.name),
        ("dataset", path.stem, path.stem),
    ):
        if not description[name] == stated == place:
            why = f"it is of the {name} {shown(description[name])}, expected {shown(stated)}"
            raise Damaged(path, why, _remedy(path))
    if version != form.version:
        raise Outdated(
            f"{path} is of version {version} of the evaluation {form.evaluation}, which is now "
            f"{form.version}. {_remedy(path)}"
        )
    return description
