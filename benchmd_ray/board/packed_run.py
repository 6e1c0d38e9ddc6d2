"""What a bundle says of a run, without folders, names of patients or anything of a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from benchmd_ray.board.bundle import PackedRun, Part
from benchmd_ray.evaluation.registry import settings_among
from benchmd_ray.report.contamination import published_of
from benchmd_ray.report.names import RowName
from benchmd_ray.report.protocols import pretraining_of
from benchmd_ray.report.table import text_of
from benchmd_ray.report.training_frames import parts_of
from benchmd_ray.runs.files import MODEL
from benchmd_ray.runs.history import trained_by
from benchmd_ray.runs.store import Run
from benchmd_ray.settings.definition import as_dict


def packed_run(
    run: Run, row: RowName, by_name: Mapping[str, Run], parts: Sequence[Part]
) -> PackedRun:
    """Describe a run; ``by_name`` has pretrainings by the name of their folder."""
    about, upstream = run.description, pretraining_of(run, by_name)
    stages = [run, *filter(None, [upstream])]
    weights = published_of(run, upstream)
    versions = {str(k): None if v is None else str(v) for k, v in about.get("versions", {}).items()}
    keys = ("setting", "source", "modality", "policy")
    return PackedRun(
        run=run.folder.name,
        row=text_of(row.technique),
        protocol=row.protocol,
        technique=text_of(about["technique"]),
        **{key: str(about[key]) for key in keys},
        seed=int(about["seed"]),
        settings=_settings(run, upstream),
        parts={
            name: version
            for stage in reversed(stages)
            for name, version in parts_of(stage).items()
            if isinstance(version, int)
        },
        versions=versions,
        hardware=[*dict.fromkeys(str(hw) for stage in stages for hw in trained_by(stage.folder))],
        device_hours=_device_hours(run, upstream),
        parameters=_parameters(run),
        weights="" if weights is None else f"{weights['title']} ({weights['licence']})",
        predictions=list(parts),
    )


def _device_hours(run: Run, upstream: Run | None) -> float | None:
    """Of a run and its pretraining, each over its own workers; None if one is missing."""
    if run.description.get("upstream") and not (upstream and upstream.finished):
        return None
    stages = [run, *filter(None, [upstream])]
    return float(sum(x.done["seconds"] * x.settings.execution.workers for x in stages)) / 3600


def _settings(run: Run, upstream: Run | None) -> dict[str, Any]:
    """Settings that make the model, as reports compare them with a protocol, without folders."""
    stated = as_dict(run.settings) | settings_among(run.description["determinants"])
    names = ["encoder", "transfer", "tuned"]
    if upstream is not None:
        pretraining = settings_among(upstream.description["determinants"])
        if "pretrain" in pretraining:
            stated["pretrain"] = pretraining["pretrain"]
            names.append("pretrain")
    return dict(_plain({name: stated[name] for name in names}))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return text_of(value) if isinstance(value, str) else value


def _parameters(run: Run) -> int | None:
    """Number of weights, from the head of their file; None where it was pruned."""
    path = run.folder / MODEL
    if not path.is_file():
        return None
    with suppress(SafetensorError, OSError), safe_open(path, "numpy") as file:
        shapes = (file.get_slice(name).get_shape() for name in file.keys())
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes)
    return None
