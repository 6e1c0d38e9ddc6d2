"""What an evaluation is: it turns a model into stored predictions, and these into scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchmd_ray.cluster.hardware import hardware
from benchmd_ray.errors import BenchmdError, require_plain_name
from benchmd_ray.modality.tasks import SEGMENTATION as SEGMENTS
from benchmd_ray.modality.tasks import Task, TaskKind
from benchmd_ray.runs.predictions import CLASSIFIED, Form, Predictions, write_predictions

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from benchmd_ray.data.batches import Worker
    from benchmd_ray.data.catalog import Catalog
    from benchmd_ray.modality.modalities import Modality
    from benchmd_ray.settings.definition import Settings


LABELS: tuple[TaskKind, ...] = ("single-label", "multi-label", "ordinal")
"""Kinds of the tasks in which records are of classes."""


class Member(Protocol):
    """A dataset of a plan."""

    @property
    def name(self) -> str:
        """Name of the dataset."""

    @property
    def kind(self) -> Modality:
        """What its records are, and what is predicted of them."""

    @property
    def role(self) -> str:
        """``source`` or ``target``."""

    @property
    def catalog(self) -> object | None:
        """Where its catalog is; None for one that is known only by its card."""


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


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of finished transfer runs on catalogs."""

    form: Form
    """Its name, its version, and which tables are its predictions."""
    compute: Callable[[Asked], pa.Table]
    """From a run and a catalog to the table of predictions.

    Raises:
        BenchmdError: The model does not fit the catalog, or there is nothing to score.
    """
    scores: Callable[[Predictions, int], pd.DataFrame] | None = None
    """From predictions and the number of resamples to score rows, with columns of
    `report.frames.SCORED`; None for a classification, which is scored by `scores.metrics`
    with all that compares techniques."""
    roles: tuple[str, ...] = ("source", "target")
    """Of the datasets that it takes."""
    tasks: tuple[TaskKind, ...] = LABELS
    also: Callable[[Member, Sequence[Member]], tuple[str, ...]] | None = None
    """From a dataset that it takes, and all that were chosen, to the names of those that it reads
    in addition; None for an evaluation that reads no other."""
    current: Callable[[pa.Schema], bool] | None = None
    """Whether a table of predictions is of the code as it is now, where its version cannot say so,
    such as that of plug-ins; None where it can."""
    planned: bool = True
    """Whether plans of its benchmark ask it; else only those that name it do."""
    passes: float = 1.0
    """Times that each record goes through the encoder, for estimates."""

    def __post_init__(self) -> None:
        require_plain_name("evaluation", self.name)
        if self.scores is None and self.form is not CLASSIFIED:
            raise BenchmdError(
                f"the evaluation {self.name} has no scores: give the function that turns its "
                "predictions into score rows."
            )

    @property
    def name(self) -> str:
        """As the folder of its predictions is named."""
        return self.form.evaluation

    def predict(self, asked: Asked) -> Path:
        """Write the predictions of a run for a catalog."""
        table, where = self.compute(asked), hardware(asked.worker.device)
        return write_predictions(table, asked.run, asked.catalog, where, self.form, asked.also)


def _classified(asked: Asked) -> pa.Table:
    from benchmd_ray.training.predict import classified  # torch, which a report does without

    return classified(asked.run, asked.catalog, asked.settings, asked.worker)


CLASSIFICATION = Evaluation(CLASSIFIED, _classified)
"""Scores of a dataset's evaluation splits: a source's own, and zero-shot those of a target."""


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
"""Masks of a dataset's evaluation splits, as files too, and what they overlap of the references."""
OF_TRANSFERS = (CLASSIFICATION, SEGMENTATION)
"""Evaluations that a transfer ends with, each for its tasks."""


def usual_evaluation(task: Task) -> Evaluation:
    """What a transfer to a task is always scored by."""
    return next(evaluation for evaluation in OF_TRANSFERS if task.kind in evaluation.tasks)
