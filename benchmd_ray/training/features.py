"""Features of a frozen encoder, stored in a folder for all runs that need the very same.

A file ``<name>.npy`` is named by the hash of all that determines its content; ``<name>.json`` has
its SHA-256 and what it is of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmd_ray._version import __version__
from benchmd_ray.cluster.hardware import hardware
from benchmd_ray.data.batches import Rows
from benchmd_ray.data.catalog import Catalog
from benchmd_ray.extensions.parts import versions_of
from benchmd_ray.files.arrays import mapped
from benchmd_ray.files.atomic import digest, locked, replacing, sha256
from benchmd_ray.files.integrity import (
    Damaged,
    read_hashed_json,
    require_sha256,
    write_hashed_json,
)
from benchmd_ray.models.digest import weights_digest
from benchmd_ray.models.networks import network_part, network_source
from benchmd_ray.settings.definition import Settings, as_dict
from benchmd_ray.training.engine import uses_bf16

Features = npt.NDArray[np.float32]
"""(rows, width)."""


@dataclass(frozen=True)
class FeatureStore:
    """Stored features of one frozen encoder on the splits of one catalog."""

    folder: Path
    about: dict[str, Any]
    """What decides the features of a record."""
    width: int

    def features(
        self, split: str, rows: Rows, encode: Callable[[], Features], streaming: bool
    ) -> Features:
        """Features (rows, width) of a split: those stored, or encoded now and then stored.

        Of several processes that need the same at once, one encodes and the others wait.
        ``streaming``: ``encode`` reads a streaming feed, whose batches round differently. Writes to
        the result never reach the file.

        Raises:
            BenchmdError: The disk is full, or the folder's file system has no locks.
        """
        chosen = hashlib.sha256(np.ascontiguousarray(rows, np.int64).tobytes()).hexdigest()
        about = self.about | {"split": split, "rows": chosen, "streaming": streaming}
        name = digest(about)[:32]
        path, shape = self.folder / f"{name}.npy", (len(rows), self.width)
        with locked(self.folder / f"{name}.lock", f"the features {path}", wait=True):
            features = _kept(path, shape, about)
            if features is None:
                _keep(path, encode(), about)
                features = _kept(path, shape, about)
        if features is None:
            raise RuntimeError(f"{path} is not what was just written")  # a disk that loses data
        return features


def feature_store(
    folder: Path, encoder: nn.Module, settings: Settings, catalog: Catalog, device: torch.device
) -> FeatureStore:
    """The stored features of an encoder."""
    size = as_dict(settings.encoder)
    for name in ("dropout", "embedding_dropout"):  # at rest in a frozen encoder
        del size[name]
    bf16 = uses_bf16(settings.execution.precision, device)
    about = {
        "weights": weights_digest(encoder),
        "encoder": size,
        "network_source": network_source(settings.encoder),
        "catalog": catalog.digest,
        "precision": "bf16" if bf16 else "float32",
        "parts": versions_of(
            ("normalisation", "linear evaluation", network_part(settings.encoder.network))
        ),
        "hardware": asdict(hardware(device)),
        "versions": {"benchmd_ray": __version__, "torch": torch.__version__},
    }
    return FeatureStore(folder, about, int(encoder.width))  # type: ignore[arg-type]


def _keep(path: Path, features: Features, about: dict[str, Any]) -> None:
    with replacing(path) as partial, partial.open("wb") as file:
        np.save(file, np.ascontiguousarray(features, np.float32), allow_pickle=False)
        file.flush()
        content_hash = sha256(partial)
    write_hashed_json(path.with_suffix(".json"), {"features": content_hash, **about})


def _kept(path: Path, shape: tuple[int, int], about: dict[str, Any]) -> Features | None:
    """Stored features; None where there are none, damaged ones or others."""
    try:
        stated = read_hashed_json(path.with_suffix(".json"), "", {"features": str})
        require_sha256(path, stated.pop("features"), "")
        if digest(stated) != digest(about):
            return None
        features: Features = mapped(path, "c", "")
    except Damaged:
        return None
    return features if features.shape == shape and features.dtype == np.float32 else None
