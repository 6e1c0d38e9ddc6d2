"""Exponential moving average of a model's weights over the steps of fine-tuning.

Source: Polyak and Juditsky 1992 (doi:10.1137/0330046); the decay rises in the first steps as in
TensorFlow's ``tf.train.ExponentialMovingAverage`` with ``num_updates``.
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
from benchmd_ray.settings.definition import Settings
from benchmd_ray.training.state import named_tensors

WHOLE = 2
"""Highest stage of ZeRO at which each worker holds all parameters."""


class Average:
    """The average of a module's parameters and buffers, on the module's device.

    Running statistics of batch normalisation are averaged too: mean weights need mean statistics.
    Integers, such as numbers of batches, are copied.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        """Start at the module's weights, which are whole in this process and the same in all.

        ``decay`` is the share of the average that a step keeps, in (0, 1).
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

        So the first weights, which are random in part, are soon forgotten.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        average(*self._averaged, None)
        for value, count in self._counts:
            value.copy_(count)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Give the module the average within."""
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
        """Write the average."""
        save_file({name: value.cpu().contiguous() for name, value in self._values.items()}, path)

    def load(self, path: Path) -> None:
        """Read what `save` wrote; the checkpoint has compared its hash."""
        for name, value in load_file(path).items():
            self._values[name].copy_(value)


def require_averageable(settings: Settings) -> None:
    """Refuse to average parameters that no worker has whole (ZeRO stage 3)."""
    averaging, stage = settings.transfer.averaging, settings.execution.zero_stage
    if averaging and stage > WHOLE:
        raise BenchmdError(
            f"transfer.averaging is {averaging:g} and execution.zero_stage {stage}, which splits "
            f"the parameters over the workers: expected a stage of at most {WHOLE}, or "
            "transfer.averaging=0."
        )
