import json
import re
import sys
import time
from pathlib import Path

import pytest

from benchmd_ray.cluster import telemetry
from benchmd_ray.cluster.telemetry import METRICS, exported
from benchmd_ray.training.reporter import RunReporter, read_metrics

PROJECT = Path(__file__).resolve().parents[2]
DASHBOARD = PROJECT / "deploy" / "grafana.json"


class Kept:
    """Stands for Ray's metrics, and for a reporter."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *values: self.told.append((name, *values))


@pytest.fixture
def kept(monkeypatch):
    found = {name: Kept() for name in METRICS}
    monkeypatch.setattr(telemetry, "connected_already", lambda: True)
    monkeypatch.setattr(telemetry, "_metric", found.__getitem__)
    return found


def test_a_loop_writes_its_metrics_and_tells_prometheus_its_rates(kept, monkeypatch, tmp_path):
    times = iter([1.0, 10.0, 12.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    folder = tmp_path / "pretrain-a"
    folder.mkdir()
    reporter = RunReporter(folder, silent=True, samples=64)
    reporter.start("pretrain", 100, "steps", 20)
    reporter.report(30, {"loss": 0.5, "lr": 1.0})
    reporter.finish()
    assert read_metrics(folder) == [{"done": 30, "loss": 0.5, "lr": 1.0, "per_second": 5.0}]
    labels = {"run": "pretrain-a", "unit": "steps"}
    assert kept["benchmd_training_units"].told == [("set", 30, labels)]
    assert kept["benchmd_training_units_per_second"].told == [("set", 5.0, labels)]
    assert kept["benchmd_training_samples_total"].told == [("inc", 640, {"run": "pretrain-a"})]
    assert kept["benchmd_training_loss"].told == [("set", 0.5, labels)]


def test_without_ray_nothing_is_told_and_ray_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(telemetry, "_metric", lambda name: pytest.fail(f"{name} was told"))
    telemetry.count("benchmd_records_built_total", 1, dataset="cpsc")
    telemetry.gauge("benchmd_plan_runs", 1, state="done")
    telemetry.observe("benchmd_run_seconds", 1, kind="pretrain")
    assert "ray" not in sys.modules


def expressions():
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_the_dashboard_shows_every_metric_and_none_that_does_not_exist():
    shown = {name for text in expressions() for name in re.findall(r"\bray_benchmd_\w+", text)}
    assert shown <= exported()
    for name in METRICS:
        assert any(series.startswith(f"ray_{name}") for series in shown), name


def test_the_dashboard_groups_by_labels_that_its_metrics_have():
    for text in expressions():
        (name,) = set(re.findall(r"\bray_(benchmd_\w+?)(?:_bucket|_sum|_count)?\b", text))
        grouped = re.findall(r"\bby \(([^)]*)\)", text)
        labels = {label.strip() for group in grouped for label in group.split(",")}
        assert labels <= {*METRICS[name].labels, "le"}, text


def test_counters_are_named_as_prometheus_shows_them():
    for name, metric in METRICS.items():
        assert name.endswith("_total") == (metric.kind == "Counter"), name
