"""How fast work goes: read from runs in a store, or measured here in a few seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import torch

from benchmd_ray.data.batches import Worker
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modalities import Modality
from benchmd_ray.models.encoder import input_extents, make_encoder
from benchmd_ray.progress import progress
from benchmd_ray.results.store import Run, read_stores
from benchmd_ray.service.cost import Inputs, Work, forward_flops, training_flops
from benchmd_ray.service.datasets import Dataset
from benchmd_ray.service.steps import pretrain_step, transfer_step
from benchmd_ray.settings import EncoderSettings, Settings
from benchmd_ray.signals import Signal
from benchmd_ray.training.engine import TorchEngine, autocast
from benchmd_ray.training.objectives import model_of
from benchmd_ray.training.predictions import predictions_path, read_predictions
from benchmd_ray.training.transfer import RESULT, selected_by, transfer_result
from benchmd_ray.training_log import read_metrics

SPOT_SECONDS = 5.0
"""About how long a measurement here takes."""
SPOT_FLOPS = {"cpu": 6e10, "cuda": 6e12}
"""Operations of one step of it, at most, unless one example takes more."""


@dataclass(frozen=True)
class Measured:
    """Speed of a run, finished or not."""

    run: str
    """Name of its folder."""
    device: str
    """``cpu`` or ``cuda``."""
    work: Work
    units_per_second: float
    start_seconds: float | None = None
    """Worked in addition to its units: loading and once-only encoding; None while unfinished."""

    @property
    def flops_per_second(self) -> float:
        """Sustained operations a second of one worker."""
        return self.work.unit_flops * self.units_per_second / self.work.workers


@dataclass(frozen=True)
class Spot:
    """Speed of this machine, measured on the spot."""

    device: str
    training: float
    """Operations a second of training steps."""
    forward: float
    """Operations a second without gradients."""


def measured_runs(store: Path, known: Sequence[Dataset] = ()) -> list[Measured]:
    """Speeds of the runs of a store that reported any, in order of name.

    Args:
        store: Folder of all runs; it need not be there.
        known: Datasets whose catalogs say how many records a run had. Other runs' records are
            counted in what they wrote; transfers that wrote nothing yet are excluded.
    """
    try:
        found = read_stores([store]).found
    except BenchmdError:  # none there
        return []
    measured = (_measured(run, known) for run in found)
    return [speed for speed in measured if speed is not None]


def _measured(run: Run, known: Sequence[Dataset]) -> Measured | None:
    try:
        work = _work_of_run(run, known)
        rate = units_per_second(read_metrics(run.folder))
    except BenchmdError:
        return None  # damaged, or one that is being written: no measurement
    if work is None or rate is None:
        return None
    seconds = run.done.get("seconds")
    beside = None if seconds is None else max(0.0, float(seconds) - work.units / rate)
    return Measured(run.folder.name, str(run.description.get("device", "")), work, rate, beside)


def units_per_second(lines: Iterable[dict[str, float]]) -> float | None:
    """Mean speed over the lines of ``metrics.jsonl``, None where there is none.

    The first line is excluded where there are others: it holds what is done once, such as
    compiling kernels. Lines are weighted by their units, so that slow ones count for their time.
    """
    held = [(line["done"], line["per_second"]) for line in lines if line.get("per_second", 0) > 0]
    before = [0.0, *(done for done, _ in held)][: len(held)]
    parts = [(done - last, speed) for (done, speed), last in zip(held, before, strict=True)]
    parts = [part for part in (parts[1:] or parts) if part[0] > 0]
    seconds = sum(units / speed for units, speed in parts)
    return sum(units for units, _ in parts) / seconds if seconds else None


def _work_of_run(run: Run, known: Sequence[Dataset]) -> Work | None:
    about, settings = run.description, run.settings
    rows, labelled = _rows(run, known), None
    if about["kind"] == "transfer":
        if (run.folder / RESULT).is_file():
            held = transfer_result(run.folder, selected_by(run.modality.task))
            labelled = int(held["training_records"])
        if "validation" not in rows or not (labelled or rows.get("train")):
            return None
    name = str(about["source"])
    source = Dataset(name, run.modality, "source", str(about["policy"]), rows, ())
    technique = str(about["technique"])
    step = pretrain_step(technique) if about["kind"] == "pretrain" else transfer_step(settings)
    return step.work(Inputs(technique, settings, source, labelled=labelled))


def _rows(run: Run, known: Sequence[Dataset]) -> dict[str, int]:
    """Records of the splits of the source, from its catalog or else from the run's predictions."""
    catalog = run.description["determinants"]["catalog"]
    for dataset in known:
        if dataset.digest == catalog:
            return dict(dataset.rows)
    path = predictions_path(run.folder, run.description["source"])
    if not path.is_file():
        return {}
    splits = read_predictions(path).table["split"]
    return {"validation": int(pc.sum(pc.equal(splits, "validation")).as_py() or 0)}


def median_start(measured: Iterable[Measured]) -> float:
    """Seconds that runs take on top of their units: the median of finished runs, or 0.

    Linear evaluation is skipped: in addition to its epochs it encodes the records.
    """
    held = [m.start_seconds for m in measured if m.start_seconds is not None and m.work.unit_flops]
    return statistics.median(held) if held else 0.0


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_here(
    modality: Modality, settings: Settings, device: str, seconds: float = SPOT_SECONDS
) -> Spot:
    """Train and run the encoder of the settings on noise for a few seconds.

    Args:
        modality: What is encoded.
        settings: Encoder, precision, and CPUs of a worker.
        device: ``cpu`` or ``cuda``; on a CPU as many threads work as a worker has CPUs.
        seconds: About how long to measure, half of it each.
    """
    signal, place = modality.signal, torch.device(device)
    most = SPOT_FLOPS[device] // training_flops(signal, settings.encoder)
    batch = max(1, min(settings.pretrain.batch_size, int(most)))
    model = model_of(make_encoder(signal, settings.encoder), modality.task)
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
    """Median time of a call, after a first one that is not counted."""

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
