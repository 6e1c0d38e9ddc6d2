"""Options of Weights & Biases."""

from __future__ import annotations

import netrc
import os
from dataclasses import dataclass, replace
from urllib.parse import urlparse

from benchmd_ray.errors import unknown_name
from benchmd_ray.extensions.extras import require

MODES = ("auto", "online", "offline", "off")
"""auto: online if there is a key for W&B, otherwise offline; ``WANDB_MODE`` takes precedence."""
PROJECT = "benchmd"


@dataclass(frozen=True)
class Dashboard:
    """Options of the W&B dashboard."""

    mode: str = "off"
    """One of `MODES`."""
    project: str = PROJECT
    entity: str | None = None
    """User or team; None takes W&B's own default."""
    tags: tuple[str, ...] = ()
    """Tags of all runs; runs on synthetic data are tagged as such too."""
    system: bool = False
    """Whether the load of CPUs, GPUs, memory and network is sent to W&B."""

    def settled(self) -> Dashboard:
        """Resolve ``auto``; raises an error if W&B's package is missing."""
        mode = chosen_mode(self.mode)
        if mode != "off":
            require("Weights & Biases (--wandb)", "wandb")
        return replace(self, mode=mode)


def chosen_mode(mode: str) -> str:
    """``online``, ``offline`` or ``off``."""
    if mode not in MODES:
        raise unknown_name("mode of W&B", mode, MODES)
    if mode != "auto":
        return mode
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("disabled", "off"):
        return "off"
    if mode in ("online", "offline"):
        return mode
    return "online" if os.environ.get("WANDB_API_KEY") or _login() else "offline"


def _login() -> bool:
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
