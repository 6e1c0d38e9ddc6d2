"""Digest of a module's weights."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def weights_digest(module: nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bytes of a module's parameters and buffers."""
    hashed = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        hashed.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        hashed.update(raw.numpy().data)
    return hashed.hexdigest()
