"""Pretraining techniques; the self-supervised methods among them have one file each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
"""Self-supervised methods by name."""


@dataclass(frozen=True)
class Technique:
    """Where an encoder's weights come from."""

    method: str | None
    """The self-supervised method that trains it; None trains nothing."""
    imagenet: bool = False
    """Whether it starts from ImageNet weights, for images alone, instead of random ones."""

    @property
    def encoder(self) -> str:
        """Name of the encoder's size in the fixed protocol."""
        return "vit-tiny" if self.imagenet else "paper"


TECHNIQUES: dict[str, Technique] = {
    **{name: Technique(name) for name in METHODS},
    "imagenet": Technique(None, imagenet=True),
    "imagenet+mae": Technique("mae", imagenet=True),
}
"""Pretraining techniques by the name that tables use."""

SCRATCH = "scratch"
"""The technique without pretraining."""


def technique_named(name: str) -> Technique:
    """A technique; `SCRATCH` is none of pretraining.

    Raises:
        BenchmdError: It does not exist; the message lists the valid names and the nearest.
    """
    if name not in TECHNIQUES:
        raise unknown_name("pretraining technique", name, TECHNIQUES)
    return TECHNIQUES[name]


def protocol_encoder(name: str) -> str:
    """Name of the encoder's size in the fixed protocol for a technique, `SCRATCH` among them."""
    return TECHNIQUES[name].encoder if name in TECHNIQUES else Technique(None).encoder
