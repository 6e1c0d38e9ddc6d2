"""Interface of an evaluation: from a model to stored predictions, and from these to scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchmd_ray.cluster.hardware import hardware
from benchmd_ray.errors import BenchmdError, require_plain_name
from benchmd_ray.modality.tasks import SEGMENTATION as SEGMENTS
from benchmd_ray.modality.tasks import Task, TaskKind
from benchmd_ray.runs.predictions import (
    CLASSIFIED,
    Form,
    Predictions,
    SharedForm,
    write_predictions,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from benchmd_ray.data.batches import Worker
    from benchmd_ray.data.catalog import Catalog
    from benchmd_ray.modality.modalities import Modality
    from benchmd_ray.settings.definition import Settings


LABELS: tuple[TaskKind, ...] = ("single-label", "multi-label", "ordinal")
"""Kinds of classification tasks."""


class Member(Protocol):
    """A dataset of a plan."""

    @property
    def name(self) -> str:
        """Name of the dataset."""

    @property
    def kind(self) -> Modality:
        """Its signal and its task."""

    @property
    def role(self) -> str:
        """``source`` or ``target``."""

    @property
    def catalog(self) -> object | None:
        """Location of its catalog; None if only its card is known."""


@dataclass(frozen=True)
class Shared:
    """Records of a catalog that is scored which are also in a source's training or validation."""

    source: str
    """Name of the source."""
    records: frozenset[str] = frozenset()
    """Their names."""
    of: int = 0
    """Records of the evaluation splits."""
    excluded: bool = True
    """Whether they are not scored."""

    @property
    def about(self) -> SharedForm:
        """What predictions state of them."""
        return {
            "source": self.source,
            "records": len(self.records),
            "of": self.of,
            "excluded": self.excluded,
        }


@dataclass(frozen=True)
class Asked:
    run: Path
    """Folder of a finished transfer run."""
    catalog: Catalog
    settings: Settings
    """Precision and feed."""
    worker: Worker
    also: tuple[Catalog, ...] = ()
    """Other catalogs that it reads, in order of name."""
    features: Path | None = None
    """Folder of the features of the run's frozen encoder, as in `training.jobs.TransferJob`."""
    shared: Shared | None = None
    """What the catalog shares with the run's source; None where it was not compared."""


DETECTED = ("record_id", "unit_id", "group_id", "set", "use_case")
"""Columns that rows of `Detection` begin with."""


@dataclass(frozen=True)
class Detection:
    """What boards compare of an evaluation whose scores are of detectors, not of classes.

    ``records`` and ``scores`` give rows with the texts `DETECTED`: ``group_id`` is the patient,
    ``use_case`` is empty in distribution; a record is once in a set.
    """

    records: Callable[[Catalog, Sequence[Catalog]], pa.Table]
    """Function from a catalog and the others that the evaluation reads to the scored records."""
    scores: Callable[[Predictions], pa.Table]
    """Function from predictions to the same rows with a float64 column for each detector: larger
    is more out of distribution."""
    title: Callable[[str], str]
    """Function from the name of a detector to its title."""


@dataclass(frozen=True, eq=False)
class DetectedRecords:
    """What detectors of a source are scored on."""

    evaluation: str
    also: tuple[str, ...]
    """Datasets of the other catalogs that it reads."""
    records: pa.Table
    """Of `Detection.records`."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of finished transfer runs on catalogs."""

    form: Form
    """Name, version and form of its predictions."""
    compute: Callable[[Asked], pa.Table]
    """Function from a run and a catalog to the table of predictions.

    Raises:
        BenchmdError: The model does not fit the catalog, or there is nothing to score.
    """
    scores: Callable[[Predictions, int], pd.DataFrame] | None = None
    """Function from predictions and the number of resamples to score rows, with columns of
    `report.frames.SCORED`; None for a classification, which is scored by `scores.metrics` and used
    to compare techniques.
    """
    roles: tuple[str, ...] = ("source", "target")
    """Roles of the datasets that it takes."""
    tasks: tuple[TaskKind, ...] = LABELS
    also: Callable[[Member, Sequence[Member]], tuple[str, ...]] | None = None
    """Function from one of its datasets and all chosen ones to the names of further datasets that
    it reads; None if it reads no others.
    """
    current: Callable[[pa.Schema], bool] | None = None
    """Function that checks whether predictions are from the current code, if the version does not
    tell, as with plug-ins; None if the version is enough.
    """
    planned: bool = True
    """Whether plans of its benchmark include it; otherwise only plans that name it."""
    passes: float = 1.0
    """How often each record is encoded, for estimates."""
    detection: Detection | None = None
    """What boards compare of it; None if its scores are of classes, or not for boards."""

    def __post_init__(self) -> None:
        require_plain_name("evaluation", self.name)
        if self.scores is None and self.form is not CLASSIFIED:
            raise BenchmdError(
                f"the evaluation {self.name} has no scores: give the function that turns its "
                "predictions into score rows."
            )

    @property
    def name(self) -> str:
        """Name of the evaluation, and of the folder of its predictions."""
        return self.form.evaluation

    def classifies(self, task: Task) -> bool:
        """Whether it scores the records of a dataset of this task, and those of no other one."""
        return task.kind in self.tasks and self.also is None

    def predict(self, asked: Asked) -> Path:
        """Write the predictions of a run for a catalog."""
        table, where, shared = self.compute(asked), hardware(asked.worker.device), asked.shared
        if shared is not None and "record_id" not in table.column_names:
            shared = replace(shared, excluded=False)  # which rows are theirs is not known
        if shared is not None and shared.excluded:
            table = _without(table, shared.records)
        about = (asked.run, asked.catalog, where, self.form, asked.also)
        stated = None if shared is None else shared.about
        return write_predictions(table, *about, shared=stated)


def _without(table: pa.Table, records: frozenset[str]) -> pa.Table:
    """Predictions without those of some records."""
    kept = [name not in records for name in table["record_id"].to_pylist()]
    return table if all(kept) else table.filter(kept)


def _classified(asked: Asked) -> pa.Table:
    from benchmd_ray.training.predict import classified  # imports torch, which reports do not need

    about = (asked.run, asked.catalog, asked.settings, asked.worker)
    return classified(*about, features=asked.features)


CLASSIFICATION = Evaluation(CLASSIFIED, _classified)
"""Classification of a dataset's evaluation splits: those of the source, and of
targets, which a transfer is not trained on.
"""


def _segmented(asked: Asked) -> pa.Table:
    from benchmd_ray.training.segmented import segmented

    return segmented(asked.run, asked.catalog, asked.settings, asked.worker)


def _segmentation_fault(predictions: Predictions) -> str:
    from benchmd_ray.training.segmented import fault

    return fault(predictions)


def _segmentation_scores(predictions: Predictions, resamples: int) -> pd.DataFrame:
    from benchmd_ray.evaluation.segmentation import score_rows

    return score_rows(predictions, resamples)


SEGMENTATION = Evaluation(
    Form("segmentation", 2, _segmentation_fault),
    _segmented,
    _segmentation_scores,
    tasks=(SEGMENTS,),
)
"""Segmentation of a dataset's evaluation splits: masks, also as files, and their overlap with the
references.
"""
OF_TRANSFERS = (CLASSIFICATION, SEGMENTATION)
"""Evaluations that a transfer ends with, each for its tasks."""


def usual_evaluation(task: Task) -> Evaluation:
    """The evaluation by which a transfer to a task is always scored."""
    return next(evaluation for evaluation in OF_TRANSFERS if task.kind in evaluation.tasks)
