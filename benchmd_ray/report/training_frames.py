"""Frames on the training of runs: metrics over time, hardware and software."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmd_ray.cluster.hardware import Hardware, from_json
from benchmd_ray.extensions.parts import older
from benchmd_ray.report.frames import OF_RUN, VERSIONS, mode_and_labels
from benchmd_ray.report.names import RowName
from benchmd_ray.report.pools import Pool
from benchmd_ray.report.protocols import pretraining_of
from benchmd_ray.report.scored import Scored
from benchmd_ray.runs.history import read_metrics, seconds_worked, trained_by
from benchmd_ray.runs.store import Run

COLUMNS = {"hardware": "model", "instructions": "instructions", "threads": "threads"}
"""Columns of the table of runs, with the field of `Hardware` that each shows."""
MEETING = ("modality", "source", "dataset", "split", "policy")
"""What results share that are pooled over seeds or compared with each other."""


def hardware_columns(run: Run) -> dict[str, str | None]:
    """Hardware of a run by `COLUMNS`, with several values if sessions or workers differ."""
    kinds = trained_by(run.folder)
    columns = {}
    for name, field in COLUMNS.items():
        distinct = dict.fromkeys(getattr(kind, field) for kind in kinds)
        columns[name] = "; ".join(filter(None, distinct)) or None
    return columns


def of_pools(pools: Sequence[Pool], runs: Sequence[Run]) -> list[str]:
    """The note on the results of one source, see `different_hardware`."""
    meeting: dict[tuple[str, ...], list[Scored]] = {}
    for pool in pools:
        key = *(pool.key[name] for name in MEETING), mode_and_labels(pool.key["setting"])[1]
        models = [model for member in pool.members for model in member.models]
        meeting.setdefault(key, []).extend(models)
    return different_hardware(pools[0].key["source"], meeting.values(), runs) if pools else []


def different_hardware(
    name: str, meeting: Iterable[Sequence[Scored]], runs: Sequence[Run]
) -> list[str]:
    """A note if pooled or compared results come from different hardware.

    Args:
        name: Name of the source, for the note.
        meeting: Groups of results that are pooled or compared.
        runs: Runs, including the pretrainings of transfers.
    """
    runs_by_name = {run.folder.name: run for run in runs}
    differing: dict[str, set[Hardware]] = {}
    for results in meeting:
        for stage, kinds in _stages(results, runs_by_name).items():
            if len(kinds) > 1:
                differing.setdefault(stage, set()).update(kinds)
    by_kinds: dict[str, list[str]] = {}
    for stage, kinds in differing.items():
        by_kinds.setdefault("; ".join(sorted(map(str, kinds))), []).append(stage)
    return [
        f"{name}: results that are pooled or compared were {' and '.join(stages)} on different "
        f"hardware, which rounds differently: {said}. This may explain part of their differences."
        for said, stages in by_kinds.items()
    ]


def _stages(results: Sequence[Scored], runs_by_name: Mapping[str, Run]) -> dict[str, set[Hardware]]:
    stages: dict[str, set[Hardware]] = {"pretrained": set(), "trained": set(), "scored": set()}
    for run in {result.run.folder: result.run for result in results}.values():
        stages["trained"].update(trained_by(run.folder))
        if pretraining := pretraining_of(run, runs_by_name):
            stages["pretrained"].update(trained_by(pretraining.folder))
    for result in results:
        stages["scored"].add(from_json(result.about["hardware"]))
    return stages


Row = dict[str, Any]
LINES = 500
"""Most lines of metrics per run, evenly spaced; the last one is always included."""
NAMES = ("loss", "validation_auroc", "validation_dsc", "lr")


def training_rows(runs: Sequence[Run], names: Mapping[Path, RowName]) -> Iterator[Row]:
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
                        "technique": names[run.folder].technique,
                        "seed": about["seed"],
                        "done": line["done"],
                        "unit": unit,
                        "name": name,
                        "value": line[name],
                    }


def thinned(lines: Sequence[Row]) -> list[Row]:
    """At most `LINES` evenly spaced lines, including the last one."""
    step = -(-len(lines) // LINES)
    return [lines[i] for i in range((len(lines) - 1) % step, len(lines), step)] if lines else []


def ran_rows(runs: Sequence[Run], names: Mapping[Path, RowName]) -> Iterator[Row]:
    """One row per run, finished or not."""
    for run in runs:
        about = run.description
        yield {
            "run": run.folder.name,
            **{key: about[key] for key in ("kind", "modality", "source", "policy")},
            **{key: about[key] for key in ("setting", "seed")},
            **names[run.folder]._asdict(),
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
    """Notes on runs made by other versions of the code."""
    together: dict[str, list[str]] = {}
    for run in runs:
        for change in older(parts_of(run)):
            together.setdefault(change, []).append(run.folder.name)
    return [
        f"Made by version {change}: {', '.join(names)}. The same `benchmd run` makes new runs."
        for change, names in sorted(together.items())
    ]


def _seconds(run: Run) -> float:
    """Seconds of work; without a history, seconds of training according to the metrics."""
    worked = float(run.done.get("seconds", 0.0)) or seconds_worked(run.folder)
    if worked:
        return worked
    done, total = 0.0, 0.0
    for line in read_metrics(run.folder):
        total += (line["done"] - done) / line["per_second"] if line.get("per_second") else 0.0
        done = line["done"]
    return total or float("nan")
