"""What an evaluation is: it turns a run's model into stored predictions, and these into scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmd_ray.errors import BenchmdError, require_plain_name
from benchmd_ray.hardware import hardware
from benchmd_ray.training.predictions import CLASSIFIED, Form, Predictions, write_predictions

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from benchmd_ray.data.batches import Worker
    from benchmd_ray.data.catalog import Catalog
    from benchmd_ray.settings import Settings


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of finished transfer runs on catalogs."""

    form: Form
    """Its name, its version, and which tables are its predictions."""
    compute: Callable[[Path, Catalog, Settings, Worker], pa.Table]
    """From the folder of a run, a catalog, settings (precision and feed) and a device to its table
    of predictions.

    Raises:
        BenchmdError: The model does not fit the catalog, or there is nothing to score.
    """
    scores: Callable[[Predictions, int], pd.DataFrame] | None = None
    """From predictions and the number of resamples to score rows, with columns of
    `results.report.frames.SCORED`; None for a classification, which is scored by `scores.metrics`
    with all that compares techniques."""
    roles: tuple[str, ...] = ("source", "target")
    """Of the datasets that it takes."""
    passes: float = 1.0
    """Times that each record goes through the encoder, for estimates."""

    def __post_init__(self) -> None:
        """Refuse a name that cannot be a folder's, and predictions that nothing scores."""
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

    def predict(self, run: Path, catalog: Catalog, settings: Settings, worker: Worker) -> Path:
        """Write the predictions of a run for a catalog.

        Raises:
            BenchmdError: As `compute` does.
        """
        table = self.compute(run, catalog, settings, worker)
        return write_predictions(table, run, catalog, hardware(worker.device), self.form)


def _classified(run: Path, catalog: Catalog, settings: Settings, worker: Worker) -> pa.Table:
    from benchmd_ray.training.predict import classified  # torch, which a report does without

    return classified(run, catalog, settings, worker)


CLASSIFICATION = Evaluation(CLASSIFIED, _classified)
"""Scores of a dataset's evaluation splits: a source's own, and zero-shot those of a target."""
