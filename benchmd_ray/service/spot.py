"""Quick measurement of this machine's speed."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from benchmd_ray.console.progress import progress
from benchmd_ray.data.batches import Worker
from benchmd_ray.modality.modalities import Modality
from benchmd_ray.modality.signals import Signal
from benchmd_ray.models.encoder import input_extents, make_encoder
from benchmd_ray.service.cost import forward_flops, training_flops
from benchmd_ray.service.estimate import Spot
from benchmd_ray.settings.definition import EncoderSettings, Settings, as_dict
from benchmd_ray.training.engine import TorchEngine, autocast
from benchmd_ray.training.selection import model_of

SECONDS = 5.0
"""Approximate duration of the measurement."""
FLOPS = {"cpu": 6e10, "cuda": 6e12}
"""Most operations of one step, unless a single example needs more."""


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_MEASURED: dict[str, Spot] = {}
"""What this process has measured: a search over folds plans the same network many times."""


def measure_here(
    modality: Modality, settings: Settings, device: str, seconds: float = SECONDS
) -> Spot:
    """Train and run the encoder of the settings on noise, for half of ``seconds`` each, once.

    On a CPU the number of threads is the number of CPUs per worker.
    """
    about = as_dict(replace(settings, seed=0))
    key = json.dumps([modality.name, modality.signal.input_shape, about, device, seconds])
    if key not in _MEASURED:
        _MEASURED[key] = _measured(modality, settings, device, seconds)
    return _MEASURED[key]


def _measured(modality: Modality, settings: Settings, device: str, seconds: float) -> Spot:
    signal, place = modality.signal, torch.device(device)
    most = FLOPS[device] // training_flops(signal, settings.encoder)
    batch = max(1, min(settings.pretrain.batch_size, int(most)))
    model = model_of(make_encoder(signal, settings.encoder), modality.task, settings)
    engine = TorchEngine(
        model, settings.pretrain.optimiser, settings.execution, Worker(device=place)
    )
    signals = torch.randn(batch, *signal.input_shape, device=place)
    seen = signals[:, :, *map(slice, input_extents(model.encoder, signal))]

    def train() -> None:
        engine.backward(engine(seen).square().mean())
        engine.update()

    def encode() -> None:
        with torch.inference_mode(), autocast(place, settings.execution.precision):
            model(signals)

    costs = _costs(signal, settings.encoder, batch)
    display, speeds = progress("speed of this machine, for estimates", 2, "measurements"), []
    with _threads(settings.execution.cpus_per_worker):
        for work, cost in zip((train, encode), costs, strict=True):
            speeds.append(cost / _seconds_of(work, place, seconds / 2))
            display.update(len(speeds))
    display.close()
    return Spot(device, *speeds)


def _costs(signal: Signal, encoder: EncoderSettings, batch: int) -> tuple[float, float]:
    return batch * training_flops(signal, encoder), batch * forward_flops(signal, encoder)


def _seconds_of(work: Any, place: torch.device, seconds: float) -> float:
    """Median seconds of a call, after a warm-up call."""

    def once() -> float:
        start = time.perf_counter()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        return time.perf_counter() - start

    times: list[float] = []
    spent = once()
    while spent < seconds or not times:
        times.append(once())
        spent += times[-1]
    return statistics.median(times)
