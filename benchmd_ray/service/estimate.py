"""Estimated duration of runs, from measurements or from a stated speed.

A run like a measured one gets its speed. Others are scaled by floating-point operations
(`service.cost`) from the most similar measured runs on the same kind of device.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.compute as pc

from benchmd_ray.errors import BenchmdError, count_of
from benchmd_ray.runs.history import read_metrics
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.store import Run, read_stores
from benchmd_ray.service.cost import Inputs, Workload
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.steps import pretrain_step, transfer_step
from benchmd_ray.training.jobs import RESULT, selected_by, transfer_result


@dataclass(frozen=True)
class Measured:
    """Speed of a run, finished or not."""

    run: str
    device: str
    """``cpu`` or ``cuda``."""
    work: Workload
    units_per_second: float
    start_seconds: float | None = None
    """Seconds besides its units, for loading and one-time encoding; None while unfinished."""
    share: float = 1.0
    """Share of a GPU that it had; the others are taken to have used the rest."""

    @property
    def flops_per_second(self) -> float:
        """Sustained operations per second of one worker on a whole device."""
        return self.work.unit_flops * self.units_per_second / (self.work.workers * self.share)


@dataclass(frozen=True)
class Spot:
    """Speed of this machine, just measured."""

    device: str
    training: float
    """Operations per second of training steps."""
    forward: float
    """Operations per second without gradients."""


def measured_runs(store: Path, datasets: Sequence[PlannedDataset] = ()) -> list[Measured]:
    """Speeds of the runs in a store that reported any, in order of name.

    Records of a run are counted in the catalogs of these datasets, otherwise in its predictions;
    transfers without predictions are excluded.
    """
    try:
        speeds = read_stores([store]).found
    except BenchmdError:  # none there
        return []
    measured = (_measured(run, datasets) for run in speeds)
    return [speed for speed in measured if speed is not None]


def _measured(run: Run, datasets: Sequence[PlannedDataset]) -> Measured | None:
    try:
        work = _work_of_run(run, datasets)
        rate = units_per_second(read_metrics(run.folder))
    except BenchmdError:
        return None  # damaged or being written: no measurement
    if work is None or rate is None:
        return None
    seconds = run.done.get("seconds")
    beside = None if seconds is None else max(0.0, float(seconds) - work.units / rate)
    device = str(run.description.get("device", ""))
    shares = device == "cuda" and work.workers == 1
    share = work.gpu_share(run.settings.execution) if shares else 1.0
    return Measured(run.folder.name, device, work, rate, beside, share)


def units_per_second(lines: Iterable[dict[str, float]]) -> float | None:
    """Mean speed over the lines of ``metrics.jsonl``; None if there is none.

    The first line is excluded if there are others, as it includes one-time work such as compiling
    kernels. Lines are weighted by their time.
    """
    reported = [
        (line["done"], line["per_second"]) for line in lines if line.get("per_second", 0) > 0
    ]
    before = [0.0, *(done for done, _ in reported)][: len(reported)]
    parts = [(done - last, speed) for (done, speed), last in zip(reported, before, strict=True)]
    parts = [part for part in (parts[1:] or parts) if part[0] > 0]
    seconds = sum(units / speed for units, speed in parts)
    return sum(units for units, _ in parts) / seconds if seconds else None


def _work_of_run(run: Run, datasets: Sequence[PlannedDataset]) -> Workload | None:
    about, settings = run.description, run.settings
    if "fold" in about:  # its records are not those of its catalog
        return None
    rows, labelled = _rows(run, datasets), None
    if about["kind"] == "transfer":
        if (run.folder / RESULT).is_file():
            result = transfer_result(run.folder, selected_by(run.modality.task))
            labelled = int(result["training_records"])
        if "validation" not in rows or not (labelled or rows.get("train")):
            return None
    name = str(about["source"])
    source = PlannedDataset(name, run.modality, "source", str(about["policy"]), rows, ())
    technique = str(about["technique"])
    step = pretrain_step(technique) if about["kind"] == "pretrain" else transfer_step(settings)
    return step.work(Inputs(technique, settings, source, labelled=labelled))


def _rows(run: Run, datasets: Sequence[PlannedDataset]) -> dict[str, int]:
    """Records of the splits of the source, from its catalog or else from the run's predictions."""
    catalog = run.description["determinants"]["catalog"]
    for dataset in datasets:
        if dataset.digest == catalog:
            return dict(dataset.rows)
    path = predictions_path(run.folder, run.description["source"])
    if not path.is_file():
        return {}
    splits = read_predictions(path).table["split"]
    return {"validation": int(pc.sum(pc.equal(splits, "validation")).as_py() or 0)}


