r"""``python -m speed.boards --folder FOLDER`` from the project's root.

A board of synthetic bundles: seconds, CPU seconds and peak memory of a build that scores all of
them, and of one that finds them in the cache. Each bundle is another submitter's and has runs of
``--entries`` entries on one dataset of twelve-lead ECGs. What is in the folder is used again, and
``BENCHMD_CACHE`` is a folder in it. There is no peer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmd_ray.board.build import board_of
from benchmd_ray.board.bundle import ABOUT, Description, PackedRun, Part, write_part
from benchmd_ray.board.keys import board_key
from benchmd_ray.board.official import AboutDataset, Official, read_official, write_rows
from benchmd_ray.board.site import write_site
from benchmd_ray.console.progress import progress
from benchmd_ray.data.cards import cards, kind_of
from benchmd_ray.files.atomic import json_bytes
from benchmd_ray.runs.predictions import CLASSIFIED
from benchmd_ray.scores.metrics import probabilities
from benchmd_ray.settings.definition import as_dict, default_settings
from speed import measure

DATASET, KEY = "georgia", board_key("speed")
PER_PATIENT = 2
DECLARED = {
    "folder": (str, "of the bundles and the site"),
    "bundles": (1000, "bundles"),
    "runs": (20, "runs of a bundle"),
    "entries": (4, "entries that they are of"),
    "records": (500, "records of the dataset"),
}


def write_official(path: Path, records: int, seed: int) -> Official:
    """Digests of made-up labels."""
    card, task = cards()[DATASET], kind_of(DATASET).task
    drawn = np.random.default_rng(seed).integers(0, len(task.classes), records)
    labels = np.eye(len(task.classes), dtype=np.int8)[drawn]
    names = [f"r{n}" for n in range(records)]
    table = pa.table(
        {
            "record_id": names,
            "unit_id": names,
            "group_id": [f"p{n // PER_PATIENT}" for n in range(records)],
            "target": pa.FixedSizeListArray.from_arrays(pa.array(labels.ravel()), labels.shape[1]),
        }
    )
    texts: dict[str, Any] = {
        n: getattr(card, n) for n in ("title", "role", "licence", "access", "homepage")
    }
    about = AboutDataset(
        **texts,
        name=DATASET,
        split="test",
        modality="ecg",
        policy="clean",
        catalog="made up",
        provenance="synthetic",
        notes=[],
        task=task,
    )
    write_rows([about], [table], KEY, path)
    return read_official(path)


def write_bundle(
    folder: Path, number: int, settings: argparse.Namespace, official: Official
) -> None:
    """A bundle whose entries have some seeds each; the better ones cost more."""
    if (folder / ABOUT).is_file():
        return
    dataset = official.datasets[DATASET]
    skills = np.sort(np.random.default_rng(number).uniform(0.2, 1.6, settings.entries))
    runs = []
    for at in range(settings.runs):
        entry, seed = at % settings.entries, at // settings.entries
        generator = np.random.default_rng([number, at])
        noise: npt.NDArray[np.float64] = generator.normal(size=dataset.targets.shape)
        scores = probabilities(
            noise + skills[entry] * (dataset.targets == 1), dataset.about.task.kind
        )
        digest = write_part(folder, at, dataset.records, scores)
        runs.append(_run(at, f"model {entry}", seed, 1.0 + entry, digest))
    about = Description(
        format=1,
        board=KEY.check,
        submitter=f"Lab {number}",
        title="",
        licence="",
        made="2026-01-01T00:00:00Z",
        benchmd_ray="1.0",
        runs=runs,
    )
    (folder / ABOUT).write_bytes(json_bytes(asdict(about)))


def _run(number: int, row: str, seed: int, hours: float, digest: str) -> PackedRun:
    settings = as_dict(default_settings(kind_of(DATASET), "paper"))
    part = Part(
        CLASSIFIED.evaluation, CLASSIFIED.version, "", [], DATASET, "test", "made up", "", digest
    )
    return PackedRun(
        run=f"run-{number}",
        row=row,
        protocol="fixed",
        technique="scratch",
        setting="linear",
        source="ptb-xl",
        modality="ecg",
        policy="clean",
        seed=seed,
        settings={name: settings[name] for name in ("encoder", "transfer", "tuned")},
        parts={},
        versions={},
        hardware=["a processor"],
        device_hours=hours,
        parameters=1000,
        weights="",
        predictions=[part],
    )


def timed(folder: Path, bundles: list[Path], official: Official) -> dict[str, float]:
    """Seconds of a build with its processes, and the peaks of this one and of the largest other."""
    start, before = time.perf_counter(), measure.cpu_seconds()
    display = progress("board", len(bundles), "bundles")
    board = board_of(bundles, official, title="Speed", done=display.update)
    display.close()
    compared = time.perf_counter()
    write_site(board, folder / "site")
    figures = {
        "seconds": time.perf_counter() - start,
        "seconds_of_pages": time.perf_counter() - compared,
        "cpu_seconds": measure.cpu_seconds() - before,
        "peak_mib": _peak_mib(resource.RUSAGE_SELF),
        "peak_mib_of_others": _peak_mib(resource.RUSAGE_CHILDREN),
    }
    return measure.rounded_all(figures)


def _peak_mib(whose: int) -> float:
    return resource.getrusage(whose).ru_maxrss / 1024


def main(arguments: list[str] | None = None) -> None:
    """Make the bundles, build the board, and build it again."""
    settings = measure.options(__doc__, arguments, DECLARED, repeats=False)
    folder = Path(settings.folder)
    os.environ["BENCHMD_CACHE"] = str(folder / "cache")
    (folder / "bundles").mkdir(parents=True, exist_ok=True)
    official = write_official(folder / "official.parquet", settings.records, settings.seed)
    bundles = [folder / "bundles" / f"{number:04d}" for number in range(settings.bundles)]
    for number, bundle in enumerate(bundles):
        write_bundle(bundle, number, settings, official)
    size = sum(path.stat().st_size for path in bundles[0].rglob("*") if path.is_file())
    result: dict[str, Any] = {
        "settings": {name: value for name, value in vars(settings).items() if name != "folder"},
        "bytes_of_a_bundle": size,
        "first": timed(folder, bundles, official),
        "again": timed(folder, bundles, official),
        "machine": measure.machine(),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
