"""With which hardware a session of a training computes: that of all its workers."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmd_ray.cluster.hardware import Hardware, from_json, hardware
from benchmd_ray.data.batches import Worker
from benchmd_ray.runs.history import record_session
from benchmd_ray.training.checkpoints import checkpoint_step
from benchmd_ray.training.engine import gather

LONGEST = 2048
"""Bytes of a description, and more."""


def record_hardware(folder: Path, worker: Worker) -> None:
    """Write down with what a session computes that is about to begin; every worker calls it."""
    workers = hardware_of_workers(worker)
    if worker.rank == 0:
        record_session(folder, workers, checkpoint_step(folder))


def hardware_of_workers(worker: Worker) -> list[Hardware]:
    """The hardware of each worker, in order of rank; every worker calls it."""
    text = hardware(worker.device).to_json().encode()
    encoded = torch.tensor([list(text.ljust(LONGEST))], dtype=torch.uint8, device=worker.device)
    return [from_json(bytes(row.tolist()).decode()) for row in gather(encoded)]