def median_start(measured: Iterable[Measured]) -> float:
    """Seconds of runs besides their units: the median of finished runs, or 0.

    Linear evaluation is excluded, as it encodes all records before its epochs.
    """
    starts = [m.start_seconds for m in _computing(measured) if m.start_seconds is not None]
    return statistics.median(starts) if starts else 0.0


TERA = 1e12
ASSUMED_TFLOPS = {"cpu": 0.05, "cuda": 20.0}
"""Assumed TFLOP/s of a device without measurements."""
HEAD_STEP_SECONDS = 1e-3
"""Time of one step of a linear head if none is measured; it is launch overhead, not computing."""

Source = str
"""Basis of an estimate: ``same``, ``scaled``, ``here``, ``stated`` or ``assumed``; also ``head`` if
`HEAD_STEP_SECONDS` is assumed.
"""


@dataclass(frozen=True)
class Estimator:
    """Estimates durations on one kind of device."""

    device: str
    """``cpu`` or ``cuda``."""
    measured: tuple[Measured, ...] = ()
    spot: Spot | None = None
    tflops: float | None = None
    """Sustained TFLOP/s of one device as stated by the user, which overrides measurements."""
    used: Counter[Source] = field(default_factory=Counter, compare=False)
    """Number of estimates by basis."""

    @property
    def here(self) -> tuple[Measured, ...]:
        """Measured runs on this kind of device."""
        chosen = () if self.tflops else self.measured
        return tuple(m for m in chosen if m.device == self.device)

    @property
    def empty(self) -> bool:
        """Whether nothing is known about the device's speed."""
        return self.tflops is None and self.spot is None and not _computing(self.here)

    def seconds(self, work: Workload, share: float = 1.0) -> float:
        """Seconds of work that shares a device with other work."""
        start = self._start_seconds(work) if work.starts else 0.0
        units, source = self._unit_seconds(work, share)
        once, other = self._forward_seconds(work, share)
        self.used[source if work.unit_flops else other] += 1
        return start + work.units * units + once

    def speedup(self, work: Workload) -> float | None:
        """Speedup of several workers over one; None unless both are measured."""
        rates = []
        for workers in (work.workers, 1):
            wanted = replace(work, workers=workers)
            alike = [m.units_per_second / m.share for m in self.here if m.work.alike(wanted)]
            if not alike:
                return None
            rates.append(statistics.median(alike))
        return rates[0] / rates[1]

    def _start_seconds(self, work: Workload) -> float:
        """Seconds besides the units: of runs like it, otherwise of all runs on this device."""
        return median_start([m for m in self.here if m.work.alike(work)] or self.here)

    def _unit_seconds(self, work: Workload, share: float) -> tuple[float, Source]:
        if same := [m for m in self.here if m.units_per_second and m.work.alike(work)]:
            if not work.unit_flops:  # steps of a head take as long on any share
                return 1 / statistics.median(m.units_per_second for m in same), "same"
            return 1 / (
                share * statistics.median(m.units_per_second / m.share for m in same)
            ), "same"
        head = self._head_seconds(work.unit_head_steps)
        if not work.unit_flops:
            return head, "scaled"
        speed, source = self._speed(work, training=True)
        return head + work.unit_flops / (speed * work.workers * share), source

    def _forward_seconds(self, work: Workload, share: float) -> tuple[float, Source]:
        if not work.once_flops:
            return 0.0, "scaled"
        speed, source = self._speed(work, training=False)
        return work.once_flops / (speed * work.workers * share), source

    def _speed(self, work: Workload, *, training: bool) -> tuple[float, Source]:
        """Operations per second of one worker, and the basis."""
        if self.tflops:
            return self.tflops * TERA, "stated"
        if near := nearest(_computing(self.here), work):
            return statistics.median(m.flops_per_second for m in near), "scaled"
        if self.spot is not None:
            return self.spot.training if training else self.spot.forward, "here"
        return ASSUMED_TFLOPS[self.device] * TERA, "assumed"

    def _head_seconds(self, steps: int) -> float:
        """Seconds of this many steps of a linear head, including their share of validation."""
        if not steps:
            return 0.0
        linear = [m for m in self.here if m.work.unit_head_steps and not m.work.unit_flops]
        if not linear:
            self.used["head"] += 1
            return steps * HEAD_STEP_SECONDS
        times = [1 / (m.units_per_second * m.work.unit_head_steps) for m in linear]
        return steps * statistics.median(times)

    def basis(self) -> str:
        """Basis of the estimates in words."""
        heads = self.used["head"]
        counts = sorted((source, count) for source, count in self.used.items() if source != "head")
        words = [_told(source, count, self) for source, count in counts]
        if self.tflops:
            words = [f"{self.tflops:g} TFLOP/s sustained by each device, as stated."]
        if heads:
            words.append(
                f"{count_of(heads, 'entry')}: {1000 * HEAD_STEP_SECONDS:g} ms for a step of a "
                f"linear head; this is only an assumption, since none on {self.device} is measured."
            )
        return " ".join(words) or "No estimate was asked for."


