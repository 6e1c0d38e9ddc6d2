"""What a training job does and what a transfer writes at its end; needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmd_ray.files.integrity import made_again, read_hashed_json
from benchmd_ray.modality.tasks import Task
from benchmd_ray.schema.typed import Count, Finite
from benchmd_ray.settings.definition import Settings
from benchmd_ray.storage.location import Location

RESULT = "training.json"


@dataclass(frozen=True)
class PretrainJob:
    settings: Settings
    technique: str
    catalog: Location
    folder: Path
    """Folder of the run, on storage that all workers see; holds `START` for a technique that
    starts from ImageNet weights."""
    until: int | None = None
    """Stop after this step of ``pretrain.steps``, with a checkpoint and the exported weights; the
    same job with a later one, or None, resumes from there as if it had never stopped."""
    more: tuple[Location, ...] = ()
    """Other catalogs that it is pretrained on as well, see `data.pooled`."""

    @property
    def catalogs(self) -> tuple[Location, ...]:
        return (self.catalog, *self.more)

    @property
    def last(self) -> int:
        """Steps that are done when the job ends."""
        return self.settings.pretrain.steps if self.until is None else self.until


@dataclass(frozen=True)
class TransferJob:
    settings: Settings
    catalog: Location
    folder: Path
    """Folder of the run, on storage that all workers see."""
    upstream: Path | None = None
    """Folder of the pretraining run; None starts from random weights (scratch)."""
    features: Path | None = None
    """Linear evaluation: folder in which encoded features are kept for all runs with the same
    frozen encoder, and taken from; None keeps none. The result is the same."""
    halved: bool = False
    """Whether each epoch is scored on halves of the validation split too (`selection.crossed`)."""
    scores_into: Path | None = None
    """File that gets the probabilities of the validation records after each epoch anew."""


def selected_by(task: Task) -> str:
    """Name of the score by which an epoch is kept, in metrics and in `RESULT`."""
    return f"validation_{task.selected_by}"


def transfer_result(folder: Path, score: str = "validation_auroc") -> dict[str, Any]:
    """Validated `RESULT` of a run: best_epoch, the score (`selected_by`), training_records."""
    form = {"best_epoch": Count, score: Finite, "training_records": Count}
    return read_hashed_json(folder / RESULT, made_again(folder), form, of=folder)
