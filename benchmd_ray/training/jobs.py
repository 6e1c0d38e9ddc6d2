"""Descriptions of training jobs, and the result of a transfer; needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmd_ray.files.integrity import made_again, read_hashed_json
from benchmd_ray.modality.tasks import Task
from benchmd_ray.schema.typed import Count, Finite
from benchmd_ray.settings.definition import Settings, as_dict
from benchmd_ray.storage.location import Location

RESULT = "training.json"
SHARED = Path("features")
"""Folder of the features of frozen encoders in a node's cache."""
TRAINED = "trained"
"""Key of `trained_with` in it."""
PRETRAINED = "pretrain"
"""Subfolder of a fold's weights with those of a pretraining within the trial."""
STANDARDISED_ON = 512
"""Training records, at most, by which the features of random kernels are standardised."""


@dataclass(frozen=True)
class Fold:
    """What a fold run is trained on instead of all training records of its source."""

    evaluation: int
    """Number of the evaluation of a search."""
    catalog: Location
    """Inner catalog of that evaluation."""
    model: Location | None = None
    """Folder with the weights that the search kept of it: ``model.safetensors``, ``model.json``,
    `RESULT`, and in `PRETRAINED` those of its pretraining; None if it kept none.
    """


@dataclass(frozen=True)
class PretrainJob:
    settings: Settings
    technique: str
    catalog: Location
    folder: Path
    """Folder of the run on shared storage; it has `START` if the technique starts from ImageNet
    weights.
    """
    until: int | None = None
    """Stop after this step of ``pretrain.steps``, with a checkpoint and the exported weights. The
    same job with a later step, or None, resumes as if it had never stopped.
    """
    more: tuple[Location, ...] = ()
    """Further catalogs that are pretrained on as well, see `data.pooled`."""

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
    """Folder of the run, on shared storage."""
    upstream: Path | None = None
    """Folder of the pretraining run; None starts from random weights (scratch)."""
    features: Path | None = None
    """Frozen encoder: folder of encoded features shared by all runs with the same one, within the
    cache of the node unless absolute; None stores none. The result is the same.
    """
    halved: bool = False
    """Whether each epoch is scored on halves of the validation split too (`selection.crossed`)."""


def selected_by(task: Task) -> str:
    """Name in metrics and `RESULT` of the score that selects the best epoch."""
    return f"validation_{task.selected_by}"


def trained_with(settings: Settings, catalog: str) -> dict[str, Any]:
    """What `RESULT` states of a training: the digest of its catalog, and its settings."""
    everything, names = as_dict(settings), ("encoder", "pretrain", "transfer", "seed")
    about = {"catalog": catalog, "precision": settings.execution.precision}
    return about | {name: everything[name] for name in names}


def transfer_result(
    folder: Path, score: str = "validation_auroc", *, copied: bool = False
) -> dict[str, Any]:
    """Validated `RESULT` of a run: best_epoch, the score (`selected_by`), training_records.

    One that is ``copied`` names the folder that it was written for; it has to state `TRAINED` too.
    """
    form = {"best_epoch": Count, score: Finite, "training_records": Count}
    form |= {TRAINED: dict[str, Any]} if copied else {}
    whose = None if copied else folder
    result = read_hashed_json(folder / RESULT, made_again(folder), form, of=whose)
    return {name: result[name] for name in form}
