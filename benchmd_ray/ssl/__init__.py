"""Self-supervised methods, one file each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmd_ray.errors import unknown_name
from benchmd_ray.models.encoder import Encoder
from benchmd_ray.settings import PretrainSettings
from benchmd_ray.ssl.emix import EMix
from benchmd_ray.ssl.mae import MAE
from benchmd_ray.ssl.shed import ShED

METHODS: dict[str, Callable[[Encoder, PretrainSettings], Any]] = {
    "e-mix": EMix,
    "shed": ShED,
    "mae": MAE,
}
"""Pretraining techniques by the name that tables use."""

SCRATCH = "scratch"
"""The technique without pretraining."""


def require_method(name: str) -> None:
    """Make sure a pretraining technique exists.

    Raises:
        BenchmdError: It does not; the message lists the valid names and the nearest.
    """
    if name not in METHODS:
        raise unknown_name("pretraining technique", name, METHODS)
