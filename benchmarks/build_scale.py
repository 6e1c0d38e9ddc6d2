r"""``python -m benchmarks.build_scale --modality cxr`` from the project's root.

Memory and throughput of `benchmd_ray.data.build.build` while the number of records grows: the
synthetic source of a modality in 1, 4 and 16 times ``--records``, each built in a process of its
own with an embedded Ray, on one CPU and on two. ``peak_mib`` is the largest sum of the proportional
set sizes of the process, Ray's daemons and its workers, sampled ten times a second;
``over_idle_mib`` is what lies above the same sum just before the build. A stream's memory stays
flat: ``ratio`` is the throughput at the largest size over that at the smallest, on one CPU, and
``memory_ratio`` the same for ``peak_mib``.

Raw megabytes are those of all files of the raw folder. They have been read before, so that no
build waits for a disk; the rates are those of decoding, transforming and writing. Ray's start is
not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import measure
from benchmd_ray.cluster import connected, ray_data
from benchmd_ray.data.build import build
from benchmd_ray.data.synthetic import WRITERS

FACTORS = (1, 4, 16)
SAMPLE_SECONDS = 0.1


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = measure.parser(__doc__)
    options.add_argument("--modality", choices=sorted(WRITERS), default="ecg")
    options.add_argument(
        "--records", type=int, default=50, help="raw records of the smallest size (50)"
    )
    options.add_argument("--cpus", type=int, nargs="+", default=[1, 2], help="CPUs of Ray (1 2)")
    options.add_argument("--one", type=Path, nargs=2, help=argparse.SUPPRESS)
    options.add_argument("--dataset", help=argparse.SUPPRESS)
    chosen = measure.parsed(options, arguments)
    if chosen.one:
        json.dump(one_build(chosen.dataset, *chosen.one, cpus=chosen.cpus[0]), sys.stdout)
        return
    with tempfile.TemporaryDirectory() as folder:
        json.dump(scaled(chosen, Path(folder)), sys.stdout, indent=1)
    sys.stdout.write("\n")


def scaled(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The builds of all sizes."""
    results = []
    for factor in FACTORS:
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
            command = [sys.executable, "-m", "benchmarks.build_scale", "--dataset", name]
            command += ["--cpus", str(cpus), "--one", str(raw), str(out)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            result = json.loads(done.stdout)
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
    }


def one_build(dataset: str, raw: Path, out: Path, *, cpus: int) -> dict[str, Any]:
    """Build once; its seconds, rows and memory."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])  # Ray's workers inherit it
    for path in raw.rglob("*"):
        if path.is_file():
            path.read_bytes()
    with connected(cpus=cpus):
        ray_data().range(cpus).map(lambda row: row).materialize()  # workers are up
        idle = tree_mib()
        with sampled() as peak:
            begin = time.perf_counter()
            catalog = build(dataset, raw, out, allow_missing=True, max_quarantined=0.2)
            seconds = time.perf_counter() - begin
    return {
        "raw_records": catalog.manifest["raw"]["records"],
        "rows": sum(catalog.rows(split) for split in catalog.manifest["splits"]),
        "seconds": measure.rounded(seconds),
        "idle_mib": round(idle),
        "peak_mib": round(peak[0]),
        "over_idle_mib": round(peak[0] - idle),
    }


@contextmanager
def sampled() -> Iterator[list[float]]:
    """The largest memory of this process and its descendants while the context lasts."""
    peak, done = [tree_mib()], threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            peak[0] = max(peak[0], tree_mib())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        peak[0] = max(peak[0], tree_mib())


def tree_mib() -> float:
    """Proportional set size of this process and its descendants, MiB."""
    this = psutil.Process()
    total = 0
    for process in (this, *this.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it ended meanwhile
            continue
    return total / 2**20


if __name__ == "__main__":
    main()
