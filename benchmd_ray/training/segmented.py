"""Predictions of a segmentation: masks as NIfTI files, and their overlap with the reference.

Masks are in the run, ``predictions/segmentation/<dataset>/<record>.nii.gz``, each in the grid of
its volume's original file; those of `BASELINE` are in ``<dataset>.mean-mask``. The table counts
voxels in the catalog's grid, which is the same unless the volume was resampled.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.data.feed import whole_split_feed
from benchmd_ray.data.geometry import Geometry, geometry_of, in_file, write_nifti
from benchmd_ray.data.records import PERSON, targets_of
from benchmd_ray.data.resident import split_table
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import remove
from benchmd_ray.modality.signals import valid_area
from benchmd_ray.modality.tasks import SEGMENTATION
from benchmd_ray.runs.predictions import (
    IDENTIFIERS,
    Predictions,
    fault_of_columns,
    predictions_path,
)
from benchmd_ray.scores.dice import CODES, PREDICTED, REFERENCE, dice, presence
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.collect import evaluated, evaluating, evaluation_batch
from benchmd_ray.training.predict import description_for
from benchmd_ray.training.segmentation import overlaps
from benchmd_ray.training.weights import load_segmenter

BASELINE = "mean mask"
"""A baseline without a model: the most frequent class of each voxel in the masks of the catalog's
training split. Targets have none.
"""
COLUMNS: dict[str, pa.DataType] = {
    **dict.fromkeys(IDENTIFIERS, pa.string()),
    "method": pa.string(),
    "class": pa.string(),
    "dsc": pa.float64(),
    "code": pa.string(),
    "volume_ref_ml": pa.float64(),
    "volume_pred_ml": pa.float64(),
    **PERSON,
    "file": pa.string(),
    "sha256": pa.string(),
}
"""Columns of the table, which has a row for each case, method and class but the background.

