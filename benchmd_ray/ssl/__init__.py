"""Pretraining techniques, one file for each self-supervised method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from benchmd_ray.extensions.plugins import plugin, plugin_source
from benchmd_ray.models.networks import RANDOM_KERNELS
from benchmd_ray.settings.definition import PretrainSettings, Settings

if TYPE_CHECKING:
    from benchmd_ray.models.encoder import Encoder

MakeMethod = Callable[["Encoder", PretrainSettings], Any]
"""Makes a `benchmd_ray.ssl.method.Method` from an encoder and the settings."""

METHODS = {
    "e-mix": ("emix", "EMix"),
    "shed": ("shed", "ShED"),
    "mae": ("mae", "MAE"),
}
"""Module and class of each self-supervised method by name; importing one needs PyTorch."""
PROJECTION = 128
"""Width of e-Mix's projected features."""


@dataclass(frozen=True)
class Technique:
    """Where an encoder's weights come from."""

    method: str | None
    """The self-supervised method that trains it; None: no training."""
    imagenet: bool = False
    """Whether it starts from ImageNet weights instead of random ones (images only)."""
    brought: bool = False
    """Whether it uses an external encoder without further training (`ssl.brought`)."""
    network: str | None = None
    """The only network it works with; its random weights are fitted to training records, not
    trained."""
    solver: Literal["adamw", "logistic"] = "adamw"
    """``transfer.solver`` of its runs unless the settings choose another."""

    @property
    def encoder(self) -> str:
        """Name of the encoder's size in the fixed protocol."""
        return "vit-tiny" if self.imagenet else "paper"

    @property
    def plugged_in(self) -> bool:
        """Whether its method is a custom one."""
        return self.method is not None and self.method not in METHODS


TECHNIQUES: dict[str, Technique] = {
    **{name: Technique(name) for name in METHODS},
    "imagenet": Technique(None, imagenet=True),
    "imagenet+mae": Technique("mae", imagenet=True),
}
"""Pretraining techniques by their name in tables."""
BASELINES: dict[str, Technique] = {
    RANDOM_KERNELS: Technique(None, network=RANDOM_KERNELS, solver="logistic"),
}
"""Techniques that train no encoder and are in no protocol."""

SCRATCH = "scratch"
"""The technique without pretraining."""
HUB, OWN, NAMED = "hf:", "model:", "encoder:"
"""Prefixes of techniques that use an external encoder without training: a folder of transformers,
a user's function, and a published encoder by its name.
"""
BROUGHT = (HUB, OWN, NAMED)
KIND = "pretraining technique"
"""Kind of custom methods in `extensions.plugins.GROUPS`."""


def technique_named(name: str, *, also: Sequence[str] = ()) -> Technique:
    """A pretraining technique, built in or custom; `SCRATCH` is not one.

    ``also`` are further names for the error, which lists the valid names and the nearest.
    """
    if name.startswith(BROUGHT):
        return Technique(None, brought=True)
    built_in = TECHNIQUES | BASELINES
    if name not in built_in:
        plugin(KIND, name, [*built_in, *also])
        return Technique(name)
    return built_in[name]


def method_named(name: str) -> MakeMethod:
    """Constructor of a method, built in or custom."""
    if name not in METHODS:
        return plugin(KIND, name, METHODS)
    module, name_in_module = METHODS[name]
    method: MakeMethod = getattr(import_module(f"{__name__}.{module}"), name_in_module)
    return method


def method_source(name: str) -> str | None:
    """SHA-256 of the source of a technique's method if custom, otherwise None."""
    return plugin_source(KIND, name, METHODS) if technique_named(name).plugged_in else None


def with_solver(settings: Settings, name: str) -> Settings:
    """Settings with the solver of a technique or `SCRATCH`."""
    solver = BASELINES.get(name, Technique(None)).solver
    return replace(settings, transfer=replace(settings.transfer, solver=solver))


def protocol_encoder(name: str) -> str:
    """Name of the encoder's size in the fixed protocol for a technique or `SCRATCH`."""
    return TECHNIQUES[name].encoder if name in TECHNIQUES else Technique(None).encoder
