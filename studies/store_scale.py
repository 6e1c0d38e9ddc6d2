r"""``python -m studies.store_scale`` from the project's root.

Stores of more and more finished runs: how long it takes to read what they hold, to list them, and
to report on them, for the first time and again after one more run. There is no peer; a rate that
does not fall as the store grows is what it should have. Each size is measured once.

The runs have made-up predictions on one dataset each: techniques and transfer settings on two
modalities, with as many seeds as make up the number.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import resource
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from benchmd_ray.cli import main as benchmd
from benchmd_ray.cluster.hardware import Hardware
from benchmd_ray.files.integrity import OF, line, name_of, write_hash, write_hashed_json
from benchmd_ray.modality.modalities import modality as modality_named
from benchmd_ray.runs.predictions import CLASSIFIED, predictions_path
from benchmd_ray.runs.store import Run, open_run, read_stores
from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.settings.definition import Settings, as_dict, updated
from speed import measure

SOURCES = {"ecg": "ptb-xl", "cxr": "mimic-cxr"}
TECHNIQUES = ("scratch", "e-mix", "shed", "mae")
SETTINGS = ("linear", "finetune-small", "finetune-medium", "finetune-large", "finetune-full")
PACKAGES = ("benchmd_ray", "torch", "deepspeed", "ray", "numpy", "pyarrow")
PER_PATIENT = 2
DECLARED = {
    "sizes": ([100, 1_000, 10_000], "runs of each store"),
    "records": (200, "predictions of a run"),
    "resamples": (1000, "of the bootstrap"),
    "figures": (False, "draw the report's figures, too"),
}


def write_run(store: Path, modality: str, technique: str, setting: str, seed: int) -> Run:
    """A finished transfer run without predictions."""
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


def fill(store: Path, first: int, last: int, records: int) -> None:
    """Write the runs of these numbers."""
    kinds = list(itertools.product(SOURCES, TECHNIQUES, SETTINGS))
    for number in range(first, last):
        modality, technique, setting = kinds[number % len(kinds)]
        write_predictions(
            write_run(store, modality, technique, setting, number // len(kinds)), records
        )


def command(*arguments: str) -> None:
    """Run a command of the package in this process."""
    result = CliRunner().invoke(benchmd, arguments)
    if result.exit_code:
        raise AssertionError(result.output[-2000:])


def measured(store: Path, out: Path, chosen: argparse.Namespace, size: int) -> dict[str, Any]:
    """Seconds of each reading of a store of ``size`` runs."""
    report = ("report", str(store), "--out", str(out), "--resamples", str(chosen.resamples))
    figures = ("--figures", "all" if chosen.figures else "none")
    if damaged := read_stores([store]).damaged:
        raise AssertionError(damaged)
    seconds = {
        "read": measure.seconds_of(lambda: read_stores([store])),
        "list": measure.seconds_of(lambda: command("list", str(store))),
        "report": measure.seconds_of(lambda: command(*report, *figures)),
    }
    fill(store, size, size + 1, chosen.records)
    seconds["report_again"] = measure.seconds_of(lambda: command(*report, *figures))
    return {
        "runs": size,
        "seconds": measure.rounded_all(seconds),
        "ms_per_run": measure.rounded_all({n: 1000 * s / size for n, s in seconds.items()}),
        "peak_gib": measure.rounded(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    words = None if arguments is None else list(arguments)
    options = measure.options(__doc__, words, DECLARED, repeats=False)
    if options.records < 20:
        raise SystemExit("--records has to be 20 or more.")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        os.environ["BENCHMD_CACHE"] = str(Path(folder, "cache"))
        store, sizes, written = Path(folder, "runs"), [], 0
        for size in sorted(options.sizes):
            fill(store, written, size, options.records)
            sizes.append(measured(store, Path(folder, "report"), options, size))
            written = size + 1
    measure.print_result("store_scale", options, sizes=sizes)


if __name__ == "__main__":
    main()
