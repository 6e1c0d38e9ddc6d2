"""How large a split is, and whether it streams; needs no PyTorch."""

from __future__ import annotations

import math

import numpy as np

from benchmd_ray.data.catalog import Catalog
from benchmd_ray.settings.definition import ExecutionSettings


def row_bytes(catalog: Catalog) -> int:
    """Bytes of a row's signal as stored, and of its mask where it has one."""
    kind, target = catalog.signal, catalog.card.target
    mask = math.prod(target.shape) if target.is_mask else 0
    return math.prod(kind.stored_shape) * np.dtype(kind.dtype).itemsize + mask


def shuffle_rows(catalog: Catalog, execution: ExecutionSettings) -> int:
    """Rows of a stream's shuffle buffer."""
    return max(1, execution.shuffle_mib * 2**20 // row_bytes(catalog))


def streams(catalog: Catalog, split: str, execution: ExecutionSettings) -> bool:
    """Whether a split streams, by the settings or its decoded size."""
    if execution.feed != "auto":
        return execution.feed == "streaming"
    return catalog.rows(split) * row_bytes(catalog) > execution.resident_gib * 2**30
