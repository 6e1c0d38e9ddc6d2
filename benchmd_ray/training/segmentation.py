"""Training and selection on masks: patches of volumes, and overlap of predictions.

Random numbers depend on the seed, the step and the example's position in the batch over all
workers, so patches do not depend on the number of workers or on interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from benchmd_ray.data.batches import Batch, Feed, Worker
from benchmd_ray.scores.dice import dice
from benchmd_ray.training.collect import gathered
from benchmd_ray.training.seeds import PATCHES


def patches(batch: Batch, window: Sequence[int], seed: int, step: int, worker: Worker) -> Batch:
    """A patch of each example in a worker's share of a step, at a uniformly drawn position."""
    extents, share = batch.signals.shape[2:], len(batch.signals)
    free = np.array(extents) - np.array(window)
    if not free.any():
        return batch
    drawn = np.random.default_rng([PATCHES, seed, step]).random((share * worker.world, len(free)))
    starts = np.floor(drawn[worker.rank * share :][:share] * (free + 1)).astype(int)
    areas = [tuple(slice(a, a + w) for a, w in zip(row, window, strict=True)) for row in starts]
    signals = torch.stack([x[:, *area] for x, area in zip(batch.signals, areas, strict=True)])
    masks = torch.stack([x[area] for x, area in zip(batch.targets, areas, strict=True)])
    return Batch(batch.rows, signals, masks)


def overlaps(labels: torch.Tensor, masks: torch.Tensor, classes: int) -> torch.Tensor:
    """Voxels of each class in both masks, the prediction and the reference: (batch, classes, 3)."""
    counts = []
    for name in range(classes):  # `bincount` would wait for a GPU
        predicted, true = (labels == name).flatten(1), (masks == name).flatten(1)
        counts.append(torch.stack([x.sum(dim=1) for x in (predicted & true, predicted, true)], 1))
    return torch.stack(counts, dim=1)


def collect_overlaps(
    forward: Callable[[torch.Tensor], torch.Tensor], feed: Feed, batch_size: int, classes: int
) -> npt.NDArray[np.int64]:
    """Overlaps (rows, classes, 3) of all rows in order; every worker gets all."""

    def counted(batch: Batch) -> torch.Tensor:
        return overlaps(forward(batch.signals).argmax(dim=1), batch.targets, classes)

    counts: npt.NDArray[np.int64] = gathered(counted, feed, batch_size)
    return counts


def mean_dice(counts: npt.NDArray[np.int64]) -> float:
    """Mean DSC over classes without background; per class over the cases that have it."""
    values = dice(counts[:, 1:])
    present = ~np.isnan(values)
    cases = present.sum(axis=0)
    sums = np.where(present, values, 0.0).sum(axis=0)
    return float((sums[cases > 0] / cases[cases > 0]).mean()) if cases.any() else float("nan")
