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
from benchmd_ray.training.engine import autocast, gather

EVALUATION_BATCH = 256
"""Examples of a step that takes no gradients, all workers together, at most."""
EVALUATION_VALUES = 2**26
"""Values of the input of such a step, or of a map of a convolutional network, at most."""


def evaluation_batch(encoder: nn.Module) -> int:
    """Examples of a step that takes no gradients, all workers together."""
    return max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // values_held(encoder)))


def collect(
    forward: Callable[[torch.Tensor], torch.Tensor], feed: Feed, batch_size: int
) -> npt.NDArray[np.float32]:
    """Outputs of every row in row order, without gradients; every worker gets all of them.

    Args:
        forward: (batch, *input_shape) → (batch, width); its module is in eval mode.
        feed: Gives the rows.
        batch_size: Examples of a step, all workers together; see `evaluation_batch`.

    Returns:
        (rows, width) float32.
    """
    found: npt.NDArray[np.float32] = gathered(
        lambda batch: forward(batch.signals).float(), feed, batch_size
    )
    return found


def gathered(
    work: Callable[[Batch], torch.Tensor], feed: Feed, batch_size: int
) -> npt.NDArray[Any]:
    """What a function gives of every row in row order, without gradients; for every worker.

    Args:
        work: A batch to a tensor (batch, …).
        feed: Gives the rows.
        batch_size: Examples of a step, all workers together.

    Returns:
        (rows, …).
    """
    rows, outputs = [], []
    with torch.inference_mode():
        for batch in feed.ordered(batch_size):
            outputs.append(gather(work(batch)).cpu())
            rows.append(gather(torch.from_numpy(batch.rows).to(batch.signals.device)).cpu())
    row = torch.cat(rows).numpy()
    output = torch.cat(outputs).numpy()[row >= 0]
    result = np.empty_like(output)
    order = np.argsort(row[row >= 0], kind="stable")
    result[:] = output[order]
    return result


def evaluating(module: nn.Module, worker: Worker, precision: str) -> Callable[[torch.Tensor], Any]:
    """A forward pass of a module on one process, in eval mode."""
    module.to(worker.device).eval()

    def forward(signals: torch.Tensor) -> Any:
        with autocast(worker.device, precision):
            return module(signals)

    return forward