``method`` is empty for the model, otherwise `BASELINE`; ``dsc`` is NaN if the reference is empty;
``code`` is a `scores.dice.Presence`; ``file`` (relative to the table) and ``sha256`` are those of
the mask. Surface distances are computed from the files.
"""
UNSAFE = re.compile(r"[^\w.-]|^\.", re.ASCII)
"""Characters that are replaced in names of mask files."""


def segmented(run: Path, catalog: Catalog, settings: Settings, worker: Worker) -> pa.Table:
    """Segment the evaluation splits of a catalog by a run's model, and write the masks.

    Returns the table with `COLUMNS`.
    """
    description = description_for(run, catalog)
    table = predictions_path(run, catalog.dataset, SEGMENTATION)
    folders = {method: mask_folder(table, method) for method in ("", BASELINE)}
    for folder in folders.values():  # they may have masks from another catalog of this name
        remove(folder)
    common = _common_mask(catalog) if catalog.rows("train") else None
    rows: list[dict[str, Any]] = []
    written: set[str] = set()
    for split in catalog.evaluation_splits:
        for record, geometry, mask, reference in _masks(
            run, description, catalog, split, settings, worker
        ):
            area = valid_area(mask.shape, record.pop("valid_size"))
            name = f"{UNSAFE.sub('_', record['record_id'])}.nii.gz"
            if name in written:
                raise BenchmdError(
                    f"two records of {catalog.path} would have one file of masks, {name}: give "
                    "them names that differ in letters, digits, full stops or hyphens."
                )
            written.add(name)
            outside = np.ones(mask.shape, bool)
            outside[area] = False
            for method, labels in (("", mask), (BASELINE, common)):
                if labels is None:
                    continue
                labels = np.where(outside, 0, labels).astype(np.uint8)
                path = folders[method] / name
                write_nifti(in_file(labels, geometry), path)
                file = {
                    "file": path.relative_to(table.parent).as_posix(),
                    "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                }
                fields = {**record, "split": split, "method": method, **file}
                rows += _rows(fields, labels, reference, geometry, catalog)
    return pa.Table.from_pylist(rows, schema=pa.schema(list(COLUMNS.items())))


def mask_folder(table: Path, method: str = "") -> Path:
    """Folder of the masks of a method (empty for the model, or `BASELINE`), next to their table."""
    suffix = f".{method.replace(' ', '-')}" if method else ""  # names of datasets have no full stop
    return table.with_name(f"{table.stem}{suffix}")


def _common_mask(catalog: Catalog) -> npt.NDArray[np.uint8]:
    """The most frequent class of each voxel in the training masks; ties go to the lowest class."""
    target = catalog.card.target
    counts = np.zeros((target.classes, *target.shape), np.int64)
    catalog.require_split("train")
    for table in catalog.tables("train", ["target"]):
        masks = targets_of(table["target"], target)
        for label in range(target.classes):
            counts[label] += (masks == label).sum(axis=0)
    return np.asarray(counts.argmax(axis=0), np.uint8)


MaskedRecord = tuple[dict[str, Any], Geometry, npt.NDArray[np.uint8], npt.NDArray[np.uint8]]


def _masks(
    run: Path,
    about: Mapping[str, Any],
    catalog: Catalog,
    split: str,
    settings: Settings,
    worker: Worker,
) -> Iterator[MaskedRecord]:
    model = load_segmenter(run)
    forward = evaluated(
        evaluating(model, worker, settings.execution.precision), about["augmentation"]["shape"]
    )
    feed = whole_split_feed(catalog, split, settings, worker, about["statistics"])
    columns = ["record_id", "unit_id", "group_id", *PERSON, "valid_size", "geometry"]
    records = split_table(catalog, split, columns).to_pylist()
    with torch.inference_mode():
        for batch in feed.ordered(evaluation_batch(model.encoder)):
            labels = forward(batch.signals).argmax(dim=1).to(torch.uint8).cpu().numpy()
            masks = batch.targets.cpu().numpy()
            for row, label, reference in zip(batch.rows, labels, masks, strict=True):
                if row < 0:  # padding
                    continue
                record = dict(records[row])
                yield record, geometry_of(record.pop("geometry")), label, reference


def _rows(
    record: dict[str, Any],
    mask: npt.NDArray[np.uint8],
    reference: npt.NDArray[np.uint8],
    geometry: Geometry,
    catalog: Catalog,
) -> Iterator[dict[str, Any]]:
    classes = catalog.card.classes
    ours, truth = (torch.from_numpy(np.array(labels))[None] for labels in (mask, reference))
    counts = overlaps(ours, truth, len(classes))[0].numpy()
    voxel = float(np.prod(geometry.stored.spacing)) / 1000  # mL
    values, codes = dice(counts), presence(counts)
    for label, name in enumerate(classes[1:], 1):
        yield {
            **record,
            "class": name,
            "dsc": float(values[label]),
            "code": str(codes[label]),
            "volume_ref_ml": float(counts[label, REFERENCE]) * voxel,
            "volume_pred_ml": float(counts[label, PREDICTED]) * voxel,
        }


def fault(predictions: Predictions) -> str:
    """Why a table of predictions is invalid; empty if it is valid."""
    table = predictions.table
    if why := fault_of_columns(table, COLUMNS, PERSON):
        return why
    if not len(table):
        return "it has no rows"
    score = table["dsc"].to_numpy()
    if not (np.isnan(score) | ((score >= 0) & (score <= 1))).all():
        return "a DSC is outside 0 to 1"
    for name in ("volume_ref_ml", "volume_pred_ml"):
        if not (np.isfinite(table[name].to_numpy()) & (table[name].to_numpy() >= 0)).all():
            return f"its column {name} has a value that is negative or not finite"
    for name, valid in (
        ("code", set(CODES)),
        ("method", {"", BASELINE}),
        ("class", set(predictions.task.foreground)),
    ):
        if others := set(table[name].to_pylist()) - valid:
            return f"its column {name} has the value {min(others)!r}"
    return ""
