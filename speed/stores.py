"""Synthetic stores of runs and catalogs of many shards, for `speed.scale`.

The runs have made-up predictions on one dataset each: techniques and transfer settings on two
modalities, with as many seeds as make up the number. Nothing is forced to the disk.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmd_ray.cluster.hardware import Hardware
from benchmd_ray.data.cards import cards
from benchmd_ray.data.catalog import MANIFEST
from benchmd_ray.data.manifest import manifest_of, shard_part
from benchmd_ray.data.records import Record, to_table
from benchmd_ray.files.atomic import write_json
from benchmd_ray.files.integrity import OF, line, name_of, write_hash, write_hashed_json
from benchmd_ray.modality.modalities import modality as modality_named
from benchmd_ray.runs.predictions import CLASSIFIED, predictions_path, read_predictions
from benchmd_ray.runs.store import Run, open_run
from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.settings.definition import Settings, as_dict, updated

SOURCES = {"ecg": "ptb-xl", "cxr": "mimic-cxr"}
TECHNIQUES = ("scratch", "e-mix", "shed", "mae")
SETTINGS = ("linear", "finetune-small", "finetune-medium", "finetune-large", "finetune-full")
PACKAGES = ("benchmd_ray", "torch", "deepspeed", "ray", "numpy", "pyarrow")
PER_PATIENT = 2
DATASET = "breastmnist"
"""Dataset of the catalogs: its records are small."""


def write_run(
    store: Path, modality: str, technique: str, setting: str, seed: int, *, finished: bool = True
) -> Run:
    """A transfer run without predictions."""
    mode, _, labels = setting.partition("-")
    changes = {"seed": seed, "transfer": {"mode": mode, "labels": labels or "full"}}
    settings = as_dict(updated(Settings(), changes))
    upstream = None if technique == "scratch" else f"weights of {technique} {seed}"
    description = {
        "kind": "transfer",
        "technique": technique,
        "setting": setting,
        "modality": modality,
        "modality_card": as_dict(modality_named(modality)),
        "source": SOURCES[modality],
        "policy": "clean",
        "seed": seed,
        "protocol": "fixed",
        "device": "cpu",
        "raw": [100, 100],
        "provenance": "synthetic",
        "options": {},
        "upstream": None,
        "settings": settings,
        "versions": dict.fromkeys(PACKAGES, "1.0"),
        "determinants": {
            "stage": "transfer",
            "catalog": f"digest of {modality}",
            "settings": settings,
            "upstream": upstream,
        },
    }
    run = open_run(store, f"transfer-{modality}-{technique}-{setting}", description)
    lines = [{"done": e, "loss": 1 / e, "validation_auroc": 0.7, "per_second": 1} for e in (1, 2)]
    (run.folder / "metrics.jsonl").write_text("".join(map(line, lines)))
    if not finished:
        return run
    done = {"finished": "2026-01-01T00:00:00+00:00", "seconds": 1.0, "model_sha256": None}
    write_hashed_json(run.folder / "done.json", done, of=run.folder)
    return run


def write_predictions(run: Run, records: int) -> None:
    """Made-up predictions: all runs of a modality have the same records and targets."""
    modality = run.modality
    count = len(modality.task.classes)
    same = np.random.default_rng(0)
    generator = np.random.default_rng([run.description["seed"], *run.folder.name.encode()])
    targets: npt.NDArray[np.int8]
    if modality.task.exclusive:
        targets = np.eye(count, dtype=np.int8)[same.integers(0, count, records)]
    else:
        targets = (same.random((records, count)) < 0.3).astype(np.int8)
    scores = probabilities(generator.normal(size=targets.shape) + targets, modality.task.kind)
    names = pa.array([f"r{i:06d}" for i in range(records)])
    nothing = pa.nulls(records, pa.string())
    table = pa.table(
        {
            "record_id": names,
            "unit_id": names,
            "group_id": pa.array([f"p{i // PER_PATIENT:06d}" for i in range(records)]),
            "split": pa.array(["validation"] * records),
            "scores": pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel()), count),
            "target": pa.FixedSizeListArray.from_arrays(pa.array(targets.ravel()), count),
            "age": pa.nulls(records, pa.float32()),
            **dict.fromkeys(("sex", "site", "device", "view"), nothing),
        }
    )
    about = {
        "evaluation": CLASSIFIED.evaluation,
        "version": str(CLASSIFIED.version),
        "dataset": run.description["source"],
        "modality": modality.name,
        "role": "source",
        "policy": "clean",
        "catalog": f"digest of {modality.name}",
        "also": "{}",
        "raw_records": "100",
        "raw_expected": "100",
        "provenance": "synthetic",
        "options": "{}",
        "warnings": "{}",
        "task": json.dumps(asdict(modality.task)),
        "hardware": Hardware("a processor", "its instructions", "1").to_json(),
        OF: name_of(run.folder),
    }
    path = predictions_path(run.folder, run.description["source"])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(about), path)
    write_hash(path)


def fill(store: Path, first: int, last: int, records: int = 200, *, finished: bool = True) -> None:
    """Write the runs of these numbers, the finished ones with predictions."""
    kinds = list(itertools.product(SOURCES, TECHNIQUES, SETTINGS))
    with patch("benchmd_ray.files.atomic.flush"):
        for number in range(first, last):
            seed = number // len(kinds)
            run = write_run(store, *kinds[number % len(kinds)], seed, finished=finished)
            if finished:
                write_predictions(run, records)
    if finished:  # a report would skip what it cannot read
        read_predictions(predictions_path(run.folder, run.description["source"]))


def shards(path: Path, count: int, records: int = 4) -> None:
    """Write a catalog with so many training shards, all links to one file, and one to validate."""
    card = cards()[DATASET]
    signal = np.zeros(card.signal.stored_shape, card.signal.dtype)
    parts = []
    for split in ("train", "validation"):
        rows = [
            Record(
                record_id=f"{split}-{n}",
                group_id=f"{split}-{n}",
                unit_id=f"{split}-{n}",
                signal=signal + n,
                scale=1.0,
                valid_size=card.signal.stored_shape[1:],
                target=[int(n % len(card.classes) == place) for place in range(len(card.classes))],
            )
            for n in range(records)
        ]
        file = path / "shards" / f"{split}-000000.parquet"
        whole = {"split": split, "rows": records}
        whole |= shard_part(to_table(rows, split, card), file, card)
        for number in range(count if split == "train" else 1):
            name = f"{split}-{number:06d}"
            parts.append({"name": name, **whole})
            if number:
                os.link(file, file.with_name(f"{name}.parquet"))
    write_json(path / MANIFEST, manifest_of(card, _origin(card.layouts, card.options), parts))


def _origin(layouts: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "policy": "clean",
        "options": {name: option.default for name, option in options.items()},
        "held_out": [],
        "layout": next(iter(layouts), ""),
        "plan": "made up",
        "raw": {
            "records": 8,
            "expected": 8,
            "missing": 0,
            "grouped_by": "patient",
            "provenance": "synthetic",
        },
        "excluded": {},
        "warnings": {},
        "quarantined": [],
    }
