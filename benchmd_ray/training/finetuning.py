"""Options of fine-tuning: layer-wise learning rates, freezing, stochastic depth, weight averaging.

Sources: layer-wise decay, Bao et al., BEiT (https://arxiv.org/abs/2106.08254), appendix, and He et
al. (https://arxiv.org/abs/2111.06377), table 9, whose released code counts layers as here; frozen
lower blocks, Yosinski et al. 2014 (https://arxiv.org/abs/1411.1792): features of the first layers
are the most general, and small datasets are not enough to learn them again; stochastic depth, see
`models.drop_path`; weight averaging, Polyak and Juditsky 1992 (doi:10.1137/0330046), whose decay
rises in the first steps as in TensorFlow's ``tf.train.ExponentialMovingAverage`` with
``num_updates``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from benchmd_ray.errors import BenchmdError
from benchmd_ray.models.drop_path import DropPath
from benchmd_ray.models.heads import Classifier
from benchmd_ray.models.segmenter import Segmenter
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.state import named_tensors

FIRST = ("patch_embedding", "cls", "positions", "stem")
"""Parts of an encoder below its first block."""
ROUNDING = 1e-9
"""Tolerance below a whole number of blocks: 0.7 of 10 are 7."""
STOCHASTIC_DEPTH = "transfer.stochastic_depth"
WHOLE = 2
"""Highest ZeRO stage at which each worker has all parameters."""


def layer_factors(
    model: Classifier | Segmenter, decay: float, network: str
) -> dict[str, float] | None:
    """Factor on the learning rate by name of the parameter; None if all are 1.

    With D blocks, block i (from 0, next to the signal) has decay^(D − i), the parts below (`FIRST`)
    have decay^(D + 1), and everything else, such as the head, has 1. AdamW multiplies weight decay
    by the learning rate, so it is scaled as well.
    """
    if decay == 1.0:
        return None
    blocks = blocks_of(model.encoder, "transfer.layer_decay", decay, network, off=1)
    return {name: decay ** _below_head(name, len(blocks)) for name, _ in model.named_parameters()}


def blocks_of(
    encoder: nn.Module, setting: str, value: float, network: str, *, off: float
) -> nn.ModuleList | nn.Sequential:
    """The blocks of an encoder, in order; not needed if the setting has the value ``off``."""
    blocks = getattr(encoder, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential) or not len(blocks):
        raise BenchmdError(
            f"{setting} is {value:g} and the encoder network {network} has no `blocks` (a "
            "torch.nn.ModuleList or Sequential of its layers, the first next to the signal): use "
            f"this name, or leave {setting} at {off:g}."
        )
    return blocks


def _below_head(name: str, depth: int) -> int:
    """Depth of a parameter below the head; 0 for the head."""
    whose, part, *rest = name.split(".")
    if whose == "encoder" and part in FIRST:
        return depth + 1
    if whose == "encoder" and part == "blocks":
        return depth - int(rest[0])
    return 0


def freeze(model: Classifier | Segmenter, share: float, network: str) -> None:
    """Freeze the first share · D blocks, rounded down, and everything below them."""
    if not share:
        return
    blocks_of(model.encoder, "transfer.freeze", share, network, off=0)
    for part in frozen_parts(model, share):
        part.requires_grad_(False)
    for name, parameter in model.encoder.named_parameters(recurse=False):
        if name in FIRST:
            parameter.requires_grad_(False)


def frozen_parts(model: nn.Module, share: float) -> list[nn.Module]:
    """Modules that `freeze` freezes, which training leaves in eval mode.

    So their batch-norm statistics do not change, and they have no dropout.
    """
    if not share:
        return []
    encoder: nn.Module = model.encoder  # type: ignore[assignment]
    first = [part for name, part in encoder.named_children() if name in FIRST]
    blocks = list(encoder.blocks)  # type: ignore[arg-type]
    return [*first, *blocks[: int(share * len(blocks) + ROUNDING)]]


def require_pretrained(share: float, *, pretrained: bool) -> None:
    """Refuse to freeze random weights."""
    if share and not pretrained:
        raise BenchmdError(
            f"transfer.freeze is {share:g}, and the run starts from random weights (scratch), "
            "which must be trained: expected 0, or a run that is pretrained."
        )


def set_stochastic_depth(model: Classifier | Segmenter, rate: float, network: str) -> None:
    """Set the drop rate of block i (from 0) of D to rate · (i + 1) / D (Huang et al., eq. 4)."""
    if not rate:
        return
    blocks = blocks_of(model.encoder, STOCHASTIC_DEPTH, rate, network, off=0)
    for number, block in enumerate(blocks, 1):
        path = getattr(block, "drop_path", None)
        if not isinstance(path, DropPath):
            raise BenchmdError(
                f"{STOCHASTIC_DEPTH} is {rate:g}, and a {type(block).__name__} of the encoder "
                f"network {network} has no `drop_path`: pass its branch through a "
                "benchmd_ray.models.drop_path.DropPath named `drop_path` before it is added, or "
                "leave "
                f"{STOCHASTIC_DEPTH} at 0."
            )
        path.rate = rate * number / len(blocks)


class Average:
    """Moving average of a module's parameters and buffers, on the module's device.

    Running statistics of batch normalisation are averaged too: mean weights need mean statistics.
    Integers, such as numbers of batches, are copied.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        """Start at the module's weights, which must be complete in this process and equal in all.

        ``decay`` is the weight of the old average in each step, in (0, 1).
        """
        self._decay = decay
        self._tensors = {name: tensor.detach() for name, tensor in named_tensors(module).items()}
        self._values = {name: tensor.clone() for name, tensor in self._tensors.items()}
        pairs = [(value, self._tensors[name]) for name, value in self._values.items()]
        floating = [pair for pair in pairs if pair[0].is_floating_point()]
        self._averaged = tuple(map(list, zip(*floating, strict=True)))
        self._counts = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after step t, from 0, with the decay min(decay, (1 + t) / (10 + t)).

        So the first weights, which are partly random, are soon forgotten.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        average(*self._averaged, None)
        for value, count in self._counts:
            value.copy_(count)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context in which the module has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, tensor in self._tensors.items():
            kept = tensor.clone()
            tensor.copy_(self._values[name])
            self._values[name].copy_(kept)

    def save(self, path: Path) -> None:
        save_file({name: value.cpu().contiguous() for name, value in self._values.items()}, path)

    def load(self, path: Path) -> None:
        """Load what `save` wrote; its hash was verified with the checkpoint."""
        for name, value in load_file(path).items():
            self._values[name].copy_(value)


def require_averageable(settings: Settings) -> None:
    """Refuse to average parameters that are split over workers (ZeRO stage 3)."""
    averaging, stage = settings.transfer.averaging, settings.execution.zero_stage
    if averaging and stage > WHOLE:
        raise BenchmdError(
            f"transfer.averaging is {averaging:g} and execution.zero_stage {stage}, which splits "
            f"the parameters over the workers: expected a stage of at most {WHOLE}, or "
            "transfer.averaging=0."
        )
