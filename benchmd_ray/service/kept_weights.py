"""Weights that a search kept, taken over by the fold run of the same training.

They may be damaged, of other settings or forged: they are read and validated like those of any run,
and written anew with what this run states of its model.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.errors import BenchmdError, DiskFull, Transient
from benchmd_ray.files.atomic import TEMPORARY, remove, replacing
from benchmd_ray.files.integrity import line, write_hashed_json
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.history import METRICS
from benchmd_ray.service.resolved import ResolvedRun
from benchmd_ray.storage.location import Address, Location, get_file
from benchmd_ray.training.jobs import RESULT, PretrainJob, TransferJob, selected_by, transfer_result
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
        job = resolved.job(ready)
        names = (MODEL, DESCRIPTION, *([RESULT] if isinstance(job, TransferJob) else []))
        for name in names:
            _copy(resolved.kept / name, copied / name)
        _export(resolved, job, copied)
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


def _export(resolved: ResolvedRun, job: PretrainJob | TransferJob, copied: Path) -> None:
    """Export validated weights to the job's folder, as its training does.

    Raises:
        BenchmdError: They are damaged, or are not those that the job would make.
    """
    catalog = resolved.trained_on
    if isinstance(job, TransferJob):
        about = model_about(job, normalised(job, catalog))
        (load_segmenter if catalog.task.segments else load_classifier)(copied)
        if job.upstream is not None and job.settings.transfer.freezes:
            _require_frozen(copied, job.upstream)
    else:
        encoder = job.settings.encoder
        about = {"encoder": encoder, "signal": catalog.signal, "statistics": catalog.statistics}
        load_encoder(copied)
    export_model(job.folder, load_file(copied / MODEL), **about)
    stated, expected = model_description(copied), model_description(job.folder)
    names = stated.keys() | expected.keys()
    if differing := sorted(n for n in names if stated.get(n) != expected.get(n)):
        raise BenchmdError(f"{', '.join(differing)}: not as in the model of this run.")
    if isinstance(job, TransferJob):
        _export_result(job, catalog, copied)


def _require_frozen(copied: Path, upstream: Path) -> None:
    """Refuse a frozen encoder that is not that of the run's pretraining."""
    weights, expected = (load_encoder(path).state_dict() for path in (copied, upstream))
    if any(not torch.equal(weights[name], value) for name, value in expected.items()):
        raise BenchmdError(f"its frozen encoder is not that of {upstream.name}.")


def _export_result(job: TransferJob, catalog: Catalog, copied: Path) -> None:
    """Write `RESULT`, and the metrics of the best epoch."""
    score, rows = selected_by(catalog.task), len(require_transferable(job, catalog).rows)
    result = transfer_result(copied, score, copied=True)
    if result["training_records"] != rows:
        counts = f"{result['training_records']:,} records, expected {rows:,}"
        raise BenchmdError(f"it was trained on {counts}.")
    write_hashed_json(job.folder / RESULT, result, of=job.folder.parent)
    metrics = line({"done": result["best_epoch"] + 1, score: result[score]})
    (job.folder / METRICS).write_text(metrics, "utf-8")
