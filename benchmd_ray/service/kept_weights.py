"""Weights that a search kept, taken over by the fold run of the same training.

They may be damaged, of other settings or forged: they are read and validated like those of any run,
and written anew with what this run states of its model.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.errors import BenchmdError, DiskFull, Transient
from benchmd_ray.files.atomic import TEMPORARY, digest, remove, replacing
from benchmd_ray.files.integrity import line, write_hashed_json
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.history import METRICS
from benchmd_ray.service.resolved import ResolvedRun
from benchmd_ray.storage.location import Address, Location, get_file
from benchmd_ray.training.jobs import (
    RESULT,
    TRAINED,
    PretrainJob,
    TransferJob,
    selected_by,
    trained_with,
    transfer_result,
)
from benchmd_ray.training.transfer import model_about, normalised, require_transferable
from benchmd_ray.training.weights import (
    DESCRIPTION,
    export_model,
    load_classifier,
    load_encoder,
    load_segmenter,
    model_description,
)

logger = logging.getLogger(__name__)


def take_kept(resolved: ResolvedRun, folder: Path) -> bool:
    """Take over kept weights instead of training; returns whether the run's folder has them now.

    If they are missing, damaged or do not fit, that is logged and nothing is taken.
    """
    if resolved.kept is None:
        return False
    copied, ready = folder / f"{TEMPORARY}kept", folder / f"{TEMPORARY}taken"
    try:
        for path in (copied, ready):
            remove(path)
            path.mkdir()
        job, place = resolved.job(ready), resolved.kept
        # What a pretraining within a trial was trained with is stated by the transfer from it.
        results = place if isinstance(job, TransferJob) else place.parent
        for file in (place / MODEL, place / DESCRIPTION, results / RESULT):
            _copy(file, copied / file.name)
        _export(job, resolved.trained_on, copied)
        for path in ready.iterdir():
            os.replace(path, folder / path.name)
    except (Transient, DiskFull):
        raise
    except BenchmdError as error:
        what = "%s is trained, as the weights that a search kept in %s cannot be used: %s"
        logger.warning(what, folder.name, resolved.kept, error)
        return False
    finally:
        remove(copied)
        remove(ready)
    return True


def _copy(file: Location, path: Path) -> None:
    if isinstance(file, Address):
        exists = get_file(file, path)
    elif exists := file.is_file():  # not a pipe or a device
        with replacing(path) as partial:
            shutil.copyfile(file, partial)
    if not exists:
        raise BenchmdError(f"{file} is missing.")


def _export(job: PretrainJob | TransferJob, catalog: Catalog, copied: Path) -> None:
    """Export validated weights to the job's folder, as its training does.

    Raises:
        BenchmdError: They are damaged, or are not those that the job would make.
    """
    score = selected_by(catalog.task)
    result = transfer_result(copied, score, copied=True)
    expected = trained_with(job.settings, catalog.digest)
    if isinstance(job, TransferJob):
        _require_same(result[TRAINED], expected)
        about = model_about(job, normalised(job, catalog))
        (load_segmenter if catalog.task.segments else load_classifier)(copied)
    else:
        del expected["transfer"]
        _require_same({n: result[TRAINED].get(n) for n in expected}, expected)
        encoder = job.settings.encoder
        about = {"encoder": encoder, "signal": catalog.signal, "statistics": catalog.statistics}
        load_encoder(copied)
    export_model(job.folder, load_file(copied / MODEL), **about)
    _require_same(model_description(copied), model_description(job.folder))
    if isinstance(job, TransferJob):
        _require_frozen(job, copied)
        rows = len(require_transferable(job, catalog).rows)
        _require_same({"training_records": result["training_records"]}, {"training_records": rows})
        metrics = {"done": result["best_epoch"] + 1, score: result[score]}
        write_hashed_json(job.folder / RESULT, result, of=job.folder.parent)
        (job.folder / METRICS).write_text(line(metrics), "utf-8")


def _require_same(stated: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse weights of which something else is stated than of those of this run."""
    names = sorted(stated.keys() | expected.keys())
    if differing := [n for n in names if digest([stated.get(n)]) != digest([expected.get(n)])]:
        raise BenchmdError(f"{', '.join(differing)}: not as in this run.")


def _require_frozen(job: TransferJob, copied: Path) -> None:
    """Refuse an encoder that is not that of the run's pretraining, if it stays frozen."""
    if job.upstream is None or not job.settings.transfer.freezes:
        return
    weights, expected = (load_encoder(path).state_dict() for path in (copied, job.upstream))
    if any(not torch.equal(weights[name], value) for name, value in expected.items()):
        raise BenchmdError(f"its frozen encoder is not that of {job.upstream.name}.")
