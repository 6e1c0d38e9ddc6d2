"""Reports of a training loop: metrics to a file, progress to the terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from benchmd_ray.cluster.telemetry import count, gauge
from benchmd_ray.console.progress import Display, progress
from benchmd_ray.errors import BenchmdError
from benchmd_ray.files.atomic import append_text, replacing
from benchmd_ray.files.integrity import line
from benchmd_ray.runs.history import METRICS, read_metrics


class Reporter(Protocol):
    """Receives the reports of a loop."""

    def start(self, what: str, total: int, unit: str, done: int) -> None:
        """Start work of ``total`` units, with ``done`` already done."""

    def report(self, done: int, values: Mapping[str, float]) -> None:
        """``done`` units are done; ``values`` are the current metrics."""

    def finish(self) -> None:
        """The work is done."""


class RunReporter:
    """Writes ``metrics.jsonl`` into a run's folder and shows progress.

    With ``samples``, the number per unit of work (0: unknown), Prometheus gets them too.
    """

    def __init__(self, folder: Path, *, silent: bool = False, samples: int | None = None) -> None:
        self._path = folder / METRICS
        self._silent, self._samples, self._unit = silent, samples, ""
        self._display = Display()
        self._before = (0, time.monotonic())

    def start(self, what: str, total: int, unit: str, done: int) -> None:
        """Drop the metrics of an interrupted run after its last checkpoint, and show progress."""
        kept = [entry for entry in read_metrics(self._path.parent) if entry["done"] <= done]
        with replacing(self._path) as partial:
            partial.write_text("".join(map(line, kept)), "utf-8")
        if not self._silent:
            self._display = progress(what, total, unit, done)
        self._unit, self._before = unit, (done, time.monotonic())

    def report(self, done: int, values: Mapping[str, float]) -> None:
        """Append a line and update the display."""
        (before, then), now = self._before, time.monotonic()
        rate = (done - before) / max(now - then, 1e-9)
        self._before = (done, now)
        append_text(self._path, line({"done": done, **values, "per_second": float(f"{rate:.4g}")}))
        self._display.update(done, values)
        if self._samples is not None:
            run = self._path.parent.name
            gauge("benchmd_training_units", done, run=run, unit=self._unit)
            gauge("benchmd_training_units_per_second", rate, run=run, unit=self._unit)
            count("benchmd_training_samples_total", self._samples * (done - before), run=run)
            if "loss" in values:
                gauge("benchmd_training_loss", values["loss"], run=run, unit=self._unit)

    def finish(self) -> None:
        """Close the display."""
        self._display.close()


class SilentReporter:
    """Ignores all reports; for workers other than the first."""

    def start(self, what: str, total: int, unit: str, done: int) -> None:
        """Nothing."""

    def report(self, done: int, values: Mapping[str, float]) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


def require_finite(losses: torch.Tensor, first_step: int, lr_of: Callable[[int], float]) -> None:
    """Refuse losses (steps,) that are NaN or infinite; the message names the step.

    ``first_step`` is the number of the first step; ``lr_of`` returns the learning rate of a step,
    from 0.
    """
    wrong = (~torch.isfinite(losses)).nonzero()
    if len(wrong):
        index = int(wrong[0])
        value = float(losses[index])
        name = "NaN" if math.isnan(value) else "infinite"
        raise BenchmdError(
            f"the loss became {name} at step {first_step + index} with learning rate "
            f"{lr_of(first_step + index - 1):g}. "
            "Lower the learning rate (optimiser.lr), add warm-up (optimiser.warmup_steps), or "
            "use execution.precision=float32."
        )
