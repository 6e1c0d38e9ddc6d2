"""Frames of how runs were trained: metrics over time, and where and with what they ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmd_ray.extensions.parts import older
from benchmd_ray.report.frames import OF_RUN, VERSIONS
from benchmd_ray.report.hardware_notes import hardware_columns
from benchmd_ray.runs.history import seconds_worked
from benchmd_ray.runs.store import Run
from benchmd_ray.runs.training_log import read_metrics

Row = dict[str, Any]
LINES = 500
"""Most lines of metrics that are taken of a run, evenly; the last one always."""
NAMES = ("loss", "validation_auroc", "validation_dsc", "lr")


def training_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Loss, source validation score and learning rate over steps (pretraining) or epochs."""
    for run in runs:
        about = run.description
        unit = "steps" if about["kind"] == "pretrain" else "epochs"
        for line in thinned(read_metrics(run.folder)):
            for name in NAMES:
                if name in line:
                    yield {
                        "run": run.folder.name,
                        "kind": about["kind"],
                        **{key: about[key] for key in OF_RUN},
                        "seed": about["seed"],
                        "done": line["done"],
                        "unit": unit,
                        "name": name,
                        "value": line[name],
                    }


def thinned(lines: Sequence[Row]) -> list[Row]:
    """At most `LINES` evenly spread lines, the last one included."""
    step = -(-len(lines) // LINES)
    return [lines[i] for i in range((len(lines) - 1) % step, len(lines), step)] if lines else []


def ran_rows(runs: Sequence[Run], protocols: Mapping[Path, str]) -> Iterator[Row]:
    """One row per run, finished or not."""
    for run in runs:
        about = run.description
        yield {
            "run": run.folder.name,
            **{key: about[key] for key in ("kind", "modality", "source", "policy")},
            **{key: about[key] for key in ("technique", "setting", "seed")},
            "protocol": protocols[run.folder],
            "network": run.settings.encoder.network,
            "finished": run.finished,
            "seconds": _seconds(run),
            "device": about.get("device"),
            **hardware_columns(run),
            "workers": run.settings.execution.workers,
            "catalog": about["determinants"]["catalog"][:16],
            "parts": ", ".join(
                f"{part} {version}" for part, version in sorted(parts_of(run).items())
            ),
            **{name: about.get("versions", {}).get(name) for name in VERSIONS},
        }


def parts_of(run: Run) -> Mapping[str, object]:
    """Versions of the parts of the code (`parts.PARTS`) that made a run."""
    parts: Mapping[str, object] = run.description["determinants"].get("parts", {})
    return parts


def older_parts(runs: Sequence[Run]) -> list[str]:
    """Notes on runs that other versions of the code made."""
    together: dict[str, list[str]] = {}
    for run in runs:
        for change in older(parts_of(run)):
            together.setdefault(change, []).append(run.folder.name)
    return [
        f"Made by version {change}: {', '.join(names)}. The same `benchmd run` makes new runs."
        for change, names in sorted(together.items())
    ]


def _seconds(run: Run) -> float:
    """Seconds of work; without a history those of training by its metrics."""
    worked = float(run.done.get("seconds", 0.0)) or seconds_worked(run.folder)
    if worked:
        return worked
    done, total = 0.0, 0.0
    for line in read_metrics(run.folder):
        total += (line["done"] - done) / line["per_second"] if line.get("per_second") else 0.0
        done = line["done"]
    return total or float("nan")
