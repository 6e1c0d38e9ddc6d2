"""Outputs of a model over a whole split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmd_ray.data.batches import Batch, Feed, Worker
from benchmd_ray.models.encoder import values_held
from benchmd_ray.training.engine import alone, autocast, gather

EVALUATION_BATCH = 256
"""Most examples of a step without gradients, over all workers."""
EVALUATION_VALUES = 2**26
"""Most values of the input, or of a convolutional map, in a step without gradients."""
HELD_BYTES = 2**26
"""Most bytes of outputs waiting on the device; one step's outputs are always allowed."""


def evaluation_batch(encoder: nn.Module) -> int:
    """Examples of a step without gradients, over all workers."""
    return max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // values_held(encoder)))


def collect(
    forward: Callable[[torch.Tensor], torch.Tensor], feed: Feed, batch_size: int
) -> npt.NDArray[np.float32]:
    """Outputs (rows, width) of all rows in order, without gradients; every worker gets them."""
    outputs: npt.NDArray[np.float32] = gathered(
        lambda batch: forward(batch.signals).float(), feed, batch_size
    )
    return outputs


def gathered(
    work: Callable[[Batch], torch.Tensor], feed: Feed, batch_size: int
) -> npt.NDArray[Any]:
    """Results (rows, …) of a function for all rows in order, without gradients."""
    rows, outputs = _HostBuffer(), _HostBuffer()
    with torch.inference_mode():
        for batch in feed.ordered(batch_size):
            outputs.append(gather(work(batch)))
            batch_rows = torch.from_numpy(batch.rows)
            rows.append(batch_rows if alone() else gather(batch_rows.to(batch.signals.device)))
    row, output = rows.whole(), outputs.whole()
    valid = np.flatnonzero(row >= 0)
    return output[valid[np.argsort(row[valid], kind="stable")]]


class _HostBuffer:
    """Copies tensors from a device to the host in groups, as each copy waits for the device."""

    def __init__(self) -> None:
        self._waiting: list[torch.Tensor] = []
        self._done: list[torch.Tensor] = []

    def append(self, tensor: torch.Tensor) -> None:
        if self._waiting and tensor.nbytes * (len(self._waiting) + 1) > HELD_BYTES:
            self._copy()
        self._waiting.append(tensor)

    def _copy(self) -> None:
        self._done.append(torch.cat(self._waiting).cpu())
        self._waiting = []

    def whole(self) -> npt.NDArray[Any]:
        self._copy()
        return torch.cat(self._done).numpy()


def evaluating(module: nn.Module, worker: Worker, precision: str) -> Callable[[torch.Tensor], Any]:
    """A forward pass of a module on one process, in eval mode."""
    module.to(worker.device).eval()

    def forward(signals: torch.Tensor) -> Any:
        with autocast(worker.device, precision):
            return module(signals)

    return forward


EVALUATED = 0.5
"""Factor on shapes in evaluation: the mean factor of training."""


def evaluated(
    forward: Callable[[torch.Tensor], torch.Tensor], shape: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A forward pass on normalised signals in evaluation.

    ``shape`` is ``transfer.augmentation.shape`` of its training.
    """
    return (lambda signals: forward(signals * EVALUATED)) if shape else forward
