"""How fast work goes: read from runs in a store, or measured here in a few seconds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from benchmd_ray.errors import BenchmdError
from benchmd_ray.runs.predictions import predictions_path, read_predictions
from benchmd_ray.runs.store import Run, read_stores
from benchmd_ray.runs.training_log import read_metrics
from benchmd_ray.service.cost import Inputs, Workload
from benchmd_ray.service.datasets import PlannedDataset
from benchmd_ray.service.steps import pretrain_step, transfer_step
from benchmd_ray.training.jobs import RESULT, selected_by, transfer_result


@dataclass(frozen=True)
class Measured:
    """Speed of a run, finished or not."""

    run: str
    """Name of its folder."""
    device: str
    """``cpu`` or ``cuda``."""
    work: Workload
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


def measured_runs(store: Path, datasets: Sequence[PlannedDataset] = ()) -> list[Measured]:
    """Speeds of the runs of a store that reported any, in order of name.

    Records of a run are counted in the catalogs of these datasets, else in what it wrote; transfers
    that wrote nothing yet are excluded.
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
        return None  # damaged, or one that is being written: no measurement
    if work is None or rate is None:
        return None
    seconds = run.done.get("seconds")
    beside = None if seconds is None else max(0.0, float(seconds) - work.units / rate)
    return Measured(run.folder.name, str(run.description.get("device", "")), work, rate, beside)


def units_per_second(lines: Iterable[dict[str, float]]) -> float | None:
    """Mean speed over the lines of ``metrics.jsonl``, None where there is none.

    The first line is excluded where there are others: it has what is done once, such as compiling
    kernels. Lines are weighted by their units, so that slow ones count for their time.
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
    """Seconds that runs take in addition to their units: the median of finished runs, or 0.

    Linear evaluation is excluded: in addition to its epochs it encodes the records.
    """
    starts = [
        m.start_seconds for m in measured if m.start_seconds is not None and m.work.unit_flops
    ]
    return statistics.median(starts) if starts else 0.0
