r"""``python -m speed.build_scale --modality cxr`` from the project's root.

Memory and throughput of `benchmd_ray.data.build.build` while the number of records grows: the
synthetic source of a modality in 1, 4 and 16 times ``--records``, each built in a process of its
own with an embedded Ray, on one CPU and on two. The smallest size fills a shard for each CPU.

``peak_mib`` is the largest sum of the proportional set sizes of that process, Ray's daemons and its
workers, looked at once a second by this one, which is not bound to the CPUs of the build;
``over_idle_mib`` is what lies above the same sum just before the build. ``ratio`` is the throughput
at the largest size over that at the smallest, on the first of ``--cpus``; ``memory_ratio`` and
``over_idle_ratio`` the same for the two figures of memory: near 1 where the memory of a stream
stays flat.

Raw megabytes are those of all files of the raw folder. They have been read before, so that no
build waits for a disk; the rates are those of decoding, transforming and writing. Ray's start is
not timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmd_ray.benchmarks.benchmd.published import sources as paper_sources
from benchmd_ray.cluster.connection import connected, ray_data
from benchmd_ray.data.build import CHUNK_BYTES, build
from benchmd_ray.data.cards import cards
from benchmd_ray.data.records import schema
from benchmd_ray.demo import WRITERS
from speed import measure

FACTORS = (1, 4, 16)
SAMPLE_SECONDS = 1.0
TRAINING_SHARE = 0.7
"""Of a synthetic source at least so many records are of the training split."""


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    options.add_argument("--modality", choices=sorted(WRITERS), default="ecg")
    options.add_argument(
        "--records", type=int, help="raw records of the smallest size (a shard for each CPU)"
    )
    options.add_argument("--cpus", type=int, nargs="+", default=[1, 2], help="CPUs of Ray (1 2)")
    options.add_argument(
        "--factors", type=int, nargs="+", default=list(FACTORS), help="sizes (1 4 16)"
    )
    options.add_argument("--one", type=Path, nargs=2, help=argparse.SUPPRESS)
    options.add_argument("--dataset", help=argparse.SUPPRESS)
    chosen = measure.parsed(options, arguments)
    if chosen.one:
        json.dump(one_build(chosen.dataset, *chosen.one, cpus=chosen.cpus[0]), sys.stdout)
        return
    chosen.records = chosen.records or shard_records(chosen.modality, max(chosen.cpus))
    with tempfile.TemporaryDirectory() as folder:
        json.dump(scaled(chosen, Path(folder)), sys.stdout, indent=1)
    sys.stdout.write("\n")


def shard_records(modality: str, shards: int) -> int:
    """Raw records of a source that fill so many shards of its training split."""
    (card,) = (
        c for c in cards().values() if c.modality.name == modality and c.name in paper_sources()
    )
    rows = max(layout.rows_per_record for layout in card.layouts.values())
    row: int = schema(card).field("signal").type.byte_width
    return math.ceil(shards * max(1, CHUNK_BYTES // (rows * row)) / TRAINING_SHARE)


def scaled(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The builds of all sizes."""
    results = []
    for factor in arguments.factors:
        records = factor * arguments.records
        raws = WRITERS[arguments.modality](
            folder / f"raw-{factor}",
            source_records=records,
            target_records=1,
            seed=arguments.seed,
        )
        name, raw = next(iter(raws.items()))
        sizes = [path.stat().st_size for path in raw.rglob("*") if path.is_file()]
        for cpus in arguments.cpus:
            out = folder / f"catalog-{factor}-{cpus}"
            command = [sys.executable, "-m", "speed.build_scale", "--dataset", name]
            command += ["--cpus", str(cpus), "--one", str(raw), str(out)]
            result = watched(command)
            seconds, rows = result["seconds"], result["rows"]
            results.append(
                {
                    "factor": factor,
                    "cpus": cpus,
                    **result,
                    "raw_records_per_second": measure.rounded(result["raw_records"] / seconds),
                    "rows_per_second": measure.rounded(rows / seconds),
                    "raw_mb_per_second": measure.rounded(sum(sizes) / 1e6 / seconds),
                }
            )
    least = [r for r in results if r["cpus"] == arguments.cpus[0]]
    return {
        "benchmark": "build_scale",
        "settings": {
            key: value for key, value in vars(arguments).items() if key not in ("one", "dataset")
        },
        "machine": measure.machine(),
        "builds": results,
        "ratio": measure.rounded(
            least[-1]["rows_per_second"] / least[0]["rows_per_second"],
        ),
        "memory_ratio": measure.rounded(least[-1]["peak_mib"] / least[0]["peak_mib"]),
        "over_idle_ratio": measure.rounded(
            least[-1]["over_idle_mib"] / max(1, least[0]["over_idle_mib"])
        ),
    }


def watched(command: list[str]) -> dict[str, Any]:
    """What a build in a process of its own prints, and its memory."""
    peak = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, tree_mib(root))
            time.sleep(SAMPLE_SECONDS)
        assert process.stdout is not None  # it is a pipe
        printed = process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    result: dict[str, Any] = json.loads(printed)
    peak = max(peak, result["idle_mib"])
    return result | {"peak_mib": round(peak), "over_idle_mib": round(peak - result["idle_mib"])}


def one_build(dataset: str, raw: Path, out: Path, *, cpus: int) -> dict[str, Any]:
    """Build once; its seconds and rows, and the memory before it."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])  # Ray's workers inherit it
    for path in raw.rglob("*"):
        if path.is_file():
            path.read_bytes()
    with connected(cpus=cpus):
        ray_data().range(cpus).map(lambda row: row).materialize()  # workers are up
        idle = tree_mib(psutil.Process())
        begin = time.perf_counter()
        catalog = build(dataset, raw, out, allow_missing=True, max_quarantined=0.2)
        seconds = time.perf_counter() - begin
    return {
        "raw_records": catalog.manifest["raw"]["records"],
        "rows": sum(catalog.rows(split) for split in catalog.manifest["splits"]),
        "seconds": measure.rounded(seconds),
        "idle_mib": round(idle),
    }


def tree_mib(root: psutil.Process) -> float:
    """Proportional set size of a process and its descendants, MiB; 0 when it has ended."""
    total = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0.0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it ended meanwhile
            continue
    return total / 2**20


if __name__ == "__main__":
    main()
