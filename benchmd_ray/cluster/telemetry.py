"""Metrics for Prometheus, exported through the connected Ray.

Each node of a cluster serves its processes' metrics, prefixed ``ray_`` by Ray
(``deploy/grafana.json`` shows them). The label ``run`` is the folder of a run; a process
trains at most some hundred runs. Without Ray nothing is exported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from benchmd_ray.cluster.connection import connected_already

SECONDS = (1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)


@dataclass(frozen=True)
class ExportedMetric:
    """Type, description and labels of a metric."""

    kind: Literal["Counter", "Gauge", "Histogram"]
    what: str
    labels: tuple[str, ...] = ()


METRICS = {
    "benchmd_records_built_total": ExportedMetric(
        "Counter", "Raw records that a catalog's build has read.", ("dataset",)
    ),
    "benchmd_plan_runs": ExportedMetric(
        "Gauge", "Runs of the running plans: waiting, running, done, failed.", ("state",)
    ),
    "benchmd_plan_retries_total": ExportedMetric(
        "Counter", "Runs tried again: retried, preempted, lost.", ("why",)
    ),
    "benchmd_run_seconds": ExportedMetric(
        "Histogram",
        "Duration of a plan's runs: pretrain, transfer, evaluate.",
        ("kind",),
    ),
    "benchmd_search_trials": ExportedMetric(
        "Gauge", "Trials of the running search: running, complete, stopped, failed.", ("state",)
    ),
    "benchmd_training_units": ExportedMetric(
        "Gauge", "Steps or epochs of a run that are done.", ("run", "unit")
    ),
    "benchmd_training_units_per_second": ExportedMetric(
        "Gauge", "Steps or epochs per second.", ("run", "unit")
    ),
    "benchmd_training_samples_total": ExportedMetric(
        "Counter", "Samples that a run has trained on.", ("run",)
    ),
    "benchmd_training_loss": ExportedMetric("Gauge", "Training loss of a run.", ("run", "unit")),
}
"""Metrics by name; counters end in ``_total``, as in Prometheus."""


def exported() -> set[str]:
    """Names of all series in Prometheus."""
    names = set()
    for name, metric in METRICS.items():
        ends = ("_bucket", "_sum", "_count") if metric.kind == "Histogram" else ("",)
        names |= {f"ray_{name}{end}" for end in ends}
    return names


def count(name: str, amount: float, **labels: str) -> None:
    """Add to a counter."""
    if amount > 0 and connected_already():
        _metric(name).inc(amount, labels)


def gauge(name: str, value: float, **labels: str) -> None:
    if connected_already():
        _metric(name).set(value, labels)


def observe(name: str, value: float, **labels: str) -> None:
    """Add a value to a histogram."""
    if connected_already():
        _metric(name).observe(value, labels)


@cache
def _metric(name: str) -> Any:
    from ray.util import metrics

    metric = METRICS[name]
    more = {"boundaries": list(SECONDS)} if metric.kind == "Histogram" else {}
    make = getattr(metrics, metric.kind)
    return make(name, description=metric.what, tag_keys=metric.labels, **more)
