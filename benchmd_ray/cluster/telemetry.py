"""Numbers for Prometheus, through the Ray that this process is connected to; without one, nothing.

Each node of a cluster serves its processes' metrics, whose names Ray begins with ``ray_``
(``docs/deploy/grafana.json`` shows them). A label ``run`` names the folder of a run; a process
trains some hundred runs at most, and its series end with it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

SECONDS = (1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
"""Upper ends of the classes of a histogram of times."""


@dataclass(frozen=True)
class Metric:
    """What one metric is."""

    kind: Literal["Counter", "Gauge", "Histogram"]
    what: str
    labels: tuple[str, ...] = ()


METRICS = {
    "benchmd_records_built_total": Metric(
        "Counter", "Raw records that a catalog's build has read.", ("dataset",)
    ),
    "benchmd_plan_runs": Metric(
        "Gauge", "Runs of the plans at work: waiting, running, done, failed.", ("state",)
    ),
    "benchmd_plan_retries_total": Metric(
        "Counter", "Runs tried again: retried, preempted, lost.", ("why",)
    ),
    "benchmd_run_seconds": Metric(
        "Histogram",
        "How long the runs took that a plan did: pretrain, transfer, evaluate.",
        ("kind",),
    ),
    "benchmd_search_trials": Metric(
        "Gauge", "Trials of the search at work: running, complete, stopped, failed.", ("state",)
    ),
    "benchmd_training_units": Metric(
        "Gauge", "Steps or epochs of a run that are done.", ("run", "unit")
    ),
    "benchmd_training_units_per_second": Metric(
        "Gauge", "Steps or epochs a second.", ("run", "unit")
    ),
    "benchmd_training_samples_total": Metric(
        "Counter", "Samples that a run has trained on.", ("run",)
    ),
    "benchmd_training_loss": Metric("Gauge", "Training loss of a run.", ("run", "unit")),
}
"""By name; counters end in ``_total``, as Prometheus shows them."""


def exported() -> set[str]:
    """Names of all series, as Prometheus shows them."""
    names = set()
    for name, metric in METRICS.items():
        ends = ("_bucket", "_sum", "_count") if metric.kind == "Histogram" else ("",)
        names |= {f"ray_{name}{end}" for end in ends}
    return names


def count(name: str, amount: float, **labels: str) -> None:
    """Add to a counter; nothing where this process is connected to no Ray."""
    if amount > 0 and _connected():
        _made(name).inc(amount, labels)


def gauge(name: str, value: float, **labels: str) -> None:
    """Set a gauge; nothing where this process is connected to no Ray."""
    if _connected():
        _made(name).set(value, labels)


def observe(name: str, value: float, **labels: str) -> None:
    """Add a value to a histogram; nothing where this process is connected to no Ray."""
    if _connected():
        _made(name).observe(value, labels)


def _connected() -> bool:
    """Whether there is a Ray; one that nobody has imported is not imported here."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@cache
def _made(name: str) -> Any:
    from ray.util import metrics

    metric = METRICS[name]
    more = {"boundaries": list(SECONDS)} if metric.kind == "Histogram" else {}
    made = getattr(metrics, metric.kind)
    return made(name, description=metric.what, tag_keys=metric.labels, **more)


class Takes(Protocol):
    """What a training loop reports to (`training.reporter.Reporter`)."""

    def start(self, what: str, total: int, unit: str, done: int) -> None:
        """Work begins."""

    def report(self, done: int, values: Mapping[str, float]) -> None:
        """Some of it is done."""

    def finish(self) -> None:
        """All of it is done."""


class Measured:
    """A training loop's reporter that also tells Prometheus."""

    def __init__(self, reporter: Takes, run: str, samples: int = 0) -> None:
        """Hand on to a reporter.

        Args:
            reporter: Receives everything.
            run: Name of the run's folder.
            samples: That each unit of work trains on; 0 where that is not known.
        """
        self._reporter, self._run, self._samples = reporter, run, samples
        self._unit, self._before = "", (0, 0.0)

    def start(self, what: str, total: int, unit: str, done: int) -> None:
        """Work of ``total`` units begins, of which ``done`` were done before."""
        self._reporter.start(what, total, unit, done)
        self._unit, self._before = unit, (done, time.monotonic())

    def report(self, done: int, values: Mapping[str, float]) -> None:
        """``done`` units are done; ``values`` are the current metrics."""
        self._reporter.report(done, values)
        (before, then), now = self._before, time.monotonic()
        self._before = (done, now)
        labels = {"run": self._run, "unit": self._unit}
        gauge("benchmd_training_units", done, **labels)
        rate = (done - before) / max(now - then, 1e-9)
        gauge("benchmd_training_units_per_second", rate, **labels)
        count("benchmd_training_samples_total", self._samples * (done - before), run=self._run)
        if "loss" in values:
            gauge("benchmd_training_loss", values["loss"], **labels)

    def finish(self) -> None:
        """The work is done."""
        self._reporter.finish()