def _computing(measured: Iterable[Measured]) -> list[Measured]:
    """Those that train an encoder."""
    return [m for m in measured if m.work.unit_flops and not m.work.unit_head_steps]


def nearest(measured: Sequence[Measured], work: Workload) -> list[Measured]:
    """The measured runs most similar to some work, by the properties that decide speed.

    These are, in order of importance, encoder, workers, step, modality and batch.
    """
    same: list[Callable[[Workload], object]] = [
        lambda w: w.encoder == work.encoder,
        lambda w: w.workers == work.workers,
        lambda w: w.step == work.step,
        lambda w: w.modality == work.modality,
        lambda w: w.batch == work.batch,
    ]
    chosen = list(measured)
    for fits in same:
        chosen = [m for m in chosen if fits(m.work)] or chosen
    return chosen


def _told(source: Source, count: int, estimator: Estimator) -> str:
    device, runs = estimator.device, _computing(estimator.here)
    entries = count_of(count, "entry")
    if source == "same":
        return f"{entries}: the measured speed of runs like them, on {device}."
    if source == "scaled":
        number = "1 measured run" if len(runs) == 1 else f"{len(runs)} measured runs"
        speeds = [m.flops_per_second for m in runs]
        if not speeds:
            return f"{entries}: hardly any computing."
        span = f"{figure(min(speeds))} to {figure(max(speeds))} TFLOP/s"
        return f"{entries}: scaled by floating-point operations from {number} on {device} ({span})."
    if source == "here" and estimator.spot is not None:
        speed = f"{figure(estimator.spot.training)} TFLOP/s training"
        forward = f"{figure(estimator.spot.forward)} without gradients"
        return (
            f"{entries}: scaled by floating-point operations from a few seconds of training on "
            f"this machine ({device}: {speed}, {forward}); loading is not counted."
        )
    return (
        f"{entries}: {ASSUMED_TFLOPS[device]:g} TFLOP/s per device; this is only an assumption, "
        f"since no run on {device} is measured in the store. State the speed with --tflops, or "
        "finish a "
        "short run there first."
    )


def figure(flops: float) -> str:
    """Format operations per second in TFLOP/s, two digits."""
    return f"{flops / TERA:.2g}"
