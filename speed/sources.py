"""What measurements read: synthetic ECGs as raw files and as a catalog, and arrays in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmd_ray.data.batches import Columns, ResidentFeed, Worker
from benchmd_ray.data.normalise import normaliser
from benchmd_ray.modality.signals import Signal

if TYPE_CHECKING:
    from benchmd_ray.data.catalog import Catalog

SCALE = 0.001
"""Millivolts of a stored unit."""


def raw_ecgs(folder: Path, records: int, seed: int = 0) -> Path:
    """Write synthetic recordings in PTB-XL's layout."""
    from benchmd_ray.demo.ecg import write_ecg  # where arrays are measured, no WFDB is installed

    raw = write_ecg(folder / "raw", source_records=records, target_records=1, seed=seed)
    return raw["ptb-xl"]


def ecg_catalog(folder: Path, records: int, seed: int = 0) -> Catalog:
    """Build a catalog of synthetic recordings."""
    from benchmd_ray.data.build import build

    raw = raw_ecgs(folder, records, seed)
    return build("ptb-xl", raw, folder / "catalog", allow_missing=True, max_quarantined=0.1)


def array_columns(targets: npt.NDArray[np.int8], signal: Signal, scale: float) -> Columns:
    """Columns of records that fill their arrays, from their targets (records, classes)."""
    sizes = np.tile(np.array(signal.stored_shape[1:], np.int32), (len(targets), 1))
    return Columns(targets, np.full(len(targets), scale, np.float32), sizes)


def array_feed(
    signals: npt.NDArray[Any],
    targets: npt.NDArray[np.int8],
    signal: Signal,
    *,
    seed: int,
    worker: Worker,
    scale: float = SCALE,
) -> ResidentFeed:
    """The resident feed over an array of stored signals, (records, *stored_shape)."""
    columns = array_columns(targets, signal, scale)
    return ResidentFeed(signals, columns, normaliser(signal, None), seed=seed, worker=worker)
